"""Stop a run at chosen updates and lay open what Theorem 4.2 speaks of: a sampled batch with its hidden states.

    run the engine to update u -> sample the batch that it would train on -> tensors for lldsim.theory -> train on it

The predictions here are first order in the learning rate and know only the surrogate: no clipping, KL, entropy bonus or
LLDS. What this file does not do: train (engine.py), state the theory (theory/), or draw.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from lldsim.advantages import group_advantages
from lldsim.config import ObjectiveConfig, RunConfig
from lldsim.draws import draw
from lldsim.engine import Run
from lldsim.errors import ConfigError, MissingDataError
from lldsim.objectives import clipped_surrogate
from lldsim.policy import LinearSoftmaxPolicy
from lldsim.rollout import rollout
from lldsim.theory.flow import Loss, TokenLogps, flow, linear_token_logps, loss_weights, one_step_change
from lldsim.theory.kernel import gwhes, sum_actions
from lldsim.types import RolloutBatch
from lldsim.world import SearchWorld

Inputs = tuple[Tensor, Tensor, Tensor, Tensor]


@dataclass(frozen=True)
class Snapshot:
    """One rollout batch of a run, with the policy before and after the update that trains on it."""

    config: RunConfig
    update: int
    world: SearchWorld
    batch: RolloutBatch
    advantages: Tensor  # (B,)
    weights: Tensor  # (V, D), before the update
    weights_after: Tensor  # (V, D), after all optimiser steps of the update
    minibatches: tuple[Tensor, ...]  # responses of each optimiser step, in order
    row: dict[str, float]  # what the run recorded about the update (record.COLUMNS)

    @cached_property
    def hidden(self) -> Tensor:
        """Hidden states (B, T, D); 0 where there is no action token."""
        return self._table(self.world.hidden)

    @cached_property
    def base(self) -> Tensor:
        """Base log-probabilities (B, T, V); 0 where there is no action token."""
        return self._table(self.world.base)

    @cached_property
    def probs(self) -> Tensor:
        """Probabilities (B, T, V) of the trainer's policy before the update, at temperature 1."""
        return torch.softmax(self.base + self.hidden @ self.weights.mT, -1)

    @property
    def inputs(self) -> Inputs:
        """The leading arguments of every function of `lldsim.theory`: hidden, probs, tokens, action_mask."""
        return self.hidden, self.probs, self.batch.tokens, self.batch.action_mask

    @property
    def token_logps(self) -> TokenLogps:
        """W -> log-probabilities (B, T) of the sampled tokens."""
        return linear_token_logps(self.batch.tokens, self.batch.action_mask, self.base, self.hidden)

    def _table(self, rows: Callable[[np.ndarray], np.ndarray]) -> Tensor:
        context, mask = self.batch.context, self.batch.action_mask
        found = torch.from_numpy(rows(context[mask].numpy()))
        out = torch.zeros(*context.shape, found.shape[-1], dtype=torch.float64)
        out[mask] = found
        return out


def snapshots(config: RunConfig, updates: Sequence[int]) -> list[Snapshot]:
    """Return the snapshots of the run `config` at `updates` (0-based, any order), in ascending order.

    The batches are those that the run itself trains on. Raises ConfigError for no update or a negative one, and for
    trained features or a critic: the theory here is of fixed hidden states and group advantages.

    >>> [snap.batch.tokens.shape[0] for snap in snapshots(RunConfig(), [0])]
    [80]
    """
    wanted = sorted(set(updates))
    if not wanted or wanted[0] < 0:
        raise ConfigError(f"updates={list(updates)}: name at least one update, counted from 0")
    trainer = config.trainer
    if trainer.feature_rate > 0 or trainer.advantage != "group":
        raise ConfigError(
            f"feature_rate={trainer.feature_rate}, advantage={trainer.advantage!r}: a snapshot has fixed hidden states "
            "and group advantages; set feature_rate=0 and advantage='group'"
        )
    run = Run(config)
    past: deque[Tensor] = deque(maxlen=trainer.staleness + 1)
    found = []
    for update in range(wanted[-1] + 1):
        weights = torch.from_numpy(run.weights.astype("float64"))
        past.append(weights)
        batch = None
        draws = draw(config, update)
        if update in wanted:
            batch = rollout(
                LinearSoftmaxPolicy(run.world, past[0]),
                draws,
                group_size=config.world.group_size,
                temperature=trainer.temperature,
                top_p=trainer.top_p,
                top_k=trainer.top_k,
                noise=trainer.sampler_noise,
            )
        row = run.step()
        if batch is not None:
            advantages = group_advantages(
                batch.rewards,
                batch.group,
                std_ddof=trainer.std_ddof,
                eps=trainer.advantage_eps,
                std_normalize=trainer.std_normalize,
            )
            after = torch.from_numpy(run.weights.astype("float64"))
            minibatches = torch.from_numpy(draws.order).chunk(trainer.updates_per_rollout)
            found.append(Snapshot(config, update, run.world, batch, advantages, weights, after, minibatches, row))
    return found


