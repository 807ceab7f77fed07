"""Check a student's answers to the exercises of the teaching notebooks.

The right values are not written here: each is computed by the function of the package that the exercise is about.
What this file does not do: show solutions (notebooks/solutions does), or print.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

import numpy as np
import torch

from lldsim.advantages import group_advantages
from lldsim.config import WorldConfig, preset
from lldsim.diagnostics.collapse import collapse_step, smooth, surge
from lldsim.diagnostics.conditions import spiral_conditions
from lldsim.diagnostics.displacement import action_change, displaced_shares, query_change
from lldsim.diagnostics.phases import falls_while_reward_holds
from lldsim.diagnostics.thresholds import DEFAULT
from lldsim.errors import MissingDataError, suggest
from lldsim.objectives import clipped_surrogate, llds_penalty, sequence_surrogate
from lldsim.record import RunRecord
from lldsim.theory import alpha, group_weights, residual, zero_contour
from lldsim.theory.conditions import dominant_boundary, one_context_turning_point, shared_prefix_weight
from lldsim.theory.reduction import critical_mass_ratio, three_token_drift
from lldsim.world import GOOD, NONE, build_world


@dataclass(frozen=True)
class Exercise:
    """The right value, how near an answer must be (relative), and what to look at after a wrong one."""

    value: Callable[[], float]
    hint: str
    tolerance: float = 1e-3


def check(notebook: str, number: int, answer: float | None) -> str:
    """Return one line that says whether `answer` to exercise `number` of notebook `notebook` ("04") is right.

    Raises MissingDataError for an exercise that does not exist.

    >>> check("08", 3, None), check("08", 3, 0.0)
    ('exercise 3: no answer yet', 'exercise 3: right')
    """
    key = f"{notebook}.{number}"
    if key not in EXERCISES:
        raise MissingDataError(f"there is no exercise {key}{suggest(key, EXERCISES)}")
    if answer is None:
        return f"exercise {number}: no answer yet"
    exercise = EXERCISES[key]
    value = exercise.value()
    if math.isclose(float(answer), value, rel_tol=exercise.tolerance, abs_tol=1e-9):
        return f"exercise {number}: right"
    return f"exercise {number}: not yet; {exercise.hint}"


def _log_change(probs: list[float], token: int, *, mass: list[float]) -> float:
    """d/ds ln pi of one token when the tokens of one context carry the given advantage mass."""
    drift = torch.from_numpy(three_token_drift(torch.tensor(probs).double().log(), mass, counts=[1.0, 1.0, 1.0]))
    return float(drift[token] - torch.tensor(probs, dtype=torch.float64) @ drift)


def _one_context_gwhes() -> float:
    probs = torch.tensor([0.1, 0.1, 0.8], dtype=torch.float64)
    own = residual(probs, torch.tensor(0)).square().sum()
    return float(alpha(probs, torch.tensor(0), probs, torch.tensor(1)) - own)


def _gate(gate: str) -> float:
    logps = -torch.tensor([[0.5, -0.2, -0.1, 0.0, -0.4, 0.1]], dtype=torch.float64)
    mask = torch.tensor([[1, 1, 1, 0, 1, 1]], dtype=torch.bool)
    one = torch.ones(1, dtype=torch.float64)
    return float(llds_penalty(logps, torch.zeros_like(logps), one, mask, gate=gate)[0])  # type: ignore[arg-type]


def _surrogate(function: Callable[..., tuple[torch.Tensor, object]]) -> float:
    logps = torch.tensor([[1.1, 0.9, 1.5]], dtype=torch.float64).log()
    one = torch.ones(1, dtype=torch.float64)
    return -float(function(logps, torch.zeros_like(logps), one, torch.ones(1, 3), clip_eps=0.2)[0])


def _winner() -> float:
    rewards = torch.tensor([1, 0, 0, 0, 0])
    return float(group_advantages(rewards, torch.zeros(5, dtype=torch.int64), std_ddof=0, eps=0.0)[0])


def _prefix() -> float:
    advantages, lengths = torch.tensor([1.0, -1.0]), torch.tensor([2, 4])
    return float(shared_prefix_weight(advantages, lengths, aggregation="seq-mean-token-mean"))


def _base(k: int, feedback: int, level: int, token: int | None = None) -> float:
    """Base probability of a token, by default the canonical word, at position k of the default world."""
    world = build_world(WorldConfig(), seed=0)
    context = world.context(np.array([0]), 0, k, feedback, level)
    return float(np.exp(world.base(context))[0, world.canon[k] if token is None else token])


@cache
def _run_of_seed(seed: int, llds_coef: float) -> RunRecord:
    from lldsim.engine import simulate  # only exercises about whole runs wait for the compiled kernels

    return simulate(preset("spiral").replace(seed=seed, llds_coef=llds_coef))


def _collapse(seed: int, llds_coef: float = 0.0) -> int | None:
    return collapse_step(_run_of_seed(seed, llds_coef)["reward"])


def _smallest_cure(seed: int) -> float:
    return next(x for x in (0.0, 0.01, 0.03, 0.1, 0.2, 0.3) if _collapse(seed, x) is None)


def _first_action() -> float:
    before, after = np.log([[0.5, 0.4, 1.0, 0.9]]), np.log([[0.6, 0.3, 1.0, 0.9]])
    return float(action_change(after - before, [[0, 0, -1, 1]])[0, 0])


def _probed_query() -> float:
    return float(query_change([-1.2, 0.4, -0.6, 3.0, -2.0], [True, True, True, False, False], [0] * 5)[1][0])


@cache
def _probed_share(seed: int, before: int) -> float:
    from lldsim.engine import Run
    from lldsim.probe import single_update

    step, run = _collapse(seed) or 0, Run(preset("spiral").replace(seed=seed))
    while run.update < step - before:
        run.step()
    return displaced_shares(single_update(run, batches=3)).sized


def _spiral(part: str, *, wrong: float) -> float:
    u = np.arange(40)
    found = spiral_conditions(0.2 - 0.02 * u, wrong - 0.02 * u, np.full(40, 0.5))
    return float(getattr(found, part))


@cache
def _collapse_with_trained_features(seed: int) -> float:
    from lldsim.engine import simulate

    return float(collapse_step(simulate(preset("spiral").replace(seed=seed, feature_rate=0.2))["reward"]) or 0)


def _alarm(seed: int, *, every: int = 1) -> int:
    """First alarm of the run of chapter 10 when every `every`-th update was logged."""
    from lldsim.monitor import first_alarm, log_of_record

    record = _run_of_seed(seed, 0.0)
    columns = {name: column[:130:every] for name, column in record.columns.items()}
    alarm = first_alarm(log_of_record(dataclasses.replace(record, columns=columns)))
    if alarm is None:
        raise MissingDataError(f"seed {seed}: no alarm in 130 updates; choose another seed")
    return int(alarm.step)


def _kept_at_alarm(seed: int) -> float:
    at, reward = _alarm(seed), smooth(_run_of_seed(seed, 0.0)["reward"][:130], DEFAULT.reward_window)
    return float(reward[at] / reward[: at + 1].max())


@cache
def _collapse_after_alarm(seed: int) -> float:
    from lldsim.engine import Run

    config = preset("spiral").replace(seed=seed, updates=220)
    run = Run(config)
    rewards = [run.step()["reward"] for _ in range(_alarm(seed))]
    changed = Run(config.replace(llds_coef=0.2, learning_rate=config.trainer.learning_rate / 4))
    changed.restore(run.state())
    rewards += [changed.step()["reward"] for _ in range(len(rewards), 220)]
    return float(collapse_step(np.array(rewards)) or 0)


def _same_strength() -> float:
    """lambda under "preserving" that is worth .2 under "all" when three of five responses are preserved."""
    old, advantages = torch.zeros(5, 2, dtype=torch.float64), torch.tensor([1.0, 1.0, 1.0, -1.0, -1.0]).double()
    batch = (old - 0.5, old, advantages, torch.ones(5, 2, dtype=torch.bool))
    whole, preserved = (float(llds_penalty(*batch, normalizer=n)[0]) for n in ("all", "preserving"))
    return 0.2 * whole / preserved


def _body_parameters() -> float:
    from lldsim.transformer.model import ModelShape

    shape = ModelShape()
    return float(shape.size() - shape.vocabulary * shape.hidden)


EXERCISES: dict[str, Exercise] = {
    "00.1": Exercise(
        lambda: float(_collapse(3) or 0), "reward smoothed over some updates, below half of its best", tolerance=1e-6
    ),
    "00.2": Exercise(
        lambda: float(falls_while_reward_holds(_run_of_seed(3, 0.0))),
        "count from the start of the decay, and only while the reward holds",
        tolerance=1e-6,
    ),
    "00.3": Exercise(lambda: _smallest_cure(3), "set seed and length first, then go up until the run survives"),
    "01.1": Exercise(
        lambda: _log_change([0.7, 0.2, 0.1], 0, mass=[0, 1, 0]), "logits move by e_1 - π; subtract their mean under π"
    ),
    "01.2": Exercise(
        lambda: _log_change([0.7, 0.2, 0.1], 1, mass=[0, 0, -1]), "pushing a token down moves the logits by π - e_2"
    ),
    "01.3": Exercise(lambda: dominant_boundary(0.1), "α = |π|² - a - b is 0 there; the third token has 1 - a - b"),
    "02.1": Exercise(_winner, "mean .2, population variance .2 · .8"),
    "02.2": Exercise(
        lambda: group_weights(0.8, group_size=5, ddof=1)[1], "the unbiased variance is p (1-p) · G / (G-1)"
    ),
    "02.3": Exercise(lambda: 2 * 0.5**5, "tied: all five right or all five wrong"),
    "03.1": Exercise(
        lambda: math.prod(_base(k, NONE, 0) for k in range(15)),
        "no stray word, so drift stays 0 and all words are alike",
    ),
    "03.2": Exercise(lambda: _base(1, NONE, 1), "multiply by the recovery factor of drift 1"),
    "03.3": Exercise(
        lambda: _base(15, GOOD + 2, 0, token=2), "the named answer leads; all answers share what else is left"
    ),
    "04.1": Exercise(_one_context_gwhes, "G = p_neg α |h|² - p_pos |r|² |h|², both weights 1"),
    "04.2": Exercise(
        lambda: math.ceil(critical_mass_ratio((0.1, 0.1, 0.8))),
        "the right token's own term is |r|²; how many α exceed it?",
    ),
    "04.3": Exercise(lambda: float(zero_contour(0.1, p_correct=0.9)), "G = 0 where σ (1 - q) = 1 - p"),
    "05.1": Exercise(lambda: float(zero_contour(0.5, p_correct=0.75)), "σ (1 - q) = 1 - p"),
    "05.2": Exercise(lambda: 1 - (1 - 0.8) / 0.5, "solve σ (1 - q) = 1 - p for q"),
    "05.3": Exercise(
        lambda: one_context_turning_point(0.2, 0.2**2 + 0.8**2), "set the derivative of α(b) to 0, ρ = (.2, .8)"
    ),
    "06.1": Exercise(_first_action, "add the log ratios of the action's own two tokens"),
    "06.2": Exercise(_probed_query, "the mean over right rollouts; wrong ones are left out"),
    "06.3": Exercise(
        lambda: _probed_share(3, 10), "find the collapse first; tied queries do not count among the probed"
    ),
    "07.1": Exercise(
        lambda: _spiral("falling", wrong=0.49), "where does the line pass minus `spiral_drop`?", tolerance=1e-6
    ),
    "07.2": Exercise(
        lambda: _spiral("spiral", wrong=0.49), "s0 is where the last of the conditions starts", tolerance=1e-6
    ),
    "07.3": Exercise(
        lambda: _collapse_with_trained_features(3), "set the seed and `feature_rate`, leave the rest", tolerance=1e-6
    ),
    "08.1": Exercise(lambda: _gate("action"), "which of the two actions fell in sum? N is 5"),
    "08.2": Exercise(lambda: _gate("token"), "every fallen token counts, in closed actions too"),
    "08.3": Exercise(lambda: _gate("response"), "the drops of the whole response sum to -.1"),
    "09.1": Exercise(lambda: _surrogate(clipped_surrogate), "A > 0: ratios above 1.2 count as 1.2"),
    "09.2": Exercise(lambda: _surrogate(sequence_surrogate), "one ratio for the response: the geometric mean"),
    "09.3": Exercise(_prefix, "a token of response i weighs A_i / (n L_i); add the two responses"),
    "10.1": Exercise(lambda: _alarm(3, every=5), "keep the rows 0, 5, 10, … of every column", tolerance=1e-6),
    "10.2": Exercise(lambda: _kept_at_alarm(3), "the best is that of the smoothed reward up to the alarm"),
    "10.3": Exercise(
        lambda: _collapse_after_alarm(3), "join the rewards before and after, then ask `collapse_step`", tolerance=1e-6
    ),
    "11.1": Exercise(
        lambda: preset("released_code").trainer.updates_per_rollout - 1.0,
        "count the mini-batches of a rollout batch; on one of them old and new policy are equal",
        tolerance=1e-6,
    ),
    "11.2": Exercise(_same_strength, "the same sum, divided by more tokens"),
    "11.3": Exercise(_body_parameters, "`ModelShape().size()` less the matrix named `head`", tolerance=1e-9),
    "12.1": Exercise(lambda: surge(_run_of_seed(0, 0.0)["grad_norm"]), "largest smoothed value over the early mean"),
    "12.2": Exercise(
        lambda: float(np.mean(_run_of_seed(0, 0.0)["entropy"][-10:]) / np.mean(_run_of_seed(0, 0.0)["entropy"][2:10])),
        "two means of the column entropy; the later one goes on top",
    ),
    "12.3": Exercise(
        lambda: float(WorldConfig().max_turns * WorldConfig().turn_tokens),
        "turns, each of the same number of tokens; feedback does not count",
        tolerance=1e-6,
    ),
}
