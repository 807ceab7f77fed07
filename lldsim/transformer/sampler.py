"""Grouped multi-turn sampling from the transformer, all responses in lockstep over one key-value cache.

Prompts have equal length and every step adds one token to every unfinished response - sampled, or forced where the
world is speaking - so all rows are at the same position, nothing is padded, and finished rows are dropped.
What this file does not do: decide what an action means (world.py), or prefill in chunks.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch.nn import functional as F

from lldsim.policy import sharpen
from lldsim.transformer.model import ModelShape, Parameters, heads, mlp, normalise, rotate, rotation, unpack
from lldsim.transformer.world import (
    ANSWER,
    NONE,
    PAD,
    PROMPT_TOKENS,
    QUERY,
    TokenDraws,
    TokenWorld,
    longest,
)
from lldsim.types import RolloutBatch


@dataclass(frozen=True)
class TokenBatch(RolloutBatch):
    """A rollout batch that also holds what the network reads.

    Position t of every (B, T) tensor is the t-th token after the prompt, predicted by the state after `ids[:, t + 2]`;
    `context` is the flat index of that state in (B, T + 3).
    """

    ids: torch.Tensor  # (B, 3 + T) int64, prompt, actions and feedback; PAD after the end
    after: torch.Tensor  # (B, T) int64, kind of the feedback that the action was written after; -1 elsewhere


class Cache:
    """Keys and values of the tokens so far, per layer (B, H, longest, size)."""

    def __init__(self, rows: int, positions: int, shape: ModelShape, dtype: torch.dtype) -> None:
        size = (rows, shape.heads, positions, shape.head_size)
        self.keys = [torch.zeros(size, dtype=dtype) for _ in range(shape.layers)]
        self.values = [torch.zeros(size, dtype=dtype) for _ in range(shape.layers)]
        self.length = 0

    def keep(self, rows: torch.Tensor) -> None:
        """Drop all rows but `rows` (int64 indices)."""
        self.keys = [x[rows] for x in self.keys]
        self.values = [x[rows] for x in self.values]


def step(parameters: Parameters, ids: torch.Tensor, cache: Cache, shape: ModelShape) -> torch.Tensor:
    """Feed `ids` (B, n) to the cache and return the logits (B, V) after the last one.

    n > 1 only while the cache is empty (the prompt).
    """
    start, end = cache.length, cache.length + ids.shape[1]
    cos, sin = rotation(cache.keys[0].shape[2], shape.head_size, parameters.embedding.dtype)
    cos, sin = cos[start:end], sin[start:end]
    x = F.embedding(ids, parameters.embedding)
    for i, layer in enumerate(parameters.layers):
        q, k, v = heads(normalise(x, layer.norm1), layer, shape)
        cache.keys[i][:, :, start:end] = rotate(k, cos, sin)
        cache.values[i][:, :, start:end] = v
        mixed = F.scaled_dot_product_attention(
            rotate(q, cos, sin), cache.keys[i][:, :, :end], cache.values[i][:, :, :end], is_causal=start == 0
        )
        x = x + F.linear(mixed.transpose(1, 2).reshape(x.shape), layer.out)
        x = x + mlp(normalise(x, layer.norm2), layer)
    cache.length = end
    return F.linear(normalise(x[:, -1], parameters.norm), parameters.head)


@torch.no_grad()
def sample_batch(
    flat: torch.Tensor,
    world: TokenWorld,
    draws: TokenDraws,
    *,
    shape: ModelShape,
    temperature: float,
) -> TokenBatch:
    """Sample `group_size` responses to every query of `draws` and return them as one batch.

    `flat` (n,) are the sampler's weights. `sampler_logps` are of the sampled distribution, at `temperature`.
    """
    parameters = unpack(flat, shape)
    config = world.config
    b, total = config.n_queries * config.group_size, longest(config)
    group = np.repeat(np.arange(config.n_queries), config.group_size)
    queries = np.stack([draws.entity, draws.relation, draws.value], axis=1)[group]
    ids = np.full((b, total), PAD)
    ids[:, :PROMPT_TOKENS] = np.stack([np.full(b, QUERY), queries[:, 0], queries[:, 1]], axis=1)
    logps = np.zeros((b, total))
    action_id, after = np.full((b, total), -1), np.full((b, total), -1)
    turn, begin, kind = np.zeros(b, dtype=int), np.full(b, PROMPT_TOKENS), np.full(b, NONE)
    forced_until, length = np.zeros(b, dtype=int), np.full(b, PROMPT_TOKENS)
    answer = np.zeros((b, total), dtype=bool)
    rewards, searches, invalid = np.zeros(b), np.zeros(b, dtype=int), np.zeros(b, dtype=int)

    alive = np.arange(b)
    cache = Cache(b, total, shape, flat.dtype)
    predicted = step(parameters, torch.from_numpy(ids[:, :PROMPT_TOKENS]), cache, shape)
    for t in range(PROMPT_TOKENS, total):
        acting = forced_until[alive] <= t
        chosen, chosen_logps = _choose(predicted, draws.token[alive, t], temperature)
        rows = alive[acting]
        ids[rows, t], logps[rows, t] = chosen[acting], chosen_logps[acting]
        action_id[rows, t], after[rows, t] = turn[rows], kind[rows]
        length[rows] = t + 1
        finished = []
        for row in rows:
            if not world.ends(int(ids[row, t]), int(t - begin[row])):
                continue
            i, last = turn[row], turn[row] + 1 == config.max_turns
            action = ids[row, begin[row] : t + 1].tolist()
            query = (int(queries[row, 0]), int(queries[row, 1]), int(queries[row, 2]))
            reply = world.reply(
                action, query=query, document=float(draws.document[row, i]), noise=draws.noise[row, i], last=last
            )
            searches[row] += reply.valid_search
            invalid[row] += reply.invalid
            if reply.done:
                rewards[row] = reply.reward
                answer[row, begin[row] + config.body_tokens : t + 1] = not reply.invalid and ANSWER in action
                finished.append(row)
                continue
            end = t + 1 + len(reply.feedback)
            ids[row, t + 1 : end] = reply.feedback
            forced_until[row] = begin[row] = end
            turn[row], kind[row] = i + 1, reply.kind
        if finished:
            kept = ~np.isin(alive, finished)
            alive = alive[kept]
            cache.keep(torch.from_numpy(np.flatnonzero(kept)))
            if not len(alive):
                break
        predicted = step(parameters, torch.from_numpy(ids[alive, t : t + 1]), cache, shape)

    width = int(length.max())
    kept = slice(PROMPT_TOKENS, width)
    acted = action_id[:, kept] >= 0
    context = np.arange(b)[:, None] * width + np.arange(PROMPT_TOKENS - 1, width - 1)
    return TokenBatch(
        tokens=torch.from_numpy(np.where(acted, ids[:, kept], -1)),
        context=torch.from_numpy(np.where(acted, context, -1)),
        action_mask=torch.from_numpy(acted),
        action_id=torch.from_numpy(action_id[:, kept].copy()),
        answer_mask=torch.from_numpy(answer[:, kept] & acted),
        sampler_logps=torch.from_numpy(logps[:, kept]).to(flat.dtype),
        rewards=torch.from_numpy(rewards).to(flat.dtype),
        group=torch.from_numpy(group),
        valid_searches=torch.from_numpy(searches),
        invalid_actions=torch.from_numpy(invalid),
        ids=torch.from_numpy(ids[:, :width].copy()),
        after=torch.from_numpy(after[:, kept].copy()),
    )


def _choose(predicted: torch.Tensor, uniform: np.ndarray, temperature: float) -> tuple[np.ndarray, np.ndarray]:
    """Return one token (B,) per row of logits (B, V) by inverse CDF, and its log-probability at `temperature`."""
    logps = sharpen(predicted, temperature=temperature)
    cdf = logps.double().exp().cumsum(-1)
    token = (cdf <= torch.from_numpy(uniform)[:, None] * cdf[:, -1:]).sum(-1).clamp(max=logps.shape[-1] - 1)
    return token.numpy(), logps.gather(-1, token[:, None])[:, 0].numpy()
