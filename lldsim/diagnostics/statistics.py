"""Statistics over seeds: collapse rates, times to collapse with censored runs counted, paired delays.

SciPy does the estimating (Wilson interval, Kaplan-Meier, sign test, bootstrap); this file only fixes the conventions.
A run that did not collapse is censored at its last update, never dropped.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy import stats

from lldsim.errors import MissingDataError

Steps = Sequence[int | None]  # collapse steps; None = did not collapse


@dataclass(frozen=True)
class Rate:
    """A share k of n with its 95 % Wilson interval."""

    k: int
    n: int
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.k}/{self.n} [{self.low:.2f}, {self.high:.2f}]"


def collapse_rate(steps: Steps) -> Rate:
    """Return how many runs collapsed, with the 95 % Wilson interval."""
    k, n = sum(s is not None for s in steps), len(steps)
    if n == 0:
        raise MissingDataError("no runs given; a rate needs at least one")
    interval = stats.binomtest(k, n).proportion_ci(0.95, method="wilson")
    return Rate(k, n, float(interval.low), float(interval.high))


def survival(steps: Steps, horizon: int) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Return the Kaplan-Meier curve: update, share not yet collapsed, and its 95 % log-log bounds, as step points."""
    times = np.array([horizon if s is None else s for s in steps], dtype=float)
    censored = np.array([s is None for s in steps])
    if censored.all():  # nothing happened: the curve is flat at 1, and SciPy has no step to report
        return np.array([0.0, horizon]), np.ones(2), np.ones(2), np.ones(2)
    sample = stats.CensoredData(uncensored=times[~censored], right=times[censored])
    curve = stats.ecdf(sample).sf
    with warnings.catch_warnings():  # the bound has no value where the curve is 0 or 1, and SciPy says so each time
        warnings.filterwarnings("ignore", "The confidence interval is undefined", RuntimeWarning)
        bounds = curve.confidence_interval(method="log-log")
    at = np.concatenate([[0.0], curve.quantiles, [horizon]])

    def extend(values: np.ndarray) -> np.ndarray:
        return np.concatenate([[1.0], values, values[-1:]])

    return at, extend(curve.probabilities), extend(bounds.low.probabilities), extend(bounds.high.probabilities)


def median_step(steps: Steps, *, seed: int = 0, resamples: int = 4999) -> tuple[float, float, float]:
    """Return the median collapse step and its 95 % bootstrap interval; infinite where more than half are censored."""
    times = np.array([np.inf if s is None else s for s in steps], dtype=float)
    return _bootstrap_median(times, seed, resamples)


@dataclass(frozen=True)
class PairedDelay:
    """Collapse step minus that of the same seed in the reference arm; a censored run is a lower bound."""

    median: float
    low: float
    high: float
    later: int
    earlier: int
    censored: int
    p_value: float  # two-sided sign test of later against earlier

    def __str__(self) -> str:
        bound = ">=" if self.censored else ""
        return (
            f"{bound}{self.median:+.0f} [{self.low:+.0f}, {self.high:+.0f}], later {self.later}, earlier {self.earlier}"
        )


def paired_delay(steps: Steps, reference: Steps, horizon: int, *, seed: int = 0, resamples: int = 4999) -> PairedDelay:
    """Compare two arms seed by seed (common random numbers); censored runs count as `horizon`, a lower bound.

    Pairs whose reference did not collapse say nothing about a delay and are left out of the median, not of `censored`.
    """
    pairs = [(s, r) for s, r in zip(steps, reference, strict=True) if r is not None]
    if not pairs:
        raise MissingDataError("no run of the reference arm collapsed; there is nothing to be delayed")
    delays = np.array([(horizon if s is None else s) - r for s, r in pairs], dtype=float)
    later, earlier = int((delays > 0).sum()), int((delays < 0).sum())
    p_value = stats.binomtest(later, later + earlier).pvalue if later + earlier else 1.0
    censored = sum(s is None for s, _ in pairs)
    return PairedDelay(*_bootstrap_median(delays, seed, resamples), later, earlier, censored, float(p_value))


def finite_or_none(x: float) -> float | None:
    """Return `x`, or None where it is NaN or infinite, which JSON cannot hold (a median that was not reached)."""
    return float(x) if np.isfinite(x) else None


def _bootstrap_median(values: np.ndarray, seed: int, resamples: int) -> tuple[float, float, float]:
    rng = np.random.default_rng(seed)
    medians = np.sort(values[rng.integers(len(values), size=(resamples, len(values)))], axis=1)
    n = len(values)
    medians = medians[:, n // 2] if n % 2 else _middle(medians[:, n // 2 - 1], medians[:, n // 2])
    low, high = np.quantile(medians, [0.025, 0.975], method="nearest")
    return float(_median(values)), float(low), float(high)


def _median(values: np.ndarray) -> float:
    ordered, n = np.sort(values), len(values)
    return float(ordered[n // 2] if n % 2 else _middle(ordered[n // 2 - 1], ordered[n // 2]))


def _middle(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Return (a + b) / 2 without inf - inf warnings."""
    return np.where(np.isinf(b), b, a / 2 + np.where(np.isinf(b), 0, b) / 2)
