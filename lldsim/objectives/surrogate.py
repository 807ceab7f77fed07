"""The surrogates: GRPO's ratio per token (Eq. 1), GSPO's per response (arXiv 2507.18071), CISPO's constant weight.

What this file does not do: no KL, no entropy, no LLDS (see total.py), no advantages (see lldsim.advantages). Without
`dual_clip` a wrong token whose likelihood rose has an unbounded loss, as in Eq. 1; nothing here hides that.
"""

from __future__ import annotations

import math

import torch

from lldsim.errors import ConfigError
from lldsim.names import Aggregation
from lldsim.objectives._inputs import bool_mask, masked_max, on_mask, token_advantages
from lldsim.objectives.aggregate import aggregate


def _objective(
    log_ratio: torch.Tensor,
    advantages: torch.Tensor,
    *,
    clip_eps: float,
    clip_eps_high: float | None,
    dual_clip: float | None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return min(ratio A, clip(ratio) A) per token, dual-clipped on request, and where the clip was the smaller one."""
    high = clip_eps if clip_eps_high is None else clip_eps_high
    if not (clip_eps > 0 and high > 0):
        raise ConfigError(f"clip_eps={clip_eps} and clip_eps_high={clip_eps_high} must be > 0 (paper: 0.2)")
    if dual_clip is not None and not dual_clip > 1:
        raise ConfigError(f"dual_clip={dual_clip} must be > 1 (a common choice is 3), or None to turn it off")
    # Beyond these gaps the objective is flat, but exp would overflow and its backward give 0 * inf = NaN.
    # One e-fold above the flat point changes neither value nor gradient.
    negative_ceiling = math.inf if dual_clip is None else math.log(dual_clip) + 1
    ceiling = torch.full_like(log_ratio, math.log1p(high) + 1).masked_fill(advantages < 0, negative_ceiling)
    ratio = torch.minimum(log_ratio, ceiling).exp()
    plain = ratio * advantages
    clipped = ratio.clamp(1 - clip_eps, 1 + high) * advantages
    objective = torch.minimum(plain, clipped)
    if dual_clip is not None:
        objective = torch.where(advantages < 0, torch.maximum(objective, dual_clip * advantages), objective)
    return objective, (clipped < plain).detach()


def _denominator(old_logps: torch.Tensor, denominator_logps: torch.Tensor | None, mask: torch.Tensor) -> torch.Tensor:
    """Return the constant log-likelihoods below the ratio, checked under the name the caller gave them."""
    if denominator_logps is None:
        return on_mask("old_logps", old_logps.detach(), mask)
    return on_mask("denominator_logps", denominator_logps.detach(), mask)


def clipped_surrogate(
    logps: torch.Tensor,
    old_logps: torch.Tensor,
    advantages: torch.Tensor,
    action_mask: torch.Tensor,
    *,
    clip_eps: float = 0.2,
    clip_eps_high: float | None = None,
    dual_clip: float | None = None,
    aggregation: Aggregation = "token-mean",
    denominator_logps: torch.Tensor | None = None,
    token_weights: torch.Tensor | None = None,
) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    r"""Clipped GRPO surrogate with one ratio per token, as a loss to minimise (Eq. 1 of arXiv 2512.04220).

        loss = - aggregate( w * min(ratio A, clip(ratio, 1 - eps, 1 + eps_high) A) ),   ratio = exp(logps - old_logps)

    `denominator_logps` replaces `old_logps` in the ratio (for example the sampler's own); `token_weights` w multiplies
    each token and is detached (truncated importance sampling). `dual_clip` c bounds the loss at c |A| where A < 0.
    Old, denominator, weights and advantages are constants of the gradient.

    Shapes: logps, old_logps, action_mask and the optional tensors (B, T); advantages (B,) or (B, T); loss scalar.
    Metrics: ratio_max, ratio_mean over action tokens (1 if there are none); clip_fraction, the share of action tokens
    whose clipped term is strictly the smaller. Defaults: eps 0.2 (paper Sec. 5), token-mean (released code).
    Raises: ShapeError, NonFiniteError (an action token is not finite), ConfigError (clip ranges).

    >>> loss, metrics = clipped_surrogate(torch.tensor([[1.1, 0.9, 1.5]]).log(), torch.zeros(1, 3),
    ...                                   torch.ones(1), torch.ones(1, 3), clip_eps=0.2)
    >>> round(-loss.item(), 4), round(metrics["clip_fraction"].item(), 4)
    (1.0667, 0.3333)
    """
    mask = bool_mask(logps, action_mask)
    log_ratio = on_mask("logps", logps, mask) - _denominator(old_logps, denominator_logps, mask)
    objective, was_clipped = _objective(
        log_ratio,
        token_advantages(advantages, mask),
        clip_eps=clip_eps,
        clip_eps_high=clip_eps_high,
        dual_clip=dual_clip,
    )
    if token_weights is not None:
        objective = objective * on_mask("token_weights", token_weights.detach(), mask)
    return -aggregate(objective, mask, aggregation), _ratio_metrics(log_ratio, was_clipped, mask)


def sequence_surrogate(
    logps: torch.Tensor,
    old_logps: torch.Tensor,
    advantages: torch.Tensor,
    action_mask: torch.Tensor,
    *,
    clip_eps: float = 0.2,
    clip_eps_high: float | None = None,
    dual_clip: float | None = None,
    aggregation: Aggregation = "seq-mean-token-mean",
    denominator_logps: torch.Tensor | None = None,
    token_weights: torch.Tensor | None = None,
) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    r"""Clipped GSPO surrogate with one length-normalised ratio per response, as a loss to minimise (arXiv 2507.18071).

        s_i = exp( mean over action tokens of (logps - old_logps) ),   s_it = sg(s_i) exp(logps_it - sg(logps_it))
        loss = - aggregate( w * min(s_it A, clip(s_it, 1 - eps, 1 + eps_high) A) )

    sg is stop-gradient: every token carries the value s_i and its own gradient, which for one advantage per response is
    exactly the gradient of s_i A_i. All else as in `clipped_surrogate`, but the metrics count responses, not tokens.
    Defaults: clip 0.2 and seq-mean-token-mean (released code; the GSPO paper clips at 3e-4 and 4e-4).

    Shapes, units and errors as in `clipped_surrogate`.

    >>> loss, metrics = sequence_surrogate(torch.tensor([[1.1, 0.9, 1.5]]).log(), torch.zeros(1, 3),
    ...                                    torch.ones(1), torch.ones(1, 3), clip_eps=0.2)
    >>> round(-loss.item(), 4), metrics["clip_fraction"].item()
    (1.1409, 0.0)
    """
    mask = bool_mask(logps, action_mask)
    current = on_mask("logps", logps, mask)
    gap = (current - _denominator(old_logps, denominator_logps, mask)).detach()
    lengths = mask.sum(dim=1, keepdim=True)
    log_ratio = gap.sum(dim=1, keepdim=True) / lengths.clamp(min=1)
    objective, was_clipped = _objective(
        log_ratio + (current - current.detach()),
        token_advantages(advantages, mask),
        clip_eps=clip_eps,
        clip_eps_high=clip_eps_high,
        dual_clip=dual_clip,
    )
    if token_weights is not None:
        objective = objective * on_mask("token_weights", token_weights.detach(), mask)
    clipped_response = (was_clipped & mask).any(dim=1, keepdim=True)
    return -aggregate(objective, mask, aggregation), _ratio_metrics(log_ratio, clipped_response, lengths > 0)


def cispo_surrogate(
    logps: torch.Tensor,
    old_logps: torch.Tensor,
    advantages: torch.Tensor,
    action_mask: torch.Tensor,
    *,
    cap: float = 5.0,
    aggregation: Aggregation = "token-mean",
    denominator_logps: torch.Tensor | None = None,
    token_weights: torch.Tensor | None = None,
) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    r"""CISPO surrogate: the ratio is a capped, constant weight and every token keeps its gradient (2506.13585).

        loss = - aggregate( w * sg(min(ratio, cap)) A logps ),   ratio = exp(logps - old_logps)

    Default cap 5 as in arXiv 2510.13786. While logps = old_logps its gradient is that of `clipped_surrogate`; its
    value is not. `clip_fraction` counts capped tokens. Shapes, units and errors as in `clipped_surrogate`.

    >>> loss, metrics = cispo_surrogate(torch.tensor([[-1.0]]), torch.tensor([[-3.0]]), torch.ones(1), torch.ones(1, 1))
    >>> loss.item(), metrics["clip_fraction"].item()  # a ratio of e^2 = 7.4 is capped at 5
    (5.0, 1.0)
    """
    if not cap > 0:
        raise ConfigError(f"cispo_cap={cap} must be > 0 (2510.13786: 5)")
    mask = bool_mask(logps, action_mask)
    current = on_mask("logps", logps, mask)
    log_ratio = (current - _denominator(old_logps, denominator_logps, mask)).detach()
    objective = log_ratio.clamp(max=math.log(cap)).exp() * token_advantages(advantages, mask) * current
    if token_weights is not None:
        objective = objective * on_mask("token_weights", token_weights.detach(), mask)
    return -aggregate(objective, mask, aggregation), _ratio_metrics(log_ratio, log_ratio > math.log(cap), mask)


def _ratio_metrics(log_ratio: torch.Tensor, was_clipped: torch.Tensor, mask: torch.Tensor) -> dict[str, torch.Tensor]:
    ratio = log_ratio.detach().exp()
    count = mask.sum()
    mean = torch.where(count > 0, aggregate(ratio, mask, "token-mean"), 1.0)
    return {
        "ratio_max": masked_max(ratio, mask, 1.0),
        "ratio_mean": mean,
        "clip_fraction": aggregate(was_clipped.to(ratio.dtype), mask, "token-mean"),
    }
