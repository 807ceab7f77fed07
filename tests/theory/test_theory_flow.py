"""Locks the identity d/ds ln pi = -G of Theorem 4.2 and what one optimiser step makes of it.

- closed form = autograd = finite differences on 1,020 random groups, three aggregations in turn (<= 1e-9), on 300 with
  trainable features (<= 1e-7), and on hypothesis-driven shapes; one-token actions, all wrong but one, no feedback
- the normaliser is the loss's own: it follows `clipped_surrogate` at ratio 1, empty responses too
- lr -> 0: slope of measured against predicted change -> 1, relative error of first order in lr
- a run axis gives what a loop over runs gives
Relative error of a group = largest error over its actions / largest |value| over its actions.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import get_args

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from theory_groups import Group, random_group
from torch import Tensor

from lldsim.errors import ConfigError, ShapeError
from lldsim.objectives.surrogate import clipped_surrogate
from lldsim.theory.flow import (
    flow,
    flow_autograd,
    flow_finite_difference,
    linear_token_logps,
    loss_weights,
    one_step_change,
    trainable_flow,
)
from lldsim.theory.kernel import sum_actions
from lldsim.types import Aggregation

AGGREGATIONS: tuple[Aggregation, ...] = get_args(Aggregation)
KINDS: list[dict[str, int]] = [{}, {"max_action": 1}, {"correct": 1, "size": 5}, {"max_feedback": 0}, {"std_ddof": 0}]


def grpo(group: Group, aggregation: Aggregation) -> Callable[[Tensor], Tensor]:
    """The loss of the trainer at ratio 1, as a function of the token log-likelihoods."""

    def loss(logps: Tensor) -> Tensor:
        return clipped_surrogate(
            logps, logps.detach(), group.advantages, group.mask, clip_eps=0.2, aggregation=aggregation
        )[0]

    return loss


def relative(value: Tensor, twin: Tensor) -> float:
    return float((value - twin).abs().max() / twin.abs().max().clamp(min=1e-300))


def fixed_errors(group: Group, aggregation: Aggregation) -> tuple[float, float]:
    """Relative errors of the closed form per action against autograd and against finite differences."""
    closed = flow(*group.inputs, group.advantages, aggregation=aggregation, level="action", action_id=group.action_id)
    policy = linear_token_logps(group.tokens, group.mask, group.base, group.hidden)
    loss = grpo(group, aggregation)
    twins = [twin(policy, (group.weight,), loss) for twin in (flow_autograd, flow_finite_difference)]
    exact, numeric = (relative(closed, sum_actions(t, group.action_id)) for t in twins)
    return exact, numeric


def trainable_errors(group: Group, aggregation: Aggregation) -> tuple[float, float]:
    closed = trainable_flow(
        group.features, group.mixing, group.weight, group.probs, group.tokens, group.mask, group.advantages,
        aggregation=aggregation, level="action", action_id=group.action_id,
    ).total  # fmt: skip
    policy = linear_token_logps(group.tokens, group.mask, group.base, group.features)
    loss = grpo(group, aggregation)
    twins = [twin(policy, (group.weight, group.mixing), loss) for twin in (flow_autograd, flow_finite_difference)]
    exact, numeric = (relative(closed, sum_actions(t, group.action_id)) for t in twins)
    return exact, numeric


def worst(errors: Callable[[Group, Aggregation], tuple[float, float]], generator: torch.Generator, n: int) -> Tensor:
    found = []
    for k in range(n):
        group = random_group(generator, **KINDS[k % len(KINDS)])
        found.append(errors(group, AGGREGATIONS[k % len(AGGREGATIONS)]))
    return torch.tensor(found, dtype=torch.float64).amax(0)


def test_identity_on_a_thousand_groups(generator: torch.Generator) -> None:
    autograd, numeric = worst(fixed_errors, generator, 1020).tolist()
    assert autograd <= 1e-9
    assert numeric <= 1e-9


def test_identity_with_trainable_features(generator: torch.Generator) -> None:
    autograd, numeric = worst(trainable_errors, generator, 300).tolist()
    assert autograd <= 1e-7
    assert numeric <= 1e-7


@given(
    seed=st.integers(0, 2**31),
    size=st.integers(2, 8),
    vocab=st.integers(2, 12),
    dim=st.integers(1, 9),
    max_action=st.integers(1, 6),
    max_feedback=st.integers(0, 4),
    std_ddof=st.sampled_from([0, 1]),
    aggregation=st.sampled_from(AGGREGATIONS),
)
def test_identity_on_any_shape(
    seed: int, size: int, vocab: int, dim: int, max_action: int, max_feedback: int, std_ddof: int,
    aggregation: Aggregation,
) -> None:  # fmt: skip
    group = random_group(
        torch.Generator().manual_seed(seed), size=size, vocab=vocab, dim=dim, max_action=max_action,
        max_feedback=max_feedback, std_ddof=std_ddof,
    )  # fmt: skip
    assert max(fixed_errors(group, aggregation)) <= 1e-9
    assert max(trainable_errors(group, aggregation)) <= 1e-7


def test_second_sum_is_reported_apart_and_is_not_small(generator: torch.Generator) -> None:
    group = random_group(generator, size=5, vocab=5, dim=4)
    fixed = flow(*group.inputs, group.advantages, aggregation="token-mean")
    both = trainable_flow(
        group.features, group.mixing, group.weight, group.probs, group.tokens, group.mask, group.advantages,
        aggregation="token-mean",
    )  # fmt: skip
    torch.testing.assert_close(both.fixed, fixed, rtol=1e-13, atol=0)
    # Moving U alone is what the second sum says: autograd over one parameter.
    policy = linear_token_logps(group.tokens, group.mask, group.base, group.features)
    alone = flow_autograd(lambda mixing: policy(group.weight, mixing), (group.mixing,), grpo(group, "token-mean"))
    torch.testing.assert_close(both.unembedding, alone, rtol=1e-10, atol=1e-13)
    assert both.unembedding.abs().max() > 0.01 * fixed.abs().max()


@pytest.mark.parametrize("aggregation", AGGREGATIONS)
def test_loss_weights_are_the_gradient_of_the_loss(aggregation: Aggregation) -> None:
    """dL/d logp = -w_i on every action token, an empty response included."""
    mask = torch.tensor([[1, 1, 1], [1, 0, 0], [0, 0, 0], [1, 1, 0]], dtype=torch.bool)
    advantages = torch.tensor([1.0, -0.5, 2.0, -1.5], dtype=torch.float64)
    logps = torch.full((4, 3), -0.7, dtype=torch.float64, requires_grad=True)
    loss = clipped_surrogate(logps, logps.detach(), advantages, mask, clip_eps=0.2, aggregation=aggregation)[0]
    (gradient,) = torch.autograd.grad(loss, logps)
    weights = loss_weights(advantages, mask, aggregation=aggregation)
    torch.testing.assert_close(-gradient, weights[:, None] * mask, rtol=1e-14, atol=0)


def test_prediction_becomes_exact_as_the_step_shrinks(generator: torch.Generator) -> None:
    group = random_group(generator, size=6, vocab=6, dim=5)
    policy = linear_token_logps(group.tokens, group.mask, group.base, group.hidden)
    loss = grpo(group, "seq-mean-token-mean")
    predicted = flow(*group.inputs, group.advantages, aggregation="seq-mean-token-mean")[group.mask]
    rates = np.array([0.1, 0.03, 0.01, 0.003, 0.001])
    slopes, errors = [], []
    for lr in rates:
        measured = one_step_change(policy, (group.weight,), loss, lr=float(lr))[group.mask]
        slopes.append(float(measured @ predicted / (lr * predicted @ predicted)))
        errors.append(float((measured / lr - predicted).norm() / predicted.norm()))
    gaps = np.abs(np.array(slopes) - 1)
    assert np.all(np.diff(gaps) < 0)
    assert gaps[-1] < 1e-3
    assert abs(np.polyfit(np.log(rates), np.log(errors), 1)[0] - 1) < 0.1


def test_run_axis_equals_a_loop(generator: torch.Generator) -> None:
    """Two runs of one shape with different weights and mixings, fixed and trainable."""
    one, two = (random_group(torch.Generator().manual_seed(3), size=4, vocab=4, dim=3) for _ in range(2))
    factor = torch.tensor([1.0, -0.7], dtype=torch.float64)
    base = torch.stack([one.base, two.base])
    features = torch.stack([one.features, two.features.flip(0)])
    mixing = one.mixing * factor[:, None, None]
    weight = one.weight * factor.flip(0)[:, None, None]
    hidden = features @ mixing.mT[:, None]
    probs = torch.softmax(base + hidden @ weight.mT[:, None], -1)
    tokens, mask, ids = (torch.stack([x, x]) for x in (one.tokens, one.mask, one.action_id))
    advantages = torch.stack([one.advantages, -one.advantages])
    both = trainable_flow(
        features, mixing, weight, probs, tokens, mask, advantages, aggregation="token-mean", level="action",
        action_id=ids,
    )  # fmt: skip
    for r in range(2):
        single = trainable_flow(
            features[r], mixing[r], weight[r], probs[r], tokens[r], mask[r], advantages[r], aggregation="token-mean",
            level="action", action_id=ids[r],
        )  # fmt: skip
        torch.testing.assert_close(both.fixed[r], single.fixed, rtol=1e-12, atol=1e-15)
        torch.testing.assert_close(both.unembedding[r], single.unembedding, rtol=1e-12, atol=1e-15)


def test_errors_name_the_shape_and_the_choice(generator: torch.Generator) -> None:
    group = random_group(generator)
    with pytest.raises(ConfigError, match="'token-median'"):
        loss_weights(group.advantages, group.mask, aggregation="token-median")  # type: ignore[arg-type]
    with pytest.raises(ShapeError, match="mixing has shape"):
        trainable_flow(
            group.features, group.mixing.mT[:, :-1], group.weight, group.probs, group.tokens, group.mask,
            group.advantages, aggregation="token-mean",
        )  # fmt: skip
    with pytest.raises(ShapeError, match="advantages has shape"):
        loss_weights(group.advantages[:-1], group.mask, aggregation="token-mean")
