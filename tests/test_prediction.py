"""The prediction of collapse from the healthy twin.

Locked here: with two words and constant drift it is the delay map of theory.reduction (sharp time, stale path); the
measured response equals what a real gradient does to the words; clamping moves log-odds by exactly the shift; words
apart and together agree where all words are alike and nothing is sampled; no leak, no predicted fall; stopping early
changes no collapse step; scores on rows with known answers; unknown losses are refused.
"""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest

from lldsim.config import preset
from lldsim.diagnostics.collapse import collapse_step
from lldsim.draws import PROBE_STREAM, draw
from lldsim.engine import Run, simulate
from lldsim.errors import ConfigError, MissingDataError
from lldsim.prediction import Response, measure_response, null_twin, predict, respond, sampler_probability, shift_words
from lldsim.prediction_grid import GRID, first_collapse, measure, score, settings
from lldsim.theory.reduction import sharp_time, stale_path
from lldsim.world import BAD, INVALID, build_world

SHIFTS = np.linspace(-4.0, 1.0, 201)


def two_words(coefficient: float, *, gap: float, start: int = 0) -> Response:
    """A response with two classes of which only the upper is ever seen, constant mass and V = 2."""
    mass = np.zeros((len(SHIFTS), 1, 2, 2, 1))
    mass[:, :, 0, 1] = -coefficient
    return Response(
        SHIFTS, np.array([gap - 1, gap]), mass, mass.copy(), mass**2, 0 * mass, np.linspace(0, 1, len(SHIFTS)), start
    )


def test_constant_drift_is_the_sharp_sampler_of_the_reduction() -> None:
    gap, c, t = 2.0, 0.02, 0.6
    config = preset("spiral").replace(
        updates_per_rollout=1, learning_rate=63 / 64, updates=900, temperature=t, staleness=0
    )
    response = two_words(c, gap=gap)
    found = predict(config, response, words="constant").shift
    # V = 64 sharpens more than two words do: integrate that form of x' = -c [S(x) - s(x)] to the same depth.
    fallen = int(np.argmax(found <= -1.5))
    x, updates = gap, 0
    while x > gap - 1.5:
        s = 1 / (1 + math.exp(-(x / t + math.log(63) * (1 / t - 1))))
        x -= c * (s - 1 / (1 + math.exp(-x)))
        updates += 1
    assert fallen == pytest.approx(updates, abs=2)
    assert fallen < sharp_time(gap, coefficient=c, temperature=t, gap_end=gap - 1.5), "others alike sharpen more"


@pytest.mark.parametrize("delay", [0, 8])
def test_constant_drift_is_the_delay_map(delay: int) -> None:
    gap, c, t = 0.5, 0.2, 0.9
    config = preset("spiral").replace(
        updates_per_rollout=1, learning_rate=63 / 64, updates=40, temperature=t, staleness=delay
    )
    found = predict(config, two_words(c, gap=gap, start=3), words="constant").shift
    x = np.zeros(40)
    for n in range(3, 39):
        seen, now = gap + x[max(0, n - delay)], gap + x[n]
        s = 1 / (1 + math.exp(-(seen / t + math.log(63) * (1 / t - 1))))
        x[n + 1] = x[n] - c * (s - 1 / (1 + math.exp(-now)))
    np.testing.assert_allclose(found, x, atol=2e-3)  # the grid of shifts is interpolated
    assert x[-1] < -0.3


def test_without_sharpness_every_gap_is_an_equilibrium_and_staleness_has_nothing_to_delay() -> None:
    config = preset("spiral").replace(temperature=1.0, staleness=8, updates=30)
    assert np.allclose(predict(config, two_words(0.6, gap=0.0), words="constant").shift, 0)
    kicked = stale_path(0.0, coefficient=0.6, delay=8, updates=15, kick=-1e-3)
    assert kicked[-1] < -5e-3, "but a kick grows: c g tau = 1.2 > 1"


