"""Speed of the engine, as ratios measured in one run: against a plain autograd loop, and against the bare arithmetic.

    python tests/benchmarks/bench.py [--quick]        (or `make bench`)

(a) plain loop: the same world as an ordinary PyTorch training loop with autograd, one run at a time (trainer.train).
(b) floor: for the tokens of one healthy update, only the matrix products that the algorithm needs (sampler and trainer
    forward in the rollout, forward and backward in the update), softmaxes and inverse-CDF draws, in PyTorch, batched
    over 64 runs. It knows beforehand which tokens will be visited and does no bookkeeping.
Figures are milliseconds per run-update, minimum and median over repetitions; machines are noisy, so quote ratios of
medians. Costs are also fitted as time ~ size^exponent. Prints one JSON object.
What this file does not do: judge. A slow machine is no failure, so nothing here is a test.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import time
from collections.abc import Callable

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
import torch

from lldsim.config import preset
from lldsim.engine import Run, simulate, warm_up
from lldsim.trainer import train

BASE = preset("spiral").replace(llds_coef=0.2)  # with LLDS: every term is on, and the runs stay healthy
Times = tuple[float, float]  # minimum, median


def timed(work: Callable[[], object], repeats: int) -> Times:
    """Return seconds of `work`, after one call that is not counted."""
    work()
    seconds = []
    for _ in range(repeats):
        start = time.perf_counter()
        work()
        seconds.append(time.perf_counter() - start)
    return min(seconds), float(np.median(seconds))


def per_update(times: Times, run_updates: int) -> Times:
    """Return milliseconds per run-update from seconds."""
    return 1e3 * times[0] / run_updates, 1e3 * times[1] / run_updates


def engine(dtype: str, runs: int, updates: int, repeats: int) -> Times:
    """Time `runs` runs, ten updates each, one after another as a sweep does; building their worlds is left out."""
    batch = [Run(BASE.replace(seed=s, dtype=dtype)) for s in range(runs)]
    return per_update(timed(lambda: [run.step() for run in batch for _ in range(updates)], repeats), runs * updates)


def plain(updates: int, repeats: int) -> Times:
    """Time the plain loop, the cost of building the world and of one update subtracted."""
    low, median = timed(lambda: train(BASE.replace(updates=updates)), repeats)
    one = timed(lambda: train(BASE.replace(updates=1)), repeats)[0]
    return per_update((low - one, median - one), updates - 1)


def floor(dtype: torch.dtype, repeats: int, *, runs: int = 64) -> Times:
    """Time the arithmetic that no implementation can leave out, for 64 runs at once."""
    run = Run(BASE)
    run.step()
    world, steps = BASE.world, BASE.trainer.updates_per_rollout
    tokens, v, d = int(run.roll.turns.sum()) * world.turn_tokens, world.vocab_size, world.n_features
    hidden = torch.randn(runs, tokens, d, dtype=dtype)
    weights, stale = torch.randn(runs, d, v, dtype=dtype), torch.randn(runs, d, v, dtype=dtype)
    u = torch.rand(runs, tokens, 1, dtype=dtype)

    def work() -> None:
        for r in range(runs):  # run by run, so that everything stays in cache: faster here than one batched product
            torch.log_softmax(hidden[r] @ weights[r], -1)
            torch.searchsorted(torch.softmax(hidden[r] @ stale[r], -1).cumsum(-1), u[r])
            for part in hidden[r].chunk(steps):
                torch.matmul(part.T, torch.softmax(part @ weights[r], -1))

    return per_update(timed(work, repeats), runs)


def exponent(sizes: list[int], seconds: list[float]) -> float:
    """Return the slope of log time against log size; 1 = linear."""
    return round(float(np.polyfit(np.log(sizes), np.log(seconds), 1)[0]), 3)


def query_cost(updates: int) -> float:
    """Return the exponent of cost in the number of tokens, by the number of queries."""
    sizes = [8, 16, 32, 64]
    runs = [Run(BASE.replace(n_queries=n)) for n in sizes]
    return exponent(sizes, [timed(lambda run=run: [run.step() for _ in range(updates)], 3)[0] for run in runs])


def run_cost(repeats: int) -> float:
    """Return the exponent of cost in the number of runs."""
    sizes = [4, 16, 64]
    return exponent(sizes, [engine("float32", n, 4, repeats)[0] * n for n in sizes])


def update_cost() -> float:
    """Return the exponent of cost in the number of updates."""
    sizes = [40, 80, 160, 320]
    return exponent(sizes, [timed(lambda n=n: simulate(BASE.replace(updates=n)), 1)[0] for n in sizes])


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="fewer repetitions")
    quick = parser.parse_args().quick
    torch.set_num_threads(1)
    repeats = 3 if quick else 9
    compiling = warm_up("float64") + warm_up("float32")
    milliseconds = {"plain autograd loop, float64": plain(4 if quick else 11, 3 if quick else 5)}
    for dtype in ("float64", "float32"):
        milliseconds[f"floor, {dtype}"] = floor(getattr(torch, dtype), repeats)
        for runs in (1, 8, 64):
            milliseconds[f"engine, {dtype}, R={runs}"] = engine(dtype, runs, 10, 3 if runs == 64 else repeats)
    median = {name: times[1] for name, times in milliseconds.items()}
    ratios = {}
    for dtype in ("float64", "float32"):
        ours = median[f"engine, {dtype}, R=64"]
        ratios[f"plain loop / engine, {dtype}, R=64"] = median["plain autograd loop, float64"] / ours
        ratios[f"engine / floor, {dtype}, R=64"] = ours / median[f"floor, {dtype}"]
    whole = {name: timed(lambda c=c: simulate(c), 3) for name, c in (("cured", BASE), ("collapsing", preset("spiral")))}
    result = {
        "machine": platform.machine(),
        "compile_or_load_seconds": compiling,
        "milliseconds_per_run_update (min, median)": milliseconds,
        "ratios_of_medians": ratios,
        "run_of_150_updates_seconds (min, median)": whole,
        "cost_exponents": {
            "tokens": query_cost(10 if quick else 40),
            "runs": run_cost(repeats),
            "updates": update_cost(),
        },
    }
    print(json.dumps(result, indent=1, default=float))


if __name__ == "__main__":
    main()
