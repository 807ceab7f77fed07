"""Cures compared: each arm tuned over the same number of settings on the same seeds, then run on seeds it has not seen.

The tuning score is the mean final reward (smoothed, at the end of the run), ties by the lowest reward after the peak.
What this file does not do: call an arm better because its tuned form beats another's untuned one; both forms are shown.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from lldsim.arms import ARMS, Arm
from lldsim.causal.rows import Setting, run_row, table
from lldsim.config import RunConfig
from lldsim.sweep import DEFAULT_CACHE, run_all

TUNING_SEEDS = (1000, 1001)  # disjoint from all seeds that are reported
Progress = Callable[[int, int], None] | None


def tune(
    arms: Sequence[Arm] = ARMS,
    *,
    seeds: Sequence[int] = TUNING_SEEDS,
    updates: int | None = None,
    cache_dir: Path | str | None = DEFAULT_CACHE,
    workers: int = 1,
    on_done: Progress = None,
) -> list[dict[str, Any]]:
    """Run every arm's whole grid on the tuning seeds and return one row per setting: arm, strength, factor, score."""
    points = [(arm, *point) for arm in arms for point in arm.grid()]
    configs = [
        _short(arm.config(strength, rate_factor=factor), updates).replace(seed=seed)
        for arm, strength, factor in points
        for seed in seeds
    ]
    records = run_all(configs, cache_dir=cache_dir, workers=workers, on_done=on_done)
    rows = []
    for i, (arm, strength, factor) in enumerate(points):
        runs = [run_row(record) for record in records[i * len(seeds) : (i + 1) * len(seeds)]]
        rows.append(
            {
                "arm": arm.name,
                "strength": strength_text(strength),
                "rate_factor": factor,
                "collapsed": sum(run["collapse_step"] is not None for run in runs),
                "runs": len(runs),
                "score": float(np.mean([run["final_reward"] for run in runs])),
                "lowest": float(np.mean([run["min_reward"] for run in runs])),
            }
        )
    return rows


def best_settings(arms: Sequence[Arm], tuned: Sequence[dict[str, Any]]) -> dict[str, tuple[dict[str, Any], float]]:
    """Return each arm's best strength and rate factor by the tuning rows (the first of equals)."""
    best = {}
    for arm in arms:
        rows = [row for row in tuned if row["arm"] == arm.name]
        index = max(range(len(rows)), key=lambda i: (rows[i]["score"], rows[i]["lowest"]))
        best[arm.name] = arm.grid()[index]
    return best


def cure_rows(
    tuned: Sequence[dict[str, Any]],
    arms: Sequence[Arm] = ARMS,
    *,
    seeds: Iterable[int],
    updates: int | None = None,
    cache_dir: Path | str | None = DEFAULT_CACHE,
    workers: int = 1,
    on_done: Progress = None,
) -> list[dict[str, Any]]:
    """Return two rows per arm, at its published and at its tuned setting, over `seeds`."""
    best = best_settings(arms, tuned)
    settings = []
    for arm in arms:
        for kind, (strength, factor) in {"published": (arm.published, 1.0), "tuned": best[arm.name]}.items():
            labels = {
                "name": arm.name,
                "setting": kind,
                "strength": strength_text(strength),
                "rate_factor": factor,
                "source": arm.source,
            }
            settings.append(Setting(labels, _short(arm.config(strength, rate_factor=factor), updates)))
    return table(settings, seeds=seeds, cache_dir=cache_dir, workers=workers, on_done=on_done)


def strength_text(strength: dict[str, Any]) -> str:
    """Return a strength as `field=value` words; empty for an arm without one.

    >>> strength_text({"llds_coef": 0.2})
    'llds_coef=0.2'
    """
    return " ".join(
        f"{name}={value:g}" if isinstance(value, float) else f"{name}={value}" for name, value in strength.items()
    )


def _short(config: RunConfig, updates: int | None) -> RunConfig:
    return config if updates is None else config.replace(updates=updates)