def test_the_response_is_what_a_gradient_does_to_the_words() -> None:
    config = preset("spiral").replace(
        n_queries=4, updates_per_rollout=1, staleness=0, kl_coef=0.0, entropy_coef=0.0, canon_prob=0.7, seed=5,
        n_features=512, anisotropy=0.0, feedback_similarity=0.0, garbage_similarity=(0.0, 0.0, 0.0, 0.0),
    )  # fmt: skip
    world = build_world(config.world, seed=5)
    run = Run(config, world=world)
    classes = np.zeros(world.base_row[0].shape, int)
    (mass, hit, *_), _ = respond(run, world, classes, batches=1)
    roll = run.sample(draw(config, 0, stream=PROBE_STREAM, batch=1))
    step = -run.gradient(np.arange(len(roll.turns)))
    measured = np.zeros(15)
    expected = np.zeros(15)
    v = config.world.vocab_size
    received: list[list[np.ndarray]] = [[] for _ in range(15)]
    for b in range(len(roll.turns)):
        for t in range(roll.turns[b]):
            for k in range(15):
                at = [np.array([x]) for x in (b // 5, t, k, roll.feedback[b, t], roll.level[b, t, k])]
                if roll.feedback[b, t] in (BAD, INVALID):
                    received[k].append(world.hidden(world.context(*at))[0])
    n_tokens = roll.turns.sum() * 16
    for k in range(15):
        h = np.mean(received[k], axis=0)
        others = np.delete(step @ h, world.canon[k]).mean()
        measured[k] = (step @ h)[world.canon[k]] - others
    for b in range(len(roll.turns)):
        for t in range(roll.turns[b]):
            for k in range(15):
                at = [np.array([x]) for x in (b // 5, t, k, roll.feedback[b, t], roll.level[b, t, k])]
                context = world.context(*at)
                p = np.exp(world.base(context)[0, world.canon[k]])
                right = roll.tokens[b, t, k] == world.canon[k]
                g = world.hidden(context)[0] @ np.mean(received[k], axis=0)
                expected[k] += roll.advantage[b] / n_tokens * g * (right - p) * v / (v - 1)
    np.testing.assert_allclose(hit.sum((0, 1, 2)), _sum_of(roll, world, received, n_tokens, right_only=True), rtol=1e-9)
    np.testing.assert_allclose(mass.sum((0, 1, 2)), _sum_of(roll, world, received, n_tokens), rtol=1e-9, atol=1e-12)
    # Positions are nearly orthogonal here; where they are not, others move the off-canon words, which is left out.
    assert np.abs(measured - expected).max() < 0.05 * np.abs(expected).max()


def _sum_of(roll, world, received, n_tokens, *, right_only: bool = False) -> np.ndarray:  # type: ignore[no-untyped-def]
    out = np.zeros(15)
    for b in range(len(roll.turns)):
        for t in range(roll.turns[b]):
            for k in range(15):
                if right_only and roll.tokens[b, t, k] != world.canon[k]:
                    continue
                at = [np.array([x]) for x in (b // 5, t, k, roll.feedback[b, t], roll.level[b, t, k])]
                g = world.hidden(world.context(*at))[0] @ np.mean(received[k], axis=0)
                out[k] += roll.advantage[b] / n_tokens * g
    return out


def test_clamping_moves_log_odds_by_the_shift() -> None:
    world = build_world(preset("spiral").world, seed=0)
    moved = shift_words(world, -1.5)
    for k in (0, 7):
        before, after = (np.exp(w.base_logps[w.base_row[k], w.canon[k]]) for w in (world, moved))
        np.testing.assert_allclose(np.log(after / (1 - after)) - np.log(before / (1 - before)), -1.5)
    np.testing.assert_allclose(np.exp(moved.base_logps).sum(1), 1)
    np.testing.assert_allclose(world.base_logps[world.base_row[-1]], moved.base_logps[moved.base_row[-1]], atol=1e-12)


def test_words_alike_move_together() -> None:
    config = preset("spiral").replace(updates=120, learning_rate=1.0)
    response = two_words(0.02, gap=2.0)
    independent = sampler_probability(response.log_odds + response.shift[:, None], 0.7, 64)[:, None, None, :, None]
    response = dataclasses.replace(response, hit=response.mass * independent)  # words say nothing about the reward
    together, apart = (predict(config, response, words=form).shift for form in ("constant", "apart"))
    assert together[-1] < -0.5
    np.testing.assert_allclose(together, apart, atol=0.02)


@pytest.fixture(scope="module")
def measured_response() -> Response:
    config = preset("spiral").replace(seed=3, updates=60)
    return measure_response(config, batches=12, shifts=(0.5, 0.0, -0.75, -1.5, -2.5, -4.0, -6.0))


def test_wrong_responses_weigh_more_the_deeper_the_words_have_fallen(measured_response: Response) -> None:
    net = -measured_response.mass.sum((2, 3, 4)).mean(1)
    at = dict(zip(measured_response.shift.tolist(), net.tolist(), strict=True))
    assert at[-1.5] > 5 * abs(at[0.0]), "longer wrong responses: the coefficient of the reduction is no constant"
    assert measured_response.reward[-1] > 0.9 > 0.1 > measured_response.reward[0]


def test_sharp_and_stale_falls_and_neither_does_not(measured_response: Response) -> None:
    strong = preset("spiral").replace(learning_rate=100.0, staleness=8, updates=150)
    fallen = [predict(strong, measured_response, seed=s).collapse for s in range(4)]
    fresh = [predict(strong.replace(staleness=0, learning_rate=12.5), measured_response, seed=s) for s in range(4)]
    assert sum(step is not None for step in fallen) >= 3
    assert all(p.collapse is None for p in fresh)


def test_the_twin_has_no_similarity_and_no_cure() -> None:
    twin = null_twin(preset("spiral").replace(llds_coef=0.2))
    assert twin.world.position_similarity == twin.objective.llds_coef == 0
    assert set(twin.world.garbage_similarity) == {0.0}


def test_unknown_losses_are_refused() -> None:
    with pytest.raises(ConfigError, match="surrogate='gspo'"):
        measure_response(preset("spiral").replace(surrogate="gspo"))


def test_stopping_early_changes_no_collapse_step() -> None:
    for changes in ({"learning_rate": 50.0}, {"llds_coef": 0.2}):
        config = preset("spiral").replace(updates=70, seed=2, **changes)
        assert first_collapse(config) == collapse_step(simulate(config)["reward"])


def test_settings_start_from_one_sampled_distribution() -> None:
    configs = settings(GRID | {"position_similarity": (0.9,), "staleness": (0,), "negative_weight": (1.0,)})
    assert len(configs) == 12
    assert len({round(c.world.base_power / c.trainer.temperature, 12) for c in configs}) == 1


def test_scores_of_known_rows(tmp_path) -> None:  # type: ignore[no-untyped-def]
    rows = [
        {"share_complete": 1.0, "step_complete": 80.0, "share_measured": 1.0, "step_measured": 40.0},
        {"share_complete": 1.0, "step_complete": 60.0, "share_measured": 0.0, "step_measured": None},
        {"share_complete": 0.0, "step_complete": None, "share_measured": 0.0, "step_measured": None},
        {"share_complete": 0.0, "step_complete": None, "share_measured": 0.0, "step_measured": None},
    ]
    found = score(rows)
    assert (found.right_side, found.majority, found.predicted, found.measured, found.both) == (0.75, 0.75, 2, 1, 1)
    assert found.log_time_bias == pytest.approx(math.log(2))
    with pytest.raises(MissingDataError, match="measure"):
        score([{"share_complete": 1.0}])
    config = preset("null").replace(updates=12, n_queries=4, updates_per_rollout=4)
    once = measure([config], [{}], seeds=(0, 1), cache_dir=tmp_path)
    assert once == measure([config], [{}], seeds=(0, 1), cache_dir=tmp_path) == [once[0]]
    assert once[0]["share_measured"] == 0.0
