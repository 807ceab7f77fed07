"""Lazy likelihood displacement (Def. 4.1) of actions, responses and queries, from log-probabilities before and after.

    D_t = ln pi_after(y_t) - ln pi_before(y_t), summed over the tokens of an action or response;   LLD: D <= e
    D(x) = mean over the correct responses of query x of sum_t D_t                                 (Eq. 3)

The bare rule e = 0 counts the tiniest decrease: ties, an entropy bonus or a biased sampler make its share drift up in
runs where nothing is wrong. The rule with a size, e = -`Thresholds.displaced_size`, is shown beside it.
What this file does not do: sample, update or restore weights (probe.py does, for the toy).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from lldsim.diagnostics.thresholds import DEFAULT, Thresholds
from lldsim.errors import ShapeError

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Shares:
    """Share of displaced units under the bare rule (D <= 0) and under the rule with a size; NaN when there are none."""

    bare: float
    sized: float
    n: int  # units that were judged


def action_change(logp_change: npt.ArrayLike, action_id: npt.ArrayLike, *, n_actions: int | None = None) -> Floats:
    """Return D per action (Def. 4.1), (B, A) nats, NaN where a response has no such action.

    `logp_change` (B, T) = new - old, `action_id` (B, T) int, -1 off the action tokens. Raises ShapeError.

    >>> action_change([[-0.5, 0.25, 1.0, 9.0]], [[0, 0, 1, -1]]).tolist()
    [[-0.25, 1.0]]
    """
    change, action = np.asarray(logp_change, dtype=float), np.asarray(action_id)
    if change.shape != action.shape or change.ndim != 2:
        raise ShapeError(f"logp_change {change.shape} and action_id {action.shape} must both be (B, T)")
    count = max(int(action.max(initial=-1)) + 1, 1) if n_actions is None else n_actions
    out = np.full((len(change), count), np.nan)
    for a in range(count):
        here = action == a
        present = here.any(1)
        out[present, a] = np.where(here, change, 0.0).sum(1)[present]
    return out


def response_change(logp_change: npt.ArrayLike, action_mask: npt.ArrayLike) -> Floats:
    """Return D per response, (B,) nats: the sum of (B, T) changes over its action tokens. Raises ShapeError.

    >>> response_change([[-0.5, 0.25, 9.0]], [[True, True, False]]).tolist()
    [-0.25]
    """
    change, mask = np.asarray(logp_change, dtype=float), np.asarray(action_mask, dtype=bool)
    if change.shape != mask.shape:
        raise ShapeError(f"logp_change has shape {change.shape}, action_mask {mask.shape}; give both (B, T)")
    return np.where(mask, change, 0.0).sum(-1)


def query_change(change: npt.ArrayLike, correct: npt.ArrayLike, group: npt.ArrayLike) -> tuple[np.ndarray, Floats]:
    """Return the queries in ascending order and D(x) of each (Eq. 3), the mean of D over its correct responses.

    `change` (B,) nats per response, `correct` (B,) bool, `group` (B,) int. NaN for a query that lacks a correct or a
    wrong response: its group is tied and Eq. 3 leaves it out. Raises ShapeError.

    >>> [x.tolist() for x in query_change([-1.0, 3.0, 7.0], [True, False, True], [0, 0, 1])]
    [[0, 1], [-1.0, nan]]
    """
    values, right, keys = np.asarray(change, dtype=float), np.asarray(correct, dtype=bool), np.asarray(group)
    if not values.shape == right.shape == keys.shape:
        raise ShapeError(f"change {values.shape}, correct {right.shape} and group {keys.shape} must all be (B,)")
    queries, index = np.unique(keys, return_inverse=True)
    n_right = np.bincount(index, weights=right, minlength=len(queries))
    n_wrong = np.bincount(index, weights=~right, minlength=len(queries))
    total = np.bincount(index, weights=np.where(right, values, 0.0), minlength=len(queries))
    mixed = (n_right > 0) & (n_wrong > 0)
    return queries, np.where(mixed, total / np.maximum(n_right, 1), np.nan)


def displaced_shares(change: npt.ArrayLike, thresholds: Thresholds = DEFAULT) -> Shares:
    """Return the share of displaced units among the known values of `change` (any shape, nats), by both rules.

    >>> displaced_shares([-0.01, -2.0, 0.5, float("nan")])
    Shares(bare=0.6666666666666666, sized=0.3333333333333333, n=3)
    """
    values = np.asarray(change, dtype=float)
    known = values[np.isfinite(values)]
    if not known.size:
        return Shares(float("nan"), float("nan"), 0)
    return Shares(float((known <= 0).mean()), float((known <= -thresholds.displaced_size).mean()), known.size)
