"""The token world and its sampler.

Locked here: which actions are valid and what they earn; any token sequence gets a reply; masks, action numbers and
feedback of a sampled batch; sampler and trainer agree at temperature 1; luck is addressed by (seed, update).
"""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from transformer_tools import CANON, TINY, tiny_config, tiny_start

from lldsim.transformer.config import TokenWorldConfig
from lldsim.transformer.sampler import TokenBatch, sample_batch
from lldsim.transformer.train import minibatches, old_policy
from lldsim.transformer.warm_start import packaged
from lldsim.transformer.world import (
    ANSWER,
    ANSWER_END,
    BAD,
    ERR,
    GOOD,
    INFO,
    INVALID,
    SEARCH,
    SEARCH_END,
    TokenWorld,
    draw_tokens,
)

WORLD = TokenWorld(TokenWorldConfig(body_tokens=4, invalid_threshold=3), CANON)
QUERY = (10, 18, 22)
NOISE = np.array([46, 47, 48, 49])


def reply(action: list[int], *, document: float = 0.9, last: bool = False):
    return WORLD.reply(action, query=QUERY, document=document, noise=NOISE, last=last)


def batch_of(**changes: float) -> tuple[TokenBatch, TokenWorld]:
    config = tiny_config(**changes)
    start = tiny_start()
    world = start.world(config.world)
    return sample_batch(start.flat, world, draw_tokens(config, 0), shape=TINY, temperature=1.0), world


@pytest.mark.parametrize(
    ("tail", "document", "kind", "reward", "done"),
    [
        ([SEARCH, 10, 18, SEARCH_END], 0.9, GOOD, 0.0, False),
        ([SEARCH, 10, 18, SEARCH_END], 0.1, BAD, 0.0, False),  # below search_noise
        ([SEARCH, 11, 18, SEARCH_END], 0.9, BAD, 0.0, False),  # another entity
        ([SEARCH, 18, 10, SEARCH_END], 0.9, INVALID, 0.0, False),  # relation before entity
        ([SEARCH, 10, 18, ANSWER_END], 0.9, INVALID, 0.0, False),
        ([ANSWER, 22, ANSWER_END], 0.9, 0, 1.0, True),
        ([ANSWER, 23, ANSWER_END], 0.9, 0, 0.0, True),
        ([ANSWER, 10, ANSWER_END], 0.9, INVALID, 0.0, False),  # no value
        ([], 0.9, INVALID, 0.0, False),
    ],
)
def test_what_an_action_earns(tail: list[int], document: float, kind: int, reward: float, done: bool) -> None:
    found = reply([*CANON, *tail], document=document)
    assert (found.kind, found.reward, found.done) == (kind, reward, done)
    assert found.invalid == (kind == INVALID)
    assert found.valid_search == (kind in (GOOD, BAD))


def test_body_may_stray_only_so_far() -> None:
    answer = [ANSWER, 22, ANSWER_END]
    assert reply([50, 51, *CANON[2:], *answer]).reward == 1
    assert reply([50, 51, 52, *CANON[3:], *answer]).invalid


def test_a_good_document_names_the_value_and_a_bad_one_does_not() -> None:
    search = [*CANON, SEARCH, 10, 18, SEARCH_END]
    assert 22 in reply(search).feedback
    assert 22 not in reply(search, document=0.1).feedback


def test_the_last_turn_gets_no_feedback() -> None:
    found = reply([*CANON, SEARCH, 10, 18, SEARCH_END], last=True)
    assert found.done
    assert found.feedback == []
    assert found.reward == 0


@given(st.lists(st.integers(0, 63), max_size=10), st.floats(0, 1, exclude_max=True), st.booleans())
def test_any_action_gets_one_of_the_replies(action: list[int], document: float, last: bool) -> None:
    found = reply(action, document=document, last=last)
    assert found.invalid + found.valid_search + (found.done and ANSWER in action and not found.invalid) >= 1
    assert found.reward <= found.done
    assert len(found.feedback) in ((0,) if found.done else (4, 6))
    assert found.kind == INVALID or len(action) > len(CANON)


def test_masks_actions_and_feedback_of_a_batch_fit_together() -> None:
    batch, world = batch_of()
    acted = batch.action_mask
    assert torch.equal(acted, batch.action_id >= 0)
    assert torch.equal(acted, batch.tokens >= 0)
    assert torch.equal(batch.ids[:, 3:][acted], batch.tokens[acted])
    assert (batch.sampler_logps[~acted] == 0).all()
    assert (batch.ids[:, 3:][~acted] < 64).all()
    for row in range(len(acted)):
        numbers = batch.action_id[row][acted[row]]
        assert (numbers.diff() >= 0).all()
        assert (numbers.diff() <= 1).all()
        for number in numbers.unique():
            action = batch.tokens[row][batch.action_id[row] == number].tolist()
            assert len(action) <= world.turn_tokens
            assert not any(world.ends(token, i) for i, token in enumerate(action[:-1]))
            assert world.ends(action[-1], len(action) - 1)
        started = batch.ids[row, 3:][~acted[row]]
        assert started[:1].tolist() in ([], [0], [INFO], [ERR])
    rewarded = batch.rewards > 0
    assert batch.answer_mask[rewarded].any(-1).all()


def test_context_is_the_state_before_the_token() -> None:
    batch, _ = batch_of()
    acted = batch.action_mask
    before = batch.ids.flatten()[batch.context[acted]]
    shifted = batch.ids[:, 2:-1][acted]
    assert torch.equal(before, shifted)


def test_sampler_and_trainer_agree_at_temperature_one() -> None:
    config = tiny_config()
    batch, _ = batch_of()
    logps, _, _ = old_policy(tiny_start().flat, batch, minibatches(config, 0), TINY)
    assert (logps - batch.sampler_logps)[batch.action_mask].abs().max() < 1e-5


def test_sampler_and_trainer_agree_on_a_packaged_network() -> None:
    start = packaged(1)
    config = tiny_config(body_tokens=10, invalid_threshold=7)
    batch = sample_batch(
        start.flat, start.world(config.world), draw_tokens(config, 0), shape=start.shape, temperature=1.0
    )
    logps, entropy, _ = old_policy(start.flat, batch, minibatches(config, 0), start.shape)
    assert (logps - batch.sampler_logps)[batch.action_mask].abs().max() < 1e-5
    assert logps[batch.action_mask].mean() > -1.2, "the packaged network knows the protocol"
    assert entropy[batch.action_mask].mean() < 1.5


def test_luck_is_addressed_by_seed_and_update_alone() -> None:
    a, b = draw_tokens(tiny_config(), 3), draw_tokens(tiny_config(llds_coef=0.2, temperature=1.0), 3)
    other = draw_tokens(tiny_config(seed=1), 3)
    assert all(np.array_equal(x, y) for x, y in zip(a, b, strict=True))
    assert not np.array_equal(a.token, other.token)
    assert not np.array_equal(a.token, draw_tokens(tiny_config(), 4).token)


def test_lower_temperature_samples_likelier_tokens() -> None:
    config, start = tiny_config(), tiny_start()
    found = {}
    for temperature in (1.0, 0.3):
        batch = sample_batch(
            start.flat, start.world(config.world), draw_tokens(config, 0), shape=TINY, temperature=temperature
        )
        logps, _, _ = old_policy(start.flat, batch, minibatches(config, 0), TINY)
        found[temperature] = logps[batch.action_mask].mean().item()
    assert found[0.3] > found[1.0] + 0.1
