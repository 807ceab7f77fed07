"""One run's log as a table by step, built row by row in bounded memory.

A log may be unsorted, repeat steps, restart from a checkpoint (the step goes back and values are logged again) and mix
intervals (each key its own). Rules: the same key at the same step in one stretch is averaged; after a restart the new
value wins and what the abandoned branch logged later is dropped; more than `MAX_ROWS` steps are averaged into bins.
What this file does not do: parse text or know what a signal means (readers.py, aliases.py).
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

MAX_ROWS = 50_000  # more are merged: an alarm does not get better from finer steps, and memory stays bounded
MAX_COLUMNS = 64
MAX_STEP = 1e15
_NAN = math.nan


@dataclass
class TableBuilder:
    """Rows in, sorted columns out; see the file's rules."""

    max_rows: int = MAX_ROWS
    width: float = 0.0  # of a bin in steps; 0 = every step its own row
    restarts: list[float] = field(default_factory=list)  # steps at which the log went back and logged again
    unsorted: int = 0
    repeated: int = 0
    dropped: int = 0
    bad_steps: int = 0
    nonfinite: dict[str, list[float]] = field(default_factory=dict)  # key -> first steps with NaN or infinity

    def __post_init__(self) -> None:
        self._rows: dict[float, int] = {}
        self._steps = array("d")
        self._branch = array("l")  # restart after which a row was last written
        self._mean: dict[str, array] = {}
        self._count: dict[str, array] = {}
        self._last = -math.inf
        self._starts = [-math.inf]

    def add(self, step: float, values: Mapping[str, float]) -> None:
        """Add what was logged at one step."""
        if not (math.isfinite(step) and abs(step) <= MAX_STEP):
            self.bad_steps += 1
            return
        key = math.floor(step / self.width) * self.width if self.width else step
        row = self._rows.get(key)
        if step < self._last:
            if row is not None and any(self._filled(name, row) for name in values):
                self.restarts.append(step)
                self._starts.append(step)
            else:
                self.unsorted += 1
        self._last = step
        if row is None:
            row = self._new_row(key)
        branch = len(self._starts) - 1
        if self._branch[row] != branch:
            self._branch[row] = branch
            for name in values:
                if self._filled(name, row):
                    self._count[name][row] = 0.0
        for name, value in values.items():
            self._put(name, row, step, value)
        if len(self._steps) > self.max_rows:
            self._widen()

    def _put(self, name: str, row: int, step: float, value: float) -> None:
        if name not in self._mean:
            if len(self._mean) >= MAX_COLUMNS:
                return
            self._mean[name] = array("d", [_NAN]) * len(self._steps)
            self._count[name] = array("f", [0.0]) * len(self._steps)
        if not math.isfinite(value):
            seen = self.nonfinite.setdefault(name, [])
            if len(seen) < 10:
                seen.append(step)
            return
        count = self._count[name][row]
        old = self._mean[name][row] if count else 0.0
        self.repeated += count > 0 and not self.width
        self._mean[name][row] = old + (value - old) / (count + 1)
        self._count[name][row] = count + 1

    def _filled(self, name: str, row: int) -> bool:
        return name in self._count and self._count[name][row] > 0

    def _new_row(self, key: float) -> int:
        self._rows[key] = len(self._steps)
        self._steps.append(key)
        self._branch.append(len(self._starts) - 1)
        for name in self._mean:
            self._mean[name].append(_NAN)
            self._count[name].append(0.0)
        return self._rows[key]

    def _widen(self) -> None:
        """Merge rows into bins so wide that at most about half of the allowed rows are left."""
        steps = np.frombuffer(self._steps, dtype=float).copy()
        self.width = max(2 * self.width, 2 * float(np.ptp(steps)) / self.max_rows, np.spacing(np.abs(steps).max()) * 2)
        keys, group = np.unique(np.floor(steps / self.width) * self.width, return_inverse=True)
        for name in self._mean:
            mean, count = np.array(self._mean[name]), np.array(self._count[name], dtype=float)
            total = np.bincount(group, np.where(count > 0, mean * count, 0.0), len(keys))
            number = np.bincount(group, count, len(keys))
            merged = np.divide(total, number, out=np.full(len(keys), _NAN), where=number > 0)
            self._mean[name] = array("d", merged.tobytes())
            self._count[name] = array("f", number.astype(np.float32).tobytes())
        branch = np.zeros(len(keys), dtype=int)
        np.maximum.at(branch, group, np.array(self._branch))
        self._branch = array("l", branch.tolist())
        self._steps = array("d", keys.tobytes())
        self._rows = {float(key): i for i, key in enumerate(keys)}

    def finish(self) -> tuple[np.ndarray, dict[str, np.ndarray]]:
        """Return sorted steps (N,) and the columns (N,), NaN where nothing was logged."""
        steps = np.array(self._steps, dtype=float)
        keep = np.ones(len(steps), dtype=bool)
        # So many "restarts" are disorder, not restarts: then nothing was abandoned.
        if 1 < len(self._starts) <= max(10, len(steps) // 20):
            first_later = np.append(np.minimum.accumulate(np.array(self._starts)[::-1])[::-1][1:], math.inf)
            keep = steps < first_later[np.array(self._branch, dtype=int)]
        self.dropped = int((~keep).sum())
        order = np.argsort(steps[keep], kind="stable")
        columns = {}
        for name, mean in self._mean.items():
            known = np.where(np.array(self._count[name]) > 0, np.array(mean), _NAN)
            columns[name] = known[keep][order]
        return steps[keep][order], columns
