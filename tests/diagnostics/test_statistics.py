"""Statistics over seeds against values worked by hand: Wilson, Kaplan-Meier, medians with censoring, paired delays."""

from __future__ import annotations

import math

import numpy as np
import pytest

from lldsim.diagnostics.statistics import collapse_rate, median_step, paired_delay, survival
from lldsim.errors import MissingDataError


def test_wilson_interval_is_the_textbook_formula():
    rate = collapse_rate([1, 2, None, None, None])
    z, n, p = 1.959963984540054, 5, 0.4
    centre = (p + z * z / (2 * n)) / (1 + z * z / n)
    half = z * math.sqrt(p * (1 - p) / n + z * z / (4 * n * n)) / (1 + z * z / n)
    assert (rate.k, rate.n) == (2, 5)
    assert (rate.low, rate.high) == pytest.approx((centre - half, centre + half))
    assert collapse_rate([None] * 20).high == pytest.approx(0.1611, abs=1e-4)
    with pytest.raises(MissingDataError):
        collapse_rate([])


def test_kaplan_meier_counts_censored_runs_while_they_last():
    at, share, low, high = survival([10, 20, None, 30], horizon=25 + 5)
    value = dict(zip(at, share, strict=True))
    assert value[0] == 1
    assert value[10] == pytest.approx(3 / 4)
    assert value[20] == pytest.approx(3 / 4 * 2 / 3)
    assert value[30] == pytest.approx(3 / 4 * 2 / 3 * 1 / 2)
    inside = np.isfinite(low) & np.isfinite(high)
    assert (low[inside] <= share[inside]).all()
    assert (share[inside] <= high[inside]).all()


def test_survival_without_a_collapse_is_flat_at_one():
    at, share, _, _ = survival([None, None], horizon=50)
    assert (at.tolist(), share.tolist()) == ([0, 50], [1, 1])


def test_median_treats_censored_runs_as_later_than_everything():
    assert median_step([10, 20, 30])[0] == 20
    assert median_step([10, 20, None, None])[0] == math.inf
    assert median_step([10, 20, 30, None])[0] == 25
    median, low, high = median_step([10, 20, 30, 40, 50])
    assert 10 <= low <= median <= high <= 50


def test_paired_delay_is_per_seed_and_censored_runs_are_lower_bounds():
    delay = paired_delay([15, 26, None, 40], [10, 20, 30, 40], horizon=100)
    assert (delay.later, delay.earlier, delay.censored) == (3, 0, 1)
    assert delay.median == pytest.approx((5 + 6) / 2)
    assert delay.p_value == pytest.approx(2 * 0.5**3)
    assert str(delay).startswith(">=")
    same = paired_delay([10, 20], [10, 20], horizon=100)
    assert (same.median, same.p_value) == (0, 1)
    with pytest.raises(MissingDataError, match="nothing to be delayed"):
        paired_delay([10], [None], horizon=100)
