"""The worlds behind figures 7 and 9b: four toy stand-ins for four models, and a two-hop world.

No language model is here: the four worlds stand for Qwen2.5 3B and 7B, base and instruct, only in name. Their dials
were chosen before any of them was run, by what the words suggest, and not tuned afterwards.
What this file does not do: draw, or decide what a collapse is (diagnostics/thresholds.py).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from scipy import stats

from lldsim.config import RunConfig, preset
from lldsim.diagnostics.collapse import collapse_step, smooth
from lldsim.diagnostics.statistics import collapse_rate, finite_or_none, median_step
from lldsim.diagnostics.thresholds import DEFAULT
from lldsim.errors import ConfigError, suggest
from lldsim.record import Arms, RunRecord

# Size: more features (less accidental overlap of hidden states) and a larger lead of the answer that was read.
_SMALL: dict[str, Any] = {"n_features": 48, "p_answer": 0.25}
_LARGE: dict[str, Any] = {"n_features": 96, "p_answer": 0.4}
# Instruct: keeps to the format more often, and searches more often before it answers.
_BASE: dict[str, Any] = {"canon_prob": 0.92, "p_search": 0.65}
_INSTRUCT: dict[str, Any] = {"canon_prob": 0.94, "p_search": 0.75}
FOUR_WORLDS: dict[str, dict[str, Any]] = {
    "3B-Base": _SMALL | _BASE,
    "3B-Instruct": _SMALL | _INSTRUCT,
    "7B-Base": _LARGE | _BASE,
    "7B-Instruct": _LARGE | _INSTRUCT,
}
# Two good searches before the answer shows; a policy that has read one useless document hardly ever searches again.
TWO_HOPS: dict[str, Any] = {
    "hops": 2,
    "search_noise": 0.2,
    "p_search": 0.9,
    "p_guess": 0.0125,
    "p_search_bad": 0.02,
}
# The same task where three of four searches fail and the first words hardly ever search: LLDS .2 does not save it.
NOISY_TWO_HOPS: dict[str, Any] = TWO_HOPS | {
    "search_noise": 0.75,
    "p_search": 0.3,
    "p_guess": 0.05,
    "p_search_bad": None,
}
MA = {"answer_weight_rule": "paper"}  # LLDS-MA, Eq. 5
ESCAPE = 1.5  # searches per response, smoothed, above which a run counts as having left the one-search policy


def four_worlds(seeds: Sequence[int], *, updates: int = 200) -> dict[str, list[RunConfig]]:
    """Return the arms of figure 7: `WORLD grpo`, `WORLD llds` (lambda 0.2) and `WORLD null`, paired by seed.

    `null` is GRPO in the same world with similarity 0: the twin that must not collapse.
    """
    arms = {}
    for world, dials in FOUR_WORLDS.items():
        base = preset("spiral").replace(updates=updates, **dials)
        arms[f"{world} grpo"] = [base.replace(seed=s) for s in seeds]
        arms[f"{world} llds"] = [base.replace(seed=s, llds_coef=0.2) for s in seeds]
        null = preset("null").replace(updates=updates, **dials)
        arms[f"{world} null"] = [null.replace(seed=s) for s in seeds]
    return arms


def two_hop_searches(
    seeds: Sequence[int], *, llds_coefs: Sequence[float] = (0.2, 1.0), updates: int = 300
) -> dict[str, list[RunConfig]]:
    """Return the arms of figure 9b: `0`, and for each lambda `LAMBDA` and `LAMBDA MA`, paired by seed.

    Raises ConfigError for a lambda that is not positive: the arm without LLDS is always there.
    """
    base = preset("spiral").replace(updates=updates, **TWO_HOPS)
    arms = {"0": [base.replace(seed=s) for s in seeds]}
    for coef in llds_coefs:
        if not coef > 0:
            raise ConfigError(f"llds_coefs contains {coef}; give positive values, lambda 0 is run anyway")
        arms[f"{coef:g}"] = [base.replace(seed=s, llds_coef=coef) for s in seeds]
        arms[f"{coef:g} MA"] = [base.replace(seed=s, llds_coef=coef, **MA) for s in seeds]
    return arms


def world_of_arm(arm: str) -> str:
    """Return the world of an arm of figure 7; ConfigError for a name that is none.

    >>> world_of_arm("7B-Base llds")
    '7B-Base'
    """
    world = arm.rpartition(" ")[0]
    if world not in FOUR_WORLDS:
        raise ConfigError(f"no world in arm {arm!r}{suggest(world, FOUR_WORLDS)}; worlds: {', '.join(FOUR_WORLDS)}")
    return world


def escape_step(record: RunRecord, threshold: float = ESCAPE) -> int | None:
    """Return the first update whose smoothed searches per response exceed `threshold`, or None (censored)."""
    above = smooth(record["valid_searches"], DEFAULT.reward_window) > threshold
    return int(np.argmax(above)) if above.any() else None


def invalid_share(record: RunRecord) -> float:
    """Return the share of invalid actions among all actions at the end of a run, smoothed as the reward is."""
    actions = record["response_length"] / record.config["turn_tokens"]
    window = DEFAULT.reward_window
    return float(smooth(record["invalid_actions"], window)[-1] / smooth(actions, window)[-1])


def search_numbers(records: Sequence[RunRecord]) -> dict[str, Any]:
    """Return what figure 9b says about one arm: escapes from the one-search policy, collapses, and the end state.

    A policy that searches once guesses, and a group guesses alike, so its reward is the luck of a few queries: the
    collapse rule, half of the running peak, can then fire without any loss. `broken` counts the runs that end with more
    than half of their actions invalid, which luck cannot do.
    """
    escapes = [escape_step(r) for r in records]
    collapses = [collapse_step(r["reward"]) for r in records]
    escaped, collapsed = collapse_rate(escapes), collapse_rate(collapses)  # both are rates of events
    median, low, high = median_step(escapes)
    searches = [float(smooth(r["valid_searches"], DEFAULT.reward_window)[-1]) for r in records]
    reward = [float(smooth(r["reward"], DEFAULT.reward_window)[-1]) for r in records]
    invalid = [invalid_share(r) for r in records]
    broken = collapse_rate([None if x <= 0.5 else 0 for x in invalid])
    return {
        "runs": escaped.n,
        "escaped": escaped.k,
        "escape_rate_interval": [escaped.low, escaped.high],
        "escape_steps": escapes,
        "escape_step_median": finite_or_none(median),
        "escape_step_interval": [finite_or_none(low), finite_or_none(high)],
        "collapsed": collapsed.k,
        "collapse_rate_interval": [collapsed.low, collapsed.high],
        "collapse_steps": collapses,
        "broken": broken.k,
        "broken_rate_interval": [broken.low, broken.high],
        "final_invalid_share": invalid,
        "final_searches": searches,
        "final_searches_median": float(np.median(searches)),
        "final_reward": reward,
        "final_reward_median": float(np.median(reward)),
    }


def two_hop_numbers(arms: Arms) -> dict[str, Any]:
    """Return the numbers of figure 9b, arm by arm."""
    return {name: search_numbers(records) for name, records in arms.items()}


def paired_escapes(steps: Sequence[int | None], reference: Sequence[int | None]) -> dict[str, Any]:
    """Return in how many pairs of the same seed the first arm escapes earlier or later, with a two-sided sign test.

    A run that does not escape comes later than any that does; two that do not are a tie, which the test leaves out.

    >>> paired_escapes([10, 20, None, None], [15, None, 30, None])
    {'earlier': 2, 'later': 1, 'ties': 1, 'sign_test_p': 1.0}
    """
    pairs = [(np.inf if s is None else s, np.inf if r is None else r) for s, r in zip(steps, reference, strict=True)]
    earlier, later = sum(s < r for s, r in pairs), sum(s > r for s, r in pairs)
    p_value = float(stats.binomtest(earlier, earlier + later).pvalue) if earlier + later else 1.0
    return {"earlier": earlier, "later": later, "ties": len(pairs) - earlier - later, "sign_test_p": p_value}
