"""The whole loss that a trainer minimises: surrogate + KL - entropy bonus + lambda * LLDS (Eq. 6 of arXiv 2512.04220).

What this file does not do: no defaults of its own (they live in `ObjectiveConfig`) and no arithmetic that another file
of this package has. The aggregation is taken from the configuration for every term except LLDS, which has its own
normaliser; GSPO as the released code runs it therefore needs aggregation="seq-mean-token-mean" in the configuration.
"""

from __future__ import annotations

import math

import torch

from lldsim.config import ObjectiveConfig
from lldsim.errors import ConfigError
from lldsim.objectives._inputs import bool_mask, on_mask
from lldsim.objectives.aggregate import aggregate
from lldsim.objectives.answer_weight import answer_weight
from lldsim.objectives.kl import kl_k3
from lldsim.objectives.llds import llds_penalty
from lldsim.objectives.reweight import masked_importance_weights, probability_weights
from lldsim.objectives.surrogate import cispo_surrogate, clipped_surrogate, sequence_surrogate

Metrics = dict[str, torch.Tensor]


def total_loss(
    logps: torch.Tensor,
    old_logps: torch.Tensor,
    advantages: torch.Tensor,
    action_mask: torch.Tensor,
    *,
    config: ObjectiveConfig,
    ref_logps: torch.Tensor | None = None,
    entropy: torch.Tensor | None = None,
    sampler_logps: torch.Tensor | None = None,
    answer_mask: torch.Tensor | None = None,
    action_id: torch.Tensor | None = None,
    mean_valid_searches: float | torch.Tensor | None = None,
    token_weights: torch.Tensor | None = None,
) -> tuple[torch.Tensor, Metrics]:
    r"""Total loss of one optimiser step (Eq. 6).

        loss = surrogate + kl_coef * KL - entropy_coef * entropy + llds_coef * LLDS

    Advantages below 0 are multiplied by `negative_weight` in the surrogate only; LLDS keeps the original signs, so that
    negative_weight = 0 does not move wrong responses into the preserving set. `token_weights` (B, T) multiply the
    surrogate's tokens only; arms that look at whole groups need them (`shared_prefix_weights`, `nthr_weights`). A term
    whose coefficient is 0 is left out of the loss but still measured when its tensors are there, so that every arm
    reports the same metrics.

    Shapes: tensors (B, T), advantages (B,) or (B, T), `entropy` the policy's entropy per token in nats.
    Metrics: those of `clipped_surrogate` and `llds_penalty`, the parts `surrogate`, `kl`, `entropy`, `llds` (before
    their coefficients), `answer_weight`, `loss`, and, with `sampler_logps`, `sampler_gap` (mean |old - sampler|, nats).
    Raises: ConfigError naming the tensor that the configuration needs and that is missing; ShapeError; NonFiniteError.

    >>> config = ObjectiveConfig(kl_coef=0.0, entropy_coef=0.0, llds_coef=0.2)
    >>> old, new = torch.tensor([[-1.0, -1.0]]), torch.tensor([[-1.5, -1.0]])
    >>> loss, metrics = total_loss(new, old, torch.zeros(1), torch.ones(1, 2), config=config)
    >>> round(loss.item(), 4), round(metrics["llds"].item(), 4)
    (0.05, 0.25)
    """
    mask = bool_mask(logps, action_mask)
    loss, metrics = _surrogate(logps, old_logps, advantages, mask, config, sampler_logps, token_weights)
    metrics["surrogate"] = loss.detach()
    if config.kl_coef != 0 or ref_logps is not None:
        reference = _needed("ref_logps", ref_logps, f"kl_coef={config.kl_coef}")
        kl = aggregate(kl_k3(logps, reference, form=config.kl_form, action_mask=mask), mask, config.aggregation)
        metrics["kl"] = kl.detach()
        loss = loss + config.kl_coef * kl if config.kl_coef != 0 else loss
    if config.entropy_coef != 0 or entropy is not None:
        given = on_mask("entropy", _needed("entropy", entropy, f"entropy_coef={config.entropy_coef}"), mask)
        bonus = aggregate(given, mask, config.aggregation)
        metrics["entropy"] = bonus.detach()
        loss = loss - config.entropy_coef * bonus if config.entropy_coef != 0 else loss
    llds, llds_metrics = _llds(logps, old_logps, advantages, mask, config, answer_mask, action_id, mean_valid_searches)
    loss = loss + config.llds_coef * llds if config.llds_coef != 0 else loss
    return loss, metrics | llds_metrics | {"llds": llds.detach(), "loss": loss.detach()}


def _needed(name: str, tensor: torch.Tensor | None, why: str) -> torch.Tensor:
    if tensor is None:
        raise ConfigError(f"{name} is missing, and {why} needs it; pass {name}=... of shape (B, T) or change {why}")
    return tensor


