"""The columns of a transformer run: those of a toy record, and what only a network's hidden states can tell.

What this file does not do: run anything; probe.py has the measurements that need a step or a gradient.
"""

from __future__ import annotations

import numpy as np
import torch

from lldsim.diagnostics.displacement import action_change, displaced_shares, response_change
from lldsim.diagnostics.similarity import gather_tokens, right_wrong_similarity
from lldsim.record import COLUMNS
from lldsim.transformer.sampler import TokenBatch
from lldsim.transformer.world import BAD, GOOD, INVALID, NONE

AFTER = {NONE: "none", BAD: "bad", INVALID: "error", GOOD: "good"}  # kind of the last feedback -> suffix of a column
# What an update did to its own batch, new - old in nats per response; the names are the toy probe's.
CHANGES: dict[str, str] = {
    "change_correct": "mean change of the log-likelihood of the batch's correct responses (Def. 4.1)",
    "change_wrong": "the same for wrong responses",
    "change_correct_action1": "change_correct over the first action alone",
    "change_correct_action2": "change_correct over the second action alone",
    "displaced_bare": "share of correct responses whose likelihood did not rise",
    "displaced_sized": "share of correct responses whose likelihood fell by thresholds.displaced_size or more",
}
# Log-probabilities are per action token, of the trainer's policy at temperature 1, unless they say sampler.
EXTRA_COLUMNS: dict[str, str] = {
    "logp_correct_action3": "logp_correct over third and later actions",
    "logp_wrong_action3": "logp_wrong over third and later actions",
    **{f"logp_after_{name}": f"log-probability of actions after feedback: {name}" for name in AFTER.values()},
    "sampler_logp": "mean log-probability of all responses under the sampler's own, sharpened distribution",
    "sampler_logp_correct": "the same over correct responses",
    "length_correct": "action tokens per correct response",
    "length_wrong": "action tokens per wrong response",
    "valid_actions": "share of actions that are valid",
    "similarity": "mean cosine of last-layer states, pairs of a correct and a wrong response's first-action tokens, "
    "within a query",
    "similarity_all": "the same over pairs from the whole batch, known while few groups are graded",
    "similarity_later": "the same over second and later actions, from the whole batch",
    **CHANGES,
}
TRANSFORMER_COLUMNS: dict[str, str] = COLUMNS | EXTRA_COLUMNS


def describe(
    batch: TokenBatch, old_logps: torch.Tensor, entropy: torch.Tensor, hidden: torch.Tensor
) -> dict[str, float]:
    """Return the columns that a rollout batch alone determines; a mean over nothing is NaN (missing, not zero)."""
    mask, correct = batch.action_mask, (batch.rewards > 0)[:, None]
    action = batch.action_id
    by_group = batch.rewards.reshape(-1, int((batch.group == batch.group[0]).sum()))
    length = mask.sum(-1).double()
    actions = (action.amax(-1) + 1).double()
    wrong = ~correct[:, 0]
    after_second = torch.where(action == 1, batch.after, -1).amax(-1)

    def mean(values: torch.Tensor, where: torch.Tensor) -> float:
        return values[where].mean().item() if where.any() else float("nan")

    sides = {"correct": correct, "wrong": ~correct}
    places = {"1": action == 0, "2": action == 1, "3": action >= 2}
    return {
        "reward": batch.rewards.mean().item(),
        "entropy": mean(entropy, mask),
        "response_length": length.mean().item(),
        "valid_searches": batch.valid_searches.double().mean().item(),
        "invalid_actions": batch.invalid_actions.double().mean().item(),
        "tied_groups": (by_group.amin(-1) == by_group.amax(-1)).double().mean().item(),
        "sampler_gap": mean(batch.sampler_logps - old_logps, mask),
        "sampler_logp": mean(batch.sampler_logps, mask),
        "sampler_logp_correct": mean(batch.sampler_logps, mask & correct),
        "first_search_wrong": mean(((after_second == GOOD) | (after_second == BAD)).double(), wrong),
        "valid_actions": 1 - (batch.invalid_actions.double().sum() / actions.sum()).item(),
        **{f"logp_{side}": mean(old_logps, mask & which) for side, which in sides.items()},
        **{f"length_{side}": mean(length, which[:, 0]) for side, which in sides.items()},
        **{
            f"logp_{side}_action{place}": mean(old_logps, where & which)
            for side, which in sides.items()
            for place, where in places.items()
        },
        **{f"logp_after_{name}": mean(old_logps, batch.after == kind) for kind, name in AFTER.items()},
        **_similarities(batch, hidden),
    }


def displacement(batch: TokenBatch, logp_change: torch.Tensor) -> dict[str, float]:
    """Return the columns `CHANGES` from new - old log-probabilities (B, T) of the batch that an update trained on."""
    change, right = response_change(logp_change.numpy(), batch.action_mask.numpy()), (batch.rewards > 0).numpy()
    actions = action_change(logp_change.numpy(), batch.action_id.numpy(), n_actions=2)
    shares = displaced_shares(change[right])

    def mean(values: np.ndarray) -> float:
        known = values[np.isfinite(values)]
        return float(known.mean()) if known.size else float("nan")

    found = (mean(change[right]), mean(change[~right]), mean(actions[right, 0]), mean(actions[right, 1]))
    return dict(zip(CHANGES, (*found, shares.bare, shares.sized), strict=True))


def _similarities(batch: TokenBatch, hidden: torch.Tensor) -> dict[str, float]:
    tokens = gather_tokens(hidden.numpy(), batch.action_id.numpy(), (batch.rewards > 0).numpy(), batch.group.numpy())
    whole = tokens.__class__(
        tokens.unit, tokens.correct, np.zeros_like(tokens.group), np.minimum(tokens.action, 1), tokens.position
    )
    return {
        "similarity": right_wrong_similarity(tokens, action=0),
        "similarity_all": right_wrong_similarity(whole, action=0),
        "similarity_later": right_wrong_similarity(whole, action=1),
    }
