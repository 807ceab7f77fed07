"""How alike the hidden states of correct and wrong responses to one query are: the second lever of Theorem 4.2.

    similarity = mean of cos(h_t, h_s) over pairs of a token t of a correct and a token s of a wrong response

taken over pairs of the same query, of the same query and action, or of the same query, action and position. The means
over pairs are exact without forming pairs: a sum of unit vectors per side and key.
What this file does not do: choose a layer. Hidden states come in as the caller has them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

from lldsim.errors import ShapeError

Match = Literal["query", "action", "position"]


@dataclass(frozen=True)
class Tokens:
    """The action tokens of a rollout batch laid end to end: unit hidden states and what each token belongs to."""

    unit: npt.NDArray[np.float64]  # (N, D)
    correct: npt.NDArray[np.bool_]  # (N,) the token's response is correct
    group: np.ndarray  # (N,) query
    action: np.ndarray  # (N,) index of the action in the response
    position: np.ndarray  # (N,) index of the token in the action


def gather_tokens(
    hidden: npt.ArrayLike, action_id: npt.ArrayLike, correct: npt.ArrayLike, group: npt.ArrayLike
) -> Tokens:
    """Return the action tokens of hidden (B, T, D), action_id (B, T) with -1 elsewhere, correct (B,), group (B,).

    Raises ShapeError when the leading shapes disagree.
    """
    states, action = np.asarray(hidden, dtype=float), np.asarray(action_id)
    right, keys = np.asarray(correct, dtype=bool), np.asarray(group)
    if states.shape[:2] != action.shape or not right.shape == keys.shape == action.shape[:1]:
        raise ShapeError(
            f"hidden {states.shape}, action_id {action.shape}, correct {right.shape} and group {keys.shape} disagree; "
            "give (B, T, D), (B, T), (B,), (B,)"
        )
    response, column = np.nonzero(action >= 0)
    position = np.zeros_like(column)
    same = (np.diff(response) == 0) & (np.diff(action[response, column]) == 0)
    for i in np.flatnonzero(same) + 1:
        position[i] = position[i - 1] + 1
    picked = states[response, column]
    norm = np.linalg.norm(picked, axis=-1, keepdims=True)
    unit = np.divide(picked, norm, out=np.zeros_like(picked), where=norm > 0)
    return Tokens(unit, right[response], keys[response], action[response, column], position)


def right_wrong_similarity(tokens: Tokens, *, match: Match = "action", action: int | None = None) -> float:
    """Return the mean cosine over correct-wrong pairs of tokens with the same `match`; NaN without a pair.

    `action` keeps only the pairs inside that action (0 = the first). Values lie in [-1, 1].

    >>> tokens = gather_tokens([[[1.0, 0.0]], [[3.0, 4.0]]], [[0], [0]], [True, False], [0, 0])
    >>> round(right_wrong_similarity(tokens), 12)
    0.6
    """
    kept = np.ones(len(tokens.group), dtype=bool) if action is None else tokens.action == action
    parts = [tokens.group, tokens.action, tokens.position][: ("query", "action", "position").index(match) + 1]
    if not kept.any():
        return float("nan")
    _, key = np.unique(np.stack([part[kept] for part in parts]), axis=1, return_inverse=True)
    key = key.reshape(-1)
    n_keys = int(key.max()) + 1
    right, unit = tokens.correct[kept], tokens.unit[kept]
    sums = np.zeros((2, n_keys, unit.shape[1]))
    for side, where in enumerate((right, ~right)):
        np.add.at(sums[side], key[where], unit[where])
    pairs = np.bincount(key[right], minlength=n_keys) * np.bincount(key[~right], minlength=n_keys)
    return float((sums[0] * sums[1]).sum() / pairs.sum()) if pairs.any() else float("nan")