def _surrogate(
    logps: torch.Tensor,
    old_logps: torch.Tensor,
    advantages: torch.Tensor,
    mask: torch.Tensor,
    config: ObjectiveConfig,
    sampler_logps: torch.Tensor | None,
    token_weights: torch.Tensor | None,
) -> tuple[torch.Tensor, Metrics]:
    """Return the surrogate of the configuration, with the sampler's corrections and the weight of A < 0 applied."""
    if config.ratio_to not in ("old", "sampler"):
        raise ConfigError(f"ratio_to is {config.ratio_to!r}; choose 'old' or 'sampler'")
    if config.ratio_to == "sampler" and config.tis_cap is not None:
        raise ConfigError(
            "ratio_to='sampler' and tis_cap correct for the same gap twice; set tis_cap=None or ratio_to='old'"
        )
    denominator = None
    if config.ratio_to == "sampler":
        denominator = _needed("sampler_logps", sampler_logps, "ratio_to='sampler'")
    common = {
        "aggregation": config.aggregation,
        "denominator_logps": denominator,
        "token_weights": _token_weights(old_logps, mask, config, sampler_logps, token_weights),
    }
    signed = torch.where(advantages < 0, config.negative_weight * advantages, advantages)
    if config.surrogate == "cispo":
        loss, metrics = cispo_surrogate(logps, old_logps, signed, mask, cap=config.cispo_cap, **common)
    elif config.surrogate in ("grpo", "gspo"):
        surrogate = clipped_surrogate if config.surrogate == "grpo" else sequence_surrogate
        clips = {"clip_eps": config.clip_eps, "clip_eps_high": config.clip_eps_high, "dual_clip": config.dual_clip}
        loss, metrics = surrogate(logps, old_logps, signed, mask, **clips, **common)
    else:
        raise ConfigError(f"surrogate is {config.surrogate!r}; choose 'grpo', 'gspo' or 'cispo'")
    if sampler_logps is not None:
        gap = on_mask("old_logps", old_logps, mask) - on_mask("sampler_logps", sampler_logps, mask)
        metrics["sampler_gap"] = aggregate(gap.detach().abs(), mask, "token-mean")
    return loss, metrics


def _token_weights(
    old_logps: torch.Tensor,
    mask: torch.Tensor,
    config: ObjectiveConfig,
    sampler_logps: torch.Tensor | None,
    given: torch.Tensor | None,
) -> torch.Tensor | None:
    """Return the product of all token weights that the configuration asks for; None = all 1."""
    factors = []
    if config.nthr_beta is not None or config.mask_shared_prefix:
        factors.append(_needed("token_weights", given, "nthr_beta or mask_shared_prefix"))
    elif given is not None:
        factors.append(given)
    if config.tis_cap is not None:
        sampler = _needed("sampler_logps", sampler_logps, f"tis_cap={config.tis_cap}")
        factors.append(truncated_weights(old_logps, sampler, mask, cap=config.tis_cap))
    if config.mis_high is not None:
        sampler = _needed("sampler_logps", sampler_logps, f"mis_high={config.mis_high}")
        factors.append(masked_importance_weights(old_logps, sampler, mask, low=config.mis_low, high=config.mis_high))
    if config.probability_weight > 0:
        factors.append(probability_weights(old_logps, mask, strength=config.probability_weight))
    return math.prod(factors[1:], start=factors[0]) if factors else None


def truncated_weights(
    old_logps: torch.Tensor, sampler_logps: torch.Tensor, action_mask: torch.Tensor, *, cap: float
) -> torch.Tensor:
    """Truncated importance weights min(exp(old_logps - sampler_logps), cap), detached (TIS).

    Shapes: all (B, T), result dimensionless and 1 off the mask. A common cap is 2 (user's choice, not in the paper).
    Raises: ConfigError if cap <= 0; ShapeError; NonFiniteError.
    """
    if not cap > 0:
        raise ConfigError(f"tis_cap={cap} must be > 0 (a common choice is 2), or None to turn it off")
    mask = bool_mask(old_logps, action_mask)
    gap = on_mask("old_logps", old_logps, mask) - on_mask("sampler_logps", sampler_logps, mask)
    return torch.where(mask, gap.detach().exp().clamp(max=cap), 1.0)


def _llds(
    logps: torch.Tensor,
    old_logps: torch.Tensor,
    advantages: torch.Tensor,
    mask: torch.Tensor,
    config: ObjectiveConfig,
    answer_mask: torch.Tensor | None,
    action_id: torch.Tensor | None,
    mean_valid_searches: float | torch.Tensor | None,
) -> tuple[torch.Tensor, Metrics]:
    """Return the LLDS part before lambda, and its metrics with the answer weight; only measured when lambda is 0."""
    on = config.llds_coef != 0
    weight = 1.0  # with lambda = 0 the plain drop is measured, whatever the answer rule would have said
    if on:
        weight = answer_weight(
            mean_valid_searches,
            rule=config.answer_weight_rule,
            llds_coef=config.llds_coef,
            fixed=config.answer_weight,
        )
        if config.answer_weight_rule != "fixed":
            _needed("answer_mask", answer_mask, f"answer_weight_rule={config.answer_weight_rule!r}")
    penalty, metrics = llds_penalty(
        logps if on else logps.detach(),
        old_logps,
        advantages,
        mask,
        gate=config.gate,
        normalizer=config.normalizer,
        answer_mask=answer_mask,
        answer_weight=weight,
        action_id=action_id,
    )
    return penalty, metrics | {"answer_weight": penalty.new_tensor(weight).detach()}
