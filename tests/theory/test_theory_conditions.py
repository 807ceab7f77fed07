"""Locks the group weights, the signs of the two levers, and traps 1-3 in closed form.

- p_pos, p_neg are the advantages actually used, ddof 0 and 1, eps 0 and 1e-6
- G rises as q falls (same token) and as <h, h'> rises on the whole grid; where it does not, the closed form says so
- sign boundary of alpha in one context; shared prefix; mean drift by enumeration, exact 0 on-policy under any coupling
- the zero contour of the map is where the kernel's G changes sign
"""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st
from torch import Tensor

from lldsim.advantages import group_advantages
from lldsim.errors import GroupError, LldsimError
from lldsim.theory import (
    alpha,
    gwhes,
    gwhes_map,
    lever_gwhes,
    lever_zero_contour,
    pair_gwhes,
    residual,
    weights_from_advantages,
    zero_contour,
)
from lldsim.theory.conditions import (
    dominant_boundary,
    lever_coefficient,
    mean_drift,
    one_context_alpha,
    one_context_turning_point,
    shared_prefix_weight,
    with_likelihood,
)
from lldsim.theory.flow import loss_weights
from lldsim.theory.weights import group_weights, p_neg, p_pos

TINY = 1e-13


def simplex(generator: torch.Generator, *shape: int) -> Tensor:
    return torch.softmax(1.5 * torch.randn(*shape, generator=generator, dtype=torch.float64), -1)


@pytest.mark.parametrize("eps", [0.0, 1e-6])
@pytest.mark.parametrize("ddof", [0, 1])
def test_group_weights_are_the_advantages_in_use(ddof: int, eps: float) -> None:
    for size in range(2, 9):
        for correct in range(1, size):
            rewards = (torch.arange(size) < correct).double()
            advantages = group_advantages(rewards, torch.zeros(size, dtype=torch.int64), std_ddof=ddof, eps=eps)
            used = weights_from_advantages(advantages, torch.zeros(size, dtype=torch.int64))
            rate, form = correct / size, {"group_size": size, "ddof": ddof, "eps": eps}
            assert p_pos(rate, **form) == pytest.approx(float(used[0][0]), rel=1e-12)
            assert p_neg(rate, **form) == pytest.approx(float(used[1][0]), rel=1e-12)


def test_population_weights_have_the_printed_form_and_the_wrong_answer_weighs_more_when_rare() -> None:
    for rate in (0.1, 0.25, 0.5, 0.8):
        std = (rate * (1 - rate)) ** 0.5
        assert group_weights(rate) == pytest.approx(((1 - rate) / std, rate / std), rel=1e-14)
    negative = [p_neg(k / 8, group_size=8, ddof=1) for k in range(1, 8)]
    assert negative == sorted(negative)
    assert negative[-1] / negative[0] == pytest.approx(7.0)
    for rate in (0.0, 1.0):
        with pytest.raises(GroupError, match="success_rate"):
            group_weights(rate)
    with pytest.raises(GroupError, match="group_size = 1"):
        group_weights(0.5, group_size=1, ddof=1)


def context_pair(p: Tensor, q: Tensor, tokens: tuple[int, int], similarity: float) -> float:
    """G of one correct token under one wrong token in another context, from the kernel."""
    hidden = torch.tensor([[[1.0, 0.0]], [[similarity, max(0.0, 1 - similarity**2) ** 0.5]]], dtype=torch.float64)
    mask, ids = torch.ones(2, 1, dtype=torch.bool), torch.tensor([[tokens[0]], [tokens[1]]])
    return float(gwhes(hidden, torch.stack([p, q])[:, None], ids, mask, torch.tensor([1.0, -1.0]).double()).total[0, 0])


GRID = [0.0, 0.01, 0.05, 0.2, 0.4, 0.6, 0.8, 0.95, 1.0]


