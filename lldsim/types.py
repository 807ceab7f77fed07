"""THE axis legend, and the batch that a rollout hands to the trainer.

Axes, named once for the whole repository and worn by shapes in annotations and docstrings:

    R  runs               independent simulations (seeds, dials, objectives)
    P  queries            prompts in one rollout batch
    G  rollouts per query the group of GRPO
    B  responses          B = P * G
    T  token positions    action tokens and feedback tokens of a response, right-padded
    V  vocabulary         tokens the policy can write
    D  features           size of a hidden state

Names (paper symbol -> code): ln pi, ln pi_old, ln pi_ref -> `logps`, `old_logps`, `ref_logps`; the
sampler's own -> `sampler_logps`. `logp_change` is new - old, `logp_drop` is old - new: the name carries
the sign. `beta` never names a KL weight (it is the paper's answer weight): that one is `kl_coef`.
What this file does not do: no computation, only names and shapes.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from lldsim.names import Aggregation, Gate, Normalizer

__all__ = ["Aggregation", "Gate", "Normalizer", "RolloutBatch"]


@dataclass(frozen=True)
class RolloutBatch:
    """Grouped multi-turn responses, as sampled.

    Every (B, T) tensor is right-padded; padding and feedback carry `action_mask` 0. `group` numbers the
    query that each response answers. An action is one contiguous run of policy tokens between feedback.
    """

    tokens: torch.Tensor  # (B, T) int64, policy token ids; -1 on feedback and padding
    context: torch.Tensor  # (B, T) int64, row of the world's context table; -1 where there is no action token
    action_mask: torch.Tensor  # (B, T) bool, 1 = written by the policy
    action_id: torch.Tensor  # (B, T) int64, index of the action within the response; -1 elsewhere
    answer_mask: torch.Tensor  # (B, T) bool, 1 = token of the final answer
    sampler_logps: torch.Tensor  # (B, T) float, log-probability under the distribution that was sampled
    rewards: torch.Tensor  # (B,) float
    group: torch.Tensor  # (B,) int64
    valid_searches: torch.Tensor  # (B,) int64
    invalid_actions: torch.Tensor  # (B,) int64
