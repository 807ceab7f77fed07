"""G of Theorem A.1 (arXiv 2512.04220 v2, Eq. 7): the group-weighted hidden-embedding score, exact and linear in tokens.

    G_t = sum_{s wrong} |w_s| alpha_ts <h_t, h_s> - sum_{s correct} w_s alpha_ts <h_t, h_s>,   alpha_ts = <r_t, r_s>,
    r_t = e_{y_t} - pi_t,    w_s = A_i of the response that holds s (p_pos or -p_neg; see `weights.py`).

The double sum over tokens is never formed. With one V x D matrix per response, M_i = sum_{t in i} r_t (x) h_t,
G_t = -<r_t (x) h_t, sum_i w_i M_i>: an exact rearrangement, not an approximation.
What this file does not do: no loss, no normaliser (`flow.py`), no source-by-source table (`attribution.py`); it
assumes fixed hidden states and ratio 1. No autograd runs through it: buffers are reused.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from lldsim.errors import ShapeError
from lldsim.theory.checks import TiedGroups, flatten_inputs, index_of, same_shape

Level = Literal["token", "action", "response"]
Block = Callable[[int, int], tuple[Tensor, Tensor]]
# Numbers per work buffer: 1 MiB of float64 stays in the second-level cache, so no page of it is touched twice.
BLOCK_NUMBERS = 2**17


@dataclass(frozen=True)
class Gwhes:
    """The parts of G at one level; shapes (..., B, T), (..., B, A) or (..., B)."""

    negative: Tensor  # sum over sources of negative weight, |w| alpha <h,h'>: pulls the likelihood down when > 0
    positive: Tensor  # sum over sources of positive weight, w alpha <h,h'>: lifts it when > 0
    own: Tensor  # -w |sum_k r_k (x) h_k|^2, what the token, action or response does to itself; already inside the parts

    @property
    def total(self) -> Tensor:
        """G = negative - positive; d/ds ln pi = -G up to the loss's normaliser."""
        return self.negative - self.positive

    @property
    def scale(self) -> Tensor:
        """|negative| + |positive|, the size against which rounding errors of `total` are to be judged."""
        return self.negative.abs() + self.positive.abs()


def residual(probs: Tensor, tokens: Tensor, action_mask: Tensor | None = None) -> Tensor:
    """Return r = e_y - pi, shape (..., V); 0 where `action_mask` (...) is false.

    `probs` (..., V), `tokens` (...) int64 (any value off the mask). Raises ShapeError.

    >>> residual(torch.tensor([0.2, 0.3, 0.5], dtype=torch.float64), torch.tensor(2)).tolist()
    [-0.2, -0.3, 0.5]
    """
    same_shape("tokens", tokens, probs.shape[:-1], f"probs {tuple(probs.shape)}")
    on = torch.ones_like(tokens, dtype=torch.bool) if action_mask is None else action_mask.bool()
    same_shape("action_mask", on, tokens.shape, f"tokens {tuple(tokens.shape)}")
    scale = on.to(probs.dtype)[..., None]
    return (probs * -scale).scatter_add(-1, torch.where(on, tokens, 0)[..., None], scale)


def alpha(probs: Tensor, tokens: Tensor, other_probs: Tensor, other_tokens: Tensor) -> Tensor:
    """Return alpha = <e_y - pi, e_y' - pi'> = 1[y = y'] - pi'(y) - pi(y') + <pi, pi'> (Theorem 4.2).

    `probs`, `other_probs` (..., V), `tokens`, `other_tokens` (...) int64 -> (...). Raises ShapeError.

    >>> third = torch.tensor([0.1, 0.1, 0.8], dtype=torch.float64)  # the third token dominates
    >>> round(float(alpha(third, torch.tensor(0), third, torch.tensor(1))), 12)
    0.46
    """
    same_shape("other_probs", other_probs, probs.shape, f"probs {tuple(probs.shape)}")
    for name, tensor in (("tokens", tokens), ("other_tokens", other_tokens)):
        same_shape(name, tensor, probs.shape[:-1], f"probs {tuple(probs.shape)}")
    same = (tokens == other_tokens).to(probs.dtype)
    cross = other_probs.gather(-1, tokens[..., None]) + probs.gather(-1, other_tokens[..., None])
    return same - cross[..., 0] + (probs * other_probs).sum(-1)