def test_same_token_both_levers_raise_g_on_the_whole_grid(generator: torch.Generator) -> None:
    """24 pairs of contexts x 9 likelihoods x 9 similarities: strict in both directions wherever alpha > 0."""
    for p, q in zip(simplex(generator, 24, 5), simplex(generator, 24, 5), strict=True):
        table = np.array([[context_pair(p, with_likelihood(q, 2, x), (2, 2), s) for x in GRID] for s in GRID])
        assert np.all(np.diff(table[1:], axis=1) < 0)  # along q, every similarity > 0
        assert np.all(np.diff(table[:, :-1], axis=0) > 0)  # along <h, h'>, every q < 1
        assert np.ptp(table[0]) == 0.0  # similarity 0: the likelihood does not matter
        assert np.ptp(table[:, -1]) <= TINY  # q = 1: the similarity does not matter


@given(seed=st.integers(0, 2**31), vocab=st.integers(2, 8), same=st.booleans())
def test_levers_follow_the_sign_of_kappa_and_only_that(seed: int, vocab: int, same: bool) -> None:
    generator = torch.Generator().manual_seed(seed)
    p, q = simplex(generator, 2, vocab)
    a, b = (0, 0) if same else (0, 1)
    kappa = float(lever_coefficient(p, a, q, b))
    for likelihood in (0.0, 0.3, 0.9):
        moved = with_likelihood(q, b, likelihood)
        value = float(alpha(p, torch.tensor(a), moved, torch.tensor(b)))
        assert value == pytest.approx(kappa * (1 - likelihood), abs=TINY)
    if same:
        assert kappa >= 0
    assume(abs(kappa) > 1e-6)
    sign = np.sign(kappa)
    along_q = [sign * context_pair(p, with_likelihood(q, b, x), (a, b), 0.7) for x in GRID]
    along_s = [sign * context_pair(p, q, (a, b), s) for s in GRID]
    assert np.all(np.diff(along_q) < 0)
    assert np.all(np.diff(along_s) > 0)


def test_where_the_levers_do_not_act(generator: torch.Generator) -> None:
    """Different tokens: for most random pairs of contexts a wrong token helps, and more so when unlikely or similar."""
    helped = [float(lever_coefficient(p, 0, q, 1)) < 0 for p, q in simplex(generator, 200, 2, 5)]
    assert 0.5 < np.mean(helped) < 1.0
    # A negative inner product turns the lever round even for one token.
    p, q = simplex(generator, 2, 5)
    turned = [context_pair(p, with_likelihood(q, 2, x), (2, 2), -0.5) for x in GRID]
    assert np.all(np.diff(turned) > 0)


def test_one_context_turns_at_the_closed_form(generator: torch.Generator) -> None:
    """pi = pi': below b* a falling wrong token raises alpha, above it lowers alpha."""
    for rho in simplex(generator, 20, 5):
        rho = with_likelihood(rho, 1, 0.0)
        turn = one_context_turning_point(float(rho[0]), float(rho.square().sum()))
        grid = np.linspace(0, 1, 401)
        values = np.array([float(one_context_alpha(with_likelihood(rho, 1, float(b)), 0, 1)) for b in grid])
        rising = np.diff(values) > 0
        middle = (grid[1:] + grid[:-1]) / 2
        away = np.abs(middle - turn) > 1 / 400
        assert np.array_equal(rising[away], (middle > turn)[away])
        assert 0 < turn < 1


def test_one_context_sign_boundary() -> None:
    """On the boundary alpha is 0, inside the dominant region > 0, and two tokens never reach it."""
    for b in np.linspace(0.0, 0.49, 50):
        edge = dominant_boundary(float(b))
        for shift, sign in ((0.0, 0), (-1e-3, 1), (1e-3, -1)):
            a = edge + shift
            if a < 0:
                continue
            p = torch.tensor([a, b, 1 - a - b], dtype=torch.float64)
            value = float(one_context_alpha(p, 0, 1))
            assert abs(value) < 1e-14 if sign == 0 else np.sign(value) == sign
        assert 1 - edge - b > 0.5 - 1e-12
    for b in np.linspace(0.5, 1, 20):
        assert dominant_boundary(float(b)) <= 0.0
    two = torch.stack([torch.tensor([x, 1 - x], dtype=torch.float64) for x in np.linspace(0.01, 0.99, 30).tolist()])
    torch.testing.assert_close(one_context_alpha(two, 0, 1), -2 * two.prod(-1), rtol=1e-12, atol=TINY)
    with pytest.raises(LldsimError, match="both token 1"):
        one_context_alpha(two, 1, 1)
    with pytest.raises(LldsimError, match="no probability"):
        dominant_boundary(1.5)
    with pytest.raises(LldsimError, match="has probability 1"):
        with_likelihood(torch.tensor([1.0, 0.0]), 0, 0.5)


