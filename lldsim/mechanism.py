"""The experiments behind the figures that look inside a run: probed arms, Eq. 3 before the collapse, Def. A.3 counted.

What this file does not do: draw, or measure (diagnostics/ and probe.py do).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from lldsim.config import RunConfig
from lldsim.diagnostics.collapse import collapse_step, smooth
from lldsim.diagnostics.conditions import SpiralConditions, spiral_conditions
from lldsim.diagnostics.displacement import displaced_shares
from lldsim.diagnostics.thresholds import DEFAULT
from lldsim.engine import Run
from lldsim.probe import probe_run, single_update
from lldsim.record import RunRecord

OnDone = Callable[[int, int], None]
_MEASURED = ("falling", "wrong_not_rising", "similar", "accelerating")


def probe_arms(
    arms: Mapping[str, Sequence[RunConfig]], *, every: int, on_done: OnDone | None = None
) -> dict[str, list[RunRecord]]:
    """Simulate every arm with a probe at every `every`-th update; one process, not cached."""
    total, records = sum(map(len, arms.values())), {}
    for name, configs in arms.items():
        records[name] = []
        for config in configs:
            records[name].append(probe_run(config, every=every))
            if on_done:
                on_done(sum(map(len, records.values())), total)
    return records


def changes_before(
    arms: Mapping[str, Sequence[RunConfig]],
    steps: Sequence[int | None],
    *,
    before: Sequence[int],
    batches: int = 3,
    on_done: OnDone | None = None,
) -> dict[str, list[np.ndarray]]:
    """Return D(x) of Eq. 3 of all probed queries, per arm and per number of updates before the collapse.

    `steps` are the collapse steps of the reference arm, seed by seed; every arm is probed at those same updates. Seeds
    without a collapse have no such update and are left out.
    """
    total, done = sum(map(len, arms.values())), 0
    changes: dict[str, list[np.ndarray]] = {}
    for name, configs in arms.items():
        found: list[list[np.ndarray]] = [[] for _ in before]
        for config, step in zip(configs, steps, strict=True):
            run = Run(config)
            for column, lead in enumerate(before):
                if step is None or step < lead:
                    continue
                while run.update < step - lead:
                    run.step()
                found[column].append(single_update(run, batches=batches))
            done += 1
            if on_done:
                on_done(done, total)
        changes[name] = [np.concatenate(values) if values else np.array([]) for values in found]
    return changes


def change_numbers(changes: Mapping[str, Sequence[np.ndarray]], before: Sequence[int]) -> list[dict[str, Any]]:
    """Return one row per arm and checkpoint: queries probed, mean D(x), and the displaced share by both rules."""
    rows = []
    for arm, values in changes.items():
        for lead, change in zip(before, values, strict=True):
            shares, known = displaced_shares(change), change[np.isfinite(change)]
            mean = float(known.mean()) if shares.n else None
            bare, sized = (shares.bare, shares.sized) if shares.n else (None, None)
            row = {"arm": arm, "updates_before_collapse": lead, "queries": shares.n}
            rows.append(row | {"mean_change": mean, "displaced_bare": bare, "displaced_sized": sized})
    return rows


def conditions_of(record: RunRecord) -> SpiralConditions:
    """Return from where the conditions of Def. A.3 hold in a probed record, read up to its collapse.

    Smoothing windows and the lag count looks, not updates, when not every update was looked at.
    """
    looks = np.flatnonzero(np.isfinite(record["nll_action1"]))
    step = collapse_step(record["reward"])
    looks = looks if step is None else looks[looks < step]
    found = spiral_conditions(*(record[name][looks] for name in ("change_correct", "change_wrong", "similarity")))
    starts = {name: None if (i := getattr(found, name)) is None else int(looks[i]) for name in _MEASURED}
    return SpiralConditions(**starts)


def spiral_table(arms: Mapping[str, Sequence[RunRecord]]) -> dict[str, dict[str, Any]]:
    """Return, per arm and condition, in how many runs it holds at the end and the median updates for which it has held.

    The end is the collapse, or the last update of a run that did not collapse.
    """
    table: dict[str, dict[str, Any]] = {}
    for arm, records in arms.items():
        ends = [len(r) if (step := collapse_step(r["reward"])) is None else step for r in records]
        found = [conditions_of(r) for r in records]
        table[arm] = {"runs": len(records)}
        for part in (*_MEASURED, "spiral"):
            held = [end - start for c, end in zip(found, ends, strict=True) if (start := getattr(c, part)) is not None]
            table[arm][part] = {"runs": len(held), "median_updates": float(np.median(held)) if held else None}
    return table


def aligned_values(records: Sequence[RunRecord], column: str, lead: int) -> np.ndarray:
    """Return a column `lead` updates before each record's collapse, a 3-update mean, for those that did."""
    values = []
    for record in records:
        step = collapse_step(record["reward"])
        if step is not None and step >= lead:
            values.append(smooth(record[column], 3)[step - lead])
    return np.array(values)


def band(values: np.ndarray) -> dict[str, Any]:
    """Return the median of `values`, its 95 % bootstrap interval and their number; None where there is none."""
    known = np.asarray(values, dtype=float)
    known = known[np.isfinite(known)]
    if not known.size:
        return {"median": None, "low": None, "high": None, "n": 0}
    rng = np.random.default_rng(0)
    medians = np.median(known[rng.integers(known.size, size=(4999, known.size))], axis=1)
    low, high = np.quantile(medians, [0.025, 0.975])
    return {"median": float(np.median(known)), "low": float(low), "high": float(high), "n": int(known.size)}


def early_mean(records: Sequence[RunRecord], column: str) -> np.ndarray:
    """Return each record's mean of a column over the early updates (thresholds.early)."""
    first, last = DEFAULT.early
    return np.array([np.nanmean(record[column][first:last]) for record in records])
