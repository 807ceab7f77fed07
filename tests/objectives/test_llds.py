"""Locks the behaviour of `llds_penalty` that a reference formula does not show.

- inert at old = new: loss, gradient and gate_fraction are 0 while backward works; at a drop of exactly 0 no gradient
- equality classes: action = response gate with one action, action = token gate with one-token actions, normalizers
  agree when nothing is wrong, answer weight 1 = no answer mask, advantages (B,) = (B, T), scale of A is irrelevant
- ordering: response <= token and action <= token; an action that falls as a whole is open
- `action_id` separates two actions that a feedback of 0 tokens would merge; odd ids on masked tokens are ignored
- NaN safety, constants of the gradient, float32 and bfloat16, metrics, typed errors
"""

from __future__ import annotations

import math
from typing import Any, get_args

import pytest
import torch

from lldsim.errors import ConfigError, LldsimError, NonFiniteError, ShapeError
from lldsim.names import Gate, Normalizer
from lldsim.objectives import llds_penalty

GATES: tuple[Gate, ...] = get_args(Gate)
NORMALIZERS: tuple[Normalizer, ...] = get_args(Normalizer)
Batch = tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]


def random_batch(seed: int = 5) -> Batch:
    generator = torch.Generator().manual_seed(seed)
    old = -torch.randint(1, 96, (6, 9), generator=generator).double() / 32
    new = old + torch.randint(-16, 17, (6, 9), generator=generator).double() / 32
    mask = torch.rand(6, 9, generator=generator) < 0.7
    return new.requires_grad_(), old, torch.tensor([1.0, -1.0, 0.0, 0.5, -0.5, 2.0]).double(), mask


def value_and_grad(*batch: torch.Tensor, **options) -> tuple[float, torch.Tensor]:
    loss, _ = llds_penalty(*batch, **options)
    return loss.item(), torch.autograd.grad(loss, batch[0])[0]


def assert_equal_class(first: tuple[float, torch.Tensor], second: tuple[float, torch.Tensor]) -> None:
    assert first[0] == pytest.approx(second[0], abs=1e-15)
    torch.testing.assert_close(first[1], second[1], rtol=0, atol=1e-15)
    assert first[0] > 0  # a class of zeros would prove nothing


@pytest.mark.parametrize("gate", GATES)
@pytest.mark.parametrize("case", ["old = new", "nothing preserved", "all masked"])
def test_connected_zero(gate: Gate, case: str) -> None:
    new, old, advantages, mask = random_batch()
    logps = old.clone().requires_grad_() if case == "old = new" else new
    advantages = -torch.ones(6) if case == "nothing preserved" else advantages
    mask = torch.zeros_like(mask) if case == "all masked" else mask
    loss, metrics = llds_penalty(logps, old, advantages, mask, gate=gate)
    loss.backward()
    assert loss.item() == 0.0
    assert logps.grad is not None
    assert torch.equal(logps.grad, torch.zeros_like(old))
    assert metrics["gate_fraction"].item() == 0.0
    assert metrics["drop_max"].item() == 0.0
    assert (metrics["preserved_tokens"].item() > 0) is (case == "old = new")


@pytest.mark.parametrize("gate", GATES)
def test_no_gradient_at_a_drop_of_exactly_zero(gate: Gate) -> None:
    new = torch.tensor([[-1.0, -1.5]], requires_grad=True)
    _, grad = value_and_grad(new, torch.tensor([[-1.0, -1.0]]), torch.ones(1), torch.ones(1, 2), gate=gate)
    assert grad.tolist() == [[0.0, -0.5]]


@pytest.mark.parametrize("normalizer", NORMALIZERS)
def test_one_action_per_response_makes_action_and_response_one(normalizer: Normalizer) -> None:
    new, old, advantages, _ = random_batch()
    mask = (torch.arange(9) < torch.tensor([9, 4, 1, 6, 7, 3])[:, None]) & (torch.arange(9) >= 0)
    assert_equal_class(
        value_and_grad(new, old, advantages, mask, gate="action", normalizer=normalizer),
        value_and_grad(new, old, advantages, mask, gate="response", normalizer=normalizer),
    )


def test_one_token_actions_make_action_and_token_one() -> None:
    new, old, advantages, _ = random_batch()
    mask = (torch.arange(9) % 2 == 0).expand(6, 9)
    batch = new, old, advantages, mask
    assert_equal_class(value_and_grad(*batch, gate="action"), value_and_grad(*batch, gate="token"))


