"""Negative log-likelihood by index of the action and by number of tool rounds (Figs. 5 and 6).

The paper's reading: feedback is out of distribution, so what is written after it is less likely, and more so the more
rounds there are. Two cuts of the same numbers: by action within responses, and by responses with r valid searches.
What this file does not do: correct for who gets to make many rounds (hard queries, strayed responses); the second cut
compares different responses, the first compares actions of the same kind of response.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from lldsim.errors import ShapeError

Floats = npt.NDArray[np.float64]


def nll_by_action(
    logps: npt.ArrayLike, action_id: npt.ArrayLike, *, n_actions: int, where: npt.ArrayLike | None = None
) -> Floats:
    """Return the mean -ln pi per token of the first, second, ... action, (n_actions,) nats, NaN where there is none.

    logps (B, T), action_id (B, T) with -1 off the action tokens, `where` (B,) bool keeps some responses.
    Raises ShapeError.

    >>> nll_by_action([[-1.0, -3.0, -5.0]], [[0, 0, 1]], n_actions=3).tolist()
    [2.0, 5.0, nan]
    """
    values, action = np.asarray(logps, dtype=float), np.asarray(action_id)
    if values.shape != action.shape:
        raise ShapeError(f"logps has shape {values.shape}, action_id {action.shape}; give both (B, T)")
    kept = np.ones(len(values), dtype=bool) if where is None else np.asarray(where, dtype=bool)
    return _means(-values[kept].ravel(), action[kept].ravel(), n_actions)


def nll_by_rounds(
    logps: npt.ArrayLike, action_mask: npt.ArrayLike, rounds: npt.ArrayLike, *, max_rounds: int
) -> Floats:
    """Return the mean -ln pi per action token of responses with 0, 1, ..., max_rounds tool rounds, nats, NaN if none.

    logps (B, T), action_mask (B, T) bool, rounds (B,) int. Raises ShapeError.

    >>> nll_by_rounds([[-1.0, -3.0], [-4.0, 0.0]], [[1, 1], [1, 0]], [1, 2], max_rounds=2).tolist()
    [nan, 2.0, 4.0]
    """
    values, mask, count = np.asarray(logps, dtype=float), np.asarray(action_mask, dtype=bool), np.asarray(rounds)
    if values.shape != mask.shape or count.shape != values.shape[:1]:
        raise ShapeError(
            f"logps {values.shape}, action_mask {mask.shape}, rounds {count.shape} disagree; give (B, T), (B, T), (B,)"
        )
    label = np.where(mask, count[:, None], -1)
    return _means(-values.ravel(), label.ravel(), max_rounds + 1)


def _means(values: Floats, label: np.ndarray, count: int) -> Floats:
    """Return the mean of `values` per label 0..count-1; other labels are dropped."""
    inside = (label >= 0) & (label < count)
    number = np.bincount(label[inside], minlength=count)
    total = np.bincount(label[inside], weights=values[inside], minlength=count)
    return np.divide(total, number, out=np.full(count, np.nan), where=number > 0)
