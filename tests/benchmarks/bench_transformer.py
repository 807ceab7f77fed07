"""Seconds of the transformer tier, and what its own forward pass and cache buy against transformers' Qwen2.

    python tests/benchmarks/bench_transformer.py            # ours; theirs too where transformers is installed

Sampling: 80 responses to a packaged network's own world, ours in lockstep over one cache that drops finished rows, and
`Qwen2ForCausalLM.generate`, which cannot force the world's tokens and is therefore timed on as many steps of free
writing. Training: forward and backward over the same minibatch. One thread. What this file does not do: GPUs.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import torch

from lldsim.transformer.config import TransformerConfig
from lldsim.transformer.export import to_qwen2
from lldsim.transformer.model import logits, unpack
from lldsim.transformer.sampler import Cache, sample_batch, step
from lldsim.transformer.train import (
    Moment,
    changes,
    first_state,
    minibatch_loss,
    minibatches,
    old_policy,
    optimise,
    train_update,
)
from lldsim.transformer.warm_start import packaged
from lldsim.transformer.world import draw_tokens

REPEATS = 7
STEPS = 60  # tokens of free writing that both samplers are timed on
ROWS = 80


def best(work: Callable[[], object], repeats: int = REPEATS) -> float:
    """Return the shortest of several timings: other programs only ever add to one."""
    found = []
    for _ in range(repeats):
        begin = time.perf_counter()
        work()
        found.append(time.perf_counter() - begin)
    return min(found)


def parts_of_an_update(config: TransformerConfig, moment: Moment) -> dict[str, float]:
    """Return seconds of the parts of one update."""
    flat, batch, shape = moment.state.flat, moment.batch, moment.shape
    draws, world, parts = draw_tokens(config, 0), moment.world, minibatches(config, 0)
    rollout = lambda: sample_batch(flat.detach(), world, draws, shape=shape, temperature=0.7)  # noqa: E731
    one = lambda: minibatch_loss(config, moment, flat, parts[0])[0].backward()  # noqa: E731
    return {
        "rollout": best(rollout),
        "likelihoods before": best(lambda: old_policy(flat, batch, parts, shape)),
        f"{len(parts)} steps, reference included": len(parts) * best(one),
        "likelihoods after": best(lambda: changes(config, moment)),
    }


@torch.no_grad()
def write_freely(flat: torch.Tensor, prompt: torch.Tensor) -> None:
    """Sample STEPS tokens per row of `prompt` with the lockstep cache."""
    shape = packaged(0).shape
    parameters = unpack(flat, shape)
    cache = Cache(len(prompt), prompt.shape[1] + STEPS, shape, flat.dtype)
    ids = prompt
    for _ in range(STEPS):
        probabilities = torch.softmax(step(parameters, ids, cache, shape) / 0.7, dim=-1)
        ids = torch.multinomial(probabilities, 1)


def main() -> None:
    """Print the timings."""
    torch.set_num_threads(1)
    start, config = packaged(0), TransformerConfig()
    state = first_state(config, start)
    moment = train_update(config, state, start.world(config.world), start.shape)[1]
    for name, seconds in parts_of_an_update(config, moment).items():
        print(f"{name:32}{1000 * seconds:8.0f} ms")
    begin = time.perf_counter()
    list(optimise(config, moment))
    print(f"{'optimiser steps as run':32}{1000 * (time.perf_counter() - begin):8.0f} ms")
    try:
        theirs = to_qwen2(start.flat, start.shape)
    except ImportError:
        print("transformers is not installed: nothing to compare with")
        return
    flat, members = start.flat.clone().requires_grad_(), minibatches(config, 0)[0]
    ids = moment.batch.ids[members]
    target = ids[:, 1:].flatten()

    def loss(values: torch.Tensor) -> None:
        torch.nn.functional.cross_entropy(values[:, :-1].flatten(0, 1), target).backward()

    prompt = moment.batch.ids[:, :3].repeat(ROWS // len(moment.batch.ids), 1)
    mask = torch.ones_like(prompt)
    options = {"max_new_tokens": STEPS, "do_sample": True, "temperature": 0.7, "top_k": 0, "pad_token_id": 0}
    rows = {
        f"forward + backward, {tuple(ids.shape)}": (
            best(lambda: loss(logits(flat, ids, start.shape))),
            best(lambda: loss(theirs(ids).logits)),
        ),
        f"{ROWS} rows x {STEPS} sampled tokens": (
            best(lambda: write_freely(start.flat, prompt), 3),
            best(lambda: theirs.generate(prompt, attention_mask=mask, **options), 3),
        ),
    }
    print(f"{'':32}{'ours':>10}{'Qwen2':>10}{'ratio':>8}")
    for name, (ours, qwen) in rows.items():
        print(f"{name:32}{1000 * ours:7.0f} ms{1000 * qwen:7.0f} ms{qwen / ours:8.1f}")


if __name__ == "__main__":
    main()
