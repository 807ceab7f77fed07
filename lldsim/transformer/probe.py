"""Displacement on the real network: one whole update (Eq. 3), and what the theorem's G explains of its gradient.

At a moment of a run, fresh responses are sampled to fresh queries, and the policy gradient of their advantages (no
clipping, no KL) is compared with the gradient of the correct responses' likelihood:

    d/ds mean ln pi(y+) = < grad J, grad mean ln pi(y+) >          all parameters
    unembedding part    = the same product over the output matrix  (-G of Theorem A.1: h held fixed)

each also for the part of J from responses with A < 0. A probe draws from a stream of its own and changes nothing.
What this file does not do: pull tokens apart (theory.kernel does, for fixed features), or use the sampler's clipping.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch

from lldsim.advantages import group_advantages
from lldsim.diagnostics.displacement import displaced_shares, query_change, response_change
from lldsim.transformer.config import TransformerConfig
from lldsim.transformer.model import ModelShape, head_slice
from lldsim.transformer.sampler import TokenBatch, sample_batch
from lldsim.transformer.train import Moment, score, train
from lldsim.transformer.warm_start import WarmStart
from lldsim.transformer.world import PROBE_STREAM, draw_tokens

PROBE_GROUP = 8  # rollouts per query [P Eq. 3]
PROBE_QUERIES = 32
FINITE_STEP = 0.01  # size of the one finite step that checks the first order


def probe_along(
    config: TransformerConfig,
    *,
    every: int,
    start: WarmStart | None = None,
    on_update: Callable[[int], None] | None = None,
) -> list[dict[str, Any]]:
    """Run `config` and return one row of `probe_moment` for every `every`-th update, first included."""
    rows: list[dict[str, Any]] = []

    def look(moment: Moment) -> None:
        if moment.update % every == 0:
            rows.append({"seed": config.trainer.seed, "update": moment.update} | probe_moment(config, moment))
        if on_update:
            on_update(moment.update)

    train(config, start=start, on_moment=look)
    return rows


def probe_moment(config: TransformerConfig, moment: Moment) -> dict[str, Any]:
    """Return the probe's numbers at a moment; NaN where no fresh group has both a correct and a wrong response.

    `change`, `change_negative` and their `head` parts are in nats per action token of correct responses and unit step;
    `measured` is the change over FINITE_STEP divided by it. `eq3_change` is D(x), nats per response, of one update of
    the run's own size: a step of its learning rate along the gradient of the probed batch, clipped as in the run.
    """
    fresh = config.replace(group_size=PROBE_GROUP, n_queries=PROBE_QUERIES, updates_per_rollout=1, llds_coef=0.0)
    draws = draw_tokens(fresh, moment.update, stream=PROBE_STREAM)
    world = moment.world.__class__(fresh.world, moment.world.canon)
    shape, state = moment.shape, moment.state
    temperature = config.trainer.temperature
    batch = sample_batch(state.past[0], world, draws, shape=shape, temperature=temperature)
    advantages = group_advantages(batch.rewards, batch.group, std_ddof=config.trainer.std_ddof)
    right = batch.rewards > 0
    graded = advantages != 0
    correct = right & graded
    row: dict[str, Any] = {
        "reward": batch.rewards.mean().item(),
        "graded_groups": graded.view(PROBE_QUERIES, -1).any(-1).double().mean().item(),
    }
    names = ("change", "change_head", "change_negative", "change_negative_head", "measured")
    if not bool(correct.any()):
        return row | dict.fromkeys((*names, "eq3_change", "eq3_bare", "eq3_sized"), float("nan"))
    flat = state.flat.detach().clone()
    pull = _gradient(flat, batch, shape, advantages)
    negative = _gradient(flat, batch, shape, advantages.clamp(max=0))
    tokens = int(batch.action_mask[correct].sum())
    weight = correct.to(flat.dtype) * int(batch.action_mask.sum()) / tokens
    target = _gradient(flat, batch, shape, weight)
    head = head_slice(shape)
    products = (pull @ target, pull[head] @ target[head], negative @ target, negative[head] @ target[head])
    before, after = _logps(flat, batch, shape), _logps(flat + FINITE_STEP * pull, batch, shape)
    step = after - before
    measured = step[correct].sum().item() / tokens / FINITE_STEP
    size = config.trainer.learning_rate * min(1.0, config.trainer.grad_clip / pull.norm().item())
    whole = response_change((_logps(flat + size * pull, batch, shape) - before).numpy(), batch.action_mask.numpy())
    _, by_query = query_change(whole, right.numpy(), batch.group.numpy())
    shares = displaced_shares(by_query)
    found = dict(zip(names, (*(p.item() for p in products), measured), strict=True))
    eq3 = {"eq3_change": float(np.nanmean(by_query)), "eq3_bare": shares.bare, "eq3_sized": shares.sized}
    return row | found | eq3


def _gradient(flat: torch.Tensor, batch: TokenBatch, shape: ModelShape, weights: torch.Tensor) -> torch.Tensor:
    """Return the gradient (n,) of sum_i weights_i * sum_t ln pi(y_it) over the batch's action tokens, per token."""
    total = torch.zeros_like(flat)
    for members in _parts(batch):
        if not bool((weights[members] != 0).any()):
            continue
        at = flat.detach().clone().requires_grad_()
        logps, _, _ = score(at, batch, members, shape)
        value = (logps * weights[members, None]).sum()
        total += torch.autograd.grad(value, at)[0]
    return total / int(batch.action_mask.sum())


@torch.no_grad()
def _logps(flat: torch.Tensor, batch: TokenBatch, shape: ModelShape) -> torch.Tensor:
    logps = torch.zeros(batch.tokens.shape, dtype=flat.dtype)
    for members in _parts(batch):
        found, _, _ = score(flat, batch, members, shape)
        logps[members, : found.shape[1]] = found
    return logps


def _parts(batch: TokenBatch) -> Sequence[torch.Tensor]:
    """Return the responses in chunks of like length: little padding."""
    return batch.action_mask.sum(-1).argsort(stable=True).split(32)
