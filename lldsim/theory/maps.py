"""Similarity x likelihood: G of a correct token under one kind of wrong token, and its zero contour in closed form.

Two contexts, one token y. Correct responses wrote y with probability p at h, wrong ones wrote the same y with
probability q at h', |h| = |h'| = 1, <h, h'> = sigma; the rest of both distributions is uniform over V - 1 tokens.
Then |r|^2 = (1-p)^2 V/(V-1), alpha = (1-p)(1-q) V/(V-1) and

    G = V/(V-1) (1-p) [ b sigma (1-q) - a (1-p) ],     a = n_correct p_pos,   b = n_wrong p_neg,

so G = 0 at sigma = a (1-p) / (b (1-q)). For a whole group sum A = 0 makes a = b, whatever the success rate:
the correct token falls iff sigma (1-q) > 1-p.

For any two tokens and any distributions (`lever_gwhes`) the bracket becomes b kappa sigma (1-q) - a |r|^2 with kappa of
`conditions.lever_coefficient`; for kappa < 0 both levers act the other way and no similarity >= 0 displaces.
What this file does not do: no sampled data and no drawing; the map is this two-context world, not a fitted one.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from lldsim.errors import LldsimError

Floats = npt.NDArray[np.float64]


def _probability(name: str, value: npt.ArrayLike) -> Floats:
    array = np.asarray(value, dtype=np.float64)
    if not np.all((array >= 0.0) & (array <= 1.0)):
        raise LldsimError(f"{name} has a value outside [0, 1]: {array[~((array >= 0.0) & (array <= 1.0))][0]}")
    return array


def pair_gwhes(
    similarity: npt.ArrayLike,
    p_wrong: npt.ArrayLike,
    *,
    p_correct: float,
    vocab: int,
    mass_correct: float = 1.0,
    mass_wrong: float = 1.0,
) -> Floats:
    """Return G of the correct token (dimensionless), broadcast over `similarity` <h,h'> and `p_wrong` q.

    `mass_correct` a and `mass_wrong` b are the summed weights of the responses that hold the token.
    Raises LldsimError for a probability outside [0, 1] or a vocabulary below 2.

    >>> float(pair_gwhes(1.0, 0.0, p_correct=0.5, vocab=2))
    0.5
    """
    if vocab < 2:
        raise LldsimError(f"vocab = {vocab}; two tokens are the least")
    kappa = vocab / (vocab - 1) * float(1.0 - _probability("p_correct", p_correct))  # alpha = kappa (1-q)
    own = kappa * (1.0 - p_correct)
    return lever_gwhes(similarity, p_wrong, kappa=kappa, own=own, mass_correct=mass_correct, mass_wrong=mass_wrong)


def zero_contour(
    p_wrong: npt.ArrayLike, *, p_correct: float, mass_correct: float = 1.0, mass_wrong: float = 1.0
) -> Floats:
    """Return the similarity at which G = 0, sigma = a (1-p) / (b (1-q)); above it the correct token is displaced.

    Values above 1 (for unit hidden states) mean that no similarity suffices; infinity at q = 1. Independent of V.
    Raises LldsimError for a probability outside [0, 1] or a wrong mass that is not positive.

    >>> zero_contour([0.0, 0.5, 0.75], p_correct=0.75).tolist()
    [0.25, 0.5, 1.0]
    """
    rest = float(1.0 - _probability("p_correct", p_correct))  # kappa and own share a factor that cancels
    return lever_zero_contour(p_wrong, kappa=1.0, own=rest, mass_correct=mass_correct, mass_wrong=mass_wrong)


def gwhes_map(
    similarity: npt.ArrayLike,
    p_wrong: npt.ArrayLike,
    *,
    p_correct: float,
    vocab: int,
    mass_correct: float = 1.0,
    mass_wrong: float = 1.0,
) -> Floats:
    """Return G on the grid, shape (len(similarity), len(p_wrong)); see `pair_gwhes` for symbols and errors."""
    rows = np.asarray(similarity, dtype=np.float64)[:, None]
    return pair_gwhes(rows, p_wrong, p_correct=p_correct, vocab=vocab, mass_correct=mass_correct, mass_wrong=mass_wrong)


def lever_gwhes(
    similarity: npt.ArrayLike,
    p_wrong: npt.ArrayLike,
    *,
    kappa: float,
    own: float,
    mass_correct: float = 1.0,
    mass_wrong: float = 1.0,
) -> Floats:
    """Return G = b kappa (1-q) sigma - a |r|^2 of a correct token under one wrong token, same or different.

    `kappa` is `conditions.lever_coefficient` (dimensionless, any sign), `own` = |e_y - pi|^2 of the correct token with
    |h| = 1; broadcast over `similarity` and `p_wrong`. Raises LldsimError for a probability outside [0, 1].

    >>> float(lever_gwhes(1.0, 0.5, kappa=-0.4, own=0.1))  # a wrong token that helps
    -0.30000000000000004
    """
    q = _probability("p_wrong", p_wrong)
    return np.asarray(mass_wrong * kappa * (1.0 - q) * np.asarray(similarity) - mass_correct * own)


def lever_zero_contour(
    p_wrong: npt.ArrayLike, *, kappa: float, own: float, mass_correct: float = 1.0, mass_wrong: float = 1.0
) -> Floats:
    """Return the similarity sigma = a |r|^2 / (b kappa (1-q)) at which G of `lever_gwhes` is 0.

    Positive iff kappa > 0, and then G > 0 above it; negative for kappa < 0, and then G > 0 below it. Infinite at q = 1.
    Raises LldsimError for kappa = 0 (G never vanishes), a wrong mass that is not positive, or a bad probability.

    >>> lever_zero_contour([0.0, 0.5], kappa=0.4, own=0.1).tolist()
    [0.25, 0.5]
    """
    if not mass_wrong > 0.0 or kappa == 0.0:
        raise LldsimError(f"mass_wrong = {mass_wrong}, kappa = {kappa}: without a wrong token's pull G has no zero")
    q = _probability("p_wrong", p_wrong)
    with np.errstate(divide="ignore"):
        return np.divide(mass_correct * own, mass_wrong * kappa * (1.0 - q))
