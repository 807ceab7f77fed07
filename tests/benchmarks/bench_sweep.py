"""Throughput of a sweep in runs per hour and core, and whether float32 tells the same story as float64.

    python tests/benchmarks/bench_sweep.py [--runs 64] [--seeds 40] [--json FILE]

Throughput: `--runs` whole runs of 150 updates (world built, record made, cache off) one after another in one thread,
for both number types, in the default world (GRPO: every run collapses, and a collapsed run writes three times the
tokens) and with LLDS 0.2 (none does). Wall time counts what others do on the machine, process time does not: quote the
second for a core, the first for a budget. A sweep with n workers does n times as much on n idle cores.
Agreement: the same `--seeds` seeds in both types. Single runs part ways in time, because rounding is amplified by
sampling; the statistics that tables show must not: collapse rate (Wilson), collapse step (Kaplan-Meier median, and the
paired difference with a bootstrap interval), lowest reward (the same).
What this file does not do: judge. A slow machine is no failure, so nothing here is a test.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("NUMBA_NUM_THREADS", "1")

import numpy as np

from lldsim.causal.rows import median_survival, run_row
from lldsim.config import RunConfig, preset
from lldsim.diagnostics.collapse import collapse_step
from lldsim.diagnostics.statistics import collapse_rate
from lldsim.engine import simulate, warm_up
from lldsim.record import RunRecord, versions

GOAL = 8192  # default runs of 150 updates per hour and core, in float32
WORLDS = {
    "collapsing (default)": preset("spiral"),
    "healthy (LLDS 0.2)": preset("spiral").replace(llds_coef=0.2),
}
DTYPES = ("float32", "float64")


def timed(config: RunConfig, runs: int) -> tuple[dict[str, float], list[RunRecord]]:
    """Run seeds 0..runs-1 and return seconds per run, runs per hour and core, and the records."""
    wall, cpu = time.perf_counter(), time.process_time()
    records = [simulate(config.replace(seed=seed)) for seed in range(runs)]
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    return {
        "runs": runs,
        "collapsed": sum(collapse_step(r["reward"]) is not None for r in records),
        "process_seconds_per_run": cpu / runs,
        "wall_seconds_per_run": wall / runs,
        "runs_per_hour_process": 3600 * runs / cpu,
        "runs_per_hour_wall": 3600 * runs / wall,
    }, records


def agreement(single: Sequence[RunRecord], double: Sequence[RunRecord]) -> dict[str, Any]:
    """Return the statistics of both number types over the same seeds, and their paired differences."""
    rows = {"float32": [run_row(r) for r in single], "float64": [run_row(r) for r in double]}
    horizon = len(single[0])
    result: dict[str, Any] = {"seeds": len(single)}
    for dtype, runs in rows.items():
        steps = [run["collapse_step"] for run in runs]
        result[dtype] = {
            "collapsed": str(collapse_rate(steps)),
            "collapse_step_median": median_survival(steps, horizon)[0],
            "min_reward_mean": float(np.mean([run["min_reward"] for run in runs])),
        }
    same = [(a["collapse_step"] is None) == (b["collapse_step"] is None) for a, b in zip(*rows.values(), strict=True)]
    result["seeds_with_the_same_verdict"] = sum(same)
    for name in ("collapse_step", "min_reward"):
        pairs = [(a[name], b[name]) for a, b in zip(*rows.values(), strict=True)]
        difference = np.array([a - b for a, b in pairs if a is not None and b is not None], dtype=float)
        if difference.size:
            result[f"{name}: float32 minus float64"] = mean_with_interval(difference)
    return result


def mean_with_interval(values: np.ndarray) -> dict[str, float]:
    """Return the mean, its 95 % bootstrap interval, and the largest absolute value."""
    rng = np.random.default_rng(0)
    means = values[rng.integers(values.size, size=(4999, values.size))].mean(1)
    low, high = np.quantile(means, [0.025, 0.975])
    return {
        "mean": float(values.mean()),
        "low": float(low),
        "high": float(high),
        "largest": float(np.abs(values).max()),
    }


def main(argv: Sequence[str] | None = None) -> None:
    """Measure, print and, on request, write one JSON object."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=64, help="runs per throughput figure (default 64)")
    parser.add_argument("--seeds", type=int, default=40, help="seeds compared between the types (default 40)")
    parser.add_argument("--updates", type=int, default=150, help="the goal speaks of 150")
    parser.add_argument("--json", type=Path, help="also write the result to this file")
    args = parser.parse_args(argv)
    if args.seeds > args.runs:
        parser.error(f"--seeds {args.seeds} exceeds --runs {args.runs}: the comparison reuses those runs")
    compiling = {dtype: warm_up(dtype) for dtype in DTYPES}
    throughput: dict[str, Any] = {}
    comparison: dict[str, Any] = {}
    for name, world in WORLDS.items():
        records = {}
        for dtype in DTYPES:
            config = world.replace(dtype=dtype, updates=args.updates)
            throughput[f"{name}, {dtype}"], records[dtype] = timed(config, args.runs)
            print(
                f"{name}, {dtype}: {throughput[f'{name}, {dtype}']['runs_per_hour_process']:.0f} runs per hour and core"
            )
        comparison[name] = agreement(records["float32"][: args.seeds], records["float64"][: args.seeds])
    result = {
        "label": "measured",
        "machine": platform.machine(),
        "cores": os.cpu_count(),
        "load_average_at_the_end": os.getloadavg()[0],
        "versions": versions(),
        "updates": args.updates,
        "goal_runs_per_hour_and_core_float32": GOAL,
        "compile_or_load_seconds": compiling,
        "throughput": throughput,
        "agreement": comparison,
    }
    print(json.dumps(result, indent=1, default=float))
    if args.json is not None:
        args.json.write_text(json.dumps(result, indent=1, default=float) + "\n")


if __name__ == "__main__":
    main()
