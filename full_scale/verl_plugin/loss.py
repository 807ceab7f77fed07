# pyright: reportMissingImports=false
"""The policy loss `llds` in verl's registry: its own GRPO or GSPO plus lldsim's penalty (Eq. 6 of arXiv 2512.04220 v2).

verl imports this module at start-up by the entry point `verl.plugins` of this package, in the driver and in every
worker. KL and entropy terms stay verl's. The penalty is divided by the tokens of the whole mini-batch, over its
micro-batches and all processes, as verl divides the rest of the loss.
What this file does not do: write any part of a loss (lldsim.objectives) or count the mini-batch (worker.py).
"""

from __future__ import annotations

from typing import Any

import torch
from verl.trainer.ppo.core_algos import get_policy_loss_fn, register_policy_loss

from full_scale.verl_plugin import BASES, LOSS
from full_scale.verl_plugin.batch import MiniBatch, answer_mask, current, zero_ties
from lldsim.errors import ConfigError
from lldsim.objectives import answer_weight, llds_penalty


@register_policy_loss(LOSS)
def llds_policy_loss(
    old_log_prob: torch.Tensor,
    log_prob: torch.Tensor,
    advantages: torch.Tensor,
    response_mask: torch.Tensor,
    loss_agg_mode: str = "token-mean",
    config: Any = None,
    rollout_is_weights: torch.Tensor | None = None,
) -> tuple[torch.Tensor, dict[str, float]]:
    """Return the base surrogate + llds_coef * LLDS of one micro-batch, and metrics.

    `config.policy_loss` is an LLDSPolicyLossConfig. All tensors (B, T), nats. With coefficient 0 the base's value is
    returned untouched. `actor/llds_penalty` is scaled so that verl's mean over micro-batches is the mini-batch's value.
    Raises ConfigError if the mini-batch's counts are needed and the worker did not provide them.
    """
    policy = config.policy_loss
    base, metrics = get_policy_loss_fn(BASES[policy.llds_base])(
        old_log_prob=old_log_prob,
        log_prob=log_prob,
        advantages=advantages,
        response_mask=response_mask,
        loss_agg_mode=loss_agg_mode,
        config=config,
        rollout_is_weights=rollout_is_weights,
    )
    batch, info = current(), config.global_batch_info
    processes = info.get("dp_size") or 1
    mask, signed = response_mask.bool(), zero_ties(advantages)
    weight, where = _answers(policy, batch, mask)
    penalty, found = llds_penalty(
        log_prob if policy.llds_coef > 0 else log_prob.detach(),
        old_log_prob,
        signed,
        mask,
        gate=policy.llds_gate,
        normalizer=policy.llds_normalizer,
        answer_mask=where,
        answer_weight=weight,
    )
    here = (mask & (signed >= 0)).sum() if policy.llds_normalizer == "preserving" else mask.sum()
    share = here.clamp(min=1).to(penalty.dtype) / max(_tokens(policy, batch, info, here), 1) * processes
    rows = info.get("global_batch_size") or mask.shape[0] * processes
    metrics |= {
        "actor/llds_penalty": (penalty.detach() * share).item() * rows / processes / mask.shape[0],
        "actor/llds_gate_fraction": found["gate_fraction"].item(),
        "actor/llds_drop_mean": found["drop_mean"].item(),
        "actor/llds_drop_max": found["drop_max"].item(),
        "actor/llds_answer_weight": weight,
    }
    return (base + policy.llds_coef * penalty * share if policy.llds_coef > 0 else base), metrics


def _tokens(policy: Any, batch: MiniBatch | None, info: dict[str, Any], here: torch.Tensor) -> float:
    """Return N of the mini-batch on all processes."""
    if policy.llds_normalizer == "all" and info.get("batch_num_tokens") is not None:
        return float(info["batch_num_tokens"])
    if policy.llds_normalizer == "preserving" and batch is not None:
        return batch.preserving_tokens
    if info.get("batch_num_tokens") is None and (info.get("dp_size") or 1) == 1:
        return float(here)  # called by hand: the micro-batch is the mini-batch
    raise ConfigError(
        "the LLDS loss was called on a micro-batch without the counts of its mini-batch, so its normaliser is unknown; "
        "set actor_rollout_ref.model.external_lib=full_scale.verl_plugin.worker"
    )


def _answers(policy: Any, batch: MiniBatch | None, mask: torch.Tensor) -> tuple[float, torch.Tensor | None]:
    """Return the answer weight and the answer mask, (1.0, None) where neither matters."""
    if policy.llds_coef == 0 or policy.llds_answer_weight_rule == "fixed":
        return 1.0, None
    if batch is None or batch.answers is None:
        raise ConfigError(
            f"llds_answer_weight_rule={policy.llds_answer_weight_rule!r} needs to know the answer tokens, which "
            "trajectories of the agent loop search_r1 carry and full_scale.verl_plugin.worker hands on; set both"
        )
    weight = answer_weight(batch.mean_searches, rule=policy.llds_answer_weight_rule, llds_coef=policy.llds_coef)
    return weight, answer_mask(batch.answers, mask)
