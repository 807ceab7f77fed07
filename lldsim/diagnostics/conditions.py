"""The death spiral (Def. A.3) as three conditions, each with the update from which it holds to the end.

    (1) falling       mean change of the correct responses' log-likelihood <= -e at every update
    (2) entangled     wrong responses' likelihood does not rise (2a), and right and wrong stay similar, >= c (2b)
    (3) accelerating  the change goes on falling: E D^(s) < E D^(s - lag)

"To the end" is to the collapse where there is one: after it few responses are correct and the means compare nothing.
Curves are smoothed first, and (3) compares across a lag, because a single update of a noisy run says nothing; the
definition itself has neither. The three are reported apart: a run can have one and lack the others.
What this file does not do: warn (it reads the whole curve, the future included).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from lldsim.diagnostics.collapse import smooth
from lldsim.diagnostics.thresholds import DEFAULT, Thresholds
from lldsim.errors import ShapeError


@dataclass(frozen=True)
class SpiralConditions:
    """First update from which each condition of Def. A.3 holds to the end; None = it does not hold at the end."""

    falling: int | None  # (1)
    wrong_not_rising: int | None  # (2a)
    similar: int | None  # (2b)
    accelerating: int | None  # (3)

    @property
    def entangled(self) -> int | None:
        """Condition (2): from where both of its parts hold."""
        return _latest(self.wrong_not_rising, self.similar)

    @property
    def spiral(self) -> int | None:
        """From where all three hold: s0 of Def. A.3."""
        return _latest(self.falling, self.entangled, self.accelerating)


def spiral_conditions(
    change_correct: npt.ArrayLike,
    change_wrong: npt.ArrayLike,
    similarity: npt.ArrayLike,
    *,
    end: int | None = None,
    thresholds: Thresholds = DEFAULT,
) -> SpiralConditions:
    """Return from where each condition holds, read from three curves (U,) over updates, up to `end` (the collapse).

    `change_correct`, `change_wrong` in nats per response and update (new - old), `similarity` a cosine; NaN = not
    measured and is smoothed over; where a whole window is unknown the condition does not hold. Raises ShapeError.

    >>> spiral_conditions([0.0] * 20 + [-float(i) for i in range(20)], [0.0] * 40, [0.5] * 40).spiral
    19
    """
    curves = [np.asarray(curve, dtype=float) for curve in (change_correct, change_wrong, similarity)]
    if len({curve.shape for curve in curves}) > 1 or curves[0].ndim != 1:
        raise ShapeError(f"the curves have shapes {[curve.shape for curve in curves]}; give three of shape (U,)")
    right, wrong, alike = (smooth(curve, thresholds.signal_window)[:end] for curve in curves)
    before = np.concatenate([np.full(thresholds.spiral_lag, np.nan), right])[: len(right)]
    return SpiralConditions(
        falling=holds_from(right <= -thresholds.spiral_drop),
        wrong_not_rising=holds_from(wrong <= 0),
        similar=holds_from(alike >= thresholds.spiral_similarity),
        accelerating=holds_from(right < before),
    )


def holds_from(holds: npt.ArrayLike) -> int | None:
    """Return the first index from which `holds` (U,) is true to the end; None when its last value is false.

    >>> holds_from([True, False, True, True]), holds_from([True, False])
    (2, None)
    """
    flags = np.asarray(holds, dtype=bool)
    if not len(flags) or not flags[-1]:
        return None
    return 0 if flags.all() else int(np.flatnonzero(~flags)[-1]) + 1


def _latest(*starts: int | None) -> int | None:
    known = [start for start in starts if start is not None]
    return max(known) if len(known) == len(starts) else None