def test_shared_prefix_cancels_and_with_length_takes_a_sign(generator: torch.Generator) -> None:
    """G of the shared token, from the kernel, is -(sum w) |r|^2 |h|^2 in every aggregation."""
    rewards = torch.tensor([1.0, 1.0, 0.0, 0.0, 0.0])
    advantages = group_advantages(rewards.double(), torch.zeros(5, dtype=torch.int64))
    prefix_hidden, prefix_probs = torch.randn(3, generator=generator).double(), simplex(generator, 4)
    for lengths, sign in ((torch.tensor([2, 3, 6, 5, 4]), 1), (torch.tensor([6, 5, 2, 3, 2]), -1)):
        mask = torch.arange(6) < lengths[:, None]
        hidden = torch.zeros(5, 6, 20, dtype=torch.float64)  # later tokens orthogonal to the prefix
        hidden[..., 3:] = torch.randn(5, 6, 17, generator=generator).double()
        hidden[:, 0] = 0.0
        hidden[:, 0, :3] = prefix_hidden
        probs = simplex(generator, 5, 6, 4)
        probs[:, 0] = prefix_probs
        tokens = torch.randint(4, (5, 6), generator=generator)
        tokens[:, 0] = 1
        size = float((prefix_probs.square().sum() - 2 * prefix_probs[1] + 1) * prefix_hidden.square().sum())
        for aggregation in ("token-mean", "seq-mean-token-sum", "seq-mean-token-mean"):
            total = float(shared_prefix_weight(advantages, lengths, aggregation=aggregation))
            weights = loss_weights(advantages, mask, aggregation=aggregation)
            found = gwhes(hidden, probs, tokens, mask, weights).total[:, 0]
            torch.testing.assert_close(
                found, torch.full((5,), -total * size, dtype=torch.float64), rtol=1e-10, atol=TINY
            )
            if aggregation == "seq-mean-token-mean":
                assert np.sign(total) == sign
                covariance = np.cov(advantages.numpy(), 1 / lengths.numpy(), ddof=0)[0, 1]
                assert total == pytest.approx(covariance, rel=1e-6)
            else:
                assert abs(total) < 1e-15
    with pytest.raises(LldsimError, match="lengths has the value 0"):
        shared_prefix_weight(advantages, torch.tensor([1, 1, 1, 1, 0]), aggregation="token-mean")


def enumerated_drift(pi: Tensor, mu: Tensor, p_win: float, only_wrong: bool, size: int = 3) -> tuple[Tensor, float]:
    """Exact E[sum_i A_i (e_a - pi)] over all rewards and tokens of a group, and E[sum of A over the visits].

    `only_wrong`: the context is visited by wrong responses alone, as the turns after an invalid action are.
    """
    drift, visits, vocab = torch.zeros_like(pi), 0.0, pi.shape[-1]
    for rewards in itertools.product([0.0, 1.0], repeat=size):
        chance = float(np.prod([p_win if r else 1 - p_win for r in rewards]))
        advantages = group_advantages(torch.tensor(rewards).double(), torch.zeros(size, dtype=torch.int64), eps=0.0)
        present = [not only_wrong or r == 0.0 for r in rewards]
        visits += chance * sum(float(a) for a, here in zip(advantages, present, strict=True) if here)
        for tokens in itertools.product(range(vocab), repeat=size):
            weight = chance * float(mu[list(tokens)].prod())
            for advantage, token, here in zip(advantages, tokens, present, strict=True):
                if here:
                    drift += weight * advantage * (torch.eye(vocab, dtype=torch.float64)[token] - pi)
    return drift, visits


