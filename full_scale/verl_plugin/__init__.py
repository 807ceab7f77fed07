"""LLDS on verl's Ray engine, for runs that outgrow a node: the same penalty, protocol, retriever and reward.

loss.py registers the policy loss `llds` when verl loads its plug-ins; worker.py normalises it over the mini-batch;
agent_loop.py plays Search-R1's episodes; launch.py turns a full_scale configuration into verl's command; check.py stops
a run whose loss is not there. Importing this package is light: only verl imports the modules that need verl.
What this package does not do: a training loop. That is verl's own `main_ppo`.
"""

LOSS = "llds"  # name in verl's registry of policy losses
AGENT, EVAL_AGENT = "search_r1", "search_r1_eval"  # names in its registry of agent loops
BASES = {"grpo": "vanilla", "gspo": "gspo"}  # our name of a surrogate -> its name in that registry
FIELD = "lldsim"  # key under which a trajectory carries what verl has no field for
VERL = "0.9.1"  # the version whose hooks are used here; verl's hooks move between versions
