"""The phases of a run (Fig. 2): stagnation, decay, acceleration, and - ours - collapsed.

The paper draws three phases by eye. Here they are read from the likelihood of correct responses: with L the smoothed
-log-probability per token of correct responses and L0 its lowest value so far,

    STAGNATION    until L leaves L0 for good      (L <= 1.25 L0)
    DECAY         L above 1.25 L0 until the end or the collapse
    ACCELERATION  L above 3 L0 until the end or the collapse
    COLLAPSED     from the collapse step (collapse.py)

"For good" makes the boundaries conservative: an excursion that comes back is no phase.
What this file does not do: change-point statistics, or alarms that may not look ahead.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

import numpy as np

from lldsim.diagnostics.collapse import collapse_step, smooth
from lldsim.diagnostics.thresholds import DEFAULT, Thresholds
from lldsim.record import RunRecord


class Phase(IntEnum):
    """Phases in the order in which a collapsing run goes through them."""

    STAGNATION = 0
    DECAY = 1
    ACCELERATION = 2
    COLLAPSED = 3


@dataclass(frozen=True)
class Phases:
    """First update of each phase after stagnation; None = not reached."""

    decay: int | None
    acceleration: int | None
    collapsed: int | None
    length: int  # updates in the record

    def spans(self) -> list[tuple[Phase, int, int]]:
        """Return (phase, first update, one past its last) for every phase that has at least one update."""
        starts = [0, self.decay, self.acceleration, self.collapsed]
        spans, end = [], self.length
        for phase in reversed(Phase):
            start = starts[phase]
            if start is not None and start < end:
                spans.append((phase, start, end))
                end = start
        return spans[::-1]


def find_phases(record: RunRecord, thresholds: Thresholds = DEFAULT) -> Phases:
    """Return the phases of a record from its columns `reward` and `logp_correct`."""
    reward, logp = record["reward"], record["logp_correct"]
    collapsed = collapse_step(reward, thresholds)
    end = len(reward) if collapsed is None else collapsed
    level = -smooth(logp, thresholds.signal_window)[:end]
    lowest = np.fmin.accumulate(level) if end else level
    return Phases(
        decay=_last_crossing(level, thresholds.decay_ratio * lowest),
        acceleration=_last_crossing(level, thresholds.acceleration_ratio * lowest),
        collapsed=collapsed,
        length=len(reward),
    )


def falls_while_reward_holds(record: RunRecord, thresholds: Thresholds = DEFAULT) -> int:
    """Return how many updates of decay or acceleration have smoothed reward within 5 % of its running peak."""
    phases = find_phases(record, thresholds)
    if phases.decay is None:
        return 0
    reward = smooth(record["reward"], thresholds.reward_window)
    holds = reward >= thresholds.plateau_share * np.fmax.accumulate(reward)
    return int(holds[phases.decay : phases.collapsed].sum())


def _last_crossing(level: np.ndarray, bound: np.ndarray) -> int | None:
    """Return the update from which `level` stays above `bound` to the end; None when it ends below (or is empty)."""
    below = ~(level > bound)  # NaN counts as below
    if len(level) == 0 or below[-1]:
        return None
    return int(np.flatnonzero(below)[-1]) + 1 if below.any() else 0
