"""The training loop to read: rollout, advantages, loss, step - with autograd, one run at a time.

Start here. engine.py is the same loop compiled (about thirty times faster) and is what commands and figures use; tests
hold the two together, trajectory by trajectory, which makes this file the oracle for the closed-form gradient.
What this file does not do: many runs, float32, resuming.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

import numpy as np
import torch

from lldsim.advantages import group_advantages
from lldsim.config import RunConfig
from lldsim.critic import TabularCritic
from lldsim.draws import draw
from lldsim.objectives import nthr_weights, shared_prefix_weights, total_loss
from lldsim.policy import LinearSoftmaxPolicy, select, token_entropy
from lldsim.record import COLUMNS, RunRecord, make_record
from lldsim.rollout import rollout
from lldsim.types import RolloutBatch
from lldsim.world import INVALID, SearchWorld, world_of


def train(config: RunConfig) -> RunRecord:
    """Train one policy by GRPO (+ LLDS) in one world and return its record (`record.COLUMNS`)."""
    trainer = config.trainer
    policy = LinearSoftmaxPolicy(world_of(config))
    if trainer.feature_rate > 0:
        policy.features = torch.eye(config.world.n_features, dtype=torch.float64)
    parameters = [p.requires_grad_() for p in (policy.weights, policy.features) if p is not None]
    optimizer = make_optimizer(config, parameters)
    critic = TabularCritic(policy.world, trainer) if trainer.advantage == "gae" else None
    past: deque[torch.Tensor] = deque(maxlen=trainer.staleness + 1)
    rows = []
    for update in range(trainer.updates):
        draws = draw(config, update)
        past.append(policy.product().detach().clone())
        sampler = LinearSoftmaxPolicy(policy.world, past[0])
        batch = rollout(
            sampler,
            draws,
            group_size=config.world.group_size,
            temperature=trainer.temperature,
            top_p=trainer.top_p,
            top_k=trainer.top_k,
            noise=trainer.sampler_noise,
        )
        advantages = (
            critic.advantages(batch)
            if critic
            else group_advantages(
                batch.rewards,
                batch.group,
                std_ddof=trainer.std_ddof,
                eps=trainer.advantage_eps,
                std_normalize=trainer.std_normalize,
            )
        )
        minibatches = torch.from_numpy(draws.order).chunk(trainer.updates_per_rollout)
        old_logps, entropy = old_policy(policy, batch, minibatches)
        token_weights = batch_weights(policy, batch, advantages, config)
        row = describe(batch, old_logps, entropy, policy.world) | {"update": update}
        parts = []
        for members in minibatches:
            optimizer.zero_grad()
            loss, metrics = minibatch_loss(policy, batch, members, old_logps, advantages, config, token_weights)
            loss.backward()
            norm = torch.nn.utils.clip_grad_norm_(parameters, trainer.grad_clip)
            optimizer.step()
            parts.append({name: value.item() for name, value in metrics.items()} | {"grad_norm": norm.item()})
        rows.append(row | summarise(parts))
    columns = {name: np.array([row[name] for row in rows], dtype=float) for name in COLUMNS}
    return make_record(columns, config.flat(), config.config_hash())


def old_policy(
    policy: LinearSoftmaxPolicy, batch: RolloutBatch, minibatches: Sequence[torch.Tensor]
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return log-probabilities and entropies (B, T) before the update, the trainer's own at temperature 1.

    Computed minibatch by minibatch, in the shapes of the update: the first step then recomputes the same bits, and a
    gate that must be closed there is not opened by rounding.
    """
    logps, entropy = (torch.zeros(batch.tokens.shape, dtype=torch.float64) for _ in range(2))
    with torch.no_grad():
        for members in minibatches:
            logps_all = policy.logps_all(batch.context[members])
            logps[members] = select(logps_all, batch.tokens[members])
            entropy[members] = token_entropy(logps_all)
    return logps, entropy


def minibatch_loss(
    policy: LinearSoftmaxPolicy,
    batch: RolloutBatch,
    members: torch.Tensor,
    old_logps: torch.Tensor,
    advantages: torch.Tensor,
    config: RunConfig,
    token_weights: torch.Tensor | None = None,
) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    """Return the total loss (Eq. 6) of the responses `members` (M,) under the current policy, and its metrics."""
    context, tokens = batch.context[members], batch.tokens[members]
    logps_all = policy.logps_all(context)
    loss, metrics = total_loss(
        select(logps_all, tokens),
        old_logps[members],
        advantages[members],
        batch.action_mask[members],
        config=config.objective,
        ref_logps=policy.ref_logps(context, tokens),
        entropy=token_entropy(logps_all),
        sampler_logps=batch.sampler_logps[members],
        answer_mask=batch.answer_mask[members],
        action_id=batch.action_id[members],
        mean_valid_searches=batch.valid_searches.double().mean().item(),
        token_weights=None if token_weights is None else token_weights[members],
    )
    return loss, metrics


