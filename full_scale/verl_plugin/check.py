# pyright: reportMissingImports=false
"""`python -m full_scale.verl_plugin.check DIR`: would this run use our loss at all? Fails loudly before Ray starts.

Composes DIR/verl.yaml as verl's main_ppo does and looks at what would silently train something else: a plug-in that did
not load, old log-probabilities taken from the sampler, a layout in which the gate can never fire, another agent loop.
Every worker repeats the first of these (worker.py). What this file does not do: look at GPUs, data or the retriever.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import yaml

from full_scale.verl_plugin import AGENT, LOSS
from lldsim.errors import ConfigError, MissingDataError


def compose(folder: Path) -> Any:
    """Return the configuration of DIR/verl.yaml as verl's main_ppo would see it."""
    from hydra import compose as hydra_compose
    from hydra import initialize_config_dir

    if not (folder / "verl.yaml").is_file():
        raise MissingDataError(
            f"{folder}/verl.yaml does not exist; `python -m full_scale.verl_plugin.launch` writes it"
        )
    with initialize_config_dir(str(folder.resolve()), version_base=None):
        return hydra_compose("verl")


def check_run(folder: Path) -> list[str]:
    """Return one line per thing that was checked; raises ConfigError at the first that does not hold."""
    config = compose(folder)
    return check_registry() + check_config(config) + check_accepted(config)


def check_registry() -> list[str]:
    """Check verl's version and that its registry holds our loss, loaded by the entry point as in a worker."""
    import verl

    from full_scale.verl_plugin.worker import check_registered

    check_registered()
    return [f"verl {verl.__version__}, policy loss {LOSS!r} is in its registry"]


def check_config(config: Any) -> list[str]:
    """Check a composed configuration."""
    from verl.utils.config import omega_conf_to_dataclass

    actor, rollout = config.actor_rollout_ref.actor, config.actor_rollout_ref.rollout
    policy = omega_conf_to_dataclass(actor).policy_loss  # type-checked by verl and by LLDSPolicyLossConfig
    _must(policy.loss_mode == LOSS, f"actor.policy_loss.loss_mode={policy.loss_mode!r}: another loss than {LOSS!r}")
    _must(
        config.actor_rollout_ref.model.external_lib == "full_scale.verl_plugin.worker",
        "actor_rollout_ref.model.external_lib is not full_scale.verl_plugin.worker: mini-batches would not be counted",
    )
    _must(
        not config.algorithm.rollout_correction.bypass_mode,
        "algorithm.rollout_correction.bypass_mode=true: old log-probabilities would be the sampler's, and LLDS would "
        "penalise the gap between engines; set it to false",
    )
    updates = config.data.train_batch_size // actor.ppo_mini_batch_size * actor.ppo_epochs
    _must(
        policy.llds_coef == 0 or updates > 1,
        "one update per rollout batch: old and current policy are always equal, so the gate can never fire; make "
        "data.train_batch_size at least twice actor.ppo_mini_batch_size",
    )
    _must(rollout.name == "vllm", f"rollout.name={rollout.name!r}: only vllm's servers are known to obey stop strings")
    names = [entry["name"] for entry in yaml.safe_load(Path(rollout.agent.agent_loop_config_path).read_text())]
    _must(
        rollout.agent.default_agent_loop == AGENT and AGENT in names,
        f"default_agent_loop={rollout.agent.default_agent_loop!r}, known {names}: episodes would not be Search-R1's",
    )
    _must(
        config.reward.custom_reward_function.path == "pkg://full_scale.verl_plugin.reward",
        "reward.custom_reward_function.path is not pkg://full_scale.verl_plugin.reward",
    )
    return [
        f"{policy.llds_base} + {policy.llds_coef:g} * LLDS, gate {policy.llds_gate}, N over {policy.llds_normalizer}",
        f"{updates} updates per rollout batch of {config.data.train_batch_size} x {rollout.n} trajectories",
        "old log-probabilities recomputed by the actor",
        f"agent loop {AGENT}, reward {config.reward.custom_reward_function.name}",
    ]


def check_accepted(config: Any) -> list[str]:
    """Let verl's own check look at the configuration, as main_ppo does before it starts."""
    import contextlib
    import io
    import warnings

    from verl.trainer.ppo.utils import need_critic, need_reference_policy
    from verl.utils.config import validate_config

    with contextlib.redirect_stdout(io.StringIO()), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that there is no critic is meant
        needs = {"use_reference_policy": need_reference_policy(config), "use_critic": need_critic(config)}
        validate_config(config=config, **needs)
    return ["verl's own validation"]


def _must(holds: bool, trouble: str) -> None:
    if not holds:
        raise ConfigError(trouble)


if __name__ == "__main__":
    for line in check_run(Path(sys.argv[1] if len(sys.argv) > 1 else ".")):
        print("ok   ", line)
