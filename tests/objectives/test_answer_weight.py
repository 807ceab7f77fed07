"""Locks the answer weight of LLDS-MA.

- both adaptive rules at V = 0, 1, 1.5, 2, 3 (they agree only from 2 on); monotone in V and within 0..1
- `mask_weight` as the released code's answer coefficient; "fixed" ignores V; scalar tensors are accepted
- missing, negative or non-finite V, lambda 0 with "released", negative weights, unknown rule: typed errors
"""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from lldsim.errors import ConfigError, NonFiniteError
from lldsim.objectives import answer_weight


@pytest.mark.parametrize(
    ("searches", "paper", "released"), [(0, 0.0, 0.0), (1, 0.5, 0.0), (1.5, 0.75, 0.5), (2, 1.0, 1.0), (3, 1.0, 1.0)]
)
def test_rules_at_the_tabulated_counts(searches: float, paper: float, released: float) -> None:
    assert answer_weight(searches, rule="paper", llds_coef=0.2) == pytest.approx(paper, abs=1e-15)
    assert answer_weight(searches, rule="released", llds_coef=0.2, mask_weight=0.2) == pytest.approx(released)


def test_mask_weight_is_the_slope_of_the_released_rule() -> None:
    assert answer_weight(1.5, rule="released", llds_coef=0.2, mask_weight=0.05) == pytest.approx(0.125)
    assert answer_weight(1.5, rule="released", llds_coef=0.01) == pytest.approx(0.5)


@given(low=st.floats(0, 10), step=st.floats(0, 10), rule=st.sampled_from(["paper", "released"]))
def test_monotone_and_bounded(low: float, step: float, rule: str) -> None:
    weights = [answer_weight(v, rule=rule, llds_coef=0.2) for v in (low, low + step)]  # pyright: ignore[reportArgumentType]
    assert 0 <= weights[0] <= weights[1] <= 1


def test_fixed_ignores_the_count_and_tensors_are_accepted() -> None:
    assert answer_weight(None, rule="fixed", llds_coef=0.0, fixed=0.25) == 0.25
    assert answer_weight(torch.tensor(1.0), rule="paper", llds_coef=0.2) == 0.5


@pytest.mark.parametrize(
    ("searches", "options", "error", "message"),
    [
        (None, {"rule": "paper"}, ConfigError, "'paper' needs mean_valid_searches"),
        (-1.0, {"rule": "paper"}, ConfigError, "mean_valid_searches=-1.0"),
        (math.nan, {"rule": "released"}, NonFiniteError, "mean_valid_searches is nan"),
        (1.0, {"rule": "released", "llds_coef": 0.0}, ConfigError, "set llds_coef > 0"),
        (1.0, {"rule": "released", "mask_weight": -1.0}, ConfigError, "mask_weight=-1.0 must be >= 0"),
        (1.0, {"rule": "fixed", "fixed": -0.5}, ConfigError, "answer_weight=-0.5"),
        (1.0, {"rule": "adaptive"}, ConfigError, "'adaptive'; choose 'fixed', 'paper' or 'released'"),
    ],
)
def test_errors(searches: float | None, options: dict[str, Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        answer_weight(searches, **({"llds_coef": 0.2} | options))  # pyright: ignore[reportArgumentType]
