"""Locks the sums of Theorem A.1 and their attribution.

- linear-memory sums = explicit double sum over token pairs, at token, action and response level; parts and own term
- alpha is the residual product, in its limits too (similarity 0 and 1, p -> 0, p -> 1: exact)
- groups and runs do not leak into each other; what stands off the mask (NaN included) reaches nothing
- the table's pulls sum to G, are ranked, and name the true pair; a batch whose dense matrix would take 34 GB runs
- every wrong input raises a typed error that names tensor and index
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from theory_groups import Group, random_group
from torch import Tensor

from lldsim.errors import GroupError, LldsimError, MissingDataError, NonFiniteError, ShapeError
from lldsim.theory import (
    Gwhes,
    alpha,
    attribution_matrix,
    attribution_table,
    gwhes,
    hidden_gram,
    probs_from_logps,
    pull_map,
    residual,
    sum_actions,
    weights_from_advantages,
)

seeds = st.integers(0, 2**31)


def close(value: Tensor, twin: Tensor) -> None:
    torch.testing.assert_close(value, twin, rtol=1e-10, atol=1e-12)


def brute_force(group: Group) -> tuple[Tensor, Tensor]:
    """The theorem as printed: four nested loops; returns (negative, positive) per token."""
    hidden, probs, tokens, mask = group.inputs
    parts = torch.zeros(2, *mask.shape, dtype=torch.float64)
    where = mask.nonzero().tolist()
    for i, t in where:
        for j, s in where:
            same = alpha(probs[i, t], tokens[i, t], probs[j, s], tokens[j, s])
            weight = group.advantages[j]
            parts[0 if weight < 0 else 1, i, t] += weight.abs() * same * (hidden[i, t] @ hidden[j, s])
    return parts[0], parts[1]


@given(seed=seeds, max_action=st.integers(1, 4), max_feedback=st.integers(0, 2))
def test_sums_equal_the_double_sum(seed: int, max_action: int, max_feedback: int) -> None:
    group = random_group(torch.Generator().manual_seed(seed), size=3, max_action=max_action, max_feedback=max_feedback)
    negative, positive = brute_force(group)
    token = gwhes(*group.inputs, group.advantages)
    close(token.negative, negative)
    close(token.positive, positive)
    action = gwhes(*group.inputs, group.advantages, level="action", action_id=group.action_id)
    response = gwhes(*group.inputs, group.advantages, level="response")
    for part in ("negative", "positive", "total"):
        per_token = getattr(token, part)
        close(getattr(action, part), sum_actions(per_token, group.action_id))
        close(getattr(response, part), per_token.sum(-1))


@given(seed=seeds)
def test_own_term_is_the_diagonal_block_of_the_attribution(seed: int) -> None:
    group = random_group(torch.Generator().manual_seed(seed), size=3)
    pulls = attribution_matrix(*group.inputs, group.advantages)
    close(pulls.sum((-1, -2)), gwhes(*group.inputs, group.advantages).total)
    length = group.mask.shape[1]
    flat = pulls.reshape(3 * length, 3 * length)
    own = gwhes(*group.inputs, group.advantages).own
    close(own.flatten(), flat.diagonal())
    by_action = gwhes(*group.inputs, group.advantages, level="action", action_id=group.action_id).own
    by_response = gwhes(*group.inputs, group.advantages, level="response").own
    for i in range(3):
        close(by_response[i], pulls[i, :, i].sum())
        for a in range(by_action.shape[1]):
            here = group.action_id[i] == a
            close(by_action[i, a], pulls[i, :, i][here][:, here].sum())


def test_own_term_opposes_a_wrong_and_favours_a_correct_response(generator: torch.Generator) -> None:
    group = random_group(generator, size=5, vocab=5)
    own = gwhes(*group.inputs, group.advantages, level="response").own
    assert torch.equal(own < 0, group.advantages > 0)


def test_alpha_is_the_residual_product(generator: torch.Generator) -> None:
    first, second = torch.softmax(torch.randn(2, 40, 5, generator=generator, dtype=torch.float64), -1)
    y, z = torch.randint(5, (2, 40), generator=generator)
    close(alpha(first, y, second, z), (residual(first, y) * residual(second, z)).sum(-1))
    assert bool((y == z).any())
    assert bool((y != z).any())


def two_tokens(p: list[float], q: list[float], similarity: float, y: tuple[int, int] = (0, 0)) -> Gwhes:
    """G of one correct token (probabilities p, token y[0]) under one wrong one (q, y[1]) at the given <h, h'>."""
    hidden = torch.tensor([[[1.0, 0.0]], [[similarity, (1 - similarity**2) ** 0.5]]], dtype=torch.float64)
    probs = torch.tensor([[p], [q]], dtype=torch.float64)
    mask = torch.ones(2, 1, dtype=torch.bool)
    return gwhes(hidden, probs, torch.tensor([[y[0]], [y[1]]]), mask, torch.tensor([1.0, -1.0]).double())


