"""The arms: LLDS, its variants and its rivals as named changes of `spiral`, with sources and one tuning budget.

Every arm is tuned over exactly BUDGET settings: its own strengths times learning-rate factors. `published` is the
setting its source names; the learning rate there is spiral's, because no source speaks of this world.
What this file does not do: run anything (causal/cures.py), or write a loss (objectives/).
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import Any

from lldsim.config import RunConfig, preset
from lldsim.errors import ConfigError, suggest

BUDGET = 6
_RATE_FACTORS = {1: (0.25, 0.5, 0.75, 1.0, 1.5, 2.0), 2: (0.5, 1.0, 2.0), 3: (0.5, 1.0)}


@dataclass(frozen=True)
class Arm:
    """One arm: fields that define it, its published strength and two others at most, and where it comes from."""

    name: str
    source: str
    fields: dict[str, Any]
    published: dict[str, Any]
    others: tuple[dict[str, Any], ...] = ()
    same_at_ratio_one: str = ""  # arm with the same first optimiser step, while ratio = 1 and nothing has dropped

    def config(self, strength: dict[str, Any] | None = None, *, rate_factor: float = 1.0) -> RunConfig:
        """Return the arm's configuration; the published strength by default."""
        config = preset("spiral").replace(**self.fields).replace(**(self.published if strength is None else strength))
        return config.replace(learning_rate=config.trainer.learning_rate * rate_factor)

    def grid(self) -> list[tuple[dict[str, Any], float]]:
        """Return the tuning grid: BUDGET pairs of strength and learning-rate factor."""
        strengths = [self.published, *self.others]
        return list(itertools.product(strengths, _RATE_FACTORS[len(strengths)]))


def _each(name: str, *values: Any) -> tuple[dict[str, Any], ...]:
    return tuple({name: value} for value in values)


_SEQ = {"aggregation": "seq-mean-token-mean"}
_OWN = {"normalizer": "preserving"}  # as the equations have it; spiral has the released code's
ARMS: tuple[Arm, ...] = (
    Arm("grpo", "2512.04220 Eq. 1, released code", {}, {}),
    Arm(
        "llds_action",
        "2512.04220 Eq. 4",
        {"gate": "action", **_OWN},
        {"llds_coef": 0.2},
        _each("llds_coef", 0.05, 0.5),
        "grpo",
    ),
    Arm(
        "llds_token",
        "2512.04220 Eq. 9",
        {"gate": "token", **_OWN},
        {"llds_coef": 0.2},
        _each("llds_coef", 0.05, 0.5),
        "grpo",
    ),
    Arm(
        "llds_response",
        "2512.04220 Eq. 10 (v1)",
        {"gate": "response", **_OWN},
        {"llds_coef": 0.2},
        _each("llds_coef", 0.05, 0.5),
        "grpo",
    ),
    Arm(
        "llds_all",
        "released code's normaliser",
        {"normalizer": "all"},
        {"llds_coef": 0.2},
        _each("llds_coef", 0.05, 0.5),
        "grpo",
    ),
    Arm(
        "llds_ma",
        "2512.04220 Eq. 5",
        {"answer_weight_rule": "paper", **_OWN},
        {"llds_coef": 0.2},
        _each("llds_coef", 0.05, 0.5),
        "grpo",
    ),
    Arm(
        "llds_one_update",
        "LLDS where it is inert",
        {"updates_per_rollout": 1, "learning_rate": 250.0, "allow_inert_llds": True},
        {"llds_coef": 0.2},
        _each("llds_coef", 0.05, 0.5),
        "grpo",
    ),
    Arm("kl", "2402.03300; 2512.04220 uses .001", {}, {"kl_coef": 0.001}, _each("kl_coef", 0.01, 0.1), "grpo"),
    Arm("entropy", "released code's .001", {}, {"entropy_coef": 0.001}, _each("entropy_coef", 0.003, 0.01), "grpo"),
    Arm("positive_only", "2505.18830", {"negative_weight": 0.0}, {}),
    Arm("negative_weight", "2505.18830 Lemma 4.2", {}, {"negative_weight": 0.25}, _each("negative_weight", 0.1, 0.5)),
    Arm(
        "dr_grpo",
        "2503.20783; constant length 128",
        {"std_normalize": False, "aggregation": "seq-mean-token-sum"},
        {"learning_rate": 25.0 / 128},
        _each("learning_rate", 50.0 / 43),
    ),
    Arm(
        "gspo",
        "2507.18071",
        {"surrogate": "gspo", **_SEQ},
        {"clip_eps": 3e-4, "clip_eps_high": 4e-4},
        ({"clip_eps": 0.2}, {"clip_eps": 0.02}),
        "seq_mean",
    ),
    Arm("seq_mean", "2512.04220 Eq. 1 as printed", _SEQ, {}),
    Arm(
        "dapo", "2503.14476 without resampling", {"kl_coef": 0.0}, {"clip_eps_high": 0.28}, _each("clip_eps_high", 0.4)
    ),
    Arm(
        "cispo",
        "2506.13585, cap of 2510.13786",
        {"surrogate": "cispo"},
        {"cispo_cap": 5.0},
        _each("cispo_cap", 1.2, 2.0),
        "grpo",
    ),
    Arm("sampler_ratio", "PPO with the sampler's own log-probabilities", {"ratio_to": "sampler"}, {}),
    Arm("tis", "truncated importance weights, cap 2", {}, {"tis_cap": 2.0}, _each("tis_cap", 1.0, 5.0)),
    Arm("mis", "masked importance weights, cap 2", {}, {"mis_high": 2.0}, _each("mis_high", 5.0, 10.0)),
    Arm(
        "icepop",
        "masked importance weights in [.5, 5]",
        {},
        {"mis_low": 0.5, "mis_high": 5.0},
        ({"mis_low": 0.2, "mis_high": 5.0},),
    ),
    Arm("nthr", "2505.18830 Alg. 1, exact here", {"nthr_beta": 1.0}, {}, _each("nthr_beta", 0.5, 2.0)),
    Arm("reweighting", "2505.12929", {}, {"probability_weight": 0.3}, _each("probability_weight", 0.6, 1.0)),
    Arm("prefix_mask", "the masking half of 2508.03772", {"mask_shared_prefix": True}, {}),
    Arm(
        "ppo",
        "GAE 1, tabular critic by turn and feedback, whitened",
        {"advantage": "gae"},
        {},
        ({"gae_lambda": 0.95}, {"whiten": False, "learning_rate": 62.5}),
    ),
    Arm(
        "ppo_query",
        "the same, the critic knows the question",
        {"advantage": "gae", "critic_states": "query"},
        {},
        ({"gae_lambda": 0.95}, {"whiten": False, "learning_rate": 62.5}),
    ),
    Arm(
        "ppo_constant",
        "the same, one value for all states",
        {"advantage": "gae", "critic_states": "constant"},
        {},
        ({"gae_lambda": 0.95}, {"whiten": False, "learning_rate": 62.5}),
    ),
)


def arm(name: str) -> Arm:
    """Return the arm called `name`, or raise ConfigError with the nearest known one."""
    known = {a.name: a for a in ARMS}
    if name not in known:
        raise ConfigError(f"unknown arm {name!r}{suggest(name, known)}; known: {', '.join(known)}")
    return known[name]
