"""Matched twins: two settings that start alike, so that what happens later is the dial's doing.

What this file does not do: match likelihood and reward at once (the rows report both, so that a reader sees what is
left over), or read a trained policy: only first rollouts are looked at.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

import numpy as np

from lldsim.config import RunConfig
from lldsim.draws import draw
from lldsim.engine import Run
from lldsim.errors import ConfigError

CALIBRATION_SEEDS = tuple(range(2000, 2020))  # disjoint from all seeds that are reported
_STEPS = 12  # halvings of the interval: to about 2e-4 of it
_CLOSE = 0.002  # a reward this near to the target needs no better field; its own standard error is .01


@cache
def first_rollouts(config: RunConfig, seeds: Sequence[int] = CALIBRATION_SEEDS) -> tuple[float, float]:
    """Return mean reward and mean log-probability per action token of correct responses before any training.

    `seeds` is a tuple; the mean is over its worlds' first rollout batches.
    """
    rewards, logps = [], []
    for seed in seeds:
        seeded = config.replace(seed=seed)
        roll = Run(seeded).sample(draw(seeded, 0))
        rewards.append(roll.reward.mean())
        right = np.flatnonzero(roll.reward > 0)
        if len(right):
            logps.append(np.concatenate([roll.old_logps[b, : roll.turns[b]].ravel() for b in right]).mean())
    return float(np.mean(rewards)), float(np.mean(logps)) if logps else float("nan")


def calibrated(config: RunConfig, field: str, *, target: RunConfig, tolerance: float = 0.01) -> RunConfig:
    """Return `config` with `field` (a probability) set so that its first rollouts earn what `target`'s do.

    Bisection over (.02, .999) with common random numbers; reward must rise with the field. Raises ConfigError when the
    target's reward is out of reach by more than `tolerance`.
    """
    wanted = first_rollouts(target)[0]
    low, high = 0.02, 0.999
    best, error = config, abs(first_rollouts(config)[0] - wanted)
    for _ in range(_STEPS):
        if error < _CLOSE:
            return best
        middle = (low + high) / 2
        candidate = config.replace(**{field: middle})
        reward = first_rollouts(candidate)[0]
        if abs(reward - wanted) < error:
            best, error = candidate, abs(reward - wanted)
        low, high = (middle, high) if reward < wanted else (low, middle)
    if error > tolerance:
        raise ConfigError(f"no {field} makes the twin start at reward {wanted:.3f} (nearest is off by {error:.3f})")
    return best
