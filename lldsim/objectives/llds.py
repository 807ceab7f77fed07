"""LLDS: the penalty on likelihood that correct responses lose (Eqs. 4, 5, 9, 10 of arXiv 2512.04220 v2).

The toy trainer and every full-scale adapter call this one function. What this file does not do: it does not multiply
by lambda, and it does not compute the policy that is compared against. `old_logps` must be the trainer's own
recomputation at the start of the rollout batch, not the sampler's numbers. **While old = current (the first optimiser
step on a rollout batch) the penalty and its gradient are exactly zero.**
"""

from __future__ import annotations

import math

import torch

from lldsim.errors import ConfigError, ShapeError
from lldsim.names import Gate, Normalizer
from lldsim.objectives._inputs import bool_mask, masked_max, on_mask, token_advantages
from lldsim.objectives.aggregate import aggregate


def llds_penalty(
    logps: torch.Tensor,
    old_logps: torch.Tensor,
    advantages: torch.Tensor,
    action_mask: torch.Tensor,
    *,
    gate: Gate = "action",
    normalizer: Normalizer = "preserving",
    answer_mask: torch.Tensor | None = None,
    answer_weight: float = 1.0,
    action_id: torch.Tensor | None = None,
) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    r"""Likelihood-displacement penalty on the responses with A >= 0, in nats per token and not multiplied by lambda.

        drop = old_logps - logps                       (positive = the token's likelihood fell)
        L = 1/N * sum_{A >= 0} sum_units 1[ sum_unit drop > 0 ] * sum_unit w * max(0, drop)

    Units of the gate: "action" Eq. 4 (v2's default), "response" Eq. 10 (v1's), "token" Eq. 9 (no gate needed: a drop is
    its own gate). w is `answer_weight` on answer tokens and 1 elsewhere (Eq. 5); the gate sums unweighted drops.
    N counts the action tokens of the preserving set ("preserving", the paper) or of the whole batch, wrong responses
    included ("all", the released code); the same lambda means different strengths under the two.

    An action is a contiguous run of ones of `action_mask`, unless `action_id` (index of the action in its response, -1
    off) says otherwise: needed when feedback of 0 tokens would merge two actions. With advantages per token, a token is
    preserving by its own sign and only preserving tokens enter the gate's sum. Old, advantages and gate are constants
    of the gradient. At a drop of exactly 0 the gradient is 0 (relu; torch.maximum(0, x), as in the released code, gives
    half a gradient there and pushes likelihood up although nothing fell).

    Shapes: all tensors (B, T), advantages (B,) or (B, T); loss scalar, a graph-connected 0 if nothing is preserved.
    Metrics: gate_fraction (share of preserving units whose gate is open), drop_mean and drop_max over preserving tokens
    (nats, signed; 0 if there are none), preserved_tokens.
    Raises: ShapeError, NonFiniteError (an action token is not finite), ConfigError (gate, normalizer, answer weight).

    >>> old, new = torch.tensor([[-1.0, -1.0, -1.0]]), torch.tensor([[-1.5, -0.8, -0.9]])
    >>> loss, metrics = llds_penalty(new, old, torch.ones(1), torch.tensor([[1, 1, 1]]))
    >>> round(loss.item(), 4), metrics["gate_fraction"].item()  # the drops .5, -.2, -.1 sum to .2 > 0: open
    (0.1667, 1.0)
    """
    mask = bool_mask(logps, action_mask)
    drop = on_mask("old_logps", old_logps.detach(), mask) - on_mask("logps", logps, mask)
    preserving = mask & (token_advantages(advantages, mask) >= 0)
    fallen = torch.where(preserving, drop, 0.0)

    unit = _unit_index(gate, mask, action_id)
    zeros = torch.zeros_like(fallen)
    unit_drop = zeros.scatter_add(1, unit, fallen.detach())
    unit_tokens = zeros.scatter_add(1, unit, preserving.to(zeros.dtype))
    open_gate = preserving & (unit_drop > 0).gather(1, unit)

    penalty = torch.where(open_gate, fallen.relu() * _weights(fallen, answer_mask, answer_weight), 0.0)
    loss = penalty.sum() / _normalizer_tokens(normalizer, mask, preserving).clamp(min=1)

    units = unit_tokens > 0
    metrics = {
        "gate_fraction": (unit_drop > 0).sum().to(zeros.dtype) / units.sum().clamp(min=1),
        "drop_mean": aggregate(fallen.detach(), preserving, "token-mean"),
        "drop_max": masked_max(fallen, preserving, 0.0),
        "preserved_tokens": preserving.sum().to(zeros.dtype),
    }
    return loss, metrics


def _unit_index(gate: Gate, mask: torch.Tensor, action_id: torch.Tensor | None) -> torch.Tensor:
    """Return (B, T) int64: the gate's unit within the response, in 0..T-1; masked tokens land anywhere, they add 0."""
    if gate == "token":
        return torch.arange(mask.shape[1], device=mask.device).expand(mask.shape)
    if gate == "response":
        return torch.zeros_like(mask, dtype=torch.int64)
    if gate != "action":
        raise ConfigError(f"gate is {gate!r}; choose 'token', 'response' or 'action'")
    if action_id is None:
        starts = mask.clone()
        starts[:, 1:] &= ~mask[:, :-1]
        return (starts.cumsum(dim=1) - 1).clamp(min=0)
    if action_id.shape != mask.shape:
        raise ShapeError(
            f"action_id has shape {tuple(action_id.shape)} but action_mask has {tuple(mask.shape)}; "
            "number the actions of each response and pad with -1 to the same (B, T)"
        )
    stray = mask & ((action_id < 0) | (action_id >= mask.shape[1]))
    if stray.any():
        index = stray.nonzero()[0].tolist()
        raise ShapeError(
            f"action_id is {int(action_id[tuple(index)])} at {index}, an action token, outside 0..{mask.shape[1] - 1}; "
            "number the actions of each response from 0, with -1 only where action_mask is 0"
        )
    return torch.where(mask, action_id.long(), 0)


def _normalizer_tokens(normalizer: Normalizer, mask: torch.Tensor, preserving: torch.Tensor) -> torch.Tensor:
    if normalizer == "preserving":
        return preserving.sum()
    if normalizer == "all":
        return mask.sum()
    raise ConfigError(f"normalizer is {normalizer!r}; choose 'preserving' (paper) or 'all' (released code)")


def _weights(like: torch.Tensor, answer_mask: torch.Tensor | None, answer_weight: float) -> torch.Tensor:
    if not (answer_weight >= 0 and math.isfinite(answer_weight)):
        raise ConfigError(f"answer_weight={answer_weight} must be a finite number >= 0")
    weights = torch.ones_like(like)
    if answer_mask is None:
        if answer_weight != 1:
            raise ConfigError(f"answer_weight={answer_weight} has no effect without answer_mask; pass it, or set 1")
        return weights
    return weights.masked_fill(bool_mask(like, answer_mask, "answer_mask"), float(answer_weight))
