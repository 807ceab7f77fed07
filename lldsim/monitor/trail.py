"""One signal of a log as the alarm rules see it: its last rows, its level, its extremes and its slope.

What this file does not do: decide anything (rules.py).
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from itertools import islice


class Trail:
    """One signal so far: its last rows, its extremes by median of three, its running statistics."""

    def __init__(self, span: float) -> None:
        self.rows: deque[tuple[float, float]] = deque(maxlen=2048)
        self.span = span
        self.level = math.nan  # median of the last three values
        self.highest, self.lowest = -math.inf, math.inf  # of `level`

    def add(self, step: float, value: float) -> None:
        """Take the value of one row; steps must rise."""
        self.rows.append((step, value))
        while len(self.rows) > 16 and self.rows[1][0] <= step - self.span:
            self.rows.popleft()
        last = sorted(v for _, v in islice(reversed(self.rows), 3))
        self.level = last[len(last) // 2] if len(last) != 2 else sum(last) / 2
        self.highest, self.lowest = max(self.highest, self.level), min(self.lowest, self.level)

    def slope(self, window: float, min_rows: int) -> float:
        """Return the least-squares slope per step over the rows of the last `window` steps, at least `min_rows`."""
        newest = self.rows[-1][0]
        found: list[tuple[float, float]] = []
        for step, value in reversed(self.rows):
            if step <= newest - window and len(found) >= min_rows:
                break
            found.append((step, value))
        if len(found) < min_rows:
            return math.nan
        return least_squares_slope(found)


def least_squares_slope(pairs: Sequence[tuple[float, float]]) -> float:
    """Return the least-squares slope of y on x; NaN where all x are equal."""
    mean_x = sum(x for x, _ in pairs) / len(pairs)
    mean_y = sum(y for _, y in pairs) / len(pairs)
    spread = sum((x - mean_x) ** 2 for x, _ in pairs)
    return sum((x - mean_x) * (y - mean_y) for x, y in pairs) / spread if spread > 0 else math.nan
