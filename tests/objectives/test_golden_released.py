"""Locks our objectives to the outputs of the released code, value and gradient to 1e-9 in float64.

- every LLDS case: action and response gate, fixed and adaptive answer weight, inert, all-negative, all-zero advantages
- every GRPO, GSPO and k3 case, with the GRPO clip fraction
- the released code's lambda is inside its loss, ours is outside; its answer mask is 0 on answer tokens, ours 1
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from lldsim.objectives import aggregate, answer_weight, clipped_surrogate, kl_k3, llds_penalty, sequence_surrogate

GOLDEN = json.loads((Path(__file__).parents[1] / "golden" / "released_code_outputs.json").read_text())
TOLERANCE = 1e-9


def double(values: Any) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64)


def assert_same(loss: torch.Tensor, logps: torch.Tensor, expected_loss: float, expected_grad: Any) -> None:
    (grad,) = torch.autograd.grad(loss, logps)
    assert loss.item() == pytest.approx(expected_loss, abs=TOLERANCE)
    torch.testing.assert_close(grad, double(expected_grad), rtol=0, atol=TOLERANCE)


def released_answer_weight(settings: dict[str, Any]) -> float:
    """Translate the released settings (answer coefficient `ans_lam`, lambda `lam`) into our weight beta."""
    lam = settings["lam"]
    if settings.get("adaptive"):
        return answer_weight(settings["valid_search"], rule="released", llds_coef=lam, mask_weight=settings["ans_lam"])
    return answer_weight(None, rule="fixed", llds_coef=lam, fixed=min(settings.get("ans_lam", lam), lam) / lam)


def test_the_golden_file_has_the_cases_this_file_promises() -> None:
    names = {case["name"] for case in GOLDEN["llds"]}
    assert len(names) == 43
    assert {"inert-old-equals-new-action", "all-negative", "all-zero-advantage"} <= names
    assert (len(GOLDEN["surrogates"]), len(GOLDEN["advantages"])) == (4, 4)


@pytest.mark.parametrize("case", GOLDEN["llds"], ids=lambda case: case["name"])
def test_llds(case: dict[str, Any]) -> None:
    settings = case["settings"]
    logps = double(case["logps"]).requires_grad_()
    answer_mask = 1 - double(settings["answer_mask"]) if "answer_mask" in settings else None
    loss, _ = llds_penalty(
        logps,
        double(case["old_logps"]),
        double(case["advantages"]),
        double(case["action_mask"]),
        gate="action" if settings["chunk"] else "response",
        normalizer="all",
        answer_mask=answer_mask,
        answer_weight=released_answer_weight(settings),
    )
    assert_same(settings["lam"] * loss, logps, case["loss"], case["grad_logps"])


@pytest.mark.parametrize("case", GOLDEN["surrogates"])
def test_grpo(case: dict[str, Any]) -> None:
    logps = double(case["logps"]).requires_grad_()
    loss, metrics = clipped_surrogate(
        logps,
        double(case["old_logps"]),
        double(case["advantages"]),
        double(case["action_mask"]),
        clip_eps=case["clip_eps"],
        aggregation="token-mean",
    )
    assert_same(loss, logps, case["grpo"]["loss"], case["grpo"]["grad_logps"])
    assert metrics["clip_fraction"].item() == pytest.approx(case["grpo"]["clip_frac"], abs=TOLERANCE)


@pytest.mark.parametrize("case", GOLDEN["surrogates"])
def test_gspo(case: dict[str, Any]) -> None:
    logps = double(case["logps"]).requires_grad_()
    loss, metrics = sequence_surrogate(
        logps,
        double(case["old_logps"]),
        double(case["advantages"]),
        double(case["action_mask"]),
        clip_eps=case["clip_eps"],
    )
    assert_same(loss, logps, case["gspo"]["loss"], case["gspo"]["grad_logps"])
    assert metrics["clip_fraction"].item() == pytest.approx(case["gspo"]["clip_frac"], abs=TOLERANCE)


@pytest.mark.parametrize("case", GOLDEN["surrogates"])
def test_k3(case: dict[str, Any]) -> None:
    logps = double(case["logps"]).requires_grad_()
    loss = aggregate(kl_k3(logps, double(case["ref_logps"])), double(case["action_mask"]), "token-mean")
    assert_same(loss, logps, case["k3"]["loss"], case["k3"]["grad_logps"])
