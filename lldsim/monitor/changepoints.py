"""Where a curve bends, and how sure that is: continuous piecewise-linear least squares with profile-likelihood
intervals.

With y the curve and b1 < b2 the bends, y(t) = a + c0 t + c1 max(0, t - b1) + c2 max(0, t - b2) + noise. Every pair
of bends on a grid is tried, so the optimum is exact on the grid; the number of bends (0, 1, 2) is chosen by BIC; the
95 % interval of a bend holds all places for which the best fit is not worse than chance explains (Wilks): n ln(SSE /
SSE_best) <= 3.84. Change-point packages find the bends too, but give no interval, which is why this is written out.
What this file does not do: alarms; a bend is judged with hindsight.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

_CHI2 = 3.841458820694124  # 95 % quantile of chi-squared with one degree of freedom
GRID = 48  # places tried for a bend
POINTS = 240  # longer curves are averaged to this many points


@dataclass(frozen=True)
class Bend:
    """A change of slope at `at` (low to high: 95 %), from `before` to `after` per step."""

    at: float
    low: float
    high: float
    before: float
    after: float


def bends(steps: np.ndarray, values: np.ndarray) -> list[Bend]:
    """Return zero to two bends of `values` (N,) over rising `steps` (N,); NaN are left out; under 12 points: none.

    >>> t = np.arange(60.0)
    >>> [round(b.at) for b in bends(t, -0.1 - 0.02 * np.maximum(0, t - 30) + 1e-3 * np.sin(9 * t))]
    [30]
    """
    known = np.isfinite(values) & np.isfinite(steps)
    t, y = _thin(np.asarray(steps, float)[known], np.asarray(values, float)[known])
    n = len(t)
    if n < 12 or np.ptp(t) <= 0:
        return []
    scale = np.ptp(t)
    x = (t - t[0]) / scale
    grid = np.unique(x[2:-2][:: max(1, (n - 4) // GRID)])
    none = _sse(x, y, ())
    one = np.array([_sse(x, y, (b,)) for b in grid])
    two = np.full((len(grid), len(grid)), math.inf)
    for i, first in enumerate(grid):
        for j in range(i + 2, len(grid)):
            two[i, j] = _sse(x, y, (first, grid[j]))
    floor = 1e-12 * max(float(np.var(y)) * n, 1e-300)
    bic = [n * math.log(max(s, floor) / n) + k * math.log(n) for s, k in ((none, 2), (one.min(), 4), (two.min(), 6))]
    count = int(np.argmin(bic))
    if count == 0:
        return []
    profiles = [one] if count == 1 else [two.min(axis=1), two.min(axis=0)]
    places = [grid[int(np.argmin(p))] for p in profiles]
    slopes = np.cumsum(_fit(x, y, tuple(places))[1:]) / scale
    found = []
    for i, (profile, place) in enumerate(zip(profiles, places, strict=True)):
        best = max(float(profile.min()), floor)
        inside = grid[n * np.log(np.maximum(profile, floor) / best) <= _CHI2]
        low, at, high = (float(t[0] + scale * b) for b in (inside.min(), place, inside.max()))
        found.append(Bend(at, low, high, float(slopes[i]), float(slopes[i + 1])))
    return found


def _thin(t: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    if len(t) <= POINTS:
        return t, y
    parts = np.array_split(np.arange(len(t)), POINTS)
    return np.array([t[p].mean() for p in parts]), np.array([y[p].mean() for p in parts])


def _design(x: np.ndarray, places: tuple[float, ...]) -> np.ndarray:
    return np.stack([np.ones_like(x), x, *(np.maximum(0.0, x - b) for b in places)], axis=1)


def _fit(x: np.ndarray, y: np.ndarray, places: tuple[float, ...]) -> np.ndarray:
    return np.linalg.lstsq(_design(x, places), y, rcond=None)[0]


def _sse(x: np.ndarray, y: np.ndarray, places: tuple[float, ...]) -> float:
    design = _design(x, places)
    # Normal equations: at most four columns on [0, 1], and a thousand fits a curve.
    gram = design.T @ design + 1e-12 * np.eye(design.shape[1])
    residual = y - design @ np.linalg.solve(gram, design.T @ y)
    return float(residual @ residual)
