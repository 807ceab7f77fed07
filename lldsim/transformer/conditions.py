"""The conditions of the transformer's table: one change each to the run that collapses, seeds paired across them.

Seed s starts from packaged warm start s mod 3, so that ten seeds cover three networks with worlds of their own. What
this file does not do: run (runs.py) or decide what counts as a collapse (diagnostics).
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from typing import Any, NamedTuple

from lldsim.transformer.config import TransformerConfig

WARM_STARTS = 3
LEAK_TEMPERATURE = 0.7


class Condition(NamedTuple):
    """What a condition changes, its words for tables, and the role that colours it."""

    changes: dict[str, Any]
    words: str
    role: str


GATES = ("action", "token", "response")
COEFS = (0.01, 0.05, 0.1, 0.2, 1.0)
PLAIN = ("action", 0.2)  # of the condition `llds`


def llds_name(gate: str, coef: float) -> str:
    """Return the name of the condition leak + LLDS of strength `coef` under `gate`.

    >>> llds_name("action", 0.2), llds_name("action", 0.01), llds_name("token", 0.2), llds_name("token", 1.0)
    ('llds', 'llds .01', 'llds token', 'llds token 1')
    """
    return " ".join(["llds"] + [gate] * (gate != "action") + [plainly(coef)] * (coef != PLAIN[1]))


def plainly(coef: float) -> str:
    """Return a strength as the tables write it, `.2` or `1`."""
    return f"{coef:g}".removeprefix("0")


def _llds(gate: str, coef: float) -> Condition:
    words = f"leak + LLDS {plainly(coef)}" + f", {gate} gate" * (gate != "action")
    return Condition({"llds_coef": coef, "gate": gate}, words, "llds")


_CLEAN = {"temperature": 1.0, "staleness": 0}
_MATCHED = {"temperature": 1.0, "head_scale": 1 / LEAK_TEMPERATURE}
_ADAM = {"optimizer": "adam", "learning_rate": 1e-4}

CONDITIONS: dict[str, Condition] = {
    "leak": Condition({}, "sampler at T = .7, 8 updates old", "grpo"),
    "llds": Condition({"llds_coef": 0.2}, "leak + LLDS .2, action gate", "llds"),
    "clean": Condition(_CLEAN, "T = 1, fresh sampler", "onpolicy"),
    "clean matched": Condition(_MATCHED | {"staleness": 0}, "same start as leak, T = 1, fresh", "onpolicy"),
    "sharp only": Condition({"staleness": 0}, "T = .7, fresh sampler", "grpo"),
    "stale 8": Condition({"temperature": 1.0}, "T = 1, 8 updates old", "grpo"),
    "stale 8 matched": Condition(_MATCHED, "same start as leak, T = 1, 8 updates old", "grpo"),
    "stale 4": Condition({"temperature": 1.0, "staleness": 4}, "T = 1, 4 updates old", "grpo"),
    "stale 2": Condition({"temperature": 1.0, "staleness": 2}, "T = 1, 2 updates old", "grpo"),
    "ratio to sampler": Condition({"ratio_to": "sampler"}, "leak, ratio against the sampler", "onpolicy"),
    **{llds_name(*dial): _llds(*dial) for dial in product(GATES, COEFS) if dial != PLAIN},
    "positive only": Condition({"negative_weight": 0.0}, "leak, A < 0 dropped", "null"),
    "truncated IS": Condition({"tis_cap": 2.0}, "leak, truncated IS (cap 2)", "null"),
    "kl .1": Condition({"kl_coef": 0.1}, "leak, KL .1", "null"),
    "gspo": Condition({"surrogate": "gspo", "aggregation": "seq-mean-token-mean"}, "leak, GSPO", "gspo"),
    "dual clip": Condition({"dual_clip": 3.0}, "leak, dual clip 3", "null"),
    "adam": Condition(_ADAM, "leak, Adam 1e-4", "grpo"),
    "adam llds": Condition(_ADAM | {"llds_coef": 0.2}, "leak, Adam 1e-4, LLDS .2", "llds"),
    "4 turns": Condition({"max_turns": 4}, "leak, 4 turns", "grpo"),
    "4 turns llds": Condition({"max_turns": 4, "llds_coef": 0.2}, "leak, 4 turns, LLDS .2", "llds"),
    "clean fast": Condition(_CLEAN | {"learning_rate": 0.3}, "T = 1, fresh, 3 times the rate", "onpolicy"),
    "clean adam fast": Condition(_CLEAN | _ADAM | {"learning_rate": 3e-4}, "T = 1, fresh, Adam 3e-4", "onpolicy"),
}
STRENGTHS = tuple(llds_name(*dial) for dial in product(GATES, COEFS) if dial != PLAIN)  # drawn by figure x4
COMPARED = ("leak", "llds", "clean")  # what the figures of curves show


def condition_runs(name: str, seeds: Sequence[int], *, updates: int = 100) -> list[TransformerConfig]:
    """Return the configurations of condition `name`, one per seed.

    >>> [run.trainer.warm_start for run in condition_runs("leak", range(5))]
    [0, 1, 2, 0, 1]
    """
    changes = CONDITIONS[name].changes
    return [
        TransformerConfig().replace(**changes, seed=seed, warm_start=seed % WARM_STARTS, updates=updates)
        for seed in seeds
    ]
