"""Sampling: what a rollout batch may contain, and that the compiled sampler writes the same tokens.

Locked here: grammar (searches, answers, invalid actions, rewards), masks and action numbering, the sampler's own
log-probabilities, top-p sets, inverse-CDF sampling, and token-by-token equality of the plain and the compiled rollout.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from lldsim.config import preset
from lldsim.draws import draw
from lldsim.engine import Run
from lldsim.policy import LinearSoftmaxPolicy, select, sharpen
from lldsim.rollout import inverse_cdf, rollout
from lldsim.world import BAD, INVALID, NONE, SEARCH, build_world

SMALL = preset("spiral").replace(n_queries=4, updates_per_rollout=2, max_turns=4)


def sample(config, *, update=0, scale=0.0, seed=0):
    """Return (batch, policy, draws) of one plain rollout at random weights of the given scale."""
    world = build_world(config.world, seed=config.trainer.seed)
    shape = (config.world.vocab_size, config.world.n_features)
    weights = torch.from_numpy(np.random.default_rng(seed).normal(0, scale, shape))
    policy = LinearSoftmaxPolicy(world, weights)
    draws = draw(config, update)
    t = config.trainer
    batch = rollout(policy, draws, group_size=config.world.group_size, temperature=t.temperature, top_p=t.top_p)
    return batch, policy, draws


@pytest.mark.parametrize("scale", [0.0, 1.0])
@pytest.mark.parametrize("ends", [False, True])
def test_responses_follow_the_grammar(scale, ends):
    config = SMALL.replace(n_queries=16, invalid_ends_episode=ends)
    batch, policy, draws = sample(config, scale=scale)
    world, k = policy.world, config.world.turn_tokens
    tokens = batch.tokens.reshape(80, 4, k + 1).numpy()
    feedback = np.unravel_index(batch.context.clamp(min=0).numpy(), world.context_shape)[3].reshape(80, 4, k + 1)
    for b in range(80):
        answer = draws.answer[b // 5]
        searches = invalid = 0
        expected, over, reward = NONE, False, 0.0
        for t in range(4):
            if over:
                assert (tokens[b, t] == -1).all()
                continue
            assert (tokens[b, t, :k] >= 0).all()
            assert (feedback[b, t, :k] == expected).all()
            off = (tokens[b, t, : k - 1] != world.canon).sum()
            decision = tokens[b, t, k - 1]
            if off >= 7 or decision > 4:
                invalid, expected, over = invalid + 1, INVALID, ends
            elif decision == SEARCH:
                searches += 1
                expected = BAD if draws.document[b, t] < 0.4 else 2 + answer
            else:
                over, reward = True, float(decision == answer)
        assert batch.rewards[b] == reward
        assert (batch.valid_searches[b], batch.invalid_actions[b]) == (searches, invalid)


def test_masks_number_actions_and_leave_feedback_out():
    batch, policy, _ = sample(SMALL)
    k = policy.world.config.turn_tokens
    assert (batch.action_mask == (batch.tokens >= 0)).all()
    assert (batch.action_mask == (batch.action_id >= 0)).all()
    assert not batch.action_mask[:, k :: k + 1].any()
    runs = batch.action_mask.int().diff(dim=1, prepend=torch.zeros(len(batch.rewards), 1)).eq(1).sum(1)
    assert (runs == batch.action_id.max(dim=1).values + 1).all()  # feedback separates actions into runs of ones
    last = batch.action_id == batch.action_id.max(dim=1, keepdim=True).values
    assert (batch.answer_mask <= (last & batch.action_mask)).all()
    assert (batch.answer_mask.sum(1)[batch.rewards > 0] == k).all()


def test_sampler_logps_are_those_of_the_sampled_distribution():
    config = SMALL.replace(top_p=0.9)
    batch, policy, _ = sample(config, scale=0.5)
    logps = select(sharpen(policy.logps_all(batch.context), temperature=0.7, top_p=0.9), batch.tokens)
    torch.testing.assert_close(batch.sampler_logps[batch.action_mask], logps[batch.action_mask], rtol=0, atol=1e-12)
    assert torch.isfinite(logps[batch.action_mask]).all()  # nothing outside the top-p set was sampled


def test_top_p_keeps_the_smallest_set_with_that_mass():
    logps = torch.tensor([[0.5, 0.3, 0.2]], dtype=torch.float64).log()
    kept = sharpen(logps, temperature=1.0, top_p=0.8).exp()
    torch.testing.assert_close(kept, torch.tensor([[0.625, 0.375, 0.0]], dtype=torch.float64))


@given(
    weights=st.lists(st.floats(0, 1), min_size=1, max_size=8).filter(lambda w: sum(w) > 1e-3),
    u=st.floats(0, 1, exclude_max=True),
)
@settings(max_examples=200, deadline=None)
def test_inverse_cdf_inverts_the_cdf_and_never_picks_an_impossible_token(weights, u):
    probs = np.array([weights]) / sum(weights)
    y = int(inverse_cdf(probs, np.array([u]))[0])
    assert probs[0, y] > 0
    before, through = probs[0, :y].sum(), probs[0, : y + 1].sum()
    assert before - 1e-12 <= u <= through + 1e-12


def test_sampling_frequencies_match_the_probabilities():
    probs = np.array([0.1, 0.0, 0.6, 0.3])
    u = np.random.default_rng(0).random(40_000)
    share = np.bincount(inverse_cdf(np.tile(probs, (len(u), 1)), u), minlength=4) / len(u)
    np.testing.assert_allclose(share, probs, atol=0.01)


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"top_p": 0.88, "temperature": 1.0},
        {"invalid_ends_episode": True, "canon_prob": 0.6},
        {"n_answers": 2, "max_turns": 1},
        {"turn_tokens": 5, "invalid_threshold": 2, "group_size": 2},
    ],
)
def test_compiled_rollout_is_the_plain_one(changes):
    config = SMALL.replace(**changes)
    batch, policy, draws = sample(config, scale=0.3)
    run = Run(config)
    run.weights[:] = policy.weights.numpy()
    roll = run.sample(draws)
    b, turns, k = roll.tokens.shape
    acted = np.arange(turns) < roll.turns[:, None]
    plain = batch.tokens.reshape(b, turns, k + 1)[:, :, :k].numpy()
    np.testing.assert_array_equal(np.where(acted[:, :, None], roll.tokens, -1), plain)
    np.testing.assert_array_equal(roll.reward, batch.rewards.numpy())
    np.testing.assert_array_equal(roll.searches, batch.valid_searches.numpy())
    np.testing.assert_array_equal(roll.invalid, batch.invalid_actions.numpy())
    np.testing.assert_array_equal(roll.answered == 1, batch.answer_mask.any(1).numpy())
    sampler = batch.sampler_logps.reshape(b, turns, k + 1)[:, :, :k].numpy()
    np.testing.assert_allclose(roll.sampler_logps[acted], sampler[acted], rtol=1e-10, atol=1e-14)
