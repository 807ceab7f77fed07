"""Token weights of the arms that correct or soften the surrogate: importance, probability, shared prefix, NTHR.

Each returns non-negative, detached weights (B, T) that multiply the surrogate's tokens and nothing else: LLDS, KL and
entropy see the batch as it is, and a wrong token of weight 0 does not join LLDS's preserving set.
What this file does not do: change a sign, or loop over responses of different queries.
"""

from __future__ import annotations

import torch

from lldsim.errors import ConfigError, ShapeError
from lldsim.objectives._inputs import bool_mask, on_mask


def masked_importance_weights(
    old_logps: torch.Tensor, sampler_logps: torch.Tensor, action_mask: torch.Tensor, *, low: float, high: float
) -> torch.Tensor:
    r"""Importance weights inside a band, and 0 outside: w = exp(old - sampler), w 1[low <= w <= high] (MIS, IcePop).

    MIS has low = 0 (and often high = 2), IcePop .5 and 5. Shapes: all (B, T), result dimensionless, 1 off the mask.
    Raises: ConfigError for an empty band; ShapeError; NonFiniteError.

    >>> old, ones = torch.tensor([[0.0, 0.0, 0.0]]), torch.ones(1, 3)
    >>> sampler = torch.tensor([[0.0, 3.0, -3.0]])  # weights 1, e^-3 and e^3
    >>> masked_importance_weights(old, sampler, ones, low=0.5, high=5.0).int().tolist()
    [[1, 0, 0]]
    """
    if not 0 <= low <= high or high == 0:
        raise ConfigError(f"mis_low={low} and mis_high={high} must span a band (IcePop: .5 and 5)")
    mask = bool_mask(old_logps, action_mask)
    weights = (on_mask("old_logps", old_logps, mask) - on_mask("sampler_logps", sampler_logps, mask)).detach().exp()
    weights = torch.where((weights >= low) & (weights <= high), weights, 0.0)
    return torch.where(mask, weights, 1.0)


def probability_weights(old_logps: torch.Tensor, action_mask: torch.Tensor, *, strength: float) -> torch.Tensor:
    """Advantage reweighting (arXiv 2505.12929): w = a pi_old(token) + 1 - a, so that unlikely tokens weigh less.

    `strength` a in [0, 1] (.3 in its code). Shapes (B, T), 1 off the mask. Raises: ConfigError, NonFiniteError.

    >>> probability_weights(torch.tensor([[0.0, -100.0]]), torch.ones(1, 2), strength=0.5).tolist()
    [[1.0, 0.5]]
    """
    if not 0 <= strength <= 1:
        raise ConfigError(f"probability_weight={strength} must lie in [0, 1] (2505.12929: .3)")
    mask = bool_mask(old_logps, action_mask)
    probability = on_mask("old_logps", old_logps, mask).detach().exp()
    return torch.where(mask, strength * probability + 1 - strength, 1.0)


def shared_prefix_weights(
    ids: torch.Tensor, action_mask: torch.Tensor, advantages: torch.Tensor, group: torch.Tensor
) -> torch.Tensor:
    """Weight 0 for a token of a wrong response whose prefix, itself included, opens a right response of its group.

    `ids` (B, T) identifies what stands at each place, feedback included (a different document ends the prefix);
    `advantages` (B,): right > 0, wrong < 0. Result (B, T), 1 everywhere else. The masking half of arXiv 2508.03772.
    Raises: ShapeError.

    >>> shared_prefix_weights(torch.tensor([[5, 6, 7], [5, 6, 8]]), torch.ones(2, 3), torch.tensor([1.0, -1.0]),
    ...                       torch.zeros(2, dtype=torch.int64)).tolist()
    [[1.0, 1.0, 1.0], [0.0, 0.0, 1.0]]
    """
    if ids.shape != action_mask.shape:
        raise ShapeError(f"ids has shape {tuple(ids.shape)} but action_mask has {tuple(action_mask.shape)}; align them")
    weights = torch.ones(ids.shape, dtype=torch.float64)
    for j in (advantages < 0).nonzero().flatten().tolist():
        rights = ids[(group == group[j]) & (advantages > 0)]
        shared = (rights == ids[j]).long().cumprod(dim=1).amax(dim=0).bool() if len(rights) else None
        if shared is not None:
            weights[j, shared & action_mask[j].bool()] = 0.0
    return weights


def nthr_weights(
    probs: torch.Tensor,
    tokens: torch.Tensor,
    hidden: torch.Tensor,
    advantages: torch.Tensor,
    group: torch.Tensor,
    action_mask: torch.Tensor,
    *,
    beta: float = 1.0,
    eta: float = 0.0,
) -> torch.Tensor:
    r"""NTHR (arXiv 2505.18830, Algorithm 1): weight `eta` for wrong tokens that pull right responses down most.

        s_k' = sum over tokens k of the group's right responses of <r_k, r_k'> <h_k, h_k'>,   r = e_y - pi
        tau = beta * min over right responses of the mean of s over their tokens;   s_k' > tau -> weight eta

    Exact for a linear softmax policy with fixed hidden states, where s_k' is the token's own part of G (Theorem A.1).
    Shapes: probs (B, T, V), hidden (B, T, D), tokens and action_mask (B, T), advantages and group (B,); result (B, T).
    Cost: V * D numbers and two products per token. Raises: ConfigError.
    """
    if not beta >= 0 or not 0 <= eta <= 1:
        raise ConfigError(f"nthr_beta={beta} must be >= 0 and nthr_eta={eta} in [0, 1] (2505.18830: 1 and 0)")
    mask = bool_mask(tokens.to(probs.dtype), action_mask)
    residual = -probs.detach().clone()
    residual.scatter_add_(-1, tokens.clamp(min=0)[..., None], torch.ones_like(residual[..., :1]))
    residual *= mask[..., None]
    weights = torch.ones(mask.shape, dtype=probs.dtype)
    for key in group.unique().tolist():
        right, wrong = ((group == key) & (advantages > 0)), ((group == key) & (advantages < 0))
        if not right.any():
            continue
        pull = torch.einsum("btv,btd->vd", residual[right], hidden[right])
        score = torch.einsum("btv,vd,btd->bt", residual, pull, hidden)
        means = score[right].sum(1) / mask[right].sum(1)
        above = wrong[:, None] & mask & (score > beta * means.min())
        weights[above] = eta
    return weights
