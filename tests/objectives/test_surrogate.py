"""Locks the behaviour of both surrogates that a reference formula does not show.

- the worked fixture ratio (1.1, .9, 1.5), A = 1, eps .2: token-clipped mean 1.0667, GSPO s 1.1409; and its metrics
- equality classes: GSPO = GRPO for one-token responses; both equal -A logp's gradient at old = new; a weight of 1 and
  denominator = old change nothing; advantages (B,) = (B, T)
- dual clip caps the loss of A < 0 at c |A| with zero gradient and leaves A >= 0 alone
- no NaN at gaps of 1000 where the objective is flat; NaN on masked tokens does not leak; all masked is a connected zero
- old, denominator, weights, advantages get no gradient; typed errors that say what to do
"""

from __future__ import annotations

import math

import pytest
import torch

from lldsim.errors import ConfigError, NonFiniteError, ShapeError
from lldsim.objectives import clipped_surrogate, sequence_surrogate

BOTH = pytest.mark.parametrize("surrogate", [clipped_surrogate, sequence_surrogate])


def double(values) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64)


def random_batch(tokens: int = 5) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(11)
    old = -torch.rand(4, tokens, dtype=torch.float64, generator=generator) - 0.1
    new = old + 0.3 * torch.randn(4, tokens, dtype=torch.float64, generator=generator)
    return new.requires_grad_(), old, double([1.0, -1.0, 0.5, -0.5]), torch.ones(4, tokens, dtype=torch.bool)


def grad_of(loss: torch.Tensor, logps: torch.Tensor) -> torch.Tensor:
    return torch.autograd.grad(loss, logps)[0]


def test_worked_fixture() -> None:
    batch = double([[1.1, 0.9, 1.5]]).log(), torch.zeros(1, 3), torch.ones(1), torch.ones(1, 3)
    token, token_metrics = clipped_surrogate(*batch, clip_eps=0.2)
    sequence, sequence_metrics = sequence_surrogate(*batch, clip_eps=0.2)
    assert -token.item() == pytest.approx((1.1 + 0.9 + 1.2) / 3, abs=1e-12)
    assert -sequence.item() == pytest.approx(1.485 ** (1 / 3), abs=1e-12)
    assert {k: v.item() for k, v in token_metrics.items()} == pytest.approx(
        {"ratio_max": 1.5, "ratio_mean": 3.5 / 3, "clip_fraction": 1 / 3}
    )
    assert {k: v.item() for k, v in sequence_metrics.items()} == pytest.approx(
        {"ratio_max": 1.1409, "ratio_mean": 1.1409, "clip_fraction": 0.0}, abs=1e-4
    )


def test_one_token_responses_make_gspo_and_grpo_one() -> None:
    batch = random_batch(tokens=1)
    losses = [surrogate(*batch, aggregation="token-mean")[0] for surrogate in (clipped_surrogate, sequence_surrogate)]
    assert losses[0].item() == pytest.approx(losses[1].item(), abs=1e-15)
    torch.testing.assert_close(*(grad_of(loss, batch[0]) for loss in losses))


def test_sequence_clip_fraction_counts_responses() -> None:
    """Ratios .5, 2, 1 with A > 0: only the one above the clip is clipped, two masked tokens and an empty row aside."""
    logps = double([[0.5, 0.5, 0.5], [2.0, 2.0, 2.0], [1.0, 1.0, 1.0], [2.0, 2.0, 2.0]]).log()
    mask = torch.tensor([[1, 1, 1], [1, 0, 1], [0, 1, 1], [0, 0, 0]])
    _, metrics = sequence_surrogate(logps, torch.zeros(4, 3), torch.ones(4), mask)
    assert metrics["clip_fraction"].item() == pytest.approx(1 / 3)
    assert metrics["ratio_mean"].item() == pytest.approx(3.5 / 3)


@BOTH
def test_at_old_equals_new_it_is_the_plain_policy_gradient(surrogate) -> None:
    _, old, advantages, mask = random_batch()
    logps = old.clone().requires_grad_()
    loss, metrics = surrogate(logps, old, advantages, mask, aggregation="token-mean")
    torch.testing.assert_close(grad_of(loss, logps), -advantages[:, None].expand(4, 5) / 20)
    assert (metrics["ratio_max"].item(), metrics["clip_fraction"].item()) == (1.0, 0.0)


@BOTH
def test_neutral_options_change_nothing(surrogate) -> None:
    new, old, advantages, mask = random_batch()
    plain = surrogate(new, old, advantages, mask)[0].item()
    neutral = surrogate(
        new,
        old + 5,  # ignored: the denominator replaces it
        advantages[:, None].expand(4, 5),
        mask.float(),
        clip_eps_high=0.2,
        denominator_logps=old,
        token_weights=torch.ones(4, 5),
    )[0].item()
    assert neutral == pytest.approx(plain, abs=1e-15)


@BOTH
def test_dual_clip_caps_wrong_responses_only(surrogate) -> None:
    logps = double([[math.log(5.0)], [math.log(5.0)]]).requires_grad_()
    batch = logps, torch.zeros(2, 1), double([-1.0, 1.0]), torch.ones(2, 1)
    free, _ = surrogate(*batch, aggregation="seq-mean-token-sum")
    capped, _ = surrogate(*batch, aggregation="seq-mean-token-sum", dual_clip=3.0)
    assert (2 * free.item(), 2 * capped.item()) == pytest.approx((5.0 - 1.2, 3.0 - 1.2))
    assert grad_of(free, logps).flatten().tolist() == pytest.approx([2.5, 0.0])
    assert grad_of(capped, logps).flatten().tolist() == [0.0, 0.0]


