"""Grouped multi-turn sampling in the search world, all responses in step, one token position at a time.

This is the form to read; kernels.rollout is its compiled twin and samples the same tokens from the same draws.
Layout of a response: max_turns blocks of K action tokens, each followed by one place for the feedback, which carries
action_mask 0 (the policy did not write it) but shapes every later context.
What this file does not do: compute advantages or losses.
"""

from __future__ import annotations

import numpy as np
import torch

from lldsim.draws import Draws
from lldsim.policy import LinearSoftmaxPolicy, select, sharpen
from lldsim.types import RolloutBatch
from lldsim.world import BAD, GOOD, INVALID, NONE, SEARCH, named_answer


def rollout(
    sampler: LinearSoftmaxPolicy,
    draws: Draws,
    *,
    group_size: int,
    temperature: float = 1.0,
    top_p: float = 1.0,
    top_k: int | None = None,
    noise: float = 0.0,
) -> RolloutBatch:
    """Sample one rollout batch with `draws`: from `sampler`, its logits disturbed by `noise` (sd), at `temperature`,
    cut to its top-k and top-p set.

    Returns tensors (B, T) with B = P * group_size and T = max_turns * (K + 1).
    """
    world = sampler.world
    config = world.config
    n_queries, max_turns, n_positions, _, n_levels = world.context_shape
    query = np.repeat(np.arange(n_queries), group_size)
    answer = draws.answer[query]
    b = len(query)
    shape = (b, max_turns, n_positions + 1)
    tokens, context = np.full(shape, -1), np.full(shape, -1)
    sampler_logps = np.zeros(shape)
    reward, turns = np.zeros(b), np.zeros(b, int)
    searches, invalid, answered = np.zeros(b, int), np.zeros(b, int), np.zeros(b, bool)
    found = np.zeros(b, int)  # good documents so far
    feedback, level = np.full(b, NONE), np.zeros(b, int)
    live = np.arange(b)  # responses that still act

    for t in range(max_turns):
        off = np.zeros(b, int)
        for k in range(n_positions):
            here = world.context(query[live], t, k, feedback[live], level[live])
            logps = sampler.logps_all(torch.from_numpy(here))
            if noise > 0:
                logps = logps + noise * torch.from_numpy(draws.noise[query[live], t, k])
            logps = sharpen(logps, temperature=temperature, top_p=top_p, top_k=top_k)
            chosen = inverse_cdf(logps.exp().numpy(), draws.token[live, t, k])
            context[live, t, k], tokens[live, t, k] = here, chosen
            sampler_logps[live, t, k] = select(logps, torch.from_numpy(chosen)).numpy()
            if k < n_positions - 1:
                strayed = chosen != world.canon[k]
                off[live] += strayed
                level[live] = np.clip(level[live] + np.where(strayed, 1, -1), 0, n_levels - 1)
        turns[live] += 1
        decision = tokens[:, t, n_positions - 1]

        bad_form = live[(off[live] >= config.invalid_threshold) | (decision[live] > config.n_answers)]
        formed = np.setdiff1d(live, bad_form, assume_unique=True)
        search, final = formed[decision[formed] == SEARCH], formed[decision[formed] != SEARCH]
        invalid[bad_form] += 1
        feedback[bad_form] = INVALID
        searches[search] += 1
        good = draws.document[search, t] >= config.search_noise
        found[search] += good
        named = named_answer(config, answer[search], draws.document[search, t])
        feedback[search] = np.where(good & (found[search] >= config.hops), GOOD + named, BAD)
        level[search] = 0
        answered[final] = True
        reward[final] = decision[final] == answer[final]
        live = search if config.invalid_ends_episode else np.union1d(search, bad_form)
        if not len(live):
            break

    acted = np.arange(max_turns) < turns[:, None]
    written = np.repeat(acted[:, :, None], n_positions + 1, axis=2)
    written[:, :, -1] = False
    action_id = np.where(written, np.arange(max_turns)[None, :, None], -1)
    is_last = (np.arange(max_turns) == turns[:, None] - 1) & answered[:, None]

    def flat(x: np.ndarray) -> torch.Tensor:
        return torch.from_numpy(x.reshape(b, -1))

    return RolloutBatch(
        tokens=flat(tokens),
        context=flat(context),
        action_mask=flat(written),
        action_id=flat(action_id),
        answer_mask=flat(written & is_last[:, :, None]),
        sampler_logps=flat(sampler_logps),
        rewards=torch.from_numpy(reward),
        group=torch.from_numpy(query),
        valid_searches=torch.from_numpy(searches),
        invalid_actions=torch.from_numpy(invalid),
    )


def inverse_cdf(probs: np.ndarray, u: np.ndarray) -> np.ndarray:
    """Return the token (N,) whose cumulative probability first exceeds u (N,) times the total of `probs` (N, V)."""
    cdf = probs.cumsum(-1)
    total = cdf[:, -1:]
    last = (cdf < total).sum(-1)  # last token with positive probability
    return np.minimum((cdf <= u[:, None] * total).sum(-1), last)
