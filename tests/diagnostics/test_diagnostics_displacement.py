"""Displacement, similarity, tool rounds and Def. A.3 on arrays with known answers.

Locked here: Def. 4.1 by action and response; Eq. 3 averages correct responses of mixed queries only; both rules of the
displaced share; similarity equals the mean over explicit pairs for every match; likelihood by action and by rounds; the
three conditions hold from where they were made to hold, apart from each other, and never on a healthy curve.
"""

from __future__ import annotations

import numpy as np
import pytest

from lldsim.diagnostics.conditions import holds_from, spiral_conditions
from lldsim.diagnostics.displacement import action_change, displaced_shares, query_change, response_change
from lldsim.diagnostics.rounds import nll_by_action, nll_by_rounds
from lldsim.diagnostics.similarity import Match, gather_tokens, right_wrong_similarity
from lldsim.diagnostics.thresholds import DEFAULT
from lldsim.errors import ShapeError


def test_actions_add_up_to_responses(rng: np.random.Generator) -> None:
    action_id = np.array([[0, 0, -1, 1, 1, -1], [0, -1, -1, -1, -1, -1]])
    change = rng.standard_normal(action_id.shape)
    by_action = action_change(change, action_id, n_actions=3)
    assert np.isnan(by_action[1, 1:]).all()
    assert np.isnan(by_action[:, 2]).all()
    np.testing.assert_allclose(np.nansum(by_action, 1), response_change(change, action_id >= 0))
    np.testing.assert_allclose(by_action[0], [change[0, :2].sum(), change[0, 3:5].sum(), np.nan])


def test_eq3_averages_correct_responses_of_mixed_queries() -> None:
    queries, change = query_change(
        [-2.0, -4.0, 100.0, 1.0, 1.0, -5.0, -5.0],
        [True, True, False, True, True, False, False],
        [4, 4, 4, 9, 9, 2, 2],
    )
    assert queries.tolist() == [2, 4, 9]
    np.testing.assert_array_equal(change, [np.nan, -3.0, np.nan])


def test_shares_by_both_rules() -> None:
    size = DEFAULT.displaced_size
    shares = displaced_shares([0.0, -size, -size / 2, 1.0, np.nan])
    assert (shares.bare, shares.sized, shares.n) == (0.75, 0.25, 4)
    assert displaced_shares([np.nan]).n == 0


@pytest.mark.parametrize("match", ["query", "action", "position"])
@pytest.mark.parametrize("action", [None, 1])
def test_similarity_is_the_mean_over_explicit_pairs(rng: np.random.Generator, match: Match, action: int | None) -> None:
    b, t = 6, 8
    group, correct = np.array([0, 0, 0, 1, 1, 1]), np.array([True, False, False, True, True, False])
    action_id = np.repeat([[0, 0, 0, -1, 1, 1, 1, -1]], b, axis=0)
    action_id[2, 4:] = -1
    position = [0, 1, 2, 0, 0, 1, 2, 0]
    hidden = rng.standard_normal((b, t, 5))
    cosines = []
    for i in np.flatnonzero(correct):
        for j in np.flatnonzero(~correct & (group == group[i])):
            for k in range(t):
                for m in range(t):
                    if action_id[i, k] < 0 or action_id[j, m] < 0 or (action is not None and action_id[i, k] != action):
                        continue
                    same_action = action_id[i, k] == action_id[j, m]
                    if (match != "query" or action is not None) and not same_action:
                        continue
                    if match == "position" and position[k] != position[m]:
                        continue
                    x, y = hidden[i, k], hidden[j, m]
                    cosines.append(x @ y / np.linalg.norm(x) / np.linalg.norm(y))
    tokens = gather_tokens(hidden, action_id, correct, group)
    assert right_wrong_similarity(tokens, match=match, action=action) == pytest.approx(np.mean(cosines), abs=1e-12)


def test_similarity_without_a_pair_is_missing(rng: np.random.Generator) -> None:
    tokens = gather_tokens(rng.standard_normal((2, 3, 4)), np.zeros((2, 3), int), np.array([True, True]), np.zeros(2))
    assert np.isnan(right_wrong_similarity(tokens))


def test_likelihood_by_action_and_by_rounds() -> None:
    logps = np.array([[-1.0, -2.0, -9.0, -4.0], [-3.0, -3.0, -9.0, -9.0]])
    action_id = np.array([[0, 0, -1, 1], [0, 0, -1, -1]])
    np.testing.assert_allclose(nll_by_action(logps, action_id, n_actions=2), [2.25, 4.0])
    np.testing.assert_allclose(nll_by_action(logps, action_id, n_actions=2, where=[False, True]), [3.0, np.nan])
    np.testing.assert_allclose(nll_by_rounds(logps, action_id >= 0, [1, 0], max_rounds=2), [3.0, 7 / 3, np.nan])


def spiral_curves(n: int = 60, start: int = 30) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    falling = np.where(np.arange(n) < start, 0.1, -0.2 * (np.arange(n) - start + 1.0))
    return falling, np.full(n, -0.1), np.full(n, 0.3)


def test_each_condition_holds_from_where_it_was_made_to() -> None:
    right, wrong, alike = spiral_curves()
    found = spiral_conditions(right, wrong, alike)
    half = DEFAULT.signal_window // 2
    assert found.wrong_not_rising == found.similar == found.entangled == 0
    assert abs(found.falling - 30) <= half  # type: ignore[operator]
    assert abs(found.accelerating - 30) <= half  # type: ignore[operator]
    assert found.spiral == max(found.falling, found.accelerating)  # type: ignore[type-var]


def test_conditions_are_reported_apart() -> None:
    right, wrong, alike = spiral_curves()
    assert spiral_conditions(right, wrong, np.full(60, 0.01)).similar is None
    assert spiral_conditions(right, np.full(60, 0.2), alike).wrong_not_rising is None
    steady = spiral_conditions(np.full(60, -1.0), wrong, alike)
    assert (steady.falling, steady.accelerating, steady.spiral) == (0, None, None)
    late = spiral_conditions(right, wrong, np.where(np.arange(60) < 45, 0.3, 0.0), end=44)
    assert late.similar == 0, "what follows the collapse is not read"


def test_a_healthy_curve_has_no_spiral(rng: np.random.Generator) -> None:
    noise = 0.02 * rng.standard_normal(100)
    found = spiral_conditions(0.1 + noise, -0.2 + noise, 0.3 + noise)
    assert (found.falling, found.spiral) == (None, None)


def test_holds_from_reads_to_the_end() -> None:
    assert holds_from([]) is None
    assert holds_from([True, True]) == 0
    assert holds_from([True, False, True]) == 2


def test_shapes_that_disagree_are_refused() -> None:
    with pytest.raises(ShapeError, match=r"\(1, 2\) and action_id \(1, 3\)"):
        action_change(np.zeros((1, 2)), np.zeros((1, 3), int))
    with pytest.raises(ShapeError, match="must all be"):
        query_change([1.0], [True, False], [0])
    with pytest.raises(ShapeError, match="three of shape"):
        spiral_conditions([1.0], [1.0, 2.0], [1.0])
    with pytest.raises(ShapeError, match="disagree"):
        nll_by_rounds(np.zeros((2, 3)), np.ones((2, 3)), [1], max_rounds=1)
