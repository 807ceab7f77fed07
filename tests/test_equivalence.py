"""Equivalence classes: settings that must give the same trajectory, and one change that must not.

Locked here: with one optimiser step per rollout (ratio = 1) the clips, GSPO, CISPO and every LLDS gate coincide with
their base; with an exact sampler all corrections for it do; the on-policy twin starts with spiral's rollouts; scales
of the advantage are learning rates; a column of `same_at_ratio_one` in arms.py is true.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from lldsim.arms import ARMS, arm
from lldsim.config import RunConfig, matched_twin, preset
from lldsim.diagnostics.collapse import collapse_step
from lldsim.dials import DIALS, dial
from lldsim.engine import Run, simulate
from lldsim.errors import ConfigError

SMALL: dict[str, Any] = {
    "n_queries": 4, "max_turns": 4, "turn_tokens": 8, "vocab_size": 20, "n_features": 10, "invalid_threshold": 4,
    "updates": 5, "updates_per_rollout": 4, "staleness": 1,
}  # fmt: skip
ONE_STEP = {"updates_per_rollout": 1, "allow_inert_llds": True}
EXACT_SAMPLER = {"temperature": 1.0, "staleness": 0}
SEQ_MEAN = {"aggregation": "seq-mean-token-mean"}
CLASSES: dict[str, tuple[dict[str, Any], list[dict[str, Any]]]] = {
    "ratio 1: clips do nothing": (
        ONE_STEP,
        [{}, {"clip_eps": 0.01}, {"clip_eps_high": 3.0}, {"dual_clip": 1.5}, {"surrogate": "cispo"}],
    ),
    "ratio 1: one ratio per response is one per token": (ONE_STEP | SEQ_MEAN, [{}, {"surrogate": "gspo"}]),
    "ratio 1: LLDS is inert": (
        ONE_STEP,
        [{}, *({"llds_coef": 5.0, "gate": gate} for gate in ("token", "response", "action"))],
    ),
    "exact sampler: its corrections are 1": (
        EXACT_SAMPLER,
        [{}, {"ratio_to": "sampler"}, {"tis_cap": 1.5}, {"mis_low": 0.5, "mis_high": 5.0}],
    ),
    "no KL: its form does not matter": ({"kl_coef": 0.0}, [{}, {"kl_form": "raw"}, {"kl_form": "linear"}]),
    "no LLDS: neither gate, normaliser nor answer weight matter": (
        {},
        [{}, {"gate": "token", "answer_weight": 0.0}, {"normalizer": "all", "answer_weight_rule": "paper"}],
    ),
    "a critic that never learns is one number": (
        {"advantage": "gae", "whiten": False, "critic_step": 0.0},
        [{"critic_states": states} for states in ("shared", "query", "constant")],
    ),
    "weights of 1": ({}, [{}, {"negative_weight": 1.0}, {"nthr_beta": 1.0, "nthr_eta": 1.0}, {"tis_cap": None}]),
}
LEARNED = ("reward", "logp_correct", "entropy", "grad_norm", "kl", "sampler_gap")  # what a trajectory is made of


def trajectory(config: RunConfig) -> np.ndarray:
    record = simulate(config)
    return np.stack([record[name] for name in LEARNED])


@pytest.mark.parametrize("name", CLASSES)
def test_members_of_a_class_coincide(name: str) -> None:
    common, members = CLASSES[name]
    first, *others = (trajectory(RunConfig().replace(**{**SMALL, **common, **member})) for member in members)
    moved = np.nanmax(np.abs(first[:, -1] - first[:, 0]))
    assert moved > 1e-3, "a run that learns nothing would agree with anything"
    for member, other in zip(members[1:], others, strict=True):
        if "kl_form" in member:  # the logged KL differs with its form, the run does not
            keep = [i for i, column in enumerate(LEARNED) if column != "kl"]
            np.testing.assert_allclose(other[keep], first[keep], rtol=0, atol=1e-10, err_msg=str(member))
        else:
            np.testing.assert_allclose(other, first, rtol=0, atol=1e-10, err_msg=str(member))


def test_two_steps_tell_the_arms_apart() -> None:
    spread = [
        trajectory(RunConfig().replace(**SMALL, **change))
        for change in ({}, {"surrogate": "cispo", "cispo_cap": 1.01}, {"llds_coef": 0.2}, {"clip_eps": 0.001})
    ]
    for other in spread[1:]:
        assert np.nanmax(np.abs(other - spread[0])) > 1e-6


def test_inert_llds_collapses_all_the_same() -> None:
    one = preset("spiral").replace(updates_per_rollout=1, learning_rate=250.0, allow_inert_llds=True, updates=90)
    without, inert = simulate(one), simulate(one.replace(llds_coef=0.2))
    assert collapse_step(without["reward"]) is not None
    for name in without.columns:
        np.testing.assert_array_equal(inert[name], without[name], err_msg=name)


def test_twin_has_spirals_first_rollouts() -> None:
    config = RunConfig().replace(**SMALL)
    runs = [Run(config), Run(matched_twin(config))]
    first = [run.step() for run in runs]
    assert first[0]["reward"] == first[1]["reward"]
    np.testing.assert_array_equal(runs[0].roll.tokens, runs[1].roll.tokens)
    np.testing.assert_allclose(runs[0].roll.sampler_logps, runs[1].roll.sampler_logps, atol=1e-12)
    assert first[0]["sampler_gap"] > 0.01 > abs(first[1]["sampler_gap"])


def test_a_scale_of_the_advantage_is_a_learning_rate() -> None:
    """Under SGD without KL and entropy, ddof 0 makes all advantages sqrt(G / (G - 1)) times larger."""
    plain = {**SMALL, "kl_coef": 0.0, "entropy_coef": 0.0, "grad_clip": 1e9, "advantage_eps": 0.0}
    one = trajectory(RunConfig().replace(**plain))
    other = trajectory(RunConfig().replace(**plain, std_ddof=0, learning_rate=25.0 * np.sqrt(4 / 5)))
    keep = [i for i, column in enumerate(LEARNED) if column != "grad_norm"]
    np.testing.assert_allclose(other[keep], one[keep], rtol=0, atol=1e-9)
    grad_norm = LEARNED.index("grad_norm")
    np.testing.assert_allclose(other[grad_norm], one[grad_norm] * np.sqrt(5 / 4), rtol=1e-9)


@pytest.mark.parametrize("name", [a.name for a in ARMS if a.same_at_ratio_one])
def test_arms_that_say_so_share_their_first_step(name: str) -> None:
    """With one optimiser step per rollout, at published strength, two updates are the base arm's."""
    chosen, base = arm(name), arm(arm(name).same_at_ratio_one)
    one = {**SMALL, **ONE_STEP, "updates": 2, "learning_rate": 25.0}
    records = [simulate(a.config().replace(**one)) for a in (chosen, base)]
    for column in ("reward", "logp_correct", "entropy"):
        np.testing.assert_allclose(records[0][column], records[1][column], rtol=0, atol=1e-10, err_msg=column)


def test_every_arm_has_the_same_budget_and_a_valid_configuration() -> None:
    from lldsim.arms import BUDGET

    assert len({a.name for a in ARMS}) == len(ARMS)
    for a in ARMS:
        grid = a.grid()
        assert len(grid) == BUDGET, a.name
        configs = [a.config(strength, rate_factor=factor) for strength, factor in grid]
        assert len(set(configs)) == BUDGET, f"{a.name}: two grid points are one setting"
        assert a.config() in configs, f"{a.name}: the published setting is not in its grid"


def test_every_dial_differs_from_its_base() -> None:
    from lldsim.dials import base_config

    assert len({d.name for d in DIALS}) == len(DIALS)
    for d in DIALS:
        setting = "null" if d.cause else "on"
        assert not (d.null and d.on), f"{d.name}: a cause has a null, an extra an on setting"
        assert d.config(setting) != base_config(d.base), d.name
    with pytest.raises(ConfigError, match="did you mean 'staleness'"):
        dial("stalenes")
    with pytest.raises(ConfigError, match="did you mean 'cispo'"):
        arm("cipso")
    assert preset("spiral") == arm("grpo").config()
