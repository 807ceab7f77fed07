"""Check a student's answers to the exercises of the teaching notebooks.

The right values are not written here: each is computed by the function of the package that the exercise is about.
What this file does not do: show solutions (notebooks/solutions does), or print.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch

from lldsim.advantages import group_advantages
from lldsim.errors import MissingDataError, suggest
from lldsim.objectives import clipped_surrogate, llds_penalty, sequence_surrogate
from lldsim.theory import alpha, group_weights, residual, zero_contour
from lldsim.theory.conditions import dominant_boundary, one_context_turning_point, shared_prefix_weight
from lldsim.theory.reduction import critical_mass_ratio, three_token_drift


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


EXERCISES: dict[str, Exercise] = {
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
    "08.1": Exercise(lambda: _gate("action"), "which of the two actions fell in sum? N is 5"),
    "08.2": Exercise(lambda: _gate("token"), "every fallen token counts, in closed actions too"),
    "08.3": Exercise(lambda: _gate("response"), "the drops of the whole response sum to -.1"),
    "09.1": Exercise(lambda: _surrogate(clipped_surrogate), "A > 0: ratios above 1.2 count as 1.2"),
    "09.2": Exercise(lambda: _surrogate(sequence_surrogate), "one ratio for the response: the geometric mean"),
    "09.3": Exercise(_prefix, "a token of response i weighs A_i / (n L_i); add the two responses"),
}
