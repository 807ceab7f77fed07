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

_WORLD_STREAM, _ROLLOUT_STREAM = 1, 2


class Draws(NamedTuple):
    """Everything random in one rollout batch and the updates on it."""

    token: np.ndarray  # (B, turns, K) uniform, chooses tokens by inverse CDF
    document: np.ndarray  # (B, turns) uniform, below search_noise = bad document
    answer: np.ndarray  # (P,) int64 in 1..n_answers, hidden answer of each query
    order: np.ndarray  # (B,) int64, permutation that deals responses to minibatches


def world_generator(seed: int) -> np.random.Generator:
    """Return the generator that draws the world of `seed`."""
    return np.random.Generator(np.random.Philox(key=[seed, _WORLD_STREAM]))


def draw(config: RunConfig, update: int) -> Draws:
    """Return the random numbers of rollout batch `update` (0-based) of the run `config`."""
    world = config.world
    rng = np.random.Generator(np.random.Philox(key=[config.trainer.seed, _ROLLOUT_STREAM], counter=[0, 0, 0, update]))
    b = world.n_queries * world.group_size
    return Draws(
        token=rng.random((b, world.max_turns, world.turn_tokens)),
        document=rng.random((b, world.max_turns)),
        answer=rng.integers(1, world.n_answers + 1, world.n_queries),
        order=rng.permutation(b),
    )