@BOTH
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_flat_objective_stays_finite_at_any_gap(surrogate, dtype: torch.dtype) -> None:
    logps = torch.tensor([[1000.0], [1000.0], [-1000.0], [-1000.0], [1000.0]], dtype=dtype, requires_grad=True)
    advantages = torch.tensor([1.0, 0.0, 1.0, -1.0, -1.0], dtype=dtype)
    loss, _ = surrogate(logps, torch.zeros(5, 1), advantages, torch.ones(5, 1), dual_clip=3.0)
    assert 5 * loss.item() == pytest.approx(-1.2 + 0.8 + 3.0, abs=1e-6)
    assert grad_of(loss, logps).flatten().tolist() == [0.0] * 5
    loss, _ = surrogate(logps, torch.zeros(5, 1), advantages.clamp(min=0), torch.ones(5, 1))
    assert 5 * loss.item() == pytest.approx(-1.2, abs=1e-6)
    assert grad_of(loss, logps).flatten().tolist() == [0.0] * 5


@BOTH
def test_masked_nan_does_not_leak(surrogate) -> None:
    new, old, advantages, _ = random_batch()
    mask = torch.tensor([[1, 1, 0, 1, 0], [0] * 5, [1, 1, 1, 1, 1], [0, 0, 0, 0, 1]]).bool()
    clean, _ = surrogate(new, old, advantages, mask)
    holed = torch.where(mask, new.detach(), math.nan).requires_grad_()
    advantages = advantages.clone()
    advantages[1] = math.nan  # its response is fully masked
    loss, metrics = surrogate(
        holed, torch.where(mask, old, math.inf), advantages, mask, token_weights=torch.where(mask, 1.0, math.nan)
    )
    assert loss.item() == pytest.approx(clean.item(), abs=1e-15)
    torch.testing.assert_close(grad_of(loss, holed), grad_of(clean, new), rtol=0, atol=1e-15)
    assert all(torch.isfinite(value) for value in metrics.values())


@BOTH
def test_all_masked_is_a_connected_zero(surrogate) -> None:
    new, old, advantages, mask = random_batch()
    loss, metrics = surrogate(new, old, advantages, torch.zeros_like(mask))
    assert loss.item() == 0.0
    assert torch.equal(grad_of(loss, new), torch.zeros_like(new))
    assert {k: v.item() for k, v in metrics.items()} == {"ratio_max": 1.0, "ratio_mean": 1.0, "clip_fraction": 0.0}


@BOTH
def test_ratio_metrics_ignore_masked_tokens(surrogate) -> None:
    logps = double([[0.5, 0.5, 1.0], [1.0, 1.0, 1.0]]).log()
    mask = torch.tensor([[1, 1, 0], [0, 0, 0]])
    _, metrics = surrogate(logps, torch.zeros(2, 3), torch.ones(2), mask)
    assert (metrics["ratio_max"].item(), metrics["ratio_mean"].item()) == pytest.approx((0.5, 0.5))


@BOTH
def test_only_the_current_policy_gets_a_gradient(surrogate) -> None:
    new, old, advantages, mask = random_batch()
    others = [t.clone().requires_grad_() for t in (old, advantages, old, torch.ones_like(old))]
    loss, metrics = surrogate(new, others[0], others[1], mask, denominator_logps=others[2], token_weights=others[3])
    loss.backward()
    assert new.grad is not None
    assert new.grad.abs().sum() > 0
    assert [t.grad for t in others] == [None] * 4
    assert not any(value.requires_grad for value in metrics.values())


@BOTH
def test_errors_name_the_value_and_the_remedy(surrogate) -> None:
    new, old, advantages, mask = random_batch()
    with pytest.raises(
        ShapeError, match=r"old_logps has shape \(4, 4\) but action_mask has \(4, 5\); gather old_logps"
    ):
        surrogate(new, old[:, :4], advantages, mask)
    with pytest.raises(ShapeError, match=r"advantages has shape \(5,\).*one value per response, shape \(4,\)"):
        surrogate(new, old, torch.zeros(5), mask)
    with pytest.raises(ShapeError, match=r"logps has shape \(20,\), expected \(B, T\)"):
        surrogate(new.flatten(), old.flatten(), advantages, mask.flatten())
    with pytest.raises(NonFiniteError, match=r"logps is nan at \[2, 3\], an action token"):
        surrogate(new.detach().index_put((torch.tensor(2), torch.tensor(3)), double(math.nan)), old, advantages, mask)
    with pytest.raises(NonFiniteError, match=r"token_weights is inf at \[0, 0\]"):
        surrogate(new, old, advantages, mask, token_weights=torch.full((4, 5), math.inf))
    with pytest.raises(ConfigError, match="clip_eps=0"):
        surrogate(new, old, advantages, mask, clip_eps=0)
    with pytest.raises(ConfigError, match=r"dual_clip=1.0 must be > 1"):
        surrogate(new, old, advantages, mask, dual_clip=1.0)
