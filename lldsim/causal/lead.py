"""How long before the collapse do wrong responses pull? The negative part of G, read on probed runs.

    pull = learning_rate * updates_per_rollout * G_negative        (nats per token of correct responses and update)

G_negative is what wrong responses add to -d/ds ln pi of correct ones under the loss's normaliser (probe.py's column
`gwhes_batch_negative`), so the pull is the drop that they alone would cause in one update, at first order. It crosses
at the first look after the early updates at which it has been at least `thresholds.pull_size` for
`thresholds.pull_looks` looks: a rule that does not see the future, so the time from there to the collapse is a lead.
What this file does not do: claim that a crossing means a collapse; runs that cross and do not collapse are counted.
Adam's steps are not learning_rate * gradient, so its rows have no pull.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from lldsim.causal.rows import Setting
from lldsim.config import RunConfig
from lldsim.diagnostics.collapse import collapse_step
from lldsim.diagnostics.thresholds import DEFAULT, Thresholds
from lldsim.probe import probe_run
from lldsim.record import RunRecord
from lldsim.sweep import DEFAULT_CACHE, cached_record, code_hash

COLUMN = "gwhes_batch_negative"
EVERY = 2  # updates between two looks
_SOURCES = ("probe.py", "theory/kernel.py", "theory/flow.py", "theory/weights.py")


def pull(record: RunRecord) -> npt.NDArray[np.float64]:
    """Return the pull of wrong responses (U,), NaN where it was not looked at and everywhere under Adam."""
    config = record.config
    scale = config["learning_rate"] * config["updates_per_rollout"] if config["optimizer"] == "sgd" else np.nan
    return scale * record[COLUMN]


def crossing(values: npt.ArrayLike, thresholds: Thresholds = DEFAULT) -> int | None:
    """Return the update at which the pull (U,) has been large for enough looks running, or None.

    >>> crossing([0.0] * 12 + [0.01, 0.07, 0.02, 0.08, float("nan"), 0.09, 0.3])
    17
    """
    curve = np.asarray(values, dtype=float)
    running = 0
    for update in np.flatnonzero(np.isfinite(curve)):
        large = update >= thresholds.early[1] and curve[update] >= thresholds.pull_size
        running = running + 1 if large else 0
        if running == thresholds.pull_looks:
            return int(update)
    return None


def lead_row(records: Sequence[RunRecord]) -> dict[str, Any]:
    """Return what the pull says about one setting: runs probed, collapses it announced, its lead, and false alarms.

    `pull_lead` is the median of collapse minus crossing over the announced collapses, in updates.
    """
    pairs = [(collapse_step(r["reward"]), crossing(pull(r))) for r in records if np.isfinite(pull(r)).any()]
    fallen = [(step, at) for step, at in pairs if step is not None]
    leads = [step - at for step, at in fallen if at is not None and at < step]
    return {
        "pull_runs": len(pairs),
        "pull_collapsed": len(fallen),
        "pull_announced": len(leads),
        "pull_lead": float(np.median(leads)) if leads else float("nan"),
        "pull_false": sum(at is not None for step, at in pairs if step is None),
    }


def probe_all(
    configs: Sequence[RunConfig],
    *,
    cache_dir: Path | str | None = DEFAULT_CACHE,
    on_done: Callable[[int, int], None] | None = None,
) -> list[RunRecord]:
    """Return the probed records of `configs`, cached like plain ones (one process: a look is mostly theory)."""
    records: dict[RunConfig, RunRecord] = {}
    unique = list(dict.fromkeys(configs))
    for config in unique:
        key = f"probed-{_probe_hash()}/{config.config_hash()}"
        records[config] = cached_record(key, lambda c=config: probe_run(c, every=EVERY), cache_dir)
        if on_done:
            on_done(len(records), len(unique))
    return [records[config] for config in configs]


def lead_rows(
    settings: Sequence[Setting],
    *,
    seeds: Iterable[int],
    cache_dir: Path | str | None = DEFAULT_CACHE,
    on_done: Callable[[int, int], None] | None = None,
) -> list[dict[str, Any]]:
    """Return one `lead_row` per setting, in their order, over `seeds`."""
    seeds = list(seeds)
    configs = [setting.config.replace(seed=seed) for setting in settings for seed in seeds]
    records = probe_all(configs, cache_dir=cache_dir, on_done=on_done)
    n = len(seeds)
    return [lead_row(records[i * n : (i + 1) * n]) for i in range(len(settings))]


@cache
def _probe_hash() -> str:
    digest = hashlib.sha256(f"{code_hash()} every {EVERY}".encode())
    for name in _SOURCES:
        digest.update((Path(__file__).parents[1] / name).read_bytes())
    return digest.hexdigest()[:12]