def test_limits_are_exact() -> None:
    """Binary fractions throughout, so == is meant."""
    none = two_tokens([0.5, 0.25, 0.25], [0.25, 0.5, 0.25], 0.0)
    assert float(none.negative[0, 0]) == 0.0
    assert float(none.total[0, 0]) == -0.375  # what is left is the token's own term, -|r|^2
    # Similarity 1, one context, one token: right and wrong cancel.
    assert float(two_tokens([0.5, 0.25, 0.25], [0.5, 0.25, 0.25], 1.0).total[0, 0]) == 0.0
    # q -> 0 on the same token: alpha = 1 - p + sum_{v != y} pi pi'.
    assert float(two_tokens([0.5, 0.25, 0.25], [0.0, 0.5, 0.5], 1.0).negative[0, 0]) == 0.75
    # q -> 1: the wrong token's residual is 0.  p -> 1: the correct token's is.
    assert float(two_tokens([0.5, 0.25, 0.25], [1.0, 0.0, 0.0], 1.0).negative[0, 0]) == 0.0
    assert float(two_tokens([1.0, 0.0, 0.0], [0.0, 0.5, 0.5], 1.0).scale[0, 0]) == 0.0
    # p -> 0 and q -> 0 with the same dominant third token: the largest alpha, 2.
    assert float(two_tokens([0.0, 0.0, 1.0], [0.0, 0.0, 1.0], 1.0).negative[0, 0]) == 2.0
    # Different tokens, p -> 0 and q -> 0, dominant third: 1.
    assert float(two_tokens([0.0, 0.0, 1.0], [0.0, 0.0, 1.0], 1.0, (0, 1)).negative[0, 0]) == 1.0


def stacked(groups: list[Group]) -> tuple[Tensor, ...]:
    """Concatenate groups of one shape on the response axis; the last item numbers the group."""
    parts = [(*g.inputs, g.advantages, g.action_id) for g in groups]
    joined = tuple(torch.cat(column) for column in zip(*parts, strict=True))
    return *joined, torch.arange(len(groups)).repeat_interleave(len(groups[0].advantages))


def test_groups_and_runs_stay_apart_unless_asked() -> None:
    shape = {"size": 3, "vocab": 4, "dim": 3, "max_action": 1, "max_feedback": 0}
    groups: list[Group] = []
    generator = torch.Generator().manual_seed(11)
    while len(groups) < 3:
        group = random_group(generator, **shape)
        if group.mask.shape[1] == 3:
            groups.append(group)
    *body, weights, ids, number = stacked(groups)
    apart = gwhes(body[0], body[1], body[2], body[3], weights, group=number + 40, level="action", action_id=ids)
    for k, group in enumerate(groups):
        alone = gwhes(*group.inputs, group.advantages, level="action", action_id=group.action_id).total
        close(apart.total[3 * k : 3 * k + 3, : alone.shape[1]], alone)
    together = gwhes(body[0], body[1], body[2], body[3], weights, level="action", action_id=ids)
    assert (together.total - apart.total).abs().max() > 1e-3
    # The same three groups on a run axis, group numbers repeated in every run: no leak either.
    runs = [x.reshape(3, 3, *x.shape[1:]) for x in (*body, weights, ids)]
    for number_in_run in (torch.zeros(3, dtype=torch.int64), None):
        on_axis = gwhes(
            runs[0], runs[1], runs[2], runs[3], runs[4], group=number_in_run, level="action", action_id=runs[5]
        )
        close(on_axis.total.reshape(apart.total.shape), apart.total)


def test_garbage_off_the_mask_reaches_nothing(generator: torch.Generator) -> None:
    group = random_group(generator, size=4, max_feedback=3)
    hidden, probs, tokens, mask = group.inputs
    assert not mask.all()
    dirty = torch.where(mask[..., None], hidden, torch.nan), torch.where(mask[..., None], probs, torch.inf)
    clean = gwhes(hidden, probs, tokens, mask, group.advantages)
    soiled = gwhes(*dirty, torch.where(mask, tokens, 10**6), mask, group.advantages)
    assert torch.equal(soiled.total, clean.total)
    assert bool((clean.total[~mask] == 0).all())