def test_mean_drift_by_enumeration_and_the_on_policy_null(generator: torch.Generator) -> None:
    pi, mu = simplex(generator, 2, 3)
    for only_wrong in (False, True):
        null, visits = enumerated_drift(pi, pi, 0.6, only_wrong)
        assert float(null.abs().max()) < 1e-15
        drift, _ = enumerated_drift(pi, mu, 0.6, only_wrong)
        torch.testing.assert_close(drift, mean_drift(pi, mu, visits), rtol=1e-12, atol=1e-15)
        assert (visits < -0.1) if only_wrong else abs(visits) < 1e-15
    assert float(mean_drift(pi, pi, -3.0).abs().max()) == 0.0
    # A sharper sampler and a negative mean advantage: the likeliest token is pushed down, the others up.
    sharp = mean_drift(pi, torch.softmax(pi.log() / 0.5, -1), -1.0)
    assert sharp[pi.argmax()] < 0
    assert sharp[pi.argmin()] > 0


def test_importance_weights_remove_the_drift_and_a_cap_leaves_the_closed_form(generator: torch.Generator) -> None:
    pi, mu = simplex(generator, 2, 6)
    one_hot = torch.eye(6, dtype=torch.float64)
    for cap in (0.5, 1.0, 2.0, 1e9):
        weighted = sum(mu[a] * torch.clamp(pi[a] / mu[a], max=cap) * -0.7 * (one_hot[a] - pi) for a in range(6))
        torch.testing.assert_close(
            mean_drift(pi, mu, -0.7, importance_cap=cap), torch.as_tensor(weighted), rtol=1e-12, atol=1e-15
        )
    assert float(mean_drift(pi, mu, -0.7, importance_cap=1e9).abs().max()) < 1e-15


def test_no_feature_coupling_makes_the_on_policy_mean_drift(generator: torch.Generator) -> None:
    """Exact expectation of G of a fixed token over all groups of two, both contexts coupled by random <h, h'>."""
    contexts, hidden = simplex(generator, 2, 3), torch.randn(2, 4, generator=generator).double()
    probe = torch.tensor([[0]])
    for mu, low, high in ((contexts, 0.0, 1e-15), (torch.softmax(2 * contexts.log(), -1), 1e-3, 1e3)):
        mean = 0.0
        # Response 0 wins; it visits context 0. Response 1 loses; it visits contexts 0 and 1.
        for a, b, c in itertools.product(range(3), repeat=3):
            chance = float(mu[0, a] * mu[0, b] * mu[1, c])
            rows = torch.tensor([[0, 0, 0], [0, 0, 1]])
            tokens = torch.tensor([[int(probe), a, 0], [0, b, c]])
            mask = torch.tensor([[True, True, False], [False, True, True]])
            weights = torch.tensor([0.5, -0.5]).double()
            parts = gwhes(hidden[rows], contexts[rows], tokens, mask, weights)
            mean += chance * float(parts.total[0, 0] - parts.own[0, 0])
        assert low <= abs(mean) <= high