@pytest.mark.parametrize("gate", GATES)
def test_neutral_options_change_nothing(gate: Gate) -> None:
    new, old, advantages, mask = random_batch()
    runs = (mask & ~torch.nn.functional.pad(mask, (1, 0))[:, :-1]).cumsum(1) - 1
    assert_equal_class(
        value_and_grad(new, old, advantages, mask, gate=gate),
        value_and_grad(
            new,
            old,
            7 * advantages[:, None].expand(6, 9),
            mask.int(),
            gate=gate,
            answer_mask=torch.rand(6, 9) < 0.5,
            answer_weight=1.0,
            action_id=torch.where(mask, runs, -1),
        ),
    )


@pytest.mark.parametrize("gate", GATES)
def test_normalizers_differ_by_the_share_of_preserving_tokens(gate: Gate) -> None:
    new, old, advantages, mask = random_batch()
    paper, released = (llds_penalty(new, old, advantages, mask, gate=gate, normalizer=n)[0].item() for n in NORMALIZERS)
    share = mask[advantages >= 0].sum() / mask.sum()
    assert 0 < share < 1
    assert released == pytest.approx(paper * share.item(), rel=1e-6)
    right_only = llds_penalty(new, old, advantages.abs(), mask, gate=gate)[0].item()
    assert right_only == llds_penalty(new, old, advantages.abs(), mask, gate=gate, normalizer="all")[0].item()


@pytest.mark.parametrize("seed", range(8))
def test_gates_only_ever_remove_from_the_token_form(seed: int) -> None:
    batch = random_batch(seed)
    losses = {gate: llds_penalty(*batch, gate=gate)[0].item() for gate in GATES}
    assert max(losses["action"], losses["response"]) <= losses["token"]
    assert losses["action"] < losses["token"]


def test_action_id_separates_what_the_mask_would_merge() -> None:
    """Two actions touch (feedback of 0 tokens): drops (.5) and (-1). Merged they sum below 0, apart one is open."""
    old, new = torch.tensor([[-2.0, -2.0, -9.0]]), torch.tensor([[-2.5, -1.0, -1.0]])
    batch = new, old, torch.ones(1), torch.tensor([[1, 1, 0]])
    assert llds_penalty(*batch)[0].item() == 0.0
    loss, metrics = llds_penalty(*batch, action_id=torch.tensor([[0, 1, 77]]))
    assert (loss.item(), metrics["gate_fraction"].item()) == (0.25, 0.5)


def test_answer_weight_scales_answer_tokens_and_not_the_gate() -> None:
    """Drops .5 (answer) and -.25: open although a weighted sum with weight 0 would be shut."""
    old, new = torch.tensor([[-1.0, -1.0]]), torch.tensor([[-1.5, -0.75]])
    batch = new, old, torch.ones(1), torch.ones(1, 2)
    answer = torch.tensor([[1, 0]])
    losses = [llds_penalty(*batch, answer_mask=answer, answer_weight=w)[0].item() for w in (0.0, 0.5, 1.0)]
    assert losses == [0.0, 0.125, 0.25]
    _, metrics = llds_penalty(*batch, answer_mask=answer, answer_weight=0.0)
    assert metrics["gate_fraction"].item() == 1.0


def test_metrics_of_a_worked_batch() -> None:
    old = torch.tensor([[-1.0, -1.0, -1.0], [-1.0, -1.0, -1.0]])
    new = torch.tensor([[-1.5, -1.0, -0.25], [-9.0, -9.0, -9.0]])
    _, metrics = llds_penalty(new, old, torch.tensor([0.0, -1.0]), torch.tensor([[1, 0, 1], [1, 1, 1]]))
    assert {k: v.item() for k, v in metrics.items()} == {
        "gate_fraction": 0.5,
        "drop_mean": -0.125,
        "drop_max": 0.5,
        "preserved_tokens": 2.0,
    }


def test_a_token_is_preserved_by_its_own_advantage() -> None:
    """Drops .5, -.875 (wrong), .25: the wrong token's rise does not shut the gate of the other two."""
    old, new = torch.tensor([[-1.0, -1.0, -1.0]]), torch.tensor([[-1.5, -0.125, -1.25]])
    advantages = torch.tensor([[1.0, -1.0, 0.0]])
    loss, metrics = llds_penalty(new, old, advantages, torch.ones(1, 3))
    assert (loss.item(), metrics["preserved_tokens"].item()) == (0.375, 2.0)


