"""The headline, on few seeds: GRPO collapses, LLDS cures it, and the twins without the cause do not collapse.

Figures 2 and 8 and the causal table show the same with more seeds; this is the alarm that rings when a change to the
world, the engine or a default breaks the story: GRPO falls, LLDS does not, nor does any twin from which a needed cause
is taken away, and a small lambda delays. That LLDS with one update per rollout does nothing is locked in
test_equivalence.py. Under two minutes.
"""

from __future__ import annotations

import pytest

from lldsim.causal.settings import dial_config
from lldsim.diagnostics.collapse import collapse_step, kept_share, surge
from lldsim.diagnostics.phases import falls_while_reward_holds
from lldsim.dials import dial
from lldsim.engine import simulate
from lldsim.experiments import ablation_numbers, collapse_and_cure, lambda_ablation, run_arms

SEEDS = range(4)
# Dials whose null keeps 20 of 20 seeds from collapsing (paper_figures/data/figc1_causal_table.csv).
NEEDED = ("sharpness", "staleness", "sharpness_staleness", "similarity", "ood_feedback", "low_likelihood")


@pytest.fixture(scope="module")
def arms():
    return run_arms(collapse_and_cure(SEEDS), cache_dir=None)


def test_grpo_loses_its_reward_after_a_fall_in_likelihood_that_reward_does_not_show(arms):
    for record in arms["grpo"]:
        assert collapse_step(record["reward"]) is not None
        assert kept_share(record["reward"]) < 0.5
        assert falls_while_reward_holds(record) >= 5
    assert sum(surge(record["entropy"]) >= 2 for record in arms["grpo"]) >= 3
    assert sum(surge(record["grad_norm"]) >= 2 for record in arms["grpo"]) >= 3


@pytest.mark.parametrize("arm", ["llds", "null", "onpolicy"])
def test_the_cure_and_the_twins_keep_their_reward(arms, arm):
    for record in arms[arm]:
        assert collapse_step(record["reward"]) is None
        assert kept_share(record["reward"]) >= 0.95


def test_the_twins_start_where_grpo_starts(arms):
    for grpo, null, onpolicy in zip(arms["grpo"], arms["null"], arms["onpolicy"], strict=True):
        assert null["reward"][0] == grpo["reward"][0]  # same base policy, same draws: the same first rollouts
        assert onpolicy["reward"][0] == grpo["reward"][0]
        assert onpolicy["response_length"][0] == grpo["response_length"][0]


def test_a_small_lambda_delays_and_a_larger_one_prevents():
    numbers = ablation_numbers(run_arms(lambda_ablation(SEEDS, lambdas=(0.0, 0.03, 0.1)), cache_dir=None))
    assert numbers["0"]["collapsed"] == len(SEEDS)
    assert numbers["0.03"]["paired_delay"]["later"] == len(SEEDS)
    assert numbers["0.1"]["collapsed"] == 0


@pytest.mark.parametrize("name", NEEDED)
def test_without_a_needed_cause_nothing_collapses(name):
    """Without staleness a run falls to a plateau all the same, so the share it keeps is not asserted there."""
    twin = dial_config(dial(name), "null")
    for seed in (0, 1):
        record = simulate(twin.replace(seed=seed))
        assert collapse_step(record["reward"]) is None, seed
        if name != "staleness":
            assert kept_share(record["reward"]) >= 0.95, seed
