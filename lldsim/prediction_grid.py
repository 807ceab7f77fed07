"""Prediction before measurement: write down what a grid of settings will do, then simulate it and count.

Every setting starts from the same sampled distribution whatever its temperature (the base is flattened or sharpened to
match, config.matched_twin): only the leak between sampler and trainer differs. A prediction uses the twin of its
configuration's seed; outcomes may be those of several seeds, and a setting collapses when most of them do.
What this file does not do: fit. `speed` in prediction.predict is the only free number, and it is 1 unless said.
"""

from __future__ import annotations

import dataclasses
import itertools
import json
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from scipy import stats

from lldsim.config import RunConfig, preset
from lldsim.diagnostics.collapse import collapse_step
from lldsim.diagnostics.thresholds import DEFAULT
from lldsim.engine import Run
from lldsim.errors import MissingDataError
from lldsim.prediction import Words, measure_response, predict
from lldsim.sweep import DEFAULT_CACHE, code_hash

Row = dict[str, Any]
GRID: dict[str, tuple[float, ...]] = {
    "temperature": (0.55, 0.7, 0.85, 1.0),
    "position_similarity": (0.9, 0.6, 0.0),
    "learning_rate": (12.5, 25.0, 50.0),
    "staleness": (0, 2, 4, 8),
    "negative_weight": (1.0, 0.5),
}
FORMS: tuple[Words, ...] = ("constant", "together", "apart", "complete")
_PILOT = ("temperature", "position_similarity")  # what the response depends on; lr only through the twin's plateau
_START = 0.7  # temperature whose sampled distribution every setting starts from


@dataclass(frozen=True)
class Score:
    """How one form of the theory did on a grid."""

    right_side: float  # share of settings whose outcome (most seeds collapse, or not) was predicted
    majority: float  # the same for whoever always predicts the commoner outcome
    predicted: int  # settings predicted to collapse
    measured: int  # settings that did
    settings: int
    rank_share: float  # Spearman correlation of predicted and measured share of collapsed runs
    both: int  # settings that collapse in the prediction and in the simulation
    log_time_error: float  # median |ln(predicted / measured time)| over those
    log_time_bias: float  # median ln(predicted / measured time); above 0 = predicted too late
    rank_time: float  # Spearman correlation of the two times


def settings(grid: dict[str, tuple[float, ...]] = GRID, *, updates: int = 150, seed: int = 0) -> list[RunConfig]:
    """Return the product of the grid's values over the spiral preset, with matched starts."""
    points = [dict(zip(grid, values, strict=True)) for values in itertools.product(*grid.values())]
    base = preset("spiral").replace(updates=updates, seed=seed)
    return [base.replace(**point, base_power=point["temperature"] / _START) for point in points]


def write_down(
    configs: Sequence[RunConfig],
    *,
    words: Sequence[Words] = FORMS,
    paths: int = 6,
    batches: int = 40,
    speed: float = 1.0,
    on_done: Callable[[int, int], None] | None = None,
) -> list[Row]:
    """Return one row per setting with its predictions; nothing of the setting itself is simulated.

    For each form: `share_FORM` of paths that collapse and `step_FORM`, their median collapse step (None = none does).
    `constant` and `together` take one path of means, the others `paths` sampled ones.
    """
    responses: dict[tuple[Any, ...], Any] = {}
    rows = []
    for config in configs:
        flat = config.flat()
        key = tuple(flat[name] for name in _PILOT)
        if key not in responses:
            pilot = config.replace(learning_rate=25.0, staleness=0, negative_weight=1.0)
            responses[key] = measure_response(pilot, batches=batches)
        row = {name: flat[name] for name in GRID}
        for form in words:
            seeds = range(paths) if form in ("apart", "complete") else (None,)
            steps = [predict(config, responses[key], words=form, seed=s, speed=speed).collapse for s in seeds]
            row |= {f"share_{form}": _share(steps), f"step_{form}": _median(steps)}
        rows.append(row)
        if on_done:
            on_done(len(rows), len(configs))
    return rows


