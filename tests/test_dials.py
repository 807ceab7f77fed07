"""Dials and arms of the laboratory: the compiled engine and the loop to read agree on each of them.

Locked here: every dial changes the run and leaves the random numbers of the others alone; compiled and plain records
agree to 1e-9 with it on; a dial's null value is the default run, bit for bit; configurations that contradict
themselves are refused; resuming includes the critic and the trained features; near misses and hops do what they say.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from lldsim.config import RunConfig
from lldsim.draws import draw
from lldsim.engine import Run, simulate
from lldsim.errors import ConfigError
from lldsim.record import RunRecord
from lldsim.trainer import train
from lldsim.world import BAD, GOOD, decision_probabilities, named_answer, world_of

SMALL: dict[str, Any] = {
    "n_queries": 4, "max_turns": 4, "turn_tokens": 8, "vocab_size": 20, "n_features": 10, "invalid_threshold": 4,
    "updates": 4, "updates_per_rollout": 4, "staleness": 1, "temperature": 0.9,
}  # fmt: skip
SIMPLE = RunConfig().replace(**SMALL)
DIALS: dict[str, dict[str, Any]] = {
    "world_seed": {"world_seed": 5},
    "hops": {"hops": 2},
    "p_search_bad": {"p_search_bad": 0.03},
    "near_miss": {"near_miss": 0.5},
    "shared_first_action": {"shared_first_action": True},
    "question_similarity": {"question_similarity": 0.5},
    "top_k": {"top_k": 2},
    "top_k_and_p": {"top_k": 3, "top_p": 0.95},
    "sampler_noise": {"sampler_noise": 0.5},
    "feature_rate": {"feature_rate": 0.01},
    "feature_rate_adam": {"feature_rate": 0.1, "optimizer": "adam", "learning_rate": 0.01},
    "feature_rate_momentum": {"feature_rate": 0.01, "momentum": 0.5, "grad_clip": 0.02},
    "cispo": {"surrogate": "cispo", "cispo_cap": 1.05},
    "icepop": {"mis_low": 0.8, "mis_high": 1.2},
    "probability_weight": {"probability_weight": 0.3},
    "nthr": {"nthr_beta": 1.0},
    "nthr_eta": {"nthr_beta": 0.0, "nthr_eta": 0.5},
    "shared_prefix": {"mask_shared_prefix": True},
    "both_weights": {"mask_shared_prefix": True, "nthr_beta": 1.0, "tis_cap": 1.1, "surrogate": "gspo"},
    "gae": {"advantage": "gae"},
    "gae_query": {"advantage": "gae", "critic_states": "query", "gae_lambda": 0.9, "whiten": False},
    "gae_constant_llds": {"advantage": "gae", "critic_states": "constant", "llds_coef": 0.2, "gate": "action"},
    "gae_gspo": {"advantage": "gae", "surrogate": "gspo", "llds_coef": 0.2, "gate": "response"},
}


def differences(a: RunRecord, b: RunRecord) -> dict[str, float]:
    return {
        name: float(np.nanmax(np.abs(a[name] - b[name]), initial=0.0))
        for name in a.columns
        if not np.array_equal(a[name], b[name], equal_nan=True)
    }


@pytest.fixture(scope="module")
def default_record() -> RunRecord:
    return simulate(SIMPLE)


@pytest.mark.parametrize("dial", DIALS)
def test_compiled_and_plain_agree_and_the_dial_bites(dial: str, default_record: RunRecord) -> None:
    config = SIMPLE.replace(**DIALS[dial])
    compiled, plain = simulate(config), train(config)
    assert differences(compiled, default_record), "the dial changed nothing"
    for name in compiled.columns:
        np.testing.assert_allclose(compiled[name], plain[name], rtol=0, atol=1e-9, err_msg=name)


NULLS: dict[str, dict[str, Any]] = {
    "world_seed": {"world_seed": 0},
    "hops": {"hops": 1},
    "near_miss": {"near_miss": 0.0},
    "top_k": {"top_k": SIMPLE.world.vocab_size},
    "critic_is_idle": {"critic_states": "query", "critic_init": 0.9, "gae_lambda": 0.5},
    "nthr_without_threshold": {"nthr_beta": 1.0, "nthr_eta": 1.0},
    "probability_weight": {"probability_weight": 0.0},
    "wide_band": {"mis_low": 0.0, "mis_high": 1e30, "temperature": 1.0, "staleness": 0},
    "cap_1": {"tis_cap": 1e30, "temperature": 1.0, "staleness": 0},
}


@pytest.mark.parametrize("dial", NULLS)
def test_null_value_is_the_default_run(dial: str, default_record: RunRecord) -> None:
    change = NULLS[dial]
    twin = {name: change[name] for name in ("temperature", "staleness") if name in change}
    reference = simulate(SIMPLE.replace(**twin)) if twin else default_record
    worst = max(differences(simulate(SIMPLE.replace(**change)), reference).values(), default=0.0)
    # Importance weights of an exact sampler are 1 up to rounding; everything else is the same bits.
    assert worst < 1e-9 if twin else worst == 0.0


def test_noise_and_shared_action_leave_other_draws_alone() -> None:
    plain = draw(SIMPLE, 3)
    noisy = draw(SIMPLE.replace(sampler_noise=1.0), 3)
    shared = draw(SIMPLE.replace(shared_first_action=True), 3)
    for name in ("token", "document", "answer", "order"):
        np.testing.assert_array_equal(getattr(noisy, name), getattr(plain, name))
    assert noisy.noise.shape == (4, 4, 8, 20)
    assert abs(noisy.noise.std() - 1) < 0.05
    first = shared.token[:, 0].reshape(4, 5, -1)
    assert (first == first[:, :1]).all()
    np.testing.assert_array_equal(shared.token[:, 1:], plain.token[:, 1:])


def test_near_miss_is_uniform_over_the_other_answers() -> None:
    config = SIMPLE.replace(near_miss=0.5).world
    document = np.linspace(config.search_noise, 1, 60_001)[:-1]
    named = named_answer(config, np.full(len(document), 2), document)
    shares = [(named == z).mean() for z in range(1, 5)]
    np.testing.assert_allclose(shares, [1 / 6, 1 / 2, 1 / 6, 1 / 6], atol=1e-3)


def test_first_good_document_of_two_hops_reads_as_bad() -> None:
    config = SIMPLE.replace(hops=2, search_noise=0.0)
    run = Run(config)
    roll = run.sample(draw(config, 0))
    searched = roll.turns > 1
    second = roll.feedback[searched, 1]
    assert set(second) <= {BAD, 2}  # a bad document or an error message, never an answer
    assert (roll.feedback > GOOD).any()


def test_search_after_a_bad_document_has_its_own_probability() -> None:
    config = SIMPLE.replace(p_search_bad=0.03).world
    probabilities = decision_probabilities(config, BAD, 0)
    assert probabilities[0] == pytest.approx(0.03)
    assert probabilities[1:5] == pytest.approx(0.92 / 4)
    assert probabilities.sum() == pytest.approx(1)


def test_world_seed_separates_world_from_luck() -> None:
    a, b = (world_of(SIMPLE.replace(seed=seed, world_seed=7)) for seed in (1, 2))
    np.testing.assert_array_equal(a.hidden_table.plain, b.hidden_table.plain)
    assert (draw(SIMPLE.replace(seed=1), 0).token != draw(SIMPLE.replace(seed=2), 0).token).any()


def test_question_similarity_makes_one_query_alike() -> None:
    hidden = world_of(SIMPLE.replace(question_similarity=0.9, position_similarity=0.0, anisotropy=0.0)).hidden_table
    body = hidden.plain[: 4 * 4 * 7 * 7].reshape(4, -1, 10)
    within = np.einsum("qnd,qnd->qn", body[:, :1], body).mean()
    across = (body[0] * body[1]).sum(-1).mean()
    assert within > 0.5 > abs(across)


@pytest.mark.parametrize("dial", ["gae", "feature_rate_adam"])
def test_resuming_is_as_if_never_interrupted(dial: str) -> None:
    config = SIMPLE.replace(**DIALS[dial])
    whole = Run(config)
    rows = [whole.step() for _ in range(4)]
    first, second = Run(config), Run(config)
    for _ in range(2):
        first.step()
    second.restore(first.state())
    assert [second.step() for _ in range(2)] == rows[2:]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"tis_cap": 2.0, "mis_high": 5.0}, "tis_cap and mis_high correct the same gap twice"),
        ({"ratio_to": "sampler", "mis_high": 5.0}, "correct the same gap twice"),
        ({"nthr_beta": 1.0, "feature_rate": 0.1}, "fixed hidden states"),
        ({"advantage": "gae", "mask_shared_prefix": True}, "set advantage='group'"),
        ({"p_search_bad": 0.99}, "p_search_bad=0.99"),
        ({"top_k": 0}, "top_k=0"),
    ],
)
def test_contradictions_are_refused(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        SIMPLE.replace(**change)