def hidden_gram(hidden: Tensor, other: Tensor | None = None) -> Tensor:
    """Return the inner products <h_t, h_s>, (..., T, D) and (..., S, D) -> (..., T, S).

    >>> hidden_gram(torch.eye(2)).tolist()
    [[1.0, 0.0], [0.0, 1.0]]
    """
    other = hidden if other is None else other
    if hidden.shape[-1] != other.shape[-1]:
        raise ShapeError(f"hidden has {hidden.shape[-1]} features, other has {other.shape[-1]}")
    return hidden @ other.mT


def sum_actions(values: Tensor, action_id: Tensor, *, n_actions: int | None = None) -> Tensor:
    """Sum (..., B, T) token values over the actions of each response -> (..., B, A); action_id -1 is dropped."""
    same_shape("action_id", action_id, values.shape, f"values {tuple(values.shape)}")
    count = max(int(action_id.max()) + 1, 1) if n_actions is None else n_actions
    out = torch.zeros(*values.shape[:-1], count + 1, dtype=values.dtype)  # the last column collects what has no action
    return out.scatter_add(-1, torch.where(action_id < 0, count, action_id), values)[..., :count]


@torch.no_grad()
def gwhes(
    hidden: Tensor,
    probs: Tensor,
    tokens: Tensor,
    action_mask: Tensor,
    weights: Tensor,
    *,
    level: Level = "token",
    action_id: Tensor | None = None,
    group: Tensor | None = None,
    tied_groups: TiedGroups = "raise",
) -> Gwhes:
    """Return G of Theorem A.1 (Eq. 7) split into negative, positive and own part, for every token, action or response.

    hidden (..., B, T, D), probs (..., B, T, V), tokens (..., B, T) int64, action_mask (..., B, T) bool, weights
    (..., B) = advantages (dimensionless). `group` (..., B) or (B,) limits the sources to the same query; None lets
    every response of the run act on every other, as one batch gradient does. `level="action"` needs `action_id`
    (..., B, T). `tied_groups="zero"` keeps groups whose weights are all of one sign.
    Time: one pass of T*V*D per response for "action" and "response", three for "token"; memory linear in B.
    Raises ShapeError, NonFiniteError (only where the mask is true), GroupError.
    """
    flat = flatten_inputs(hidden, probs, tokens, action_mask, weights, group=group, tied_groups=tied_groups)
    on = flat.mask.double()
    rows = block_rows(flat.probs.shape[1] * max(flat.probs.shape[2], flat.hidden.shape[2]))
    buffer = torch.empty(rows, *flat.probs.shape[1:], dtype=torch.float64)

    def block(lo: int, hi: int) -> tuple[Tensor, Tensor]:
        left = torch.mul(flat.probs[lo:hi], -on[lo:hi, :, None], out=buffer[: hi - lo])
        return left.scatter_add_(-1, flat.tokens[lo:hi, :, None], on[lo:hi, :, None]), flat.hidden[lo:hi]

    segments = action_segments(action_id, action_mask) if level == "action" else None
    return bilinear_sums(block, rows, flat.weights, flat.pool, lead=flat.lead, level=level, segments=segments)


