"""From records to tidy rows: what one run did, and what the runs of one setting did, with intervals.

A run that did not collapse is censored at its last update. What this file does not do: choose settings or thresholds.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from lldsim.config import RunConfig
from lldsim.diagnostics.collapse import kept_share, smooth, surge
from lldsim.diagnostics.phases import Phase, find_phases
from lldsim.diagnostics.statistics import collapse_rate, survival
from lldsim.diagnostics.thresholds import DEFAULT
from lldsim.record import RunRecord
from lldsim.sweep import DEFAULT_CACHE, run_all

RECOVERED_SHARE = 0.9  # of the peak reward, at the end of a run that collapsed


@dataclass(frozen=True)
class Setting:
    """One row of a table before it is run: labels (dial, setting, ...) and a configuration whose seed is ignored."""

    labels: dict[str, Any]
    config: RunConfig


def run_row(record: RunRecord) -> dict[str, Any]:
    """Return the outcome of one run: reward at start, peak, lowest after it and end; likelihood by phase; surges.

    `kept_share` is the lowest reward after the highest, `lowest_share` after any earlier high, so that a fall before
    the final peak shows in the second alone; `recovered` means that a collapsed run ends near its peak. `entropy_after`
    is the mean entropy from 10 updates after the collapse over the early mean; NaN without a collapse.
    """
    reward, logp, entropy = smooth(record["reward"], DEFAULT.reward_window), record["logp_correct"], record["entropy"]
    phases = find_phases(record)
    step = phases.collapsed
    peak = int(np.nanargmax(reward))
    by_phase = {phase: _mean(logp[start:stop]) for phase, start, stop in phases.spans()}
    early = slice(*DEFAULT.early)
    return {
        "collapse_step": step,
        "start_reward": _mean(record["reward"][:3]),
        "peak_reward": float(reward[peak]),
        "min_reward": float(np.nanmin(reward[peak:])),
        "final_reward": float(reward[-1]),
        "kept_share": kept_share(record["reward"]),
        "lowest_share": float(np.nanmin(reward / np.fmax.accumulate(reward))) if reward[0] > 0 else np.nan,
        "recovered": step is not None and reward[-1] >= RECOVERED_SHARE * reward[peak],
        "start_logp": _mean(logp[:3]),
        "logp_stagnation": by_phase.get(Phase.STAGNATION, np.nan),
        "logp_decay": by_phase.get(Phase.DECAY, np.nan),
        "logp_acceleration": by_phase.get(Phase.ACCELERATION, np.nan),
        "decay_step": phases.decay,
        "acceleration_step": phases.acceleration,
        "entropy_surge": surge(entropy, step),
        "entropy_after": np.nan if step is None else _mean(entropy[step + 10 :]) / _mean(entropy[early]),
        "grad_norm_surge": surge(record["grad_norm"]),
        "ratio_max": float(np.max(record["ratio_max"])),
    }


def setting_row(labels: dict[str, Any], runs: Sequence[dict[str, Any]], *, horizon: int) -> dict[str, Any]:
    """Return one table row over seeds: collapse rate (Wilson), Kaplan-Meier median step, medians of the outcomes.

    A median step of None means that fewer than half collapsed within `horizon`. Phase likelihoods are medians over the
    runs that have the phase; `decayed` and `accelerated` count those.
    """
    steps = [run["collapse_step"] for run in runs]
    rate = collapse_rate(steps)
    median, low, high = median_survival(steps, horizon)
    row = {
        **labels,
        "runs": rate.n,
        "collapsed": rate.k,
        "rate": rate.k / rate.n,
        "rate_low": rate.low,
        "rate_high": rate.high,
        "median_step": median,
        "median_low": low,
        "median_high": high,
        "decayed": sum(run["decay_step"] is not None for run in runs),
        "accelerated": sum(run["acceleration_step"] is not None for run in runs),
    }
    row["recovered"] = sum(run["recovered"] for run in runs)
    skip = {"collapse_step", "decay_step", "acceleration_step", "recovered"}
    for name in runs[0]:
        if name not in skip:
            row[name] = _median([run[name] for run in runs])
    row["final_reward_mean"] = _mean([run["final_reward"] for run in runs])
    return row


def median_survival(steps: Sequence[int | None], horizon: int) -> tuple[float | None, float | None, float | None]:
    """Return the Kaplan-Meier median collapse step and the steps where its 95 % bounds cross one half; None = beyond.

    >>> median_survival([10, 20, 30, None], 150)[0]
    20.0
    """
    with warnings.catch_warnings():  # SciPy says that bounds where nobody survives are undefined: NaN here
        warnings.simplefilter("ignore", RuntimeWarning)
        at, share, low, high = survival(steps, horizon)

    def crossing(curve: np.ndarray) -> float | None:
        below = np.flatnonzero(np.nan_to_num(curve, nan=1.0) <= 0.5)
        return float(at[below[0]]) if len(below) else None

    return crossing(share), crossing(low), crossing(high)


def table(
    settings: Sequence[Setting],
    *,
    seeds: Iterable[int],
    cache_dir: Path | str | None = DEFAULT_CACHE,
    workers: int = 1,
    on_done: Callable[[int, int], None] | None = None,
) -> list[dict[str, Any]]:
    """Run every setting on every seed (the same seeds: paired) and return one row per setting."""
    seeds = list(seeds)
    configs = [setting.config.replace(seed=seed) for setting in settings for seed in seeds]
    records = run_all(configs, cache_dir=cache_dir, workers=workers, on_done=on_done)
    rows = []
    for i, setting in enumerate(settings):
        own = records[i * len(seeds) : (i + 1) * len(seeds)]
        runs = [run_row(record) for record in own]
        labels = setting.labels | {"config_hash": setting.config.replace(seed=0).config_hash()}
        rows.append(setting_row(labels, runs, horizon=setting.config.trainer.updates))
    return rows


def _mean(values: Any) -> float:
    values = np.asarray(values, dtype=float)
    return float(np.nanmean(values)) if np.isfinite(values).any() else float("nan")


def _median(values: Sequence[float]) -> float:
    known = np.asarray(values, dtype=float)
    return float(np.nanmedian(known)) if np.isfinite(known).any() else float("nan")
