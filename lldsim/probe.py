"""Look into a running simulation without touching it: displacement, Eq. 3, G, similarity, tool rounds.

A probe reads the weights and the rollout batch that an update is about to train on; Eq. 3's own rollouts come from a
random stream of their own. A probed run is bit for bit the run that was not probed (tested).
What this file does not do: define a measurement (diagnostics, theory do), or compile; a full look takes about as long
as ten updates. With trainable features G is the part that moves W (theory.flow), at the hidden states of the moment.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from lldsim import kernels
from lldsim.config import RunConfig
from lldsim.diagnostics.displacement import action_change, displaced_shares, query_change, response_change
from lldsim.diagnostics.rounds import nll_by_action, nll_by_rounds
from lldsim.diagnostics.similarity import gather_tokens, right_wrong_similarity
from lldsim.draws import PROBE_STREAM, draw
from lldsim.engine import Run
from lldsim.errors import ConfigError
from lldsim.policy import LinearSoftmaxPolicy, select
from lldsim.record import COLUMNS, RunRecord, make_record
from lldsim.theory.flow import loss_weights
from lldsim.theory.kernel import gwhes
from lldsim.types import RolloutBatch
from lldsim.world import SearchWorld

# Columns that a probe adds to a record, empty at updates that were not probed. Changes are new - old by this update, in
# nats per response; other log-likelihoods are per action token, of the trainer's policy at temperature 1.
PROBE_COLUMNS: dict[str, str] = {
    "change_correct": "mean change of the log-likelihood of the batch's correct responses (Def. 4.1)",
    "change_wrong": "the same for wrong responses",
    "change_correct_action1": "change_correct over the first action alone",
    "change_correct_action2": "change_correct over the second action alone",
    "displaced_bare": "share of correct responses whose likelihood did not rise",
    "displaced_sized": "share of correct responses whose likelihood fell by thresholds.displaced_size or more",
    "gwhes": "G of Theorem A.1 per action token of correct responses: sources of the same query, weights A",
    "gwhes_negative": "its part from wrong responses",
    "gwhes_batch": "minus d/ds ln pi per action token of correct responses: all responses, the loss's normaliser",
    "gwhes_batch_negative": "its part from wrong responses",
    "similarity": "mean cosine of hidden states, pairs of a correct and a wrong response's tokens of one query",
    "similarity_action1": "the same inside the first action",
    "similarity_action2": "the same inside the second action",
    "similarity_position": "the same over pairs of one query, action and position",
    **{f"nll_action{a}": f"-ln pi per token of action {a} of all responses" for a in (1, 2, 3)},
    **{f"nll_rounds{r}": f"-ln pi per action token of responses with {r} valid searches" for r in (0, 1, 2, 3)},
    "eq3_change": "mean over probed queries of D(x), one update on the query's own group (Eq. 3)",
    "eq3_bare": "share of probed queries with D(x) <= 0",
    "eq3_sized": "share of probed queries with D(x) <= -thresholds.displaced_size",
    "eq3_queries": "queries probed, those with a correct and a wrong response",
}


def to_batch(roll: kernels.Rollout, world: SearchWorld) -> RolloutBatch:
    """Return the engine's rollout arrays as a RolloutBatch, in the layout of rollout.rollout."""
    b, max_turns, k = roll.tokens.shape
    query = np.repeat(np.arange(world.config.n_queries), b // world.config.n_queries)
    turn, position = np.arange(max_turns)[:, None], np.arange(k)
    acted = (np.arange(max_turns) < roll.turns[:, None])[:, :, None] & np.ones(k + 1, dtype=bool)
    acted[:, :, -1] = False  # the place of the feedback
    is_last = (np.arange(max_turns) == roll.turns[:, None] - 1) & (roll.answered > 0)[:, None]
    feedback = np.where(np.arange(max_turns) < roll.turns[:, None], roll.feedback, 0)
    level = np.where(acted[:, :, :-1], roll.level, 0)  # beyond the last turn lies what former batches left
    context = world.context(query[:, None, None], turn, position, feedback[:, :, None], level)

    def spread(values: np.ndarray, elsewhere: float) -> torch.Tensor:
        out = np.full(acted.shape, elsewhere, dtype=np.float64 if values.dtype.kind == "f" else np.int64)
        out[:, :, :-1] = values
        return torch.from_numpy(np.where(acted, out, elsewhere).astype(out.dtype).reshape(b, -1))

    return RolloutBatch(
        tokens=spread(roll.tokens, -1),
        context=spread(context, -1),
        action_mask=torch.from_numpy(acted.reshape(b, -1)),
        action_id=spread(np.broadcast_to(turn, context.shape), -1),
        answer_mask=torch.from_numpy((acted & is_last[:, :, None]).reshape(b, -1)),
        sampler_logps=spread(roll.sampler_logps, 0.0),
        rewards=torch.from_numpy(roll.reward.copy()),
        group=torch.from_numpy(query),
        valid_searches=torch.from_numpy(roll.searches.copy()),
        invalid_actions=torch.from_numpy(roll.invalid.copy()),
    )


@dataclass(frozen=True)
class Look:
    """A rollout batch and what the policy makes of it, cut to the columns in use."""

    batch: RolloutBatch
    advantages: torch.Tensor  # (B,)
    hidden: torch.Tensor  # (B, T, D)
    probs: torch.Tensor  # (B, T, V)
    logps: torch.Tensor  # (B, T)


def look(run: Run) -> Look:
    """Sample the batch that the run's next update will train on, and describe it; the run stays as it was."""
    batch = to_batch(run.sample(draw(run.config, run.update)), run.world)
    used = int(batch.action_mask.any(0).nonzero().max()) + 1
    cut = {
        f.name: value[:, :used] if (value := getattr(batch, f.name)).ndim == 2 else value
        for f in dataclasses.fields(batch)
    }
    batch = RolloutBatch(**cut)
    logps_all = _policy(run).logps_all(batch.context)
    hidden = run.world.hidden(batch.context.clamp(min=0).reshape(-1).numpy())
    if run.config.trainer.feature_rate > 0:
        hidden = hidden @ run.state()["features"].T
    return Look(
        batch,
        torch.from_numpy(run.roll.advantage.copy()),
        torch.from_numpy(hidden).reshape(*batch.context.shape, -1),
        logps_all.exp(),
        select(logps_all, batch.tokens),
    )


def measure_batch(seen: Look, *, aggregation: Any = "token-mean") -> dict[str, float]:
    """Return what one batch says before its update: G, similarity, likelihood by action and by tool rounds."""
    batch, correct = seen.batch, (seen.batch.rewards > 0).numpy()
    body = (seen.hidden, seen.probs, batch.tokens, batch.action_mask)
    mixed = correct & (seen.advantages.numpy() != 0)
    in_query = gwhes(*body, seen.advantages, level="response", group=batch.group, tied_groups="zero")
    n_tokens = batch.action_mask.sum(-1).numpy()

    def per_token(values: torch.Tensor, where: np.ndarray) -> float:
        return float(values.numpy()[where].sum() / n_tokens[where].sum()) if where.any() else float("nan")

    tokens = gather_tokens(seen.hidden.numpy(), batch.action_id.numpy(), correct, batch.group.numpy())
    by_action = nll_by_action(seen.logps.numpy(), batch.action_id.numpy(), n_actions=3)
    by_rounds = nll_by_rounds(seen.logps.numpy(), batch.action_mask.numpy(), batch.valid_searches.numpy(), max_rounds=3)
    return {
        "gwhes": per_token(in_query.total, mixed),
        "gwhes_negative": per_token(in_query.negative, mixed),
        **measure_pull(seen, aggregation=aggregation),
        "similarity": right_wrong_similarity(tokens, match="query"),
        "similarity_action1": right_wrong_similarity(tokens, match="action", action=0),
        "similarity_action2": right_wrong_similarity(tokens, match="action", action=1),
        "similarity_position": right_wrong_similarity(tokens, match="position"),
        **{f"nll_action{a + 1}": float(by_action[a]) for a in range(3)},
        **{f"nll_rounds{r}": float(by_rounds[r]) for r in range(4)},
    }


def measure_pull(seen: Look, *, aggregation: Any = "token-mean") -> dict[str, float]:
    """Return G of the whole batch per action token of correct responses, and its part from wrong ones."""
    batch, correct = seen.batch, seen.batch.rewards > 0
    weights = loss_weights(seen.advantages, batch.action_mask, aggregation=aggregation)
    body = (seen.hidden, seen.probs, batch.tokens, batch.action_mask)
    parts = gwhes(*body, weights, level="response", tied_groups="zero")
    n_tokens = batch.action_mask[correct].numpy().sum()

    def per_token(values: torch.Tensor) -> float:
        return float(values.numpy()[correct.numpy()].sum() / n_tokens) if n_tokens else float("nan")

    return {"gwhes_batch": per_token(parts.total), "gwhes_batch_negative": per_token(parts.negative)}


def pull_run(config: RunConfig, *, every: int = 15) -> RunRecord:
    """Simulate `config` and return its record with G (columns `gwhes_batch*`) at every `every`-th update, NaN between.

    Much quicker than probe_run, for whoever waits for the answer. Raises ConfigError for a spacing below 1.
    """
    if every < 1:
        raise ConfigError(f"every={every}: looks need a spacing of at least 1 update")
    run = Run(config)
    table = {
        name: np.full(config.trainer.updates, np.nan) for name in (*COLUMNS, "gwhes_batch", "gwhes_batch_negative")
    }
    for update in range(config.trainer.updates):
        pull = measure_pull(look(run), aggregation=config.objective.aggregation) if update % every == 0 else {}
        for name, value in (pull | run.step()).items():
            table[name][update] = value
    return make_record(table, config.flat(), config.config_hash())


def measure_change(seen: Look, run: Run) -> dict[str, float]:
    """Return how the update that `run` has taken since `seen` changed the likelihood of that batch's responses."""
    batch, correct = seen.batch, (seen.batch.rewards > 0).numpy()
    after = select(_policy(run).logps_all(batch.context), batch.tokens)
    change = (after - seen.logps).numpy()
    by_response = response_change(change, batch.action_mask.numpy())
    by_action = action_change(change, batch.action_id.numpy(), n_actions=max(2, run.world.config.max_turns))
    shares = displaced_shares(by_response[correct])

    def mean(values: np.ndarray) -> float:
        known = values[np.isfinite(values)]
        return float(known.mean()) if known.size else float("nan")

    return {
        "change_correct": mean(by_response[correct]),
        "change_wrong": mean(by_response[~correct]),
        "change_correct_action1": mean(by_action[correct, 0]),
        "change_correct_action2": mean(by_action[correct, 1]),
        "displaced_bare": shares.bare,
        "displaced_sized": shares.sized,
    }


def single_update(run: Run, *, batches: int = 3, group_size: int = 8, steps: int = 1) -> np.ndarray:
    """Return D(x) of Eq. 3 for every probed query, (batches * P,) nats, NaN where its group was tied.

    For each query: `group_size` fresh rollouts from the run's sampler, the same weights (and optimiser state) again,
    one update on that group alone of `steps` optimiser steps, and the mean change of its correct responses. With one
    step LLDS is inert, so arms differ by their checkpoint alone. The run stays as it was.
    """
    config = run.config.replace(
        group_size=group_size, updates_per_rollout=1, allow_inert_llds=True, n_queries=run.config.world.n_queries
    )
    probe, state = Run(config, world=dataclasses.replace(run.world, config=config.world)), run.state()
    dials = probe.dials._replace(updates_per_rollout=steps)
    found = []
    for batch in range(batches):
        probe.restore(state)
        roll = probe.sample(draw(config, run.update, stream=PROBE_STREAM, batch=batch))
        probe.weigh()
        change = np.zeros(len(roll.turns))
        for first in range(0, len(change), group_size):
            members = np.arange(first, first + group_size)
            if np.ptp(roll.reward[members]) == 0:
                continue
            before = _log_likelihoods(probe, members)
            order = np.tile(members, steps)
            sums = np.zeros(kernels.N_METRICS)
            kernels.update(probe.tables, dials, probe.weights, roll, order, probe._scratch, sums)
            change[members] = _log_likelihoods(probe, members) - before
            probe.restore(state)
        query = np.arange(len(change)) // group_size
        found.append(query_change(change, roll.reward > 0, query)[1])
    return np.concatenate(found)


def probe_run(
    config: RunConfig,
    *,
    every: int = 1,
    eq3_every: int | None = None,
    eq3_batches: int = 1,
    on_update: Callable[[int], None] | None = None,
) -> RunRecord:
    """Simulate `config` and return its record with PROBE_COLUMNS filled at every `every`-th update.

    `eq3_every` (None = never) spaces the single-update probes of Eq. 3. Raises ConfigError for a spacing below 1.
    """
    if every < 1 or (eq3_every is not None and eq3_every < 1):
        raise ConfigError(f"every={every}, eq3_every={eq3_every}: probes need a spacing of at least 1 update")
    run = Run(config)
    names = (*COLUMNS, *PROBE_COLUMNS)
    table = {name: np.full(config.trainer.updates, np.nan) for name in names}
    for update in range(config.trainer.updates):
        found: dict[str, float] = {}
        if eq3_every is not None and update % eq3_every == 0:
            found |= _eq3_columns(single_update(run, batches=eq3_batches))
        seen = look(run) if update % every == 0 else None
        found |= run.step()
        if seen is not None:
            found |= measure_batch(seen, aggregation=config.objective.aggregation) | measure_change(seen, run)
        for name, value in found.items():
            table[name][update] = value
        if on_update:
            on_update(update + 1)
    return make_record(table, config.flat(), config.config_hash())


def _eq3_columns(change: np.ndarray) -> dict[str, float]:
    shares, known = displaced_shares(change), change[np.isfinite(change)]
    return {
        "eq3_change": float(known.mean()) if known.size else float("nan"),
        "eq3_bare": shares.bare,
        "eq3_sized": shares.sized,
        "eq3_queries": float(shares.n),
    }


def _policy(run: Run) -> LinearSoftmaxPolicy:
    return LinearSoftmaxPolicy(run.world, torch.from_numpy(run.policy.astype(np.float64)))


def _log_likelihoods(run: Run, members: np.ndarray) -> np.ndarray:
    """Return the summed log-likelihood (M,) of the responses `members` in `run.roll` under `run.weights`."""
    scratch = run._scratch
    n = kernels.gather(run.tables, run.policy, run.roll, members, scratch)
    first = members[0]
    return np.bincount(scratch.response[:n] - first, weights=scratch.logps[:n], minlength=len(members))