def batch_weights(
    policy: LinearSoftmaxPolicy, batch: RolloutBatch, advantages: torch.Tensor, config: RunConfig
) -> torch.Tensor | None:
    """Return the token weights (B, T) of arms that compare the responses of a group; None where there are none."""
    objective, weights = config.objective, None
    if objective.mask_shared_prefix:
        ids = batch.context * config.world.vocab_size + batch.tokens  # a context knows the feedback before it
        weights = shared_prefix_weights(ids, batch.action_mask, advantages, batch.group)
    if objective.nthr_beta is not None:
        flat = batch.context.clamp(min=0).flatten().numpy()
        hidden = torch.from_numpy(policy.world.hidden(flat)).reshape(*batch.context.shape, -1)
        nthr = nthr_weights(
            policy.logps_all(batch.context).detach().exp(),
            batch.tokens,
            hidden,
            advantages,
            batch.group,
            batch.action_mask,
            beta=objective.nthr_beta,
            eta=objective.nthr_eta,
        )
        weights = nthr if weights is None else weights * nthr
    return weights


def make_optimizer(config: RunConfig, parameters: Sequence[torch.Tensor]) -> torch.optim.Optimizer:
    """Return the configured optimiser of W and, where features are trained, U; PyTorch's defaults for Adam."""
    trainer = config.trainer
    rates = (trainer.learning_rate, trainer.feature_rate * trainer.learning_rate)
    groups = [{"params": [p], "lr": rate} for p, rate in zip(parameters, rates, strict=False)]
    if trainer.optimizer == "adam":
        return torch.optim.Adam(groups)
    return torch.optim.SGD(groups, lr=trainer.learning_rate, momentum=trainer.momentum)


def describe(
    batch: RolloutBatch, old_logps: torch.Tensor, entropy: torch.Tensor, world: SearchWorld
) -> dict[str, float]:
    """Return the columns that a rollout batch alone determines; a mean over nothing is NaN (missing, not zero)."""
    mask, correct = batch.action_mask, (batch.rewards > 0)[:, None]
    first, second = mask & (batch.action_id == 0), mask & (batch.action_id == 1)
    by_group = batch.rewards.reshape(-1, int((batch.group == batch.group[0]).sum()))
    wrong = ~correct[:, 0]

    def mean(values: torch.Tensor, where: torch.Tensor) -> float:
        return values[where].mean().item() if where.any() else float("nan")

    return {
        "reward": batch.rewards.mean().item(),
        "logp_correct": mean(old_logps, mask & correct),
        "logp_wrong": mean(old_logps, mask & ~correct),
        "entropy": mean(entropy, mask),
        "response_length": mask.sum(-1).double().mean().item(),
        "valid_searches": batch.valid_searches.double().mean().item(),
        "invalid_actions": batch.invalid_actions.double().mean().item(),
        "tied_groups": (by_group.amin(-1) == by_group.amax(-1)).double().mean().item(),
        "sampler_gap": mean(batch.sampler_logps - old_logps, mask),
        "logp_correct_action1": mean(old_logps, first & correct),
        "logp_correct_action2": mean(old_logps, second & correct),
        "logp_wrong_action1": mean(old_logps, first & ~correct),
        "logp_wrong_action2": mean(old_logps, second & ~correct),
        "first_search_wrong": mean(_searched_first(batch, world).double(), wrong),
    }


def _searched_first(batch: RolloutBatch, world: SearchWorld) -> torch.Tensor:
    """Return (B,) bool: there is a second action, and it follows a document rather than an error message."""
    start = (
        batch.context[:, world.config.turn_tokens + 1] if world.config.max_turns > 1 else batch.context[:, 0] * 0 - 1
    )
    feedback = np.unravel_index(start.clamp(min=0).numpy(), world.context_shape)[3]
    return (start >= 0) & torch.from_numpy(feedback != INVALID)


def summarise(parts: list[dict[str, float]]) -> dict[str, float]:
    """Return the columns that the update's optimiser steps determine: their means, and the largest ratio."""
    names = ("grad_norm", "kl", "llds", "gate_fraction", "clip_fraction")
    means = {name: sum(part[name] for part in parts) / len(parts) for name in names}
    return means | {"ratio_max": max(part["ratio_max"] for part in parts)}
