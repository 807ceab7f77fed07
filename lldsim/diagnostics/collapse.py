"""Did a run collapse, when, and how much of its reward did it keep?

What this file does not do: causal alarms; these statements read the whole curve.
"""

from __future__ import annotations

import numpy as np

from lldsim.diagnostics.thresholds import DEFAULT, Thresholds
from lldsim.errors import MissingDataError


def smooth(values: np.ndarray, window: int) -> np.ndarray:
    """Return the centred moving mean (U,) of `values` (U,), shrinking at the ends and ignoring NaN.

    Where a whole window is NaN the result is NaN.

    >>> smooth(np.array([0.0, 3.0, 3.0, np.nan]), 3).tolist()
    [1.5, 2.0, 3.0, 3.0]
    """
    values = np.asarray(values, dtype=float)
    known = np.isfinite(values)
    kernel = np.ones(window)
    half = window // 2
    count = np.convolve(known, kernel)[half : half + len(values)]
    total = np.convolve(np.where(known, values, 0.0), kernel)[half : half + len(values)]
    return np.divide(total, count, out=np.full(len(values), np.nan), where=count > 0.5)


def collapse_step(reward: np.ndarray, thresholds: Thresholds = DEFAULT) -> int | None:
    """Return the first update whose smoothed reward is below half its running peak, or None (censored).

    `reward` (U,) is the mean reward per update. Raises MissingDataError on an empty curve.
    """
    if len(reward) == 0:
        raise MissingDataError("the reward curve is empty; run at least one update")
    smoothed = smooth(reward, thresholds.reward_window)
    fallen = smoothed < thresholds.collapse_share * np.fmax.accumulate(smoothed)
    return int(np.argmax(fallen)) if fallen.any() else None


def kept_share(reward: np.ndarray, thresholds: Thresholds = DEFAULT) -> float:
    """Return the lowest smoothed reward after the peak as a share of the peak: 1 = nothing was ever lost."""
    smoothed = smooth(reward, thresholds.reward_window)
    peak = int(np.nanargmax(smoothed))
    return float(np.nanmin(smoothed[peak:]) / smoothed[peak]) if smoothed[peak] > 0 else 0.0


def surge(values: np.ndarray, until: int | None = None, thresholds: Thresholds = DEFAULT) -> float:
    """Return the largest smoothed value up to update `until` over the mean of the early updates (entropy, norms)."""
    first, last = thresholds.early
    early = np.nanmean(values[first:last])
    return float(np.nanmax(smooth(values, thresholds.signal_window)[: None if until is None else until + 1]) / early)