@pytest.mark.parametrize("gate", GATES)
@pytest.mark.parametrize("hole", [math.nan, math.inf, -math.inf])
def test_masked_holes_do_not_leak(gate: Gate, hole: float) -> None:
    new, old, advantages, mask = random_batch()
    clean = value_and_grad(new, old, advantages, mask, gate=gate)
    holed = [torch.where(mask, t, hole).detach() for t in (new, old, advantages[:, None].expand(6, 9))]
    assert_equal_class(clean, value_and_grad(holed[0].requires_grad_(), holed[1], holed[2], mask, gate=gate))


def test_only_the_current_policy_gets_a_gradient() -> None:
    new, old, advantages, mask = random_batch()
    old.requires_grad_()
    advantages.requires_grad_()
    loss, metrics = llds_penalty(new, old, advantages, mask)
    loss.backward()
    assert (old.grad, advantages.grad) == (None, None)
    assert not any(value.requires_grad for value in metrics.values())


@pytest.mark.parametrize("gate", GATES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_low_precision(gate: Gate, dtype: torch.dtype) -> None:
    new, old, advantages, mask = random_batch()
    low_new, low_old = new.detach().to(dtype).requires_grad_(), old.to(dtype)
    value, grad = value_and_grad(low_new, low_old, advantages.to(dtype), mask, gate=gate)
    expected, expected_grad = value_and_grad(new, old, advantages, mask, gate=gate)
    assert grad.dtype == dtype
    assert value == pytest.approx(expected, rel=1e-6)  # 1/32 steps are exact in bfloat16 down to -4
    torch.testing.assert_close(grad.double(), expected_grad, rtol=1e-2, atol=0)


def nan_at(values: torch.Tensor, *index: int) -> torch.Tensor:
    out = values.detach().clone()
    out[index] = math.nan
    return out


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        (lambda b: {"logps": nan_at(b["logps"], 0, 1)}, NonFiniteError, r"^logps is nan at \[0, 1\], an action token"),
        (lambda b: {"old_logps": nan_at(b["old_logps"], 1, 2)}, NonFiniteError, r"^old_logps is nan at \[1, 2\]"),
        (lambda b: {"advantages": nan_at(b["advantages"], 1)}, NonFiniteError, r"^advantages is nan at \[1, 0\]"),
        (lambda b: {"old_logps": b["old_logps"][:, 1:]}, ShapeError, r"\(2, 2\) but action_mask has \(2, 3\); gather"),
        (lambda b: {"action_mask": b["action_mask"][:1]}, ShapeError, r"\(1, 3\) but logps has \(2, 3\); pad and cut"),
        (lambda b: {"advantages": torch.zeros(2, 1)}, ShapeError, r"\(2, 1\).*one value per response, shape \(2,\)"),
        (lambda b: {"answer_mask": torch.ones(2, 4)}, ShapeError, r"answer_mask has shape \(2, 4\)"),
        (lambda b: {"action_id": torch.ones(2, 4)}, ShapeError, r"action_id has shape \(2, 4\).*number the actions"),
        (lambda b: {"action_id": torch.tensor([[0, 0, -1]] * 2)}, ShapeError, r"action_id is -1 at \[0, 2\]"),
        (lambda b: {"action_id": torch.tensor([[0, 3, 1]] * 2)}, ShapeError, r"action_id is 3 at \[0, 1\].*0\.\.2"),
        (lambda b: {"gate": "chunk"}, ConfigError, "gate is 'chunk'; choose 'token', 'response' or 'action'"),
        (lambda b: {"normalizer": "sum"}, ConfigError, "normalizer is 'sum'; choose 'preserving'"),
        (lambda b: {"answer_weight": 0.5}, ConfigError, "no effect without answer_mask"),
        (lambda b: {"answer_weight": -1.0}, ConfigError, "answer_weight=-1.0 must be"),
    ],
)
def test_errors_name_the_value_and_the_remedy(change, error: type[LldsimError], message: str) -> None:
    batch: dict[str, Any] = {
        "logps": torch.zeros(2, 3),
        "old_logps": torch.zeros(2, 3),
        "advantages": torch.ones(2),
        "action_mask": torch.ones(2, 3),
    }
    llds_penalty(**batch)
    with pytest.raises(error, match=message):
        llds_penalty(**(batch | change(batch)))
