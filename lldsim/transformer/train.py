"""The training loop of the transformer, top to bottom: rollout, advantages, loss, step - the toy's loop, other policy.

The loss, the advantages and the record are the toy's own. What this file does not do: many runs (runs.py), probes
(probe.py reads along through `on_update`), or a saved generator state: random numbers are addressed by (seed, update).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from torch.nn import functional as F

from lldsim.advantages import group_advantages
from lldsim.objectives import total_loss
from lldsim.policy import select, token_entropy
from lldsim.record import RunRecord, make_record
from lldsim.trainer import summarise
from lldsim.transformer.config import TransformerConfig
from lldsim.transformer.measures import TRANSFORMER_COLUMNS, describe, displacement
from lldsim.transformer.model import ModelShape, head_slice, hidden_states, unpack
from lldsim.transformer.sampler import TokenBatch, sample_batch
from lldsim.transformer.warm_start import WarmStart, packaged
from lldsim.transformer.world import TokenWorld, draw_tokens


@dataclass
class TrainState:
    """Everything that a run carries from update to update; saving and loading it is resuming (runs.py)."""

    flat: torch.Tensor  # (n,) weights
    reference: torch.Tensor  # (n,) of the KL
    past: deque[torch.Tensor]  # weights before the last staleness + 1 updates, oldest first
    optimizer: torch.optim.Optimizer
    rows: list[dict[str, float]] = field(default_factory=list)

    @property
    def update(self) -> int:
        """The next update, from 0."""
        return len(self.rows)


@dataclass(frozen=True)
class Moment:
    """What an `on_update` callback sees: the state before the update, and the batch that it will train on."""

    update: int
    state: TrainState
    world: TokenWorld
    shape: ModelShape
    batch: TokenBatch
    advantages: torch.Tensor
    old_logps: torch.Tensor


def train(
    config: TransformerConfig,
    *,
    start: WarmStart | None = None,
    state: TrainState | None = None,
    on_moment: Callable[[Moment], None] | None = None,
    on_update: Callable[[TrainState], None] | None = None,
) -> RunRecord:
    """Train one transformer by GRPO (+ LLDS) and return its record (`TRANSFORMER_COLUMNS`).

    `start` replaces the packaged warm start, `state` goes on from there (it is changed in place). `on_moment` is called
    before, `on_update` after every update; neither may change anything.
    """
    start = start or packaged(config.trainer.warm_start)
    world, shape = start.world(config.world), start.shape
    state = state or first_state(config, start)
    while state.update < config.trainer.updates and not fallen(config, state.rows):
        row, moment = train_update(config, state, world, shape)
        if on_moment:
            on_moment(moment)
        row |= summarise(list(optimise(config, moment)))
        state.rows.append(row | changes(config, moment))
        if on_update:
            on_update(state)
    columns = {name: np.array([row[name] for row in state.rows], dtype=float) for name in TRANSFORMER_COLUMNS}
    return make_record(columns, config.flat(), config.config_hash())


def first_state(config: TransformerConfig, start: WarmStart) -> TrainState:
    """Return the state before the first update."""
    flat = start.flat.clone()
    flat[head_slice(start.shape)] *= config.trainer.head_scale
    flat.requires_grad_()
    return TrainState(
        flat, flat.detach().clone(), deque(maxlen=config.trainer.staleness + 1), make_optimizer(config, flat)
    )


def make_optimizer(config: TransformerConfig, flat: torch.Tensor) -> torch.optim.Optimizer:
    """Return the configured optimiser of the flat vector, with PyTorch's defaults."""
    kind = torch.optim.Adam if config.trainer.optimizer == "adam" else torch.optim.SGD
    return kind([flat], lr=config.trainer.learning_rate)


def train_update(
    config: TransformerConfig, state: TrainState, world: TokenWorld, shape: ModelShape
) -> tuple[dict[str, float], Moment]:
    """Sample a rollout batch and return its columns and the moment; the weights are not changed yet."""
    trainer, update = config.trainer, state.update
    draws = draw_tokens(config, update)
    state.past.append(state.flat.detach().clone())
    batch = sample_batch(state.past[0], world, draws, shape=shape, temperature=trainer.temperature)
    advantages = group_advantages(
        batch.rewards,
        batch.group,
        std_ddof=trainer.std_ddof,
        eps=trainer.advantage_eps,
        std_normalize=trainer.std_normalize,
    )
    old_logps, entropy, hidden = old_policy(state.flat, batch, minibatches(config, update), shape)
    row = describe(batch, old_logps, entropy, hidden) | {"update": update}
    return row, Moment(update, state, world, shape, batch, advantages, old_logps)


def minibatches(config: TransformerConfig, update: int) -> Sequence[torch.Tensor]:
    """Return the responses of each optimiser step of an update."""
    return torch.from_numpy(draw_tokens(config, update).order).chunk(config.trainer.updates_per_rollout)


