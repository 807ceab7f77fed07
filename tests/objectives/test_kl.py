"""Locks k3 in its three forms.

- inside the clamp all forms are exp(d) - d - 1, value and gradient
- "clamped": min(k3, 10), gradient exactly 0 beyond d = 2.61 and below d = -11, finite at gaps of +-1000 and +-inf
- "linear": continuous at both joints, slope frozen beyond, finite and restoring at gaps of +-1000
- "raw": explodes (the dial keeps its promise); NaN on a masked token does not leak; errors are typed
"""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from scipy.optimize import bisect

from lldsim.errors import ConfigError, NonFiniteError, ShapeError
from lldsim.objectives import kl_k3
from lldsim.objectives.kl import KlForm

FORMS: tuple[KlForm, ...] = ("clamped", "linear", "raw")
# Where exp(d) - d - 1 = 10, by bisection.
UPPER_GAP, LOWER_GAP = (float(bisect(lambda d: math.exp(d) - d - 11, *ends)) for ends in ((0, 5), (-20, 0)))  # pyright: ignore


def value_and_slope(gap: float, form: KlForm, dtype: torch.dtype = torch.float64) -> tuple[float, float]:
    """Return k3 and its derivative by the gap d = ref_logps - logps, at one token."""
    logps = torch.tensor([[-gap]], dtype=dtype, requires_grad=True)
    value = kl_k3(logps, torch.zeros(1, 1, dtype=dtype), form=form)
    (grad,) = torch.autograd.grad(value.sum(), logps)
    return value.item(), -grad.item()


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("gap", [-10.5, -3.0, -0.01, 0.0, 1e-6, 0.5, 2.6])
def test_forms_agree_inside(form: KlForm, gap: float) -> None:
    value, slope = value_and_slope(gap, form)
    assert value == pytest.approx(math.exp(gap) - gap - 1, abs=1e-12)
    assert slope == pytest.approx(math.exp(gap) - 1, abs=1e-12)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("gap", [UPPER_GAP + 1e-3, 3.0, 89.0, 1000.0, math.inf, LOWER_GAP - 1e-3, -89.0, -1000.0])
def test_clamped_is_flat_and_finite_outside(gap: float, dtype: torch.dtype) -> None:
    assert value_and_slope(gap, "clamped", dtype) == (10.0, 0.0)


@pytest.mark.parametrize(("gap", "active"), [(UPPER_GAP - 1e-5, False), (UPPER_GAP + 1e-5, True)])
def test_clamp_starts_where_k3_reaches_ten(gap: float, active: bool) -> None:
    assert (value_and_slope(gap, "clamped")[1] == 0) is active


@pytest.mark.parametrize("form", FORMS[:2])
def test_finite_on_a_sweep_of_gaps(form: KlForm) -> None:
    for dtype in (torch.float32, torch.float64):
        logps = torch.tensor(np.linspace(-1000, 1000, 4001)[None], dtype=dtype, requires_grad=True)
        values = kl_k3(logps, torch.zeros_like(logps), form=form)
        (grad,) = torch.autograd.grad(values.sum(), logps)
        assert torch.isfinite(values).all()
        assert torch.isfinite(grad).all()
        assert (values >= 0).all()
        assert grad.abs().max() < 14


@pytest.mark.parametrize("joint", [UPPER_GAP, LOWER_GAP])
def test_linear_continues_k3_with_its_slope(joint: float) -> None:
    outward = math.copysign(1.0, joint)
    inside, outside = (value_and_slope(joint + outward * step, "linear") for step in (-1e-4, 1e-4))
    assert inside == pytest.approx(outside, abs=5e-3)
    far_value, far_slope = value_and_slope(joint + outward * 500, "linear")
    assert far_slope == pytest.approx(math.exp(joint) - 1, abs=1e-4)
    assert far_value == pytest.approx(10 + 500 * abs(math.exp(joint) - 1), rel=1e-4)


def test_raw_explodes() -> None:
    value, slope = value_and_slope(50.0, "raw")
    assert min(value, slope) > 1e21
    assert value_and_slope(1000.0, "raw")[0] == math.inf


@pytest.mark.parametrize("form", FORMS)
def test_masked_nan_does_not_leak(form: KlForm) -> None:
    logps = torch.tensor([[-1.0, math.nan]], dtype=torch.float64, requires_grad=True)
    ref = torch.tensor([[-1.5, math.nan]], dtype=torch.float64)
    values = kl_k3(logps, ref, form=form, action_mask=torch.tensor([[1, 0]]))
    (grad,) = torch.autograd.grad(values.sum(), logps)
    assert values[0, 0].item() == pytest.approx(math.exp(-0.5) - 0.5)
    assert values[0, 1].item() == 0
    assert grad[0, 0].item() == pytest.approx(1 - math.exp(-0.5))
    assert grad[0, 1].item() == 0


@pytest.mark.parametrize("form", FORMS)
def test_the_reference_gets_no_gradient(form: KlForm) -> None:
    logps, ref = torch.full((1, 2), -1.0, requires_grad=True), torch.zeros(1, 2, requires_grad=True)
    for mask in (None, torch.ones(1, 2)):
        kl_k3(logps, ref, form=form, action_mask=mask).sum().backward()
    assert logps.grad is not None
    assert ref.grad is None


def test_max_value_moves_the_clamp() -> None:
    values = kl_k3(torch.tensor([[-1.0, -2.0]]), torch.zeros(1, 2), max_value=1.0)
    assert values.tolist() == [[pytest.approx(math.e - 2), 1.0]]


def test_errors_name_the_value_and_the_remedy() -> None:
    logps = torch.zeros(1, 2)
    with pytest.raises(ConfigError, match="kl_form is 'k3'; choose 'clamped', 'linear' or 'raw'"):
        kl_k3(logps, logps, form="k3")  # pyright: ignore[reportArgumentType]
    with pytest.raises(ConfigError, match="max_value=0"):
        kl_k3(logps, logps, max_value=0)
    with pytest.raises(ShapeError, match=r"ref_logps has shape \(1, 3\) but logps has \(1, 2\)"):
        kl_k3(logps, torch.zeros(1, 3))
    with pytest.raises(NonFiniteError, match=r"ref_logps is nan at \[0, 1\]"):
        kl_k3(logps, torch.tensor([[0.0, math.nan]]), action_mask=torch.ones(1, 2))
