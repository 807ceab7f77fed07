"""The full-scale side: the same objectives on real language models, through TRL.

Search protocol, retriever, data, rollouts, trainer and the commands around them. They call the losses of
`lldsim.objectives` and end in the same run record as the laboratory, so one panel draws both.
Importing this package needs no GPU and none of transformers, trl or vllm: heavy imports live inside functions.
"""