def test_table_ranks_sums_and_names_the_pair(generator: torch.Generator) -> None:
    group = random_group(generator, size=4, vocab=4, dim=3)
    row = int((group.advantages > 0).nonzero()[0, 0])
    table = attribution_table(*group.inputs, group.advantages, row=row, action=0, action_id=group.action_id, top=None)
    total = gwhes(*group.inputs, group.advantages, level="action", action_id=group.action_id).total[row, 0]
    assert len(table) == int(group.mask.sum())
    assert sum(s.pull for s in table) == pytest.approx(float(total), rel=1e-10)
    assert [s.pull for s in table] == sorted((s.pull for s in table), reverse=True)
    pulls = attribution_matrix(*group.inputs, group.advantages)
    here = group.action_id[row] == 0
    for s in table:
        column = pulls[row, :, s.row, s.position]
        assert s.pull == pytest.approx(float(column[here].sum()), abs=1e-12)
        assert -s.weight * s.alpha * s.similarity == pytest.approx(float(column[s.target_position]), abs=1e-12)
        assert float(column[here].abs().max()) == pytest.approx(abs(float(column[s.target_position])), abs=1e-12)
        assert s.token == int(group.tokens[s.row, s.position])
        assert s.action == int(group.action_id[s.row, s.position])
    by_size = attribution_table(*group.inputs, group.advantages, row=row, top=3, order="size")
    whole = pulls[row].sum(0)[group.mask].abs().sort(descending=True).values[:3]
    close(torch.tensor([abs(s.pull) for s in by_size], dtype=torch.float64), whole)


def test_pull_map_is_one_block_of_the_matrix(generator: torch.Generator) -> None:
    group = random_group(generator, size=4)
    block = pull_map(*group.inputs, group.advantages, target_row=1, source_row=2)
    close(block, attribution_matrix(*group.inputs, group.advantages)[1, :, 2])


def test_attribution_stops_at_the_group_border(generator: torch.Generator) -> None:
    group = random_group(generator, size=4)
    border = torch.tensor([0, 0, 1, 1])
    weights = torch.tensor([1.0, -1.0, 1.0, -1.0]).double()
    pulls = attribution_matrix(*group.inputs, weights, group=border)
    assert float(pulls[:2, :, 2:].abs().max()) == 0.0
    close(pulls.sum((-1, -2)), gwhes(*group.inputs, weights, group=border).total)


def test_case_one_the_different_entity_pulls_and_the_shared_plan_cancels() -> None:
    """Right and wrong share plan and query and differ in the last token, under a dominant third entity."""
    plan = torch.eye(4, dtype=torch.float64)[:3].expand(2, 3, 4)
    probs = torch.tensor([[0.6, 0.2, 0.1, 0.1], [0.3, 0.5, 0.1, 0.1], [0.05, 0.05, 0.1, 0.8]], dtype=torch.float64)
    probs = probs.expand(2, 3, 4)
    tokens = torch.tensor([[0, 1, 0], [0, 1, 1]])
    mask, weights = torch.ones(2, 3, dtype=torch.bool), torch.tensor([1.0, -1.0]).double()
    total = gwhes(plan, probs, tokens, mask, weights).total
    assert float(total[0, :2].abs().max()) <= 1e-15
    table = attribution_table(plan, probs, tokens, mask, weights, row=0, group=None, top=3)
    entity = next(s for s in table if s.row == 1 and s.position == 2)
    assert entity.pull == pytest.approx(0.655 - 0.1, abs=1e-12)  # |pi|^2 - pi(y+) - pi(y-) = .655 - .05 - .05
    assert (entity.token, entity.target_position, entity.similarity) == (1, 2, 1.0)


def test_a_large_batch_needs_no_square(generator: torch.Generator) -> None:
    """65,536 tokens: the dense matrix would take 34 GB; three rows of it are computed directly instead."""
    shape = (64, 1024)
    hidden = torch.randn(*shape, 16, generator=generator, dtype=torch.float64) / 4
    probs = torch.softmax(torch.randn(*shape, 8, generator=generator, dtype=torch.float64), -1)
    tokens = torch.randint(8, shape, generator=generator)
    mask = torch.rand(shape, generator=generator) < 0.9
    weights = torch.randn(64, generator=generator, dtype=torch.float64)
    total = gwhes(hidden, probs, tokens, mask, weights).total
    r = residual(probs, tokens, mask)
    for i, t in ((0, 0), (17, 1023), (63, 500)):
        products = (r @ r[i, t]) * hidden_gram(hidden, hidden[i, t][None])[..., 0]
        assert float(total[i, t]) == pytest.approx(-float((weights[:, None] * products).sum()), rel=1e-9, abs=1e-9)


