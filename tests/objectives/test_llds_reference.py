"""Locks `llds_penalty` to a reference of plain loops over numbers, written only from the paper's Eqs. 4, 5, 9 and 10.

Random batches: 1-5 responses, 1-12 tokens, random masks with fully masked responses, advantages of both signs and 0,
drops that tie at 0, answer tokens with a weight. Every gate and normaliser; value, gradient and gate_fraction to 1e-12.
Log-probabilities are multiples of 1/32, so sums are exact and a gate never depends on the order of addition.
"""

from __future__ import annotations

from typing import get_args

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from lldsim.names import Gate, Normalizer
from lldsim.objectives import llds_penalty

Rows = list[list[float]]


def runs_of_ones(mask: list[int]) -> list[list[int]]:
    """Positions of each contiguous run of ones."""
    runs: list[list[int]] = []
    for position, on in enumerate(mask):
        if on and position > 0 and mask[position - 1]:
            runs[-1].append(position)
        elif on:
            runs.append([position])
    return runs


def reference(
    new: Rows, old: Rows, advantage: list[float], mask: list[list[int]], gate: str, normalizer: str, weight: Rows
) -> tuple[float, Rows, float]:
    """Return loss, gradient by `new`, and the share of preserving units whose gate is open."""
    tokens = sum(sum(mask[i]) for i in range(len(new)) if normalizer == "all" or advantage[i] >= 0)
    loss, units, opened = 0.0, 0, 0
    grad = [[0.0] * len(row) for row in new]
    for i in range(len(new)):
        if advantage[i] < 0:
            continue
        actions = runs_of_ones(mask[i])
        if gate == "response":
            actions = [[k for action in actions for k in action]] if actions else []
        if gate == "token":
            actions = [[k] for action in actions for k in action]
        for action in actions:
            units += 1
            if sum(old[i][k] - new[i][k] for k in action) > 0:
                opened += 1
                for k in action:
                    drop = old[i][k] - new[i][k]
                    if drop > 0:
                        loss += weight[i][k] * drop / tokens
                        grad[i][k] -= weight[i][k] / tokens
    return loss, grad, opened / units if units else 0.0


@pytest.mark.parametrize("normalizer", get_args(Normalizer))
@pytest.mark.parametrize("gate", get_args(Gate))
@settings(max_examples=100, deadline=None)
@given(
    responses=st.integers(1, 5),
    tokens=st.integers(1, 12),
    density=st.sampled_from([0.3, 0.7, 0.9, 1.0]),
    beta=st.sampled_from([0.0, 0.5, 1.0, 2.0]),
    seed=st.integers(0, 2**31),
)
def test_matches_the_loops(
    gate: Gate, normalizer: Normalizer, responses: int, tokens: int, density: float, beta: float, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    shape = (responses, tokens)
    old = rng.integers(-96, 0, shape) / 32
    new = np.where(rng.random(shape) < 0.3, old, old + rng.integers(-24, 25, shape) / 32)
    mask = (rng.random(shape) < density) & (rng.random((responses, 1)) < 0.85)
    advantage = rng.choice([-1.5, -0.5, 0.0, 0.5, 1.5], responses)
    answer = rng.random(shape) < 0.3
    weight = np.where(answer, beta, 1.0)

    logps = torch.tensor(new, requires_grad=True)
    loss, metrics = llds_penalty(
        logps,
        torch.tensor(old),
        torch.tensor(advantage),
        torch.tensor(mask),
        gate=gate,
        normalizer=normalizer,
        answer_mask=torch.tensor(answer),
        answer_weight=beta,
    )
    (grad,) = torch.autograd.grad(loss, logps)
    expected, expected_grad, expected_open = reference(
        new.tolist(), old.tolist(), advantage.tolist(), mask.astype(int).tolist(), gate, normalizer, weight.tolist()
    )
    assert loss.item() == pytest.approx(expected, abs=1e-12)
    np.testing.assert_allclose(grad.numpy(), expected_grad, rtol=0, atol=1e-12)
    assert metrics["gate_fraction"].item() == pytest.approx(expected_open, abs=1e-12)


def test_the_loops_themselves_on_a_batch_worked_by_hand() -> None:
    """Row 0: actions (.5 - .25 = .25, open) and (-.5, shut); row 1 is wrong. Preserving tokens 3, all tokens 4."""
    old, new = (
        [[-1.0, -1.0, -1.0, -1.0], [-1.0, -1.0, -1.0, -1.0]],
        [[-1.5, -0.75, -9.0, -0.5], [-2.0, -9.0, -9.0, -9.0]],
    )
    mask, advantage, ones = [[1, 1, 0, 1], [1, 0, 0, 0]], [1.0, -1.0], [[1.0] * 4] * 2
    assert reference(new, old, advantage, mask, "action", "preserving", ones)[0] == pytest.approx(0.5 / 3)
    assert reference(new, old, advantage, mask, "action", "all", ones)[0] == pytest.approx(0.5 / 4)
    assert reference(new, old, advantage, mask, "response", "all", ones)[0] == 0.0
    assert reference(new, old, advantage, mask, "token", "all", ones)[2] == pytest.approx(1 / 3)
