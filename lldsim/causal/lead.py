"""How long before the collapse do wrong responses pull? The negative part of G, read along runs.

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
from lldsim.engine import Run
from lldsim.probe import look, measure_pull
from lldsim.record import RunRecord, make_record
from lldsim.sweep import DEFAULT_CACHE, cached_record, code_hash, run_all

EVERY = 2  # updates between two looks
_SOURCES = ("causal/lead.py", "probe.py", "theory/kernel.py", "theory/flow.py", "theory/weights.py")


def scale(config: RunConfig) -> float:
    """Return learning_rate * updates_per_rollout: the flow time of one update under SGD. NaN under Adam."""
    trainer = config.trainer
    return trainer.learning_rate * trainer.updates_per_rollout if trainer.optimizer == "sgd" else float("nan")


def pull_record(config: RunConfig, *, until: int) -> RunRecord:
    """Simulate `until` updates of `config` and return their pull, NaN where it was not looked at.

    Early updates are not looked at, because no crossing is counted there.
    """
    run, values = Run(config), np.full(until, np.nan)
    for update in range(until):
        if update >= DEFAULT.early[1] and update % EVERY == 0:
            seen = measure_pull(look(run), aggregation=config.objective.aggregation)
            values[update] = scale(config) * seen["gwhes_batch_negative"]
        run.step()
    columns = {"update": np.arange(until, dtype=float), "pull": values}
    return make_record(columns, config.flat(), config.config_hash())


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


def lead_row(steps: Sequence[int | None], pulls: Sequence[npt.NDArray[np.float64]]) -> dict[str, Any]:
    """Return what the pull says about one setting: runs looked at, collapses it announced, its lead, and false alarms.

    `steps` are collapse steps (None = did not collapse), `pulls` (U,) each. `pull_lead` is the median of collapse minus
    crossing over the announced collapses, in updates.
    """
    pairs = [(step, crossing(curve)) for step, curve in zip(steps, pulls, strict=True) if np.isfinite(curve).any()]
    fallen = [(step, at) for step, at in pairs if step is not None]
    leads = [step - at for step, at in fallen if at is not None and at < step]
    return {
        "pull_runs": len(pairs),
        "pull_collapsed": len(fallen),
        "pull_announced": len(leads),
        "pull_lead": float(np.median(leads)) if leads else float("nan"),
        "pull_false": sum(at is not None for step, at in pairs if step is None),
    }


def lead_rows(
    settings: Sequence[Setting],
    *,
    seeds: Iterable[int],
    cache_dir: Path | str | None = DEFAULT_CACHE,
    on_done: Callable[[int, int], None] | None = None,
) -> list[dict[str, Any]]:
    """Return one `lead_row` per setting, in their order, over `seeds`; looks are cached, in one process.

    A run is looked at up to its collapse or its end, so the plain runs come first (from the cache after `table`).
    """
    seeds = list(seeds)
    configs = [setting.config.replace(seed=seed) for setting in settings for seed in seeds]
    steps = [collapse_step(record["reward"]) for record in run_all(configs, cache_dir=cache_dir)]
    found: dict[RunConfig, npt.NDArray[np.float64]] = {}
    unique = dict(zip(configs, steps, strict=True))
    for config, step in unique.items():
        until = config.trainer.updates if step is None else step
        if np.isnan(scale(config)):
            found[config] = np.full(until, np.nan)
        else:
            key = f"pull-{_sources_hash()}/{config.config_hash()}"
            record = cached_record(key, lambda c=config, u=until: pull_record(c, until=u), cache_dir)
            found[config] = record["pull"]
        if on_done:
            on_done(len(found), len(unique))
    n = len(seeds)
    return [
        lead_row(steps[i * n : (i + 1) * n], [found[c] for c in configs[i * n : (i + 1) * n]])
        for i in range(len(settings))
    ]


@cache
def _sources_hash() -> str:
    digest = hashlib.sha256(f"{code_hash()} every {EVERY} from {DEFAULT.early[1]}".encode())
    for name in _SOURCES:
        digest.update((Path(__file__).parents[1] / name).read_bytes())
    return digest.hexdigest()[:12]
