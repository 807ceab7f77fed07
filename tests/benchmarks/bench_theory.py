"""Time of the `gwhes` sums in units of three plain matrix products of the same sizes; prints one JSON line.

Batch of 64 x 1,024 tokens, V = 64, D = 64, float64, one thread. The unit is the faster of (V x N)(N x D) and
(N x D)(D x V), N = 65,536, so the ratio is not flattered. Least processor time of several repeats, interleaved: on
a shared machine it is steadier than the clock on the wall.
What this file does not do: it asserts nothing (a shared machine is no place for a timing test).
Run: python tests/benchmarks/bench_theory.py
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable

import torch

from lldsim.theory import gwhes

B, T, V, D, A = 64, 1024, 64, 64, 4


def best_times(calls: dict[str, Callable[[], object]], repeats: int) -> dict[str, float]:
    """Return the least processor time of each call in milliseconds; interleaving shares the machine's moods evenly."""
    best = dict.fromkeys(calls, float("inf"))
    for _ in range(repeats):
        for name, call in calls.items():
            start = time.process_time()
            call()
            best[name] = min(best[name], 1e3 * (time.process_time() - start))
    return best


def report(repeats: int = 15) -> dict[str, object]:
    """Return shape, milliseconds, ratios and torch's version, ready for JSON; takes a few seconds."""
    torch.set_num_threads(1)
    generator = torch.Generator().manual_seed(0)
    hidden = torch.randn(B, T, D, generator=generator, dtype=torch.float64) / D**0.5
    probs = torch.softmax(torch.randn(B, T, V, generator=generator, dtype=torch.float64), -1)
    tokens = torch.randint(V, (B, T), generator=generator)
    block = torch.arange(T) // (T // A)
    mask = (torch.arange(T) % (T // A) >= T // (10 * A)).expand(B, T)  # a tenth of each block is feedback
    action_id = torch.where(mask, block, -1)
    weights = torch.randn(B, generator=generator, dtype=torch.float64)
    inputs = (hidden, probs, tokens, mask, weights)
    flat_probs, flat_hidden = probs.reshape(-1, V), hidden.reshape(-1, D)
    square = torch.randn(D, V, generator=generator, dtype=torch.float64)
    times = best_times(
        {
            "product_VN_ND": lambda: flat_probs.mT @ flat_hidden,
            "product_ND_DV": lambda: flat_hidden @ square,
            "token": lambda: gwhes(*inputs),
            "action": lambda: gwhes(*inputs, level="action", action_id=action_id),
            "response": lambda: gwhes(*inputs, level="response"),
        },
        repeats,
    )
    unit = 3 * min(times["product_VN_ND"], times["product_ND_DV"])
    return {
        "shape": {"B": B, "T": T, "V": V, "D": D, "actions": A},
        "milliseconds": {name: round(value, 2) for name, value in times.items()},
        "ratio_to_three_products": {k: round(times[k] / unit, 3) for k in ("token", "action", "response")},
        "torch": torch.__version__,
    }


if __name__ == "__main__":
    print(json.dumps(report()))
