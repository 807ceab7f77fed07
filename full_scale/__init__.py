"""The full-scale side: the same objectives on real language models, through TRL, vLLM and verl.

Data, search protocol, retriever, engine rollouts and trainer adapters will live in this folder. They call the
losses of `lldsim.objectives` and end in the same run record as the laboratory, so one panel draws both.
Importing this package needs no GPU and none of transformers, trl, vllm or verl: heavy imports live inside
functions. What this file does not do: anything yet.
"""
