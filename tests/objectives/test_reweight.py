"""Locks the arms that weigh tokens, and CISPO.

- CISPO: value and gradient by hand, gradient of GRPO's surrogate at ratio 1 and not beyond the clip, cap, no overflow
- NTHR: the score is the positive part of G (Theorem A.1), eta only on wrong tokens above the threshold, none without
  right responses
- shared prefix: ends at the first difference, only wrong responses of the same group, other groups do not count
- total_loss: weights multiply the surrogate alone; a wrong token of weight 0 stays out of LLDS's preserving set;
  a configuration that needs weights and gets none says so
"""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from lldsim.config import ObjectiveConfig
from lldsim.errors import ConfigError, ShapeError
from lldsim.objectives import (
    cispo_surrogate,
    clipped_surrogate,
    masked_importance_weights,
    nthr_weights,
    probability_weights,
    shared_prefix_weights,
    total_loss,
)
from lldsim.theory import gwhes


def batch(shift: float) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(3)
    old = -torch.rand(4, 5, dtype=torch.float64, generator=generator) - 0.1
    new = old + shift * torch.randn(4, 5, dtype=torch.float64, generator=generator)
    return new.requires_grad_(), old, torch.tensor([1.0, -1.0, 0.5, -0.5], dtype=torch.float64), torch.ones(4, 5)


def test_cispo_gradient_is_the_capped_ratio_times_the_advantage() -> None:
    new, old, advantages, mask = batch(1.0)
    loss, metrics = cispo_surrogate(new, old, advantages, mask, cap=1.5)
    (gradient,) = torch.autograd.grad(loss, new)
    ratio = (new - old).detach().exp()
    torch.testing.assert_close(gradient, -ratio.clamp(max=1.5) * advantages[:, None] / 20)
    assert 0 < metrics["clip_fraction"].item() == (ratio > 1.5).double().mean().item()


def test_cispo_is_grpo_at_ratio_one_and_keeps_the_gradient_that_a_clip_drops() -> None:
    new, old, advantages, mask = batch(0.0)
    gradients = [
        torch.autograd.grad(f(new, old, advantages, mask)[0], new)[0] for f in (cispo_surrogate, clipped_surrogate)
    ]
    torch.testing.assert_close(*gradients)
    new, old, advantages, mask = batch(1.0)
    cispo, grpo = (
        torch.autograd.grad(f(new, old, advantages, mask)[0], new)[0] for f in (cispo_surrogate, clipped_surrogate)
    )
    assert ((grpo == 0) & (cispo != 0)).any()
    assert (cispo != 0).all()


def test_cispo_does_not_overflow_and_checks_its_cap() -> None:
    new = torch.zeros(1, 1, dtype=torch.float64, requires_grad=True)
    loss, _ = cispo_surrogate(new, torch.full((1, 1), -1e4, dtype=torch.float64), torch.ones(1), torch.ones(1, 1))
    loss.backward()
    assert new.grad is not None
    assert new.grad.item() == pytest.approx(-5.0)
    with pytest.raises(ConfigError, match="cispo_cap=0"):
        cispo_surrogate(new, new.detach(), torch.ones(1), torch.ones(1, 1), cap=0.0)


def group_of_five() -> dict[str, Any]:
    generator = torch.Generator().manual_seed(5)
    b, t, v, d = 10, 6, 7, 4
    mask = torch.rand(b, t, generator=generator) < 0.8
    mask[:, 0] = True
    return {
        "probs": torch.softmax(2 * torch.randn(b, t, v, dtype=torch.float64, generator=generator), -1),
        "tokens": torch.randint(v, (b, t), generator=generator),
        "hidden": torch.randn(b, t, d, dtype=torch.float64, generator=generator),
        "advantages": torch.tensor([1.0, 1.0, -0.7, -0.7, -0.7, 0.0, 0.0, 0.0, 0.0, 0.0], dtype=torch.float64),
        "group": torch.arange(10) // 5,
        "action_mask": mask,
    }