def measure(
    configs: Sequence[RunConfig],
    rows: Sequence[Row],
    *,
    seeds: Sequence[int] = (0, 1, 2),
    cache_dir: Path | str | None = DEFAULT_CACHE,
    on_done: Callable[[int, int], None] | None = None,
) -> list[Row]:
    """Simulate every setting with every seed and return `rows` with `share_measured` and `step_measured` added."""
    store = None if cache_dir is None else Path(cache_dir) / code_hash() / "collapse_steps.jsonl"
    known: dict[str, int | None] = {}
    if store is not None and store.exists():
        known = dict(json.loads(line) for line in store.read_text().splitlines())
    measured: list[list[int | None]] = [[] for _ in configs]
    for seed in seeds:
        for found, config in zip(measured, configs, strict=True):
            run = config.replace(seed=seed)
            key = run.config_hash()
            if key not in known:
                known[key] = first_collapse(run)
                if store is not None:
                    store.parent.mkdir(parents=True, exist_ok=True)
                    with store.open("a") as file:
                        file.write(json.dumps([key, known[key]]) + "\n")
            found.append(known[key])
            if on_done:
                on_done(sum(map(len, measured)), len(configs) * len(seeds))
    return [
        row | {"share_measured": _share(found), "step_measured": _median(found)}
        for row, found in zip(rows, measured, strict=True)
    ]


def first_collapse(config: RunConfig) -> int | None:
    """Return the collapse step of the whole run, simulating no further than it takes to know it."""
    run, rewards, half = Run(config), [], DEFAULT.reward_window // 2
    for _ in range(config.trainer.updates):
        rewards.append(run.step()["reward"])
        step = collapse_step(np.array(rewards)) if len(rewards) % 5 == 0 else None
        if step is not None and step + half < len(rewards):  # its smoothing window is complete
            return step
    return collapse_step(np.array(rewards))


def score(rows: Sequence[Row], words: Words = "complete") -> Score:
    """Return how the predictions of form `words` did on the rows that `measure` returned."""
    if not rows or "share_measured" not in rows[0]:
        raise MissingDataError("the rows hold no measurement; pass what `measure` returned")
    predicted = np.array([row[f"share_{words}"] for row in rows])
    measured = np.array([row["share_measured"] for row in rows])
    falls = measured > 0.5
    times = [
        (row[f"step_{words}"], row["step_measured"])
        for row, p, m in zip(rows, predicted > 0.5, falls, strict=True)
        if p and m
    ]
    logs = np.array([math.log(p / m) for p, m in times])
    return Score(
        right_side=float(((predicted > 0.5) == falls).mean()),
        majority=float(max(falls.mean(), 1 - falls.mean())),
        predicted=int((predicted > 0.5).sum()),
        measured=int(falls.sum()),
        settings=len(rows),
        rank_share=_spearman(predicted, measured),
        both=len(times),
        log_time_error=float(np.median(np.abs(logs))) if times else math.nan,
        log_time_bias=float(np.median(logs)) if times else math.nan,
        rank_time=_spearman(*np.array(times, dtype=float).T) if len(times) > 2 else math.nan,
    )


def score_numbers(rows: Sequence[Row], words: Words = "complete") -> dict[str, float | int | None]:
    """Return `score` as plain numbers, None where there was nothing to judge."""
    return {
        name: None if isinstance(value, float) and math.isnan(value) else value
        for name, value in dataclasses.asdict(score(rows, words)).items()
    }


def _share(steps: Sequence[int | None]) -> float:
    return sum(step is not None for step in steps) / len(steps)


def _median(steps: Sequence[int | None]) -> float | None:
    """Return the median collapse step of the runs that collapsed, None when none did."""
    known = [step for step in steps if step is not None]
    return float(np.median(known)) if known else None


def _spearman(x: np.ndarray, y: np.ndarray) -> float:
    if np.ptp(x) == 0 or np.ptp(y) == 0:
        return math.nan
    return float(np.corrcoef(stats.rankdata(x), stats.rankdata(y))[0, 1])