def optimise(config: TransformerConfig, moment: Moment) -> Iterator[dict[str, float]]:
    """Take the update's optimiser steps, yielding the metrics of each."""
    state, optimizer = moment.state, moment.state.optimizer
    for members in minibatches(config, moment.update):
        optimizer.zero_grad()
        loss, metrics = minibatch_loss(config, moment, state.flat, members)
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_([state.flat], config.trainer.grad_clip)
        optimizer.step()
        yield {name: value.item() for name, value in metrics.items()} | {"grad_norm": norm.item()}


def changes(config: TransformerConfig, moment: Moment) -> dict[str, float]:
    """Return the columns about what the update did to its own batch, once its steps are taken (Def. 4.1)."""
    after, _, _ = old_policy(moment.state.flat, moment.batch, minibatches(config, moment.update), moment.shape)
    return displacement(moment.batch, after - moment.old_logps)


def minibatch_loss(
    config: TransformerConfig, moment: Moment, flat: torch.Tensor, members: torch.Tensor
) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    """Return the total loss (Eq. 6) of the responses `members` (M,) under the weights `flat`, and its metrics."""
    batch, shape = moment.batch, moment.shape
    width = int(batch.action_mask[members].any(0).nonzero()[-1]) + 1
    logps, entropy, _ = score(flat, batch, members, shape)
    reference = logps.detach()  # measured as 0 where it has no weight: another forward pass would buy nothing
    if config.objective.kl_coef > 0:
        with torch.no_grad():
            reference, _, _ = score(moment.state.reference, batch, members, shape)
    return total_loss(
        logps,
        moment.old_logps[members, :width],
        moment.advantages[members],
        batch.action_mask[members, :width],
        config=config.objective,
        ref_logps=reference,
        entropy=entropy,
        sampler_logps=batch.sampler_logps[members, :width],
        answer_mask=batch.answer_mask[members, :width],
        action_id=batch.action_id[members, :width],
        mean_valid_searches=batch.valid_searches.double().mean().item(),
    )


def score(
    flat: torch.Tensor, batch: TokenBatch, members: torch.Tensor, shape: ModelShape
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return log-probabilities and entropies (M, W) and states h (M, W, D) of the responses `members`.

    W is the longest of them; off the action tokens the first two are 0.
    """
    mask = batch.action_mask[members]
    width = int(mask.any(0).nonzero()[-1]) + 1
    mask, first = mask[:, :width], batch.ids.shape[1] - batch.tokens.shape[1]
    parameters = unpack(flat, shape)
    hidden = hidden_states(parameters, batch.ids[members, : first + width - 1], shape)[:, first - 1 :]
    logps_all = torch.log_softmax(F.linear(hidden[mask], parameters.head), dim=-1)
    zeros = logps_all.new_zeros(mask.shape)
    logps = zeros.masked_scatter(mask, select(logps_all, batch.tokens[members, :width][mask]))
    entropy = zeros.masked_scatter(mask, token_entropy(logps_all))
    return logps, entropy, hidden


@torch.no_grad()
def old_policy(
    flat: torch.Tensor, batch: TokenBatch, parts: Sequence[torch.Tensor], shape: ModelShape
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return log-probabilities and entropies (B, T) and states (B, T, D) before the update, at temperature 1.

    Computed minibatch by minibatch, in the shapes of the update: the first step then recomputes the same bits, and a
    gate that must be closed there is not opened by rounding.
    """
    logps, entropy = (torch.zeros(batch.tokens.shape, dtype=flat.dtype) for _ in range(2))
    hidden = torch.zeros(*batch.tokens.shape, shape.hidden, dtype=flat.dtype)
    for members in parts:
        found = score(flat, batch, members, shape)
        for whole, part in zip((logps, entropy, hidden), found, strict=True):
            whole[members, : part.shape[1]] = part
    return logps, entropy, hidden


def fallen(config: TransformerConfig, rows: Sequence[dict[str, float]]) -> bool:
    """Return whether the run has collapsed so far that going on would show nothing new (`stop_after_fall`)."""
    reward = [row["reward"] for row in rows]
    return config.trainer.stop_after_fall and len(reward) > 6 and max(reward) > 0.4 and sum(reward[-6:]) < 6 * 0.2


def measure_start(start: WarmStart, *, batches: int = 6) -> dict[str, dict[str, float]]:
    """Return reward, invalid share and likelihood of a warm start before training, at temperature 1 and .7."""
    found = {}
    for temperature in (1.0, 0.7):
        config = TransformerConfig().replace(temperature=temperature)
        state, world, rows = first_state(config, start), start.world(config.world), []
        for update in range(batches):
            draws = draw_tokens(config, update)
            batch = sample_batch(state.reference, world, draws, shape=start.shape, temperature=temperature)
            logps, entropy, hidden = old_policy(state.flat, batch, minibatches(config, update), start.shape)
            rows.append(describe(batch, logps, entropy, hidden))
        names = ("reward", "valid_actions", "logp_correct", "logp_wrong", "entropy", "response_length")
        found[f"temperature {temperature:g}"] = {name: float(np.mean([row[name] for row in rows])) for name in names}
    return found