@pytest.mark.parametrize("beta", [0.0, 0.5, 1.0])
def test_nthr_thresholds_the_positive_part_of_g(beta: float) -> None:
    given = group_of_five()
    weights = nthr_weights(**given, beta=beta, eta=0.25)
    signs = given["advantages"].sign()
    parts = gwhes(
        given["hidden"], given["probs"], given["tokens"], given["action_mask"], signs, group=given["group"],
        tied_groups="zero",
    )  # fmt: skip
    score, mask, right = parts.positive, given["action_mask"], signs > 0
    tau = beta * min(score[b][mask[b]].mean() for b in right.nonzero().flatten().tolist())
    expected = torch.where((signs[:, None] < 0) & mask & (score > tau), 0.25, 1.0).double()
    torch.testing.assert_close(weights, expected)
    assert 0 < (weights == 0.25).sum() < mask[signs < 0].sum()


def test_nthr_without_right_responses_changes_nothing() -> None:
    given = group_of_five()
    given["advantages"] = torch.full((10,), -1.0, dtype=torch.float64)
    assert (nthr_weights(**given) == 1).all()
    with pytest.raises(ConfigError, match="nthr_eta=2"):
        nthr_weights(**given, eta=2.0)


def test_shared_prefix_ends_at_the_first_difference_and_stays_in_its_group() -> None:
    ids = torch.tensor([[1, 2, 3, 4], [1, 9, 3, 4], [1, 2, 9, 4], [1, 2, 3, 4], [1, 2, 3, 4]])
    advantages = torch.tensor([1.0, -1.0, -1.0, -1.0, 1.0])
    group = torch.tensor([0, 0, 0, 1, 2])
    weights = shared_prefix_weights(ids, torch.ones(5, 4), advantages, group)
    assert weights.tolist() == [[1] * 4, [0, 1, 1, 1], [0, 0, 1, 1], [1] * 4, [1] * 4]
    with pytest.raises(ShapeError, match="align them"):
        shared_prefix_weights(ids, torch.ones(5, 3), advantages, group)


def test_feedback_in_the_prefix_counts_but_gets_no_weight() -> None:
    ids, mask = torch.tensor([[1, 70, 2], [1, 71, 2], [1, 70, 3]]), torch.tensor([[1, 0, 1]] * 3)
    weights = shared_prefix_weights(ids, mask, torch.tensor([1.0, -1.0, -1.0]), torch.zeros(3, dtype=torch.int64))
    assert weights.tolist() == [[1, 1, 1], [0, 1, 1], [0, 1, 1]]


def test_probability_and_masked_weights() -> None:
    old = torch.tensor([[math.log(0.5), math.nan]], dtype=torch.float64)
    mask = torch.tensor([[1, 0]])
    assert probability_weights(old, mask, strength=0.3).flatten().tolist() == pytest.approx([0.85, 1.0])
    sampler = old + math.log(3)
    kept = masked_importance_weights(old, sampler, mask, low=0.0, high=2.0)
    assert kept.flatten().tolist() == pytest.approx([1 / 3, 1.0])
    assert masked_importance_weights(old, sampler, mask, low=0.5, high=5.0).tolist() == [[0.0, 1.0]]
    with pytest.raises(ConfigError, match="must span a band"):
        masked_importance_weights(old, sampler, mask, low=2.0, high=1.0)


def test_weights_reach_the_surrogate_and_nothing_else() -> None:
    new, old, advantages, mask = batch(0.3)
    config = ObjectiveConfig(llds_coef=0.5, kl_coef=0.0, entropy_coef=0.0)
    weights = torch.where(advantages[:, None] < 0, 0.0, 1.0).expand(4, 5).double()
    loss, metrics = total_loss(new, old, advantages, mask, config=config, token_weights=weights)
    _, plain = total_loss(new, old, advantages, mask, config=config)
    assert metrics["llds"].item() == plain["llds"].item()
    assert metrics["preserved_tokens"].item() == 10
    (gradient,) = torch.autograd.grad(loss, new)
    assert (gradient[advantages < 0] == 0).all()


def test_missing_weights_are_named() -> None:
    new, old, advantages, mask = batch(0.3)
    config = ObjectiveConfig(mask_shared_prefix=True, kl_coef=0.0, entropy_coef=0.0)
    with pytest.raises(ConfigError, match="token_weights is missing"):
        total_loss(new, old, advantages, mask, config=config)
