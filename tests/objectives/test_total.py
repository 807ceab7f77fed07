"""Locks Eq. 6 as `total_loss` assembles it from an `ObjectiveConfig`.

- the sum of the parts with their coefficients, for both surrogates and all aggregations; metrics report the parts
- each dial reaches its part: kl_form, clip_eps_high, dual_clip, ratio_to, tis_cap, gate, normalizer, answer weight
- negative_weight = 0 equals A clipped at 0 in the surrogate, and never enlarges LLDS's preserving set
- a coefficient of 0 leaves the term out of value and gradient but still measures it; old = new makes LLDS inert
- a tensor the configuration needs and lacks: ConfigError that names it; NaN on masked tokens leaks nowhere
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any, get_args

import pytest
import torch

from lldsim.config import ObjectiveConfig
from lldsim.errors import ConfigError
from lldsim.names import Aggregation
from lldsim.objectives import (
    aggregate,
    clipped_surrogate,
    kl_k3,
    llds_penalty,
    sequence_surrogate,
    total_loss,
    truncated_weights,
)

BARE = ObjectiveConfig(kl_coef=0.0, entropy_coef=0.0, llds_coef=0.0)
FULL = ObjectiveConfig(kl_coef=0.3, entropy_coef=0.07, llds_coef=0.2)


@pytest.fixture
def batch() -> dict[str, Any]:
    generator = torch.Generator().manual_seed(2)

    def noise(scale: float) -> torch.Tensor:
        return scale * torch.randn(5, 8, dtype=torch.float64, generator=generator)

    old = -torch.rand(5, 8, dtype=torch.float64, generator=generator) - 0.2
    return {
        "logps": (old + noise(0.4)).requires_grad_(),
        "old_logps": old,
        "advantages": torch.tensor([1.0, -1.0, 0.5, -2.0, 0.0], dtype=torch.float64),
        "action_mask": torch.rand(5, 8, generator=generator) < 0.75,
        "ref_logps": old + noise(0.5),
        "entropy": torch.rand(5, 8, dtype=torch.float64, generator=generator, requires_grad=True),
        "sampler_logps": old + noise(0.5),
        "answer_mask": torch.rand(5, 8, generator=generator) < 0.3,
    }


def main(batch: dict[str, Any]) -> tuple[torch.Tensor, ...]:
    return tuple(batch[name] for name in ("logps", "old_logps", "advantages", "action_mask"))


def loss_and_grad(batch: dict[str, Any], config: ObjectiveConfig, **more: Any) -> tuple[float, torch.Tensor]:
    loss, _ = total_loss(**batch, config=config, **more)
    return loss.item(), torch.autograd.grad(loss, batch["logps"])[0]


def assert_same(first: tuple[float, torch.Tensor], second: tuple[float, torch.Tensor]) -> None:
    assert first[0] == pytest.approx(second[0], abs=1e-14)
    torch.testing.assert_close(first[1], second[1], rtol=0, atol=1e-14)


@pytest.mark.parametrize("aggregation", get_args(Aggregation))
@pytest.mark.parametrize(("name", "surrogate"), [("grpo", clipped_surrogate), ("gspo", sequence_surrogate)])
def test_is_the_sum_of_its_parts(batch: dict[str, Any], name: Any, surrogate, aggregation: Aggregation) -> None:
    config = replace(FULL, surrogate=name, aggregation=aggregation, gate="response", normalizer="all")
    mask = batch["action_mask"]
    parts = {
        "surrogate": surrogate(*main(batch), aggregation=aggregation)[0],
        "kl": aggregate(kl_k3(batch["logps"], batch["ref_logps"]), mask, aggregation),
        "entropy": aggregate(batch["entropy"], mask, aggregation),
        "llds": llds_penalty(*main(batch), gate="response", normalizer="all")[0],
    }
    expected = parts["surrogate"] + 0.3 * parts["kl"] - 0.07 * parts["entropy"] + 0.2 * parts["llds"]
    loss, metrics = total_loss(**batch, config=config)
    assert metrics["llds"].item() > 0
    for wanted in (batch["logps"], batch["entropy"]):
        torch.testing.assert_close(
            *(torch.autograd.grad(x, wanted, retain_graph=True)[0] for x in (loss, expected)), rtol=0, atol=1e-14
        )
    assert loss.item() == pytest.approx(expected.item(), abs=1e-14) == metrics["loss"].item()
    assert {k: metrics[k].item() for k in parts} == pytest.approx({k: v.item() for k, v in parts.items()}, abs=1e-14)
    assert not any(value.requires_grad for value in metrics.values())
    assert all(value.ndim == 0 for value in metrics.values())


@pytest.mark.parametrize(
    ("dials", "options"),
    [
        ({"clip_eps": 0.05}, {"clip_eps": 0.05}),
        ({"clip_eps_high": 0.6}, {"clip_eps_high": 0.6}),
        ({"dual_clip": 1.3}, {"dual_clip": 1.3}),
        ({"ratio_to": "sampler"}, {"denominator_logps": "sampler_logps"}),
        ({"tis_cap": 1.2}, {"token_weights": "truncated"}),
    ],
)
@pytest.mark.parametrize(("name", "surrogate"), [("grpo", clipped_surrogate), ("gspo", sequence_surrogate)])
def test_surrogate_dials_reach_the_surrogate(
    batch: dict[str, Any], name: Any, surrogate, dials: dict[str, Any], options: dict[str, Any]
) -> None:
    base = replace(BARE, surrogate=name)
    weights = (batch["old_logps"] - batch["sampler_logps"]).exp().clamp(max=1.2)
    named = {"sampler_logps": batch["sampler_logps"], "truncated": weights}
    options = {key: named.get(value, value) for key, value in options.items()}
    direct = surrogate(*main(batch), aggregation=base.aggregation, **options)[0]
    expected = direct.item(), torch.autograd.grad(direct, batch["logps"])[0]
    turned = loss_and_grad(batch, replace(base, **dials))
    assert_same(turned, expected)
    if not (name == "gspo" and set(dials) <= {"clip_eps_high", "dual_clip"}):  # a sequence ratio stays inside these
        assert turned[0] != loss_and_grad(batch, base)[0]


def test_negative_weight_zero_is_positive_only_and_spares_llds(batch: dict[str, Any]) -> None:
    config = replace(FULL, negative_weight=0.0)
    clipped = batch | {"advantages": batch["advantages"].clamp(min=0)}
    assert_same(loss_and_grad(batch, replace(BARE, negative_weight=0.0)), loss_and_grad(clipped, BARE))
    preserved = [total_loss(**batch, config=c)[1]["preserved_tokens"].item() for c in (FULL, config)]
    assert preserved[0] == preserved[1] < batch["action_mask"].sum().item()


def test_negative_weight_scales_the_wrong_half(batch: dict[str, Any]) -> None:
    losses = [loss_and_grad(batch, replace(BARE, negative_weight=w))[0] for w in (0.0, 0.25, 1.0)]
    assert losses[1] == pytest.approx(losses[0] + 0.25 * (losses[2] - losses[0]))


@pytest.mark.parametrize("form", ["linear", "raw"])
def test_kl_form_is_used(batch: dict[str, Any], form: Any) -> None:
    far = batch | {"ref_logps": batch["old_logps"] + 4.0}
    config = replace(BARE, kl_coef=1.0)
    clamped, other = (total_loss(**far, config=c)[1]["kl"].item() for c in (config, replace(config, kl_form=form)))
    assert clamped <= 10 < other


def test_zero_coefficients_measure_without_acting(batch: dict[str, Any]) -> None:
    loss, metrics = total_loss(**batch, config=BARE)
    bare, _ = clipped_surrogate(*main(batch))
    torch.testing.assert_close(*(torch.autograd.grad(x, batch["logps"])[0] for x in (loss, bare)), rtol=0, atol=0)
    _, full = total_loss(**batch, config=FULL)
    assert {k: metrics[k].item() for k in ("kl", "entropy", "llds")} == pytest.approx(
        {k: full[k].item() for k in ("kl", "entropy", "llds")}
    )


def test_first_update_on_a_batch_has_no_llds(batch: dict[str, Any]) -> None:
    still = batch | {"logps": batch["old_logps"].clone().requires_grad_()}
    config = replace(FULL, llds_coef=0.0)
    assert_same(loss_and_grad(still, FULL), loss_and_grad(still, config))
    assert loss_and_grad(batch, FULL)[0] > loss_and_grad(batch, config)[0]


@pytest.mark.parametrize(("rule", "weight"), [("paper", 0.75), ("released", 0.5)])
def test_answer_rule_sets_the_weight(batch: dict[str, Any], rule: Any, weight: float) -> None:
    adaptive = replace(FULL, answer_weight_rule=rule)
    fixed = replace(FULL, answer_weight=weight)
    assert_same(loss_and_grad(batch, adaptive, mean_valid_searches=1.5), loss_and_grad(batch, fixed))
    assert loss_and_grad(batch, fixed)[0] < loss_and_grad(batch, FULL)[0]
    _, metrics = total_loss(**batch, config=adaptive, mean_valid_searches=torch.tensor(1.5))
    assert metrics["answer_weight"].item() == pytest.approx(weight)


def test_truncated_weights_and_the_sampler_gap(batch: dict[str, Any]) -> None:
    old, sampler = torch.tensor([[math.log(0.5), 0.0, 0.0]]), torch.tensor([[math.log(0.1), math.log(0.8), math.nan]])
    mask = torch.tensor([[1, 1, 0]])
    assert truncated_weights(old, sampler, mask, cap=2.0).tolist() == [pytest.approx([2.0, 1.25, 1.0])]
    weights = truncated_weights(old, sampler.requires_grad_(), mask, cap=2.0)
    assert not weights.requires_grad
    _, metrics = total_loss(**batch, config=BARE)
    gap = (batch["old_logps"] - batch["sampler_logps"]).abs()[batch["action_mask"]]
    assert metrics["sampler_gap"].item() == pytest.approx(gap.mean().item())


def test_masked_nan_leaks_nowhere(batch: dict[str, Any]) -> None:
    config = replace(FULL, tis_cap=2.0, answer_weight=0.5)
    mask = batch["action_mask"]
    floats = ("logps", "old_logps", "ref_logps", "entropy", "sampler_logps")
    holed = batch | {name: torch.where(mask, batch[name], math.nan).detach() for name in floats}
    holed["logps"].requires_grad_()
    assert_same(loss_and_grad(holed, config), loss_and_grad(batch, config))


@pytest.mark.parametrize(("gate", "llds"), [("token", 0.375), ("action", 0.25), ("response", 0.0)])
def test_gate_reaches_llds(gate: Any, llds: float) -> None:
    """Two actions with drops (1.0) and (.5, -2.0), four tokens of the preserving set."""
    old, new = torch.full((1, 5), -3.0), torch.tensor([[-4.0, -3.0, -3.5, -1.0, -3.0]])
    batch = new, old, torch.ones(1), torch.tensor([[1, 0, 1, 1, 1]])
    assert total_loss(*batch, config=replace(BARE, gate=gate))[1]["llds"].item() == llds


def test_action_id_reaches_llds() -> None:
    old, new = torch.tensor([[-2.0, -2.0]]), torch.tensor([[-2.5, -1.0]])
    batch = new, old, torch.ones(1), torch.ones(1, 2)
    merged, apart = (
        total_loss(*batch, config=BARE, action_id=ids)[1]["llds"].item() for ids in (None, torch.tensor([[0, 1]]))
    )
    assert (merged, apart) == (0.0, 0.25)


@pytest.mark.parametrize(
    ("dials", "missing", "message"),
    [
        ({"kl_coef": 0.5}, "ref_logps", r"ref_logps is missing, and kl_coef=0.5 needs it; pass ref_logps="),
        ({"entropy_coef": 0.5}, "entropy", r"entropy is missing, and entropy_coef=0.5"),
        ({"ratio_to": "sampler"}, "sampler_logps", r"sampler_logps is missing, and ratio_to='sampler'"),
        ({"tis_cap": 2.0}, "sampler_logps", r"sampler_logps is missing, and tis_cap=2.0"),
        ({"llds_coef": 0.2, "answer_weight_rule": "paper"}, "", r"'paper' needs mean_valid_searches"),
        (
            {"llds_coef": 0.2, "answer_weight": 0.5},
            "answer_mask",
            r"answer_weight=0.5 has no effect without answer_mask",
        ),
    ],
)
def test_a_missing_tensor_is_named(batch: dict[str, Any], dials: dict[str, Any], missing: str, message: str) -> None:
    given = {name: tensor for name, tensor in batch.items() if name != missing}
    total_loss(**given, config=BARE)
    with pytest.raises(ConfigError, match=message):
        total_loss(**given, config=replace(BARE, **dials))


def test_adaptive_rule_needs_the_answer_mask(batch: dict[str, Any]) -> None:
    given = {name: tensor for name, tensor in batch.items() if name != "answer_mask"}
    config = replace(FULL, answer_weight_rule="paper")
    with pytest.raises(ConfigError, match="answer_mask is missing, and answer_weight_rule='paper'"):
        total_loss(**given, config=config, mean_valid_searches=2.0)
