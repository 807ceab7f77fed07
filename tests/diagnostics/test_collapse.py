"""Collapse, kept share, surges and phases on curves whose answer is known by construction."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from lldsim.diagnostics.collapse import collapse_step, kept_share, smooth, surge
from lldsim.diagnostics.phases import Phase, falls_while_reward_holds, find_phases
from lldsim.errors import MissingDataError
from lldsim.record import make_record


def record(reward, logp):
    reward, logp = np.asarray(reward, float), np.asarray(logp, float)
    columns = {"update": np.arange(len(reward), dtype=float), "reward": reward, "logp_correct": logp}
    return make_record(columns, {}, "")


def falling(n=100, decay=40, acceleration=60, collapse=80):
    """Likelihood level -.1, times 2 from `decay`, times 5 from `acceleration`; reward 1, then 0 from `collapse`."""
    u = np.arange(n)
    logp = np.select([u < decay, u < acceleration], [-0.1, -0.2], -0.5)
    return record(np.where(u < collapse, 1.0, 0.0), np.where(u < collapse, logp, np.nan))


def test_smoothing_is_the_mean_over_known_values_in_the_window():
    values = np.array([1.0, np.nan, 3.0, 5.0, np.nan, np.nan, np.nan])
    expected = [np.nan if i > 4 else float(np.nanmean(values[max(0, i - 1) : i + 2])) for i in range(7)]
    np.testing.assert_allclose(smooth(values, 3), np.array(expected))


def test_collapse_is_the_first_update_below_half_of_the_running_peak():
    assert collapse_step(np.r_[np.ones(50), np.zeros(50)]) == 50  # the 9-update mean passes 1/2 between 49 and 50
    assert collapse_step(np.r_[np.ones(50), np.full(50, 0.6)]) is None  # a fall of 40 % is no collapse
    assert collapse_step(np.linspace(0, 1, 80)) is None
    with pytest.raises(MissingDataError, match="empty"):
        collapse_step(np.array([]))


def test_kept_share_looks_only_after_the_peak():
    assert kept_share(np.linspace(0, 1, 80)) == 1.0
    assert kept_share(np.r_[np.zeros(20), np.ones(40), np.full(40, 0.7)]) == pytest.approx(0.7)


def test_surge_compares_with_the_early_mean_and_stops_where_told():
    values = np.r_[np.ones(30), np.full(20, 3.0), np.full(20, 9.0)]
    assert surge(values) == pytest.approx(9)
    assert surge(values, until=45) == pytest.approx(3)


def test_phases_start_where_the_curve_was_built_to_change():
    phases = find_phases(falling())
    assert phases.decay == pytest.approx(40, abs=2)
    assert phases.acceleration == pytest.approx(60, abs=2)
    assert phases.collapsed == 80
    assert [phase for phase, _, _ in phases.spans()] == list(Phase)
    spans = phases.spans()
    assert (spans[0][1], spans[-1][2]) == (0, 100)
    assert all(a[2] == b[1] for a, b in itertools.pairwise(spans))


def test_an_excursion_that_comes_back_is_no_phase():
    logp = np.full(100, -0.1)
    logp[30:50] = -0.9
    phases = find_phases(record(np.ones(100), logp))
    assert (phases.decay, phases.acceleration, phases.collapsed) == (None, None, None)
    assert phases.spans() == [(Phase.STAGNATION, 0, 100)]


def test_fall_on_the_plateau_is_counted_up_to_the_collapse():
    assert falls_while_reward_holds(falling()) == pytest.approx(38, abs=4)
    assert falls_while_reward_holds(record(np.ones(50), np.full(50, -0.1))) == 0


def test_a_record_without_correct_responses_has_no_phase_but_is_no_error():
    phases = find_phases(record(np.zeros(20), np.full(20, np.nan)))
    assert (phases.decay, phases.acceleration) == (None, None)