def block_rows(numbers_per_row: int) -> int:
    """Return how many responses share one work buffer."""
    return max(1, BLOCK_NUMBERS // max(numbers_per_row, 1))


def action_segments(action_id: Tensor | None, action_mask: Tensor) -> Tensor:
    """Return `action_id` flattened to (N, T), -1 off the mask; raise ShapeError when it does not cover the mask."""
    if action_id is None:
        raise ShapeError('level="action" needs action_id of the shape of tokens')
    same_shape("action_id", action_id, action_mask.shape, f"action_mask {tuple(action_mask.shape)}")
    lost = action_mask.bool() & (action_id < 0)
    if lost.any():
        raise ShapeError(f"action_id{index_of(lost)} is negative at an action token")
    return torch.where(action_mask.bool(), action_id, -1).reshape(-1, action_id.shape[-1])


def bilinear_sums(
    block: Block,
    rows: int,
    weights: Tensor,
    pool: Tensor,
    *,
    lead: tuple[int, ...],
    level: Level,
    segments: Tensor | None,
) -> Gwhes:
    """Contract sum_s w_s <l_t, l_s> <h_t, h_s> for left vectors l (N, T, V) and right vectors h (N, T, D) from `block`.

    `block(lo, hi)` may reuse its memory between calls. Public because the trainable-feature sum of `flow.py` is the
    same contraction with l = W^T r and h = phi.
    """
    n = weights.shape[0]
    pieces = [(lo, min(lo + rows, n)) for lo in range(0, n, rows)]
    per_segment = torch.cat([_outer_sums(*block(lo, hi), segments, lo, hi) for lo, hi in pieces])  # (N, S, V, D)
    per_response = per_segment[:, 0] if per_segment.shape[1] == 1 else per_segment.sum(1)
    sides = [_pooled((sign * weights).clamp(min=0), per_response, pool) for sign in (-1.0, 1.0)]
    if level == "token":
        length = block(0, 1)[0].shape[1]
        size = per_response.shape[-1]
        both = torch.cat(sides, -1)  # (n_pools, V, 2 D): one wide product is faster than two narrow ones
        out = torch.empty(3, n, length, dtype=torch.float64)
        work = torch.empty(rows * length, 2 * size, dtype=torch.float64)
        for lo, hi in pieces:
            left, right = block(lo, hi)
            moved = work[: (hi - lo) * length]
            if len(both) == 1:
                torch.mm(left.flatten(0, 1), both[0], out=moved)
            else:
                torch.bmm(left, both[pool[lo:hi]], out=moved.view(hi - lo, length, 2 * size))
            pulls = torch.bmm(moved.view(-1, 2, size), right.reshape(-1, size, 1))
            out[:2, lo:hi] = pulls.view(hi - lo, length, 2).movedim(-1, 0)
            sizes = torch.linalg.vector_norm(left, dim=-1) * torch.linalg.vector_norm(right, dim=-1)
            out[2, lo:hi] = -weights[lo:hi, None] * sizes.square_()
        return Gwhes(*(part.reshape(*lead, length) for part in out))
    own = -weights[:, None] * per_segment.square().sum((-1, -2))
    parts = [torch.einsum("nsvd,nvd->ns", per_segment, side[pool]) for side in sides]
    shape = lead if level == "response" else (*lead, per_segment.shape[1])
    return Gwhes(*(part.reshape(shape) for part in (*parts, own)))


def _outer_sums(left: Tensor, right: Tensor, segments: Tensor | None, lo: int, hi: int) -> Tensor:
    """Return sum_{t in segment} l_t (x) h_t, (n, S, V, D); one segment per response when `segments` is None."""
    if segments is None:
        return torch.bmm(left.mT, right)[:, None]
    n_segments = max(int(segments.max()) + 1, 1)
    out = torch.zeros(hi - lo, n_segments, left.shape[-1], right.shape[-1], dtype=left.dtype)
    for a in range(n_segments):
        here = segments[lo:hi] == a
        cols = here.any(0)  # only the columns that some response of the block gives to this action
        out[:, a] = torch.bmm((left[:, cols] * here[:, cols, None]).mT, right[:, cols])
    return out


def _pooled(weights: Tensor, per_response: Tensor, pool: Tensor) -> Tensor:
    """Return sum_i w_i M_i within each pool, (n_pools, V, D)."""
    rows = weights.nonzero()[:, 0]
    out = torch.zeros(int(pool.max()) + 1, *per_response.shape[1:], dtype=per_response.dtype)
    return out.index_add_(0, pool[rows], per_response[rows] * weights[rows, None, None])
