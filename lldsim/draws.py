"""Random numbers, addressed by (seed, stream, update): a run never depends on which others share its batch.

A counter-based generator (Philox) is keyed by the seed; each rollout batch has its own counter, and always draws
everything it could need, used or not. Two runs of the same seed therefore see the same luck whatever their dials
(common random numbers: paired comparisons), and a run can be resumed at any update without a saved generator state.
What this file does not do: hold state.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from lldsim.config import RunConfig

_WORLD_STREAM, _ROLLOUT_STREAM, _NOISE_STREAM = 1, 2, 3


class Draws(NamedTuple):
    """Everything random in one rollout batch and the updates on it."""

    token: np.ndarray  # (B, turns, K) uniform, chooses tokens by inverse CDF
    document: np.ndarray  # (B, turns) uniform, below search_noise = bad document
    answer: np.ndarray  # (P,) int64 in 1..n_answers, hidden answer of each query
    order: np.ndarray  # (B,) int64, permutation that deals responses to minibatches
    noise: np.ndarray  # (P, turns, K, V) standard normal, of the sampler's logits; all axes 0 without sampler_noise


def world_generator(seed: int) -> np.random.Generator:
    """Return the generator that draws the world of `seed`."""
    return np.random.Generator(np.random.Philox(key=[seed, _WORLD_STREAM]))


def draw(config: RunConfig, update: int) -> Draws:
    """Return the random numbers of rollout batch `update` (0-based) of the run `config`."""
    world = config.world
    rng = _generator(config.trainer.seed, _ROLLOUT_STREAM, update)
    b = world.n_queries * world.group_size
    draws = Draws(
        token=rng.random((b, world.max_turns, world.turn_tokens)),
        document=rng.random((b, world.max_turns)),
        answer=rng.integers(1, world.n_answers + 1, world.n_queries),
        order=rng.permutation(b),
        noise=np.zeros((0, 0, 0, 0)),
    )
    if world.shared_first_action:
        first = draws.token[:, 0].reshape(world.n_queries, world.group_size, -1)
        first[:] = first[:, :1]
    if config.trainer.sampler_noise > 0:
        shape = (world.n_queries, world.max_turns, world.turn_tokens, world.vocab_size)
        draws = draws._replace(noise=_generator(config.trainer.seed, _NOISE_STREAM, update).standard_normal(shape))
    return draws


def _generator(seed: int, stream: int, update: int) -> np.random.Generator:
    return np.random.Generator(np.random.Philox(key=[seed, stream], counter=[0, 0, 0, update]))
