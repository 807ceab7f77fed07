"""The worlds of figures 7 and 9b, and what is read from their runs.

Locked here: arms are paired by seed and differ in what they say and in nothing else; the second hop exists; MA frees a
policy that LLDS locks, in the direction the figure claims; escape and broken runs are counted from the right columns;
pairs are compared with non-escapes last; bad arms are refused.
"""

from __future__ import annotations

import numpy as np
import pytest

from lldsim.config import RunConfig
from lldsim.errors import ConfigError
from lldsim.paper_worlds import (
    FOUR_WORLDS,
    TWO_HOPS,
    escape_step,
    four_worlds,
    invalid_share,
    paired_escapes,
    search_numbers,
    two_hop_searches,
    world_of_arm,
)
from lldsim.record import RunRecord, make_record


def differing(one: RunConfig, two: RunConfig) -> set[str]:
    a, b = one.flat(), two.flat()
    return {name for name in a if a[name] != b[name]}


def record(searches: list[float], *, invalid: float = 0.0, length: float = 32.0, reward: float = 0.5) -> RunRecord:
    n = len(searches)
    columns = {"valid_searches": np.array(searches), "reward": np.full(n, reward)}
    columns |= {"invalid_actions": np.full(n, invalid), "response_length": np.full(n, length)}
    return make_record(columns, RunConfig().flat(), "0" * 12)


def test_arms_of_the_four_worlds_differ_in_what_they_say() -> None:
    arms = four_worlds(range(3), updates=7)
    assert len(arms) == 12
    similarity = {"position_similarity", "anisotropy", "feedback_similarity", "garbage_similarity"}
    for world in FOUR_WORLDS:
        grpo, llds, null = (arms[f"{world} {role}"] for role in ("grpo", "llds", "null"))
        assert [c.trainer.seed for c in grpo] == [0, 1, 2]
        for seed in range(3):
            assert differing(grpo[seed], llds[seed]) == {"llds_coef"}
            assert differing(grpo[seed], null[seed]) == similarity
    assert differing(arms["3B-Base grpo"][0], arms["7B-Base grpo"][0]) == {"n_features", "p_answer"}
    assert differing(arms["3B-Base grpo"][0], arms["3B-Instruct grpo"][0]) == {"canon_prob", "p_search"}
    assert {world_of_arm(name) for name in arms} == set(FOUR_WORLDS)
    with pytest.raises(ConfigError, match=r"no world in arm '3B-Bose llds'.*did you mean '3B-Base'"):
        world_of_arm("3B-Bose llds")


def test_arms_of_the_two_hop_world() -> None:
    arms = two_hop_searches([4], updates=9)
    assert list(arms) == ["0", "0.2", "0.2 MA", "1", "1 MA"]
    assert differing(arms["0"][0], arms["1"][0]) == {"llds_coef"}
    assert differing(arms["1"][0], arms["1 MA"][0]) == {"answer_weight_rule"}
    assert arms["0"][0].world.hops == TWO_HOPS["hops"] == 2
    with pytest.raises(ConfigError, match="llds_coefs contains 0"):
        two_hop_searches([4], llds_coefs=[0])


def test_escape_needs_the_smoothed_searches_above_the_bound() -> None:
    assert escape_step(record([1.0] * 40)) is None
    assert escape_step(record([1.0] * 20 + [9.0] + [1.0] * 19)) == 16  # nine updates around it average 1.9
    assert escape_step(record([1.0] * 20 + [4.0] + [1.0] * 19)) is None
    assert escape_step(record([1.0] * 20 + [2.0] * 20)) == 20  # five of nine updates at 2


def test_broken_runs_are_those_with_mostly_invalid_actions() -> None:
    fine, half, lost = record([1.0] * 20, invalid=0.9), record([1.0] * 20, invalid=1.0), record([1.0] * 20, invalid=1.1)
    assert invalid_share(lost) == pytest.approx(0.55)
    numbers = search_numbers([fine, half, lost])
    assert (numbers["broken"], numbers["escaped"], numbers["collapsed"], numbers["runs"]) == (1, 0, 0, 3)
    assert numbers["escape_step_median"] is None


def test_pairs_count_non_escapes_last() -> None:
    assert paired_escapes([5, 5, 5, 5, 5, 5], [None] * 6) == {
        "earlier": 6, "later": 0, "ties": 0, "sign_test_p": pytest.approx(2 / 64),
    }  # fmt: skip
    assert paired_escapes([None, 7], [None, 7]) == {"earlier": 0, "later": 0, "ties": 2, "sign_test_p": 1.0}
    with pytest.raises(ValueError, match="zip"):
        paired_escapes([1], [1, 2])


@pytest.mark.slow
def test_ma_frees_what_llds_locks() -> None:
    from lldsim.sweep import run_all

    arms = two_hop_searches(range(4), llds_coefs=[1.0], updates=300)
    escapes = {name: [escape_step(r) for r in run_all(configs, cache_dir=None)] for name, configs in arms.items()}
    assert escapes["1"] == [None] * 4
    assert paired_escapes(escapes["1 MA"], escapes["1"])["earlier"] >= 2
    assert paired_escapes(escapes["0"], escapes["1 MA"])["earlier"] == 4
