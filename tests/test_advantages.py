"""Locks the group advantages.

- the released code's outputs on every group of two or more, to 1e-9; its groups of one are refused, by name
- ddof 1 and 0 worked by hand; a tied group is exactly 0 even where its mean rounds; r - mean without the std
- properties: zero sum, unit std, invariant under shift and scale, equivariant under permutation, groups independent
- a leading run axis equals the runs one by one; dtypes; typed errors for empty, odd or non-finite input
"""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from lldsim.advantages import group_advantages
from lldsim.errors import ConfigError, GroupError, NonFiniteError, ShapeError

GOLDEN = json.loads((Path(__file__).parent / "golden" / "released_code_outputs.json").read_text())["advantages"]


def double(values: Any) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64)


@pytest.mark.parametrize("case", GOLDEN)
def test_released_code(case: dict[str, Any]) -> None:
    names = case["group"]
    keep = [i for i, name in enumerate(names) if names.count(name) > 1]
    assert len(keep) >= 2
    group = torch.tensor([ord(names[i]) for i in keep])
    result = group_advantages(double([case["rewards"][i] for i in keep]), group)
    torch.testing.assert_close(result, double([case["advantages"][i] for i in keep]), rtol=0, atol=1e-9)


@pytest.mark.parametrize("case", [case for case in GOLDEN if any(case["group"].count(n) == 1 for n in case["group"])])
def test_released_singletons_are_refused(case: dict[str, Any]) -> None:
    lonely = next(name for name in case["group"] if case["group"].count(name) == 1)
    with pytest.raises(
        GroupError, match=rf"group {ord(lonely)} has one response \(1 such groups\).*at least 2 rollouts"
    ):
        group_advantages(double(case["rewards"]), torch.tensor([ord(name) for name in case["group"]]))


@pytest.mark.parametrize(("ddof", "win", "lose"), [(1, 4 / math.sqrt(5), -1 / math.sqrt(5)), (0, 2.0, -0.5)])
def test_conventions_worked_by_hand(ddof: int, win: float, lose: float) -> None:
    result = group_advantages(double([1, 0, 0, 0, 0]), torch.full((5,), 7), std_ddof=ddof, eps=0.0)
    torch.testing.assert_close(result, double([win] + [lose] * 4), rtol=0, atol=1e-14)


def test_eps_is_added_to_the_std() -> None:
    result = group_advantages(double([1, 0]), torch.zeros(2, dtype=torch.int64), std_ddof=0, eps=0.5)
    assert result.tolist() == [0.5, -0.5]


@pytest.mark.parametrize("eps", [1e-6, 0.0])
@pytest.mark.parametrize("reward", [0.1, 1 / 3, 1.0, -0.7, 1e8 + 0.1])
@pytest.mark.parametrize("size", [2, 3, 7, 10])
def test_tied_group_is_exactly_zero(reward: float, size: int, eps: float) -> None:
    rewards = double([reward] * size + [0.0, 1.0])
    result = group_advantages(rewards, torch.tensor([0] * size + [1, 1]), eps=eps)
    assert result[:size].tolist() == [0.0] * size
    assert result[size:].abs().min() > 0.7


@settings(max_examples=80, deadline=None)
@given(
    rewards=st.lists(st.integers(0, 8), min_size=2, max_size=12),
    shift=st.integers(-4, 4),
    scale=st.sampled_from([0.5, 2.0, 8.0]),
    seed=st.integers(0, 1000),
)
def test_properties_of_one_group(rewards: list[int], shift: int, scale: float, seed: int) -> None:
    group = torch.zeros(len(rewards), dtype=torch.int64)
    result = group_advantages(double(rewards), group, eps=0.0)
    centred = group_advantages(double(rewards), group, std_normalize=False)
    torch.testing.assert_close(centred, double(rewards) - double(rewards).mean())
    assert result.sum().item() == pytest.approx(0, abs=1e-12)
    if len(set(rewards)) > 1:
        assert result.std().item() == pytest.approx(1)
    else:
        assert not result.any()
    torch.testing.assert_close(group_advantages(scale * double(rewards) + shift, group, eps=0.0), result)
    order = torch.randperm(len(rewards), generator=torch.Generator().manual_seed(seed))
    torch.testing.assert_close(group_advantages(double(rewards)[order], group, eps=0.0), result[order])


def test_groups_are_independent_and_keys_arbitrary() -> None:
    generator = torch.Generator().manual_seed(0)
    rewards = torch.rand(12, dtype=torch.float64, generator=generator)
    group = torch.tensor([900, -3, 5] * 4)
    result = group_advantages(rewards, group)
    for key in (900, -3, 5):
        alone = group_advantages(rewards[group == key], group[group == key])
        torch.testing.assert_close(result[group == key], alone)


@pytest.mark.parametrize("per_run", [False, True])
def test_run_axis_equals_the_runs_one_by_one(per_run: bool) -> None:
    generator = torch.Generator().manual_seed(1)
    rewards = (torch.rand(3, 8, generator=generator) < 0.5).double()
    group = torch.tensor([0, 0, 0, 1, 1, 2, 2, 2])
    groups = torch.stack([group, group.flip(0), group + 10]) if per_run else group.expand(3, 8)
    result = group_advantages(rewards, groups if per_run else group)
    for run in range(3):
        torch.testing.assert_close(result[run], group_advantages(rewards[run], groups[run]))
    assert result.any()


@pytest.mark.parametrize(
    ("given_dtype", "expected"),
    [
        (torch.int64, torch.float64),
        (torch.bool, torch.float64),
        (torch.float64, torch.float64),
        (torch.float32, torch.float32),
        (torch.bfloat16, torch.float32),
    ],
)
def test_dtypes(given_dtype: torch.dtype, expected: torch.dtype) -> None:
    result = group_advantages(torch.tensor([1, 0, 0]).to(given_dtype), torch.zeros(3, dtype=torch.int32))
    assert result.dtype == expected
    assert result.tolist() == pytest.approx([2 / math.sqrt(3), -1 / math.sqrt(3), -1 / math.sqrt(3)], abs=1e-5)


@pytest.mark.parametrize(
    ("rewards", "group", "options", "error", "message"),
    [
        ([], [], {}, GroupError, "rewards is empty"),
        ([1.0, math.nan], [0, 0], {}, NonFiniteError, r"rewards is nan at \[1\]; score the response"),
        ([1.0, 0.0], [0, 0, 0], {}, ShapeError, r"group has shape \(3,\) but rewards has \(2,\)"),
        ([[[1.0, 0.0]]], [0, 0], {}, ShapeError, r"rewards has shape \(1, 1, 2\), expected \(B,\) or \(R, B\)"),
        ([1.0, 0.0], [0.0, 0.0], {}, GroupError, "dtype torch.float32, expected integers"),
        ([[1.0, 0.0], [1.0, 0.0]], [[4, 4], [4, 9]], {}, GroupError, "group 4 of run 1 has one response"),
        ([1.0, 0.0], [0, 0], {"std_ddof": 2}, ConfigError, "std_ddof=2; choose 1"),
        ([1.0, 0.0], [0, 0], {"eps": -1.0}, ConfigError, "eps=-1.0 must be >= 0"),
    ],
)
def test_errors(rewards: Any, group: Any, options: dict, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        group_advantages(torch.tensor(rewards), torch.tensor(group), **options)
