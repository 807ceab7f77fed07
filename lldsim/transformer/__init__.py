"""A small Qwen2 in a search world of its own: the laboratory's loop with a real transformer as the policy.

The same objectives, advantages, record, diagnostics and panels as the toy; other world, policy and sampler. Runs on one
CPU thread without the transformers package; `export.to_qwen2` hands the weights to it. What this package does not do:
batch runs, use a GPU, or load a tokenizer - tokens are ids.
"""
