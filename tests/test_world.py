"""The world: base probabilities, hidden states, and the tables that say which is used where.

Locked here: probabilities are those the dials say and sum to 1; hidden states have unit norm at every drift level; the
similarity dials do what their names say, and at 0 contexts are as alike as random directions; same seed, same world.
"""

from __future__ import annotations

import numpy as np
import pytest

from lldsim.config import WorldConfig, preset
from lldsim.draws import draw
from lldsim.world import BAD, GOOD, INVALID, NONE, SEARCH, body_probabilities, build_world, decision_probabilities


@pytest.fixture(scope="module")
def world():
    return build_world(WorldConfig(), seed=0)


def every_context(world):
    return np.arange(np.prod(world.context_shape))


def test_base_probabilities_sum_to_one_everywhere(world):
    np.testing.assert_allclose(np.exp(world.base_logps).sum(-1), 1, rtol=1e-12)


def test_canonical_word_is_likely_without_drift_and_less_after_bad_feedback():
    config = WorldConfig()
    p = body_probabilities(config, 9, NONE, 0)
    assert p[9] == pytest.approx(0.93)
    assert body_probabilities(config, 9, BAD, 0)[9] == pytest.approx(0.93 * 0.9)
    assert body_probabilities(config, 9, INVALID, 2)[9] == pytest.approx(0.93 * 0.9 * 0.45)
    assert body_probabilities(config, 9, GOOD + 1, 0)[9] == pytest.approx(0.93)
    others = np.delete(p, 9)
    np.testing.assert_allclose(others, others[0])


def test_decision_probabilities_are_the_dials():
    config = WorldConfig()
    blind = decision_probabilities(config, BAD, 0)
    assert blind[SEARCH] == pytest.approx(0.75)
    np.testing.assert_allclose(blind[1:5], 0.05)
    seeing = decision_probabilities(config, GOOD + 3, 0)
    assert seeing[3] == pytest.approx(0.125 + 0.3)
    assert seeing[1] == pytest.approx(0.125)
    assert seeing[SEARCH] == pytest.approx(0.15)
    assert seeing[5:].sum() == pytest.approx(0.05)
    drifted = decision_probabilities(config, NONE, 3)
    np.testing.assert_allclose(drifted, 0.1 * decision_probabilities(config, NONE, 0) + 0.9 / config.vocab_size)


def test_hidden_states_have_unit_norm_at_every_drift_level(world):
    norms = np.linalg.norm(world.hidden(every_context(world)), axis=1)
    np.testing.assert_allclose(norms, 1, rtol=1e-12)


def test_context_index_and_tables_agree(world):
    q, t, k, f, level = 3, 2, 5, GOOD + 1, 2
    context = world.context(np.array([q]), t, k, f, level)
    np.testing.assert_array_equal(world.base(context)[0], world.base_logps[world.base_row[k, f, level]])
    expected = world.hidden_table.hidden(world.feature_row[[q], t, k, f], np.array([level]))
    np.testing.assert_array_equal(world.hidden(context), expected)


def test_a_decision_does_not_see_the_turn_and_a_word_does(world):
    last = world.config.turn_tokens - 1
    assert world.feature_row[0, 1, last, BAD] == world.feature_row[0, 5, last, BAD]
    assert world.feature_row[0, 1, 0, BAD] != world.feature_row[0, 5, 0, BAD]


def mean_cosine(world, a, b):
    """Mean inner product of hidden states between two lists of coordinates (q, t, k, f, level)."""
    a, b = (world.hidden(world.context(*np.array(x).T)) for x in (a, b))
    return float((a @ b.T).mean())


def other_queries(k, f, level, turn):
    return [(q, turn, k, f, level) for q in range(8)], [(q, turn, k, f, level) for q in range(8, 16)]


def test_similarity_dials_make_alike_what_they_name(world):
    null = build_world(
        WorldConfig(position_similarity=0, anisotropy=0, feedback_similarity=0, garbage_similarity=(0.0,) * 4,
                    decision_similarity=0), seed=0,
    )  # fmt: skip
    same_position = other_queries(3, NONE, 0, 0)
    assert mean_cosine(world, *same_position) > 0.85
    assert abs(mean_cosine(null, *same_position)) < 0.1
    same_feedback = [(q, 1, 3, BAD, 0) for q in range(8)], [(q, 2, 8, BAD, 0) for q in range(8, 16)]
    assert mean_cosine(world, *same_feedback) > mean_cosine(null, *same_feedback) + 0.2
    drifted = [(q, 1, 3, BAD, 3) for q in range(8)], [(q, 2, 8, INVALID, 3) for q in range(8, 16)]
    assert mean_cosine(world, *drifted) > 0.8
    assert abs(mean_cosine(null, *drifted)) < 0.1
    decisions = other_queries(world.config.turn_tokens - 1, BAD, 0, 1)
    assert mean_cosine(world, *decisions) == pytest.approx(0.2, abs=0.1)


def test_same_seed_same_world_and_another_seed_another():
    a, b, c = (build_world(WorldConfig(), seed=s) for s in (5, 5, 6))
    np.testing.assert_array_equal(a.hidden_table.plain, b.hidden_table.plain)
    np.testing.assert_array_equal(a.canon, b.canon)
    assert not np.array_equal(a.hidden_table.plain, c.hidden_table.plain)


def test_base_power_raises_probabilities_and_renormalises(world):
    sharp = build_world(WorldConfig(base_power=1 / 0.7), seed=0)
    p = np.exp(world.base_logps) ** (1 / 0.7)
    np.testing.assert_allclose(np.exp(sharp.base_logps), p / p.sum(-1, keepdims=True), rtol=1e-12)


def test_draws_are_addressed_by_seed_and_update_alone():
    config = preset("spiral")
    a, b = draw(config, 7), draw(config.replace(learning_rate=1.0, llds_coef=0.2, position_similarity=0.0), 7)
    for x, y in zip(a, b, strict=True):
        np.testing.assert_array_equal(x, y)
    assert not np.array_equal(a.token, draw(config, 8).token)
    assert not np.array_equal(a.token, draw(config.replace(seed=1), 7).token)
    assert sorted(a.order) == list(range(80))
    assert set(np.unique(a.answer)) <= {1, 2, 3, 4}
