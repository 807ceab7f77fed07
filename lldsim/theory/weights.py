"""p_pos and p_neg of Theorem 4.2: the group weights of correct and wrong responses (arXiv 2505.18830, Theorem 4.4).

With binary rewards, success rate p and a group of G the normalised advantages take two values, p_pos and -p_neg:

    p_pos = (1 - p) / (std + eps),   p_neg = p / (std + eps),   std = sqrt(p (1 - p) G / (G - ddof)).

ddof 0, eps 0 is the form of the theory, sqrt((1-p)/p) and sqrt(p/(1-p)); ddof 1, eps 1e-6 is what the paper's
released code trains with. p_neg grows with p: the better the policy, the more a wrong answer weighs.
What this file does not do: compute advantages (that is `lldsim.advantages`); graded rewards have no p_pos.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from lldsim.errors import GroupError
from lldsim.theory.checks import require_mixed, same_shape


def group_weights(
    success_rate: float, *, group_size: int | None = None, ddof: int = 0, eps: float = 0.0
) -> tuple[float, float]:
    """Return (p_pos, p_neg), dimensionless, for a group with that success rate.

    `group_size` is needed for ddof 1. Raises GroupError for a group that is all correct, all wrong or too small.

    >>> group_weights(0.5)
    (1.0, 1.0)
    >>> [round(w, 12) for w in group_weights(0.5, group_size=2, ddof=1)]
    [0.707106781187, 0.707106781187]
    """
    if not 0.0 < success_rate < 1.0:
        raise GroupError(f"success_rate = {success_rate}: a group needs a correct and a wrong response")
    if ddof and (group_size is None or group_size <= ddof):
        raise GroupError(f"group_size = {group_size} with ddof = {ddof}: pass a group size above ddof")
    inflate = 1.0 if not ddof or group_size is None else group_size / (group_size - ddof)
    std = math.sqrt(success_rate * (1.0 - success_rate) * inflate) + eps
    return (1.0 - success_rate) / std, success_rate / std


def p_pos(success_rate: float, *, group_size: int | None = None, ddof: int = 0, eps: float = 0.0) -> float:
    """Return p_pos = (1 - p) / (std + eps), the weight of each correct response; see `group_weights`."""
    return group_weights(success_rate, group_size=group_size, ddof=ddof, eps=eps)[0]


def p_neg(success_rate: float, *, group_size: int | None = None, ddof: int = 0, eps: float = 0.0) -> float:
    """Return p_neg = p / (std + eps), the weight of each wrong response; see `group_weights`."""
    return group_weights(success_rate, group_size=group_size, ddof=ddof, eps=eps)[1]


def weights_from_advantages(advantages: Tensor, group: Tensor) -> tuple[Tensor, Tensor]:
    """Return the (p_pos, p_neg) that a batch really trains with, one pair per group in ascending group order.

    `advantages` (B,), `group` (B,) int64 -> two tensors (P,); means over the correct and over the wrong responses.
    Raises ShapeError, and GroupError for a group without a correct or without a wrong response.

    >>> p, q = weights_from_advantages(torch.tensor([0.5, 0.5, -1.0]), torch.tensor([7, 7, 7]))
    >>> p.tolist(), q.tolist()
    ([0.5], [1.0])
    """
    same_shape("group", group, advantages.shape, f"advantages {tuple(advantages.shape)}")
    pool = torch.unique(group, return_inverse=True)[1]
    require_mixed(advantages, pool, lead=tuple(advantages.shape), name="advantages")
    n_groups = int(pool.max()) + 1

    def mean(flag: Tensor) -> Tensor:
        zeros = torch.zeros(n_groups, dtype=advantages.dtype)
        size = zeros.index_add(0, pool, flag.to(advantages.dtype))
        return zeros.index_add(0, pool, torch.where(flag, advantages.abs(), 0.0)) / size

    return mean(advantages > 0), mean(advantages < 0)