def broken(group: Group, **change: Any) -> dict[str, Any]:
    hidden, probs, tokens, mask = group.inputs
    given = {"hidden": hidden, "probs": probs, "tokens": tokens, "action_mask": mask, "weights": group.advantages}
    return {**given, **change}


def test_wrong_shapes_name_the_tensor(generator: torch.Generator) -> None:
    group = random_group(generator, size=3, max_action=3)
    hidden, probs, tokens, mask = group.inputs
    for name, tensor in (("probs", probs[:, :-1]), ("tokens", tokens[:-1]), ("weights", group.advantages[:-1])):
        with pytest.raises(ShapeError, match=f"{name} has shape"):
            gwhes(**broken(group, **{name: tensor}))
    with pytest.raises(ShapeError, match="action_mask has shape"):
        gwhes(**broken(group, action_mask=mask[:, :-1]))
    with pytest.raises(ShapeError, match="group has shape"):
        gwhes(**broken(group), group=torch.zeros(2, dtype=torch.int64))
    with pytest.raises(ShapeError, match="needs action_id"):
        gwhes(**broken(group), level="action")
    with pytest.raises(ShapeError, match=r"action_id\[0, 0\] is negative"):
        gwhes(**broken(group), level="action", action_id=torch.full_like(tokens, -1))
    with pytest.raises(ShapeError, match="is needed"):
        gwhes(**broken(group, hidden=hidden[0]))
    with pytest.raises(ShapeError, match=r"tokens\[0, 0\] = 99 .* outside 0\.\."):
        gwhes(**broken(group, tokens=tokens.index_put((torch.tensor(0), torch.tensor(0)), torch.tensor(99))))
    with pytest.raises(ShapeError, match="one run"):
        attribution_matrix(**{k: v[None] for k, v in broken(group).items()})
    with pytest.raises(MissingDataError, match="no action token in action 9"):
        attribution_table(**broken(group), row=0, action=9, action_id=group.action_id)


@pytest.mark.parametrize("value", [torch.nan, torch.inf, -torch.inf])
def test_non_finite_values_name_the_index(generator: torch.Generator, value: float) -> None:
    group = random_group(generator, size=3, vocab=3)
    at = tuple(group.mask.nonzero()[1])
    for name in ("hidden", "probs"):
        bad = broken(group)[name].clone()
        bad[at][0] = value
        with pytest.raises(NonFiniteError, match=rf"{name}\[{int(at[0])}, {int(at[1])}, 0\] is"):
            gwhes(**broken(group, **{name: bad}))
    logps = group.probs.log()
    logps[at][0] = value
    with pytest.raises(NonFiniteError, match=rf"logps_all\[{int(at[0])}, {int(at[1])}, 0\] is"):
        probs_from_logps(logps, group.mask)
    weights = group.advantages.clone()
    weights[2] = value
    with pytest.raises(NonFiniteError, match=r"weights\[2\]"):
        gwhes(**broken(group, weights=weights))


def test_log_probabilities_passed_as_probabilities_are_refused(generator: torch.Generator) -> None:
    group = random_group(generator)
    with pytest.raises(LldsimError, match="pass probabilities"):
        gwhes(**broken(group, probs=group.probs.log()))
    close(
        gwhes(**broken(group, probs=probs_from_logps(group.probs.log(), group.mask))).total,
        gwhes(**broken(group)).total,
    )


def test_a_group_without_both_kinds_is_refused_by_name(generator: torch.Generator) -> None:
    group = random_group(generator, size=4)
    weights, number = torch.tensor([1.0, -1.0, 1.0, 1.0]).double(), torch.tensor([0, 0, 5, 5])
    with pytest.raises(GroupError, match=r"weights\[2\] has no wrong"):
        gwhes(**broken(group, weights=weights), group=number)
    with pytest.raises(GroupError, match=r"weights\[2\] has no correct"):
        gwhes(**broken(group, weights=-weights.abs() * torch.tensor([-1, 1, 1, 1])), group=number)
    with pytest.raises(GroupError, match=r"advantages\[2\] has no wrong"):
        weights_from_advantages(weights, number)
    tied = gwhes(**broken(group, weights=weights * torch.tensor([1, 1, 0, 0])), group=number, tied_groups="zero")
    assert float(tied.scale[2:].abs().max()) == 0.0
    assert float(tied.scale[:2].abs().max()) > 0.0
