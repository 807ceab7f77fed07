"""Locks the three aggregations.

- worked rows (2,2,2,2,2) and (10): 3.3333, 6.0, 10.0; they agree when all responses have one length (up to that length)
- everything masked: exactly 0, zero gradient, backward works; a fully masked response leaves the seq modes unchanged
- NaN and inf on a masked place reach neither value nor gradient; bfloat16 values are summed in float32
- unknown mode, wrong shape, a mask that is not 0/1: typed errors that say what to do
"""

from __future__ import annotations

import math
from typing import get_args

import pytest
import torch

from lldsim.errors import ConfigError, ShapeError
from lldsim.names import Aggregation
from lldsim.objectives import aggregate

MODES: tuple[Aggregation, ...] = get_args(Aggregation)


@pytest.mark.parametrize(("mode", "expected"), zip(MODES, (20 / 6, 6.0, 10.0), strict=True))
def test_worked_rows(mode: Aggregation, expected: float) -> None:
    values = torch.tensor([[2.0] * 5, [10.0] + [7.0] * 4], dtype=torch.float64)
    mask = torch.tensor([[1] * 5, [1, 0, 0, 0, 0]])
    assert aggregate(values, mask, mode).item() == pytest.approx(expected, abs=1e-14)


def test_equal_lengths_make_the_modes_one() -> None:
    values = torch.arange(12, dtype=torch.float64).reshape(3, 4)
    mask = torch.tensor([[1, 0, 1, 0], [0, 1, 1, 0], [1, 1, 0, 0]])
    token, seq, total = (aggregate(values, mask, mode).item() for mode in MODES)
    assert token == pytest.approx(seq)
    assert total == pytest.approx(2 * token)


@pytest.mark.parametrize("mode", MODES)
def test_all_masked_is_a_connected_zero(mode: Aggregation) -> None:
    values = torch.full((2, 3), math.nan, dtype=torch.float64, requires_grad=True)
    result = aggregate(values, torch.zeros(2, 3), mode)
    result.backward()
    assert result.item() == 0.0
    assert values.grad is not None
    assert torch.equal(values.grad, torch.zeros(2, 3, dtype=torch.float64))


@pytest.mark.parametrize("mode", MODES)
def test_an_empty_response_does_not_dilute_the_others(mode: Aggregation) -> None:
    values = torch.tensor([[1.0, 5.0], [3.0, 9.0]], dtype=torch.float64)
    mask = torch.tensor([[1, 1], [1, 0]])
    padded = torch.cat([values, torch.full((1, 2), 100.0, dtype=torch.float64)])
    padded_mask = torch.cat([mask, torch.zeros(1, 2, dtype=mask.dtype)])
    assert aggregate(padded, padded_mask, mode).item() == pytest.approx(aggregate(values, mask, mode).item())


@pytest.mark.parametrize("hole", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("mode", MODES)
def test_masked_holes_do_not_leak(mode: Aggregation, hole: float) -> None:
    mask = torch.tensor([[1, 0, 1], [0, 1, 0]])
    clean = torch.tensor([[1.0, 0.0, 2.0], [0.0, 3.0, 0.0]], dtype=torch.float64, requires_grad=True)
    holed = torch.where(mask.bool(), clean.detach(), hole).requires_grad_()
    results = [aggregate(values, mask, mode) for values in (clean, holed)]
    grads = [torch.autograd.grad(r, v)[0] for r, v in zip(results, (clean, holed), strict=True)]
    assert results[0].item() == results[1].item()
    assert torch.equal(grads[0], grads[1])


def test_half_precision_is_summed_in_float32() -> None:
    values = torch.ones(1, 1000, dtype=torch.bfloat16)
    result = aggregate(values, torch.ones(1, 1000), "seq-mean-token-sum")
    assert (result.dtype, result.item()) == (torch.float32, 1000.0)


def test_errors_name_the_value_and_the_remedy() -> None:
    values = torch.zeros(2, 3)
    with pytest.raises(ConfigError, match=r"'mean'; choose 'token-mean'"):
        aggregate(values, torch.ones(2, 3), "mean")  # pyright: ignore[reportArgumentType]
    with pytest.raises(ShapeError, match=r"mask has shape \(3, 2\) but logps has \(2, 3\)"):
        aggregate(values, torch.ones(3, 2), "token-mean")
    with pytest.raises(ConfigError, match=r"mask is 0.5 at \[1, 2\], expected 0 or 1"):
        aggregate(values, torch.tensor([[1.0, 1, 1], [1, 1, 0.5]]), "token-mean")
