"""Input checks of the theory functions: every failure names the tensor, the index and what to do.

What this file does not do: no mathematics, and no check that a row of `probs` sums to one (a pass over
B*T*V numbers for every call; `probs_from_logps` is the safe way in).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from lldsim.errors import GroupError, LldsimError, NonFiniteError, ShapeError

TiedGroups = Literal["raise", "zero"]


@dataclass(frozen=True)
class FlatInputs:
    """Checked inputs with the leading run axes and the response axis merged to N = R*B rows."""

    hidden: Tensor  # (N, T, D) float64
    probs: Tensor  # (N, T, V) float64
    tokens: Tensor  # (N, T) int64, 0 where there is no action token
    mask: Tensor  # (N, T) bool
    weights: Tensor  # (N,) float64
    pool: Tensor  # (N,) int64, rows of equal value are each other's sources
    lead: tuple[int, ...]  # the original (..., B)


def index_of(flag: Tensor) -> str:
    """Return the first true index of a boolean tensor as '[i, j, ...]'."""
    return str(flag.nonzero()[0].tolist())


def same_shape(name: str, tensor: Tensor, shape: torch.Size | tuple[int, ...], like: str) -> None:
    """Raise ShapeError unless `tensor` has `shape`, which is that of `like`."""
    if tuple(tensor.shape) != tuple(shape):
        raise ShapeError(f"{name} has shape {tuple(tensor.shape)}, but {like} asks for {tuple(shape)}")


def finite_where(name: str, tensor: Tensor, mask: Tensor) -> Tensor:
    """Return `tensor` (..., T, K) with non-finite entries off `mask` (..., T) set to 0; raise where they count."""
    # One fused reduction decides the common case; the masks are built only when something is wrong.
    if bool(torch.isfinite(tensor.sum())):
        return tensor
    bad = ~torch.isfinite(tensor) & mask[..., None]
    if bad.any():
        at = index_of(bad)
        raise NonFiniteError(f"{name}{at} is {tensor[bad][0].item()} at an action token; mask it or mend the policy")
    return torch.where(mask[..., None], tensor, 0.0)


def probs_from_logps(logps_all: Tensor, action_mask: Tensor) -> Tensor:
    """Return exp(ln pi) after checking it, zero off the mask.

    `logps_all` (..., B, T, V) in nats, `action_mask` (..., B, T) bool -> (..., B, T, V).
    Raises ShapeError, and NonFiniteError where an action token has a NaN or infinite log-probability.

    >>> probs_from_logps(torch.tensor([[[-0.6931471805599453] * 2]]), torch.tensor([[True]])).tolist()
    [[[0.5, 0.5]]]
    """
    same_shape("action_mask", action_mask, logps_all.shape[:-1], f"logps_all {tuple(logps_all.shape)}")
    return torch.where(action_mask[..., None], finite_where("logps_all", logps_all, action_mask).exp(), 0.0)


def _check_tokens(tokens: Tensor, mask: Tensor, vocab: int) -> Tensor:
    clean = torch.where(mask, tokens, 0)
    outside = (clean < 0) | (clean >= vocab)
    if outside.any():
        at = index_of(outside)
        raise ShapeError(f"tokens{at} = {int(clean[outside][0])} at an action token is outside 0..{vocab - 1} of probs")
    return clean


def _pools(group: Tensor | None, lead: tuple[int, ...]) -> Tensor:
    batch = lead[-1]
    run = torch.arange(int(torch.Size(lead).numel()) // max(batch, 1)).repeat_interleave(batch)
    if group is None:
        return run
    if group.shape != lead:
        same_shape("group", group, (batch,), f"hidden with B = {batch}")
        group = group.expand(lead)
    return torch.unique(torch.stack([run, group.reshape(-1)]), dim=1, return_inverse=True)[1]


def require_mixed(weights: Tensor, pool: Tensor, *, lead: tuple[int, ...], name: str = "weights") -> None:
    """Raise GroupError for the first pool of rows that lacks a positive or a negative weight."""
    n_pools = int(pool.max()) + 1 if pool.numel() else 0
    for kind, flag in (("correct (weight > 0)", weights > 0), ("wrong (weight < 0)", weights < 0)):
        count = torch.zeros(n_pools, dtype=torch.int64).index_add_(0, pool, flag.long())
        if (count == 0).any():
            first = (pool == int((count == 0).nonzero()[0])).reshape(lead)
            raise GroupError(
                f"the group of {name}{index_of(first)} has no {kind} response, so G is not defined for it; "
                'drop tied groups or pass tied_groups="zero"'
            )


def flatten_inputs(
    hidden: Tensor,
    probs: Tensor,
    tokens: Tensor,
    action_mask: Tensor,
    weights: Tensor,
    *,
    group: Tensor | None,
    tied_groups: TiedGroups,
) -> FlatInputs:
    """Check shapes, finiteness, token ids and groups, and merge (..., B) to one axis of N rows.

    Raises ShapeError, NonFiniteError, GroupError or LldsimError; each names the tensor and the index.
    """
    if hidden.ndim < 3:
        raise ShapeError(f"hidden has shape {tuple(hidden.shape)}; (..., B, T, D) is needed")
    lead, body = tuple(hidden.shape[:-2]), hidden.shape[:-1]
    like = f"hidden {tuple(hidden.shape)}"
    same_shape("probs", probs, (*body, probs.shape[-1]), like)
    for name, tensor in (("tokens", tokens), ("action_mask", action_mask)):
        same_shape(name, tensor, body, like)
    same_shape("weights", weights, lead, like)
    if not bool(torch.isfinite(weights).all()):
        raise NonFiniteError(f"weights{index_of(~torch.isfinite(weights))} is not finite")
    mask = action_mask.bool()
    hidden, probs = finite_where("hidden", hidden, mask), finite_where("probs", probs, mask)
    if probs.sum() < 0:
        raise LldsimError("probs has a negative sum: pass probabilities, or exp them with probs_from_logps")
    pool, flat_weights = _pools(group, lead), weights.reshape(-1).double()
    if tied_groups == "raise":
        require_mixed(flat_weights, pool, lead=lead)
    length = body[-1]
    return FlatInputs(
        hidden=hidden.reshape(-1, length, hidden.shape[-1]).double(),
        probs=probs.reshape(-1, length, probs.shape[-1]).double(),
        tokens=_check_tokens(tokens, mask, probs.shape[-1]).reshape(-1, length),
        mask=mask.reshape(-1, length),
        weights=flat_weights,
        pool=pool,
        lead=lead,
    )
