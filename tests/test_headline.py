"""The headline directions on three seeds, paired: what collapses, what does not, what cures it.

Locked here: spiral collapses on every seed and its likelihood falls while reward still holds; LLDS .2 keeps both; the
null twin (no similarity) and the on-policy twin (sampler = trainer, not stale) do not collapse; with one optimiser
step per rollout LLDS is inert: the same trajectory, bit for bit, collapse included.
"""

from __future__ import annotations

import numpy as np
import pytest

from lldsim.config import RunConfig, matched_twin, preset
from lldsim.diagnostics.collapse import collapse_step, kept_share
from lldsim.diagnostics.phases import falls_while_reward_holds, find_phases
from lldsim.engine import simulate
from lldsim.record import RunRecord

SEEDS = (0, 1, 2)


def records(config: RunConfig) -> list[RunRecord]:
    return [simulate(config.replace(seed=seed)) for seed in SEEDS]


@pytest.fixture(scope="module")
def spiral() -> list[RunRecord]:
    return records(preset("spiral"))


def test_grpo_collapses_and_likelihood_falls_first(spiral: list[RunRecord]) -> None:
    for record in spiral:
        phases = find_phases(record)
        assert phases.decay is not None
        assert phases.collapsed is not None
        assert phases.decay < phases.collapsed
        assert falls_while_reward_holds(record) >= 5
        assert kept_share(record["reward"]) < 0.2


def test_llds_keeps_reward_and_likelihood(spiral: list[RunRecord]) -> None:
    for record, fallen in zip(records(preset("spiral").replace(llds_coef=0.2)), spiral, strict=True):
        assert collapse_step(record["reward"]) is None
        assert kept_share(record["reward"]) > 0.9
        assert record["reward"][0] == fallen["reward"][0]  # paired: the same first rollouts
        assert record["logp_correct"][-10:].mean() > record["logp_correct"][:3].mean()


@pytest.mark.parametrize("twin", ["null", "onpolicy"])
def test_twins_do_not_collapse(twin: str) -> None:
    config = preset("null") if twin == "null" else matched_twin(preset("spiral")).replace(staleness=0)
    for record in records(config):
        assert collapse_step(record["reward"]) is None
        assert kept_share(record["reward"]) > 0.9


def test_llds_is_inert_with_one_update_per_rollout() -> None:
    one = preset("spiral").replace(updates_per_rollout=1, learning_rate=250.0, allow_inert_llds=True, updates=100)
    without, with_llds = simulate(one), simulate(one.replace(llds_coef=0.2))
    assert collapse_step(without["reward"]) is not None
    for name in without.columns:
        np.testing.assert_array_equal(without[name], with_llds[name], err_msg=name)
