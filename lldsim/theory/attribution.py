"""Who pulled this action down: G broken into single pairs of tokens, and a ranked table of sources.

    pull of s on t = -w_s alpha_ts <h_t, h_s>,     G_t = sum_s pull_ts    (positive = pulls the likelihood down).

The table costs (tokens of the action) x (all tokens); only `attribution_matrix` builds the dense square.
What this file does not do: no run axis (one run at a time), no plot, no causal claim beyond the linear policy.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from lldsim.errors import MissingDataError, ShapeError
from lldsim.theory.checks import FlatInputs, TiedGroups, flatten_inputs
from lldsim.theory.kernel import action_segments, residual


@dataclass(frozen=True)
class Source:
    """One source token and what it does to the target action; `pull` is exact, the pair shown is its strongest."""

    row: int  # response of the source
    position: int  # its place in that response
    action: int  # its action, -1 when no action_id was given
    token: int
    weight: float  # advantage (or loss weight) of its response; < 0 = wrong
    pull: float  # contribution to G of the whole target action; > 0 pulls the likelihood down
    target_position: int  # token of the target action that it moves most
    alpha: float  # residual product of that pair
    similarity: float  # <h, h'> of that pair


def _single_run(hidden: Tensor) -> None:
    if hidden.ndim != 3:
        raise ShapeError(f"hidden has shape {tuple(hidden.shape)}; attribution takes one run, (B, T, D)")


def _pairs(flat: FlatInputs, target: Tensor, source: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return pull, alpha and <h,h'>, each (targets, sources), for flat token indices; 0 pull across groups."""
    left = residual(flat.probs, flat.tokens, flat.mask).flatten(0, 1)
    right = flat.hidden.flatten(0, 1)
    length = flat.tokens.shape[1]
    alphas, similarity = left[target] @ left[source].mT, right[target] @ right[source].mT
    linked = flat.pool[target // length][:, None] == flat.pool[source // length][None, :]
    # 0.0 - x rather than -x: a pair that does not touch is 0, not -0.
    return torch.where(linked, 0.0 - flat.weights[source // length] * alphas * similarity, 0.0), alphas, similarity


@torch.no_grad()
def attribution_matrix(
    hidden: Tensor,
    probs: Tensor,
    tokens: Tensor,
    action_mask: Tensor,
    weights: Tensor,
    *,
    group: Tensor | None = None,
    tied_groups: TiedGroups = "raise",
) -> Tensor:
    """Return the dense pulls, (B, T, B, T): entry [i, t, j, s] is what token s of j adds to G of token t of i.

    Shapes as in `gwhes` without a run axis. (B T)^2 numbers: for teaching and tests. Raises as `gwhes`.
    """
    _single_run(hidden)
    flat = flatten_inputs(hidden, probs, tokens, action_mask, weights, group=group, tied_groups=tied_groups)
    every = torch.arange(flat.tokens.numel())
    return _pairs(flat, every, every)[0].reshape(*tokens.shape, *tokens.shape)


@torch.no_grad()
def pull_map(
    hidden: Tensor,
    probs: Tensor,
    tokens: Tensor,
    action_mask: Tensor,
    weights: Tensor,
    *,
    target_row: int,
    source_row: int,
) -> Tensor:
    """Return the pulls between one pair of responses, (T, T): row = target token, column = source token.

    The picture of the paper's case 1 (Figs. 10-15): shared plan, shared query, different entity. Raises as `gwhes`.
    """
    _single_run(hidden)
    flat = flatten_inputs(hidden, probs, tokens, action_mask, weights, group=None, tied_groups="zero")
    span = torch.arange(tokens.shape[1])
    return _pairs(flat, target_row * tokens.shape[1] + span, source_row * tokens.shape[1] + span)[0]


@torch.no_grad()
def attribution_table(
    hidden: Tensor,
    probs: Tensor,
    tokens: Tensor,
    action_mask: Tensor,
    weights: Tensor,
    *,
    row: int,
    action: int | None = None,
    action_id: Tensor | None = None,
    group: Tensor | None = None,
    tied_groups: TiedGroups = "raise",
    order: Literal["down", "size"] = "down",
    top: int | None = 10,
) -> list[Source]:
    """Return the source tokens ranked by their pull on one action (or on the whole response when `action` is None).

    "down" ranks from the strongest downward pull to the strongest lift, "size" by magnitude; `top=None` keeps all, and
    then the pulls sum to G of the action. A list of dataclasses, so `pandas.DataFrame(table)` works.
    Raises as `gwhes`, and MissingDataError when the response has no such action.
    """
    _single_run(hidden)
    flat = flatten_inputs(hidden, probs, tokens, action_mask, weights, group=group, tied_groups=tied_groups)
    length = tokens.shape[1]
    segments = None if action_id is None else action_segments(action_id, action_mask)
    wanted = flat.mask[row].clone()
    if action is not None:
        if segments is None:
            raise ShapeError("action was given without action_id")
        wanted &= segments[row] == action
    if not wanted.any():
        raise MissingDataError(f"response {row} has no action token in action {action}")
    target = row * length + wanted.nonzero()[:, 0]
    source = flat.mask.flatten().nonzero()[:, 0]
    pulls, alphas, similarity = _pairs(flat, target, source)
    summed = pulls.sum(0)
    ranked = torch.argsort(summed if order == "down" else summed.abs(), descending=True, stable=True)[:top]
    strongest = pulls.abs().argmax(0)
    return [
        Source(
            row=(at := int(source[k])) // length,
            position=at % length,
            action=-1 if segments is None else int(segments.flatten()[at]),
            token=int(tokens.flatten()[at]),
            weight=float(flat.weights[at // length]),
            pull=float(summed[k]),
            target_position=int(target[strongest[k]]) % length,
            alpha=float(alphas[strongest[k], k]),
            similarity=float(similarity[strongest[k], k]),
        )
        for k in ranked.tolist()
    ]
