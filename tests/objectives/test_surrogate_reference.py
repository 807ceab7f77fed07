"""Locks both surrogates to a reference of plain loops over numbers, written only from Eq. 1 and from GSPO (2507.18071).

Random batches: 1-5 responses, 1-10 tokens, fully masked responses, advantages of both signs and 0, ratios inside and
outside the clip, asymmetric clips, all three aggregations, token weights. Value to 1e-12, gradient written out by hand
(-A ratio where the clip is not active, else 0) to 1e-12, and once more against finite differences.
"""

from __future__ import annotations

import math
from typing import get_args

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from lldsim.names import Aggregation
from lldsim.objectives import clipped_surrogate, sequence_surrogate

Rows = list[list[float]]


def token_shares(mask: list[list[int]], aggregation: str) -> Rows:
    """What one unit of a token's value adds to the aggregated number."""
    lengths = [sum(row) for row in mask]
    responses = sum(1 for length in lengths if length > 0)
    shares = [[0.0] * len(row) for row in mask]
    for i, row in enumerate(mask):
        for k, on in enumerate(row):
            if on and aggregation == "token-mean":
                shares[i][k] = 1 / sum(lengths)
            elif on and aggregation == "seq-mean-token-mean":
                shares[i][k] = 1 / lengths[i] / responses
            elif on:
                shares[i][k] = 1 / responses
    return shares


def reference(
    new: Rows,
    old: Rows,
    advantage: list[float],
    mask: list[list[int]],
    *,
    sequence: bool,
    low: float,
    high: float,
    aggregation: str,
    weight: Rows,
) -> tuple[float, Rows]:
    """Return the loss and its gradient by `new`; a response's ratio shares its gradient equally over its tokens."""
    shares = token_shares(mask, aggregation)
    loss, grad = 0.0, [[0.0] * len(row) for row in new]
    for i, row in enumerate(mask):
        action_tokens = [k for k, on in enumerate(row) if on]
        gaps = [new[i][k] - old[i][k] for k in action_tokens]
        for k, gap in zip(action_tokens, gaps, strict=True):
            ratio = math.exp(sum(gaps) / len(gaps) if sequence else gap)
            plain, clipped = ratio * advantage[i], min(max(ratio, 1 - low), 1 + high) * advantage[i]
            loss -= shares[i][k] * weight[i][k] * min(plain, clipped)
            if plain <= clipped:
                # GSPO's released form: every token carries its own gradient of the shared ratio (stop-gradient trick).
                grad[i][k] -= shares[i][k] * weight[i][k] * plain
    return loss, grad


@pytest.mark.parametrize("aggregation", get_args(Aggregation))
@pytest.mark.parametrize("sequence", [False, True], ids=["grpo", "gspo"])
@settings(max_examples=60, deadline=None)
@given(
    responses=st.integers(1, 5),
    tokens=st.integers(1, 10),
    clips=st.sampled_from([(0.2, 0.2), (0.2, 0.28), (0.05, 0.4)]),
    spread=st.sampled_from([0.05, 0.3, 2.0]),
    seed=st.integers(0, 2**31),
)
def test_matches_the_loops(
    aggregation: Aggregation,
    sequence: bool,
    responses: int,
    tokens: int,
    clips: tuple[float, float],
    spread: float,
    seed: int,
) -> None:
    rng = np.random.default_rng(seed)
    shape = (responses, tokens)
    old = -rng.exponential(1.5, shape)
    new = np.where(rng.random(shape) < 0.2, old, old + spread * rng.standard_normal(shape))
    mask = (rng.random(shape) < 0.7) & (rng.random((responses, 1)) < 0.85)
    advantage = rng.choice([-1.5, -0.5, 0.0, 0.5, 1.5], responses)
    weight = rng.uniform(0, 2, shape)

    logps = torch.tensor(new, requires_grad=True)
    surrogate = sequence_surrogate if sequence else clipped_surrogate
    loss, _ = surrogate(
        logps,
        torch.tensor(old),
        torch.tensor(advantage),
        torch.tensor(mask),
        clip_eps=clips[0],
        clip_eps_high=clips[1],
        aggregation=aggregation,
        token_weights=torch.tensor(weight),
    )
    (grad,) = torch.autograd.grad(loss, logps)
    expected, expected_grad = reference(
        new.tolist(),
        old.tolist(),
        advantage.tolist(),
        mask.astype(int).tolist(),
        sequence=sequence,
        low=clips[0],
        high=clips[1],
        aggregation=aggregation,
        weight=weight.tolist(),
    )
    # Ratios reach e^6 here, so the last digits scale with the loss.
    assert loss.item() == pytest.approx(expected, abs=1e-12, rel=1e-12)
    np.testing.assert_allclose(grad.numpy(), expected_grad, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("surrogate", [clipped_surrogate, sequence_surrogate])
def test_gradient_is_the_slope_of_the_value(surrogate) -> None:
    generator = torch.Generator().manual_seed(3)
    old = -torch.rand(4, 6, dtype=torch.float64, generator=generator) - 0.5
    logps = (old + 0.3 * torch.randn(4, 6, dtype=torch.float64, generator=generator)).requires_grad_()
    advantages = torch.tensor([1.0, -1.0, 0.5, -2.0], dtype=torch.float64)
    mask = torch.rand(4, 6, generator=generator) < 0.7
    assert torch.autograd.gradcheck(lambda x: surrogate(x, old, advantages, mask)[0], (logps,))