def test_map_and_contour_are_the_kernel(generator: torch.Generator) -> None:
    """A group of 5 with 3 correct: the map's G is the kernel's, and the sign changes at the closed contour."""
    vocab, p, rate = 6, 0.7, 0.6
    wrong_likelihoods, similarities = np.linspace(0, 0.95, 9), np.linspace(0, 1, 11)
    positive, negative = group_weights(rate)
    masses = {"mass_correct": 3 * positive, "mass_wrong": 2 * negative}
    table = gwhes_map(similarities, wrong_likelihoods, p_correct=p, vocab=vocab, **masses)
    weights = torch.tensor([positive] * 3 + [-negative] * 2, dtype=torch.float64)

    def kernel(similarity: float, q: float) -> float:
        hidden = torch.zeros(5, 1, 2, dtype=torch.float64)
        hidden[:3, 0, 0] = 1.0
        hidden[3:, 0] = torch.tensor([similarity, max(0.0, 1 - similarity**2) ** 0.5], dtype=torch.float64)
        probs = torch.full((5, 1, vocab), (1 - p) / (vocab - 1), dtype=torch.float64)
        probs[3:] = (1 - q) / (vocab - 1)
        probs[:3, 0, 2], probs[3:, 0, 2] = p, q
        mask = torch.ones(5, 1, dtype=torch.bool)
        return float(gwhes(hidden, probs, torch.full((5, 1), 2), mask, weights).total[0, 0])

    for i, similarity in enumerate(similarities):
        for j, q in enumerate(wrong_likelihoods):
            assert kernel(float(similarity), float(q)) == pytest.approx(table[i, j], abs=1e-13)
    contour = zero_contour(wrong_likelihoods, p_correct=p, **masses)
    np.testing.assert_allclose(contour, (1 - p) / (1 - wrong_likelihoods), rtol=1e-12)  # sum A = 0: masses cancel
    for q, edge in zip(wrong_likelihoods, contour, strict=True):
        if edge < 0.99:
            assert kernel(float(edge) - 1e-3, float(q)) < 0 < kernel(float(edge) + 1e-3, float(q))
    np.testing.assert_allclose(
        pair_gwhes(contour, wrong_likelihoods, p_correct=p, vocab=vocab, **masses), 0, atol=1e-14
    )
    assert float(zero_contour(1.0, p_correct=p)) == np.inf
    for bad in ({"p_correct": 1.5, "vocab": 3}, {"p_correct": 0.5, "vocab": 1}):
        with pytest.raises(LldsimError, match=r"1\.5|vocab = 1"):
            pair_gwhes(0.5, 0.5, **bad)
    with pytest.raises(LldsimError, match="mass_wrong = 0"):
        zero_contour(0.5, p_correct=0.5, mass_wrong=0.0)


def test_lever_map_is_the_kernel_for_any_two_tokens(generator: torch.Generator) -> None:
    """Random distributions, same and different tokens: G on the grid, and its sign on both sides of the contour."""
    signs = set()
    for trial in range(60):
        policy, other = torch.softmax(2.0 * torch.randn(2, 5, generator=generator, dtype=torch.float64), -1)
        wrong = trial % 2
        rho = with_likelihood(other, wrong, 0.0)
        kappa = float(lever_coefficient(policy, 0, other, wrong))
        own = float(residual(policy, torch.tensor(0)).square().sum())
        masses = {"mass_correct": 0.5 + trial % 3, "mass_wrong": 1.5}

        def kernel(similarity: float, q: float, policy=policy, rho=rho, wrong=wrong, masses=masses) -> float:
            hidden = torch.tensor([[1.0, 0.0], [similarity, 1.0]], dtype=torch.float64)[:, None]
            probs = torch.stack([policy, (1 - q) * rho])
            probs[1, wrong] += q
            weights = torch.tensor([masses["mass_correct"], -masses["mass_wrong"]], dtype=torch.float64)
            mask = torch.ones(2, 1, dtype=torch.bool)
            return float(gwhes(hidden, probs[:, None], torch.tensor([[0], [wrong]]), mask, weights).total[0, 0])

        for q in (0.0, 0.3, 0.9):
            for similarity in (-0.7, 0.0, 0.4, 1.0):
                closed = float(lever_gwhes(similarity, q, kappa=kappa, own=own, **masses))
                assert kernel(similarity, q) == pytest.approx(closed, abs=1e-13)
            edge = float(lever_zero_contour(q, kappa=kappa, own=own, **masses))
            assert (edge > 0) == (kappa > 0)
            beyond = edge * 1.001  # further out from 0, where the wrong token wins
            assert kernel(edge * 0.999, q) < 0 < kernel(beyond, q)
        signs.add((wrong, kappa > 0))
    assert signs == {(0, True), (1, True), (1, False)}  # the same token always hurts; another one may do either
    with pytest.raises(LldsimError, match="kappa = 0"):
        lever_zero_contour(0.5, kappa=0.0, own=0.1)
