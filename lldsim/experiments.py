"""The experiments behind the figures: which runs, and which numbers are read from them.

An arm is a named list of configurations, one per seed; the same seed has the same luck in every arm, so arms compare
seed by seed. What this file does not do: draw, or decide thresholds (diagnostics/thresholds.py).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from lldsim.config import RunConfig, matched_twin, preset
from lldsim.diagnostics.collapse import collapse_step, kept_share, smooth, surge
from lldsim.diagnostics.phases import falls_while_reward_holds, find_phases
from lldsim.diagnostics.statistics import collapse_rate, finite_or_none, median_step, paired_delay
from lldsim.diagnostics.thresholds import DEFAULT
from lldsim.record import Arms, RunRecord
from lldsim.sweep import DEFAULT_CACHE, run_all

LAMBDAS = (0.0, 0.01, 0.03, 0.1, 0.2)


def run_arms(
    arms: dict[str, list[RunConfig]],
    *,
    workers: int = 1,
    cache_dir: Path | str | None = DEFAULT_CACHE,
    on_done: Callable[[int, int], None] | None = None,
) -> Arms:
    """Run every arm's configurations, sharing workers and cache, and return their records arm by arm."""
    flat = [config for configs in arms.values() for config in configs]
    records = iter(run_all(flat, cache_dir=cache_dir, workers=workers, on_done=on_done))
    return {name: [next(records) for _ in configs] for name, configs in arms.items()}


def collapse_and_cure(seeds: Sequence[int], *, updates: int = 150) -> dict[str, list[RunConfig]]:
    """Return the arms of figure 2: GRPO, GRPO + LLDS, and the two twins that must not collapse.

    `null` has similarity 0. `onpolicy` samples from the trainer's own policy: temperature 1, no staleness, and base
    probabilities sharpened so that its first rollouts are drawn from the same distribution (`config.matched_twin`).
    """
    spiral, null = preset("spiral").replace(updates=updates), preset("null").replace(updates=updates)
    return {
        "grpo": [spiral.replace(seed=s) for s in seeds],
        "llds": [spiral.replace(seed=s, llds_coef=0.2) for s in seeds],
        "null": [null.replace(seed=s) for s in seeds],
        "onpolicy": [matched_twin(spiral.replace(seed=s, staleness=0)) for s in seeds],
    }


def lambda_ablation(
    seeds: Sequence[int], *, lambdas: Sequence[float] = LAMBDAS, updates: int = 180
) -> dict[str, list[RunConfig]]:
    """Return the arms of figure 8, one per lambda, paired by seed."""
    spiral = preset("spiral").replace(updates=updates)
    return {f"{x:g}": [spiral.replace(seed=s, llds_coef=x) for s in seeds] for x in lambdas}


def arm_numbers(records: Sequence[RunRecord]) -> dict[str, Any]:
    """Return what a caption or a table says about one arm: rates with intervals, medians over seeds, extremes."""
    steps = [collapse_step(r["reward"]) for r in records]
    phases = [find_phases(r) for r in records]
    rate = collapse_rate(steps)
    median, low, high = median_step(steps)
    kept = [kept_share(r["reward"]) for r in records]
    held = [falls_while_reward_holds(r) for r in records]
    reward = [smooth(r["reward"], DEFAULT.reward_window) for r in records]
    return {
        "runs": rate.n,
        "collapsed": rate.k,
        "collapse_rate_interval": [rate.low, rate.high],
        "collapse_step_median": finite_or_none(median),
        "collapse_step_interval": [finite_or_none(low), finite_or_none(high)],
        "collapse_steps": steps,
        "decay_starts": [p.decay for p in phases],
        "peak_reward_median": float(np.median([r.max() for r in reward])),
        "final_reward_median": float(np.median([r[-1] for r in reward])),
        "kept_share_min": float(min(kept)),
        "kept_share_median": float(np.median(kept)),
        "lost_half_of_peak": sum(k <= 0.5 for k in kept),
        "entropy_surge_median": float(np.median([surge(r["entropy"]) for r in records])),
        "grad_norm_surge_median": float(np.median([surge(r["grad_norm"]) for r in records])),
        "ratio_max_median": float(np.median([r["ratio_max"].max() for r in records])),
        "updates_falling_while_reward_holds": held,
    }


def ablation_numbers(arms: Arms, *, reference: str = "0") -> dict[str, Any]:
    """Return, per lambda, the arm's numbers and its delay against the reference arm, paired by seed."""
    updates = len(arms[reference][0])
    steps = {name: [collapse_step(r["reward"]) for r in records] for name, records in arms.items()}
    numbers: dict[str, Any] = {}
    for name, records in arms.items():
        numbers[name] = arm_numbers(records)
        if name != reference:
            delay = paired_delay(steps[name], steps[reference], updates)
            numbers[name]["paired_delay"] = {
                "median": delay.median,
                "interval": [delay.low, delay.high],
                "later": delay.later,
                "earlier": delay.earlier,
                "censored": delay.censored,
                "sign_test_p": delay.p_value,
            }
    return numbers


def tidy(arms: Arms, columns: Sequence[str]) -> dict[str, list[Any]]:
    """Return a tidy table: one row per arm, seed and update, with the named columns."""
    table: dict[str, list[Any]] = {name: [] for name in ("arm", "seed", "update", *columns)}
    for arm, records in arms.items():
        for record in records:
            n = len(record)
            table["arm"] += [arm] * n
            table["seed"] += [record.config["seed"]] * n
            table["update"] += [int(u) for u in record["update"]]
            for name in columns:
                table[name] += record[name].tolist()
    return table


def provenance(arms: Arms) -> dict[str, Any]:
    """Return what every figure's numbers carry: seeds, one hash over all configurations, and versions."""
    import hashlib

    hashes = sorted({record.config_hash for records in arms.values() for record in records})
    return {
        "label": "simulated",
        "seeds": sorted({record.config["seed"] for records in arms.values() for record in records}),
        "config_hash": hashlib.sha256("".join(hashes).encode()).hexdigest()[:12],
        "versions": next(iter(arms.values()))[0].versions,
    }