def _plain_advantages(snap: Snapshot) -> Tensor:
    """Return the advantages (B,) if they alone weigh the surrogate at ratio 1; raise ConfigError for other arms."""
    objective, plain = snap.config.objective, ObjectiveConfig()
    names = ("ratio_to", "tis_cap", "mis_high", "probability_weight", "nthr_beta", "mask_shared_prefix")
    changed = [name for name in (*names, "negative_weight") if getattr(objective, name) != getattr(plain, name)]
    if changed:
        raise ConfigError(f"{', '.join(changed)}: a prediction needs the plain surrogate; leave them at their defaults")
    return snap.advantages


def surrogate_loss(snap: Snapshot) -> Loss:
    """Return log-probabilities -> the batch's clipped surrogate at ratio 1, the loss that Theorem 4.2 is about."""

    objective, advantages = snap.config.objective, _plain_advantages(snap)

    def loss(logps: Tensor) -> Tensor:
        return clipped_surrogate(
            logps,
            logps.detach(),
            advantages,
            snap.batch.action_mask,
            clip_eps=objective.clip_eps,
            aggregation=objective.aggregation,
        )[0]

    return loss


def predicted_slope(snap: Snapshot) -> Tensor:
    """Return d/ds ln pi of every action (B, A), nats per unit of learning rate: -G with the loss's normaliser."""
    return flow(
        *snap.inputs,
        _plain_advantages(snap),
        aggregation=snap.config.objective.aggregation,
        level="action",
        action_id=snap.batch.action_id,
    )


def measured_step(snap: Snapshot, *, lr: float) -> Tensor:
    """Return logp_change (nats) of every action (B, A) by one plain gradient step of size `lr` on the whole batch."""
    change = one_step_change(snap.token_logps, (snap.weights,), surrogate_loss(snap), lr=lr)
    return sum_actions(change, snap.batch.action_id)


def predicted_update(snap: Snapshot) -> Tensor:
    """Return the first-order logp_change (nats) of every action (B, A) by the whole update, all its optimiser steps.

    Each minibatch m moves W by lr times its own gradient, so the changes add: lr * sum_m -G with sources in m and the
    normaliser of m. What it leaves out: that W moves between the steps, clipping, KL, entropy bonus, LLDS, grad_clip.
    """
    if snap.config.trainer.optimizer != "sgd" or snap.config.trainer.momentum:
        raise ConfigError("predicted_update is for plain sgd; set optimizer='sgd' and momentum=0")
    advantages = _plain_advantages(snap)
    weights = torch.zeros_like(advantages)
    for members in snap.minibatches:
        weights[members] = loss_weights(
            advantages[members],
            snap.batch.action_mask[members],
            aggregation=snap.config.objective.aggregation,
        )
    parts = gwhes(*snap.inputs, weights, level="action", action_id=snap.batch.action_id, tied_groups="zero")
    return -snap.config.trainer.learning_rate * parts.total


def measured_update(snap: Snapshot) -> Tensor:
    """Return logp_change (nats) of every action (B, A) that the run's own update made."""
    change = snap.token_logps(snap.weights_after) - snap.token_logps(snap.weights)
    return sum_actions(change, snap.batch.action_id)


def written_actions(snap: Snapshot) -> Tensor:
    """Return (B, A) bool: the action was written, so that its change means something."""
    return sum_actions(snap.batch.action_mask.double(), snap.batch.action_id) > 0


def twin_pairs(snap: Snapshot, *, none_is_error: bool = True) -> list[tuple[int, int]]:
    """Return (right, wrong) responses of one query with equal tokens and contexts up to the last token, which differs.

    The paper's case 1 (Figs. 10-15): plan, search query and documents are shared, only the answer differs. In batch
    order. Raises MissingDataError when the batch has none, unless `none_is_error` is false.
    """
    batch = snap.batch
    key = torch.stack([batch.tokens, batch.context])
    last = batch.action_mask.sum(-1)
    pairs = []
    for right in (batch.rewards > 0).nonzero()[:, 0].tolist():
        same_query = (batch.group == batch.group[right]) & (batch.rewards == 0) & (last == last[right])
        for wrong in same_query.nonzero()[:, 0].tolist():
            differs = (key[:, right] != key[:, wrong]).any(0).nonzero()[:, 0]
            end = batch.action_mask[right].nonzero()[-1]
            if batch.answer_mask[right].any() and differs.tolist() == end.tolist():
                pairs.append((right, wrong))
    if not pairs and none_is_error:
        raise MissingDataError(f"update {snap.update} has no pair that differs in its answer alone; try another update")
    return pairs
