"""PPO's advantages: a tabular critic and generalised advantage estimation, with the reward at the last token.

    delta_i = r_i + V(s_i+1) - V(s_i),   A_i = delta_i + lambda A_i+1,   target_i = A_i + V(s_i),   discount 1

The state of a token is (turn, feedback, drift, decision or body), with the query added or all of it left out by
`critic_states`. After every rollout batch each visited state's value moves `critic_step` of the way to the mean of its
targets. Whitened advantages have mean 0 and variance 1 over the batch's action tokens, as common trainers do it.
What this file does not do: a neural critic, or a value clip. arm_kernels.gae_advantages is its compiled twin.
"""

from __future__ import annotations

import numpy as np
import torch

from lldsim.config import TrainerConfig
from lldsim.types import RolloutBatch
from lldsim.world import SearchWorld


class TabularCritic:
    """Values by state, shape (P or 1, turns, F, L, 2); all start at `critic_init`."""

    def __init__(self, world: SearchWorld, config: TrainerConfig) -> None:
        self.world, self.config = world, config
        n_queries, turns, _, n_feedback, n_levels = world.context_shape
        size = {"constant": (1, 1, 1, 1, 1), "shared": (1, turns, n_feedback, n_levels, 2)}
        self.values = np.full(
            size.get(config.critic_states, (n_queries, turns, n_feedback, n_levels, 2)), config.critic_init
        )

    def states(self, context: np.ndarray) -> np.ndarray:
        """Return flat indices into `values` for contexts (N,)."""
        q, t, k, f, level = np.unravel_index(context, self.world.context_shape)
        decision = (k == self.world.config.turn_tokens - 1).astype(int)
        index = (q, t, f, level, decision)
        shape = self.values.shape
        return np.ravel_multi_index([np.minimum(i, n - 1) for i, n in zip(index, shape, strict=True)], shape)

    def advantages(self, batch: RolloutBatch) -> torch.Tensor:
        """Return advantages (B, T), 0 off the action mask, and move the values towards their targets."""
        mask, values = batch.action_mask.numpy(), self.values.reshape(-1)
        states = self.states(batch.context[batch.action_mask].numpy())
        advantages, targets = np.zeros(mask.shape), []
        start = 0
        for b, n in enumerate(mask.sum(1)):
            v = values[states[start : start + n]]
            delta = np.append(v[1:], 0.0) - v
            delta[-1] += batch.rewards[b].item()
            later, own = 0.0, np.zeros(n)
            for i in reversed(range(n)):
                later = own[i] = delta[i] + self.config.gae_lambda * later
            advantages[b, mask[b]] = own
            targets.append(own + v)
            start += n
        total = np.bincount(states, np.concatenate(targets), minlength=len(values))
        count = np.bincount(states, minlength=len(values))
        seen = count > 0
        values[seen] += self.config.critic_step * (total[seen] / count[seen] - values[seen])
        if self.config.whiten:
            tokens = advantages[mask]
            advantages[mask] = (tokens - tokens.mean()) / np.sqrt(tokens.var(ddof=1) + 1e-8)
        return torch.from_numpy(advantages)
