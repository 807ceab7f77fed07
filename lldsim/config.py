"""Frozen configurations: every dial of the laboratory, its default, its range and where the default comes from.

One flat namespace of names over three dataclasses (world, objective, trainer): a field is a command-line flag
(`--llds-coef`), a YAML key (`llds_coef`) and a notebook parameter under the same name, so names never repeat.
What this file does not do: build anything from a configuration.

Sources quoted in comments: [P n] paper arXiv 2512.04220 v2 section or equation n, [RC] its released code,
[ours] found by measurement here.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
import types
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Any, Literal, get_args, get_origin, get_type_hints

from lldsim.errors import ConfigError, suggest
from lldsim.names import Aggregation, Gate, Normalizer


@dataclass(frozen=True)
class WorldConfig:
    """The search world and its frozen base policy; the defaults make it spiral (README, "The toy's cause")."""

    n_queries: int = 16  # P, prompts in a rollout batch
    group_size: int = 5  # G [P 5]
    max_turns: int = 8  # actions before the episode ends with reward 0
    turn_tokens: int = 16  # tokens of one action: body tokens, then one decision
    vocab_size: int = 64  # V [ours]; 32 collapses alike, but its entropy surges only twofold (64: threefold)
    n_features: int = 48  # D
    n_answers: int = 4  # possible answers; the hidden one is redrawn per query and update
    invalid_threshold: int = 7  # an action with at least this many off-canon body tokens is invalid
    search_noise: float = 0.4  # probability that a search returns a bad document
    invalid_ends_episode: bool = False  # True: wrong responses are not longer than right ones
    hops: int = 1  # good searches it takes to see the answer; the documents before that read as bad ones
    near_miss: float = 0.0  # probability that a good document names a wrong answer
    shared_first_action: bool = False  # True: a group writes its first action once, so right and wrong share it
    # How alike hidden states are; all at 0 is the null twin.
    position_similarity: float = 0.9  # share of a body token's hidden state that is common to all queries and turns
    anisotropy: float = 0.2  # share of that common part that is one direction for all positions
    feedback_similarity: float = 0.3  # share of one direction per kind of feedback, after any feedback
    garbage_similarity: tuple[float, ...] = (0.0, 0.3, 0.6, 0.85)  # pull to one garbage direction, by drift level
    decision_similarity: float = 0.2  # share of a decision's hidden state that is common to all queries
    question_similarity: float = 0.0  # share of one direction per query in what is not common to all queries
    # The base policy: how likely each token is before training.
    canon_prob: float = 0.93  # probability of the canonical body token without drift
    recovery: tuple[float, ...] = (1.0, 0.8, 0.45, 0.1)  # factor on it, by drift level
    bad_feedback_factor: float = 0.9  # factor on it after a bad document or an error message
    p_search: float = 0.75  # decision without an answer in sight: search
    p_search_bad: float | None = None  # the same after a bad document, the rest guesses; None = as p_search
    p_guess: float = 0.05  # and each guess
    p_search_again: float = 0.15  # decision with an answer in sight: search all the same
    p_answer: float = 0.3  # and the right answer's lead over the others
    base_power: float = 1.0  # base probabilities are raised to this power and renormalised; see `matched_twin`


@dataclass(frozen=True)
class TrainerConfig:
    """The training loop: how often, how fast, and from which sampler."""

    seed: int = 0  # draws the world and everything that is sampled in it
    world_seed: int | None = None  # draws the world alone; None = seed
    updates: int = 150  # rollout batches
    updates_per_rollout: int = 10  # optimiser steps on each rollout batch [RC]; 1 makes LLDS inert
    optimizer: Literal["sgd", "adam"] = "sgd"  # [RC] adam; plain gradient flow is what Theorem 4.2 speaks of
    learning_rate: float = 25.0  # [ours]; hidden states have norm 1 and the loss is a mean, hence the size
    momentum: float = 0.0  # of sgd
    feature_rate: float = 0.0  # learning rate of the features' map U (h = U phi), times learning_rate; 0 = fixed
    grad_clip: float = 1.0  # global norm
    std_ddof: int = 1  # [RC]; 0 = the population std of the paper's formula
    std_normalize: bool = True  # False: advantage = reward - mean (Dr.GRPO)
    advantage_eps: float = 1e-6  # [RC]
    temperature: float = 0.7  # of the sampler; the trainer's log-probabilities are at 1
    top_k: int | None = None  # of the sampler, before top_p; None = off
    top_p: float = 1.0  # of the sampler
    sampler_noise: float = 0.0  # sd of Gaussian noise on the sampler's logits, redrawn for every rollout batch
    staleness: int = 8  # the sampler's weights are this many rollout batches old
    advantage: Literal["group", "gae"] = "group"  # "gae": PPO with a tabular critic, see critic.py
    gae_lambda: float = 1.0  # [P, PPO baseline as in Search-R1]; discount 1
    critic_states: Literal["constant", "shared", "query"] = "shared"  # what the critic tells apart
    critic_init: float = 0.3  # its value everywhere before training
    critic_step: float = 0.3  # share of the way to the mean target that it moves after each rollout batch
    whiten: bool = True  # gae only: advantages of a rollout batch get mean 0 and variance 1
    allow_inert_llds: bool = False  # run LLDS with updates_per_rollout = 1, where it can do nothing
    dtype: Literal["float64", "float32"] = "float64"


@dataclass(frozen=True)
class ObjectiveConfig:
    """The loss: surrogate + KL - entropy bonus + llds_coef * LLDS (Eq. 6)."""

    surrogate: Literal["grpo", "gspo", "cispo"] = "grpo"  # [P 1] token ratio; one per response (2507.18071); CISPO
    aggregation: Aggregation = "token-mean"  # [RC]; the paper's Eq. 1 is "seq-mean-token-mean"
    clip_eps: float = 0.2  # [P 5]
    clip_eps_high: float | None = None  # upper clip range; None = clip_eps (DAPO's clip-higher sets .28)
    dual_clip: float | None = None  # for A < 0 cap the loss at dual_clip * |A|; None = off, as in [RC]
    cispo_cap: float = 5.0  # largest weight of a token under "cispo" [2510.13786]
    ratio_to: Literal["old", "sampler"] = "old"  # policy in the ratio's denominator
    tis_cap: float | None = None  # truncated importance weight min(pi_old / sampler, cap); None = off
    mis_high: float | None = None  # importance weight pi_old / sampler up to here and 0 beyond; None = off
    mis_low: float = 0.0  # and 0 below here; IcePop is .5 and 5
    probability_weight: float = 0.0  # a: advantage times a * pi_old(token) + 1 - a (2505.12929 uses .3); 0 = off
    nthr_beta: float | None = None  # NTHR (2505.18830): threshold factor; None = off, its study uses 1
    nthr_eta: float = 0.0  # weight of a wrong token above the threshold
    mask_shared_prefix: bool = False  # True: weight 0 for a wrong token whose whole prefix a right response shares
    negative_weight: float = 1.0  # A < 0 is multiplied by this; 0 = positive-only
    kl_coef: float = 0.001  # [P 5]
    kl_form: Literal["clamped", "linear", "raw"] = "clamped"  # see objectives.kl_k3
    entropy_coef: float = 0.001  # [RC] default; not in the paper's list
    llds_coef: float = 0.0  # lambda of Eq. 6; [P 5] 0.2, 0.3 for 7B-Instruct
    gate: Gate = "action"  # [P Eq. 4]; "token" Eq. 9, "response" Eq. 10 (v1's default)
    normalizer: Normalizer = "preserving"  # [P Eq. 4]; "all" = [RC]
    answer_weight: float = 1.0  # weight of answer tokens in LLDS when answer_weight_rule is "fixed"
    answer_weight_rule: Literal["fixed", "paper", "released"] = (
        "fixed"  # LLDS-MA: [P Eq. 5] or [RC], mask weight = lambda
    )


@dataclass(frozen=True)
class RunConfig:
    """One run: a world, an objective and a trainer, validated on construction."""

    world: WorldConfig = field(default_factory=WorldConfig)
    objective: ObjectiveConfig = field(default_factory=ObjectiveConfig)
    trainer: TrainerConfig = field(default_factory=TrainerConfig)

    def __post_init__(self) -> None:
        _validate(self)

    def replace(self, **changes: Any) -> RunConfig:
        """Return a copy with the named fields changed; an unknown name is an error that suggests the nearest.

        >>> RunConfig().replace(llds_coef=0.2).objective.llds_coef
        0.2
        """
        parts: dict[str, dict[str, Any]] = {"world": {}, "objective": {}, "trainer": {}}
        for name, value in changes.items():
            spec = field_spec(name)
            parts[spec.part][name] = spec.check(value)
        return RunConfig(**{part: dataclasses.replace(getattr(self, part), **new) for part, new in parts.items()})

    def flat(self) -> dict[str, Any]:
        """Return all fields of the three parts in one dictionary."""
        return {k: v for part in _PARTS for k, v in dataclasses.asdict(getattr(self, part)).items()}

    def to_json(self) -> str:
        """Return the flat configuration as canonical JSON (sorted keys)."""
        return json.dumps(self.flat(), sort_keys=True)

    def config_hash(self) -> str:
        """Return twelve hex digits that identify the configuration, seed included."""
        return hashlib.sha256(self.to_json().encode()).hexdigest()[:12]


_PARTS = {"world": WorldConfig, "objective": ObjectiveConfig, "trainer": TrainerConfig}


@dataclass(frozen=True)
class FieldSpec:
    """Name, part, type and default of one configuration field."""

    name: str
    part: str
    type: Any
    default: Any

    def check(self, value: Any) -> Any:
        """Return `value` as the field's type or raise ConfigError naming the value and what is wanted."""
        try:
            return _coerce(value, self.type)
        except (TypeError, ValueError):
            raise ConfigError(f"{self.name}={value!r}: expected {describe_type(self.type)}") from None


@cache
def field_specs() -> dict[str, FieldSpec]:
    """Return every configuration field by name."""
    return {
        f.name: FieldSpec(f.name, part, get_type_hints(cls)[f.name], f.default)
        for part, cls in _PARTS.items()
        for f in dataclasses.fields(cls)
    }


def field_spec(name: str) -> FieldSpec:
    """Return the field called `name`, or raise ConfigError with the nearest known name."""
    specs = field_specs()
    if name not in specs:
        raise ConfigError(f"unknown configuration field {name!r}{suggest(name, specs)}; `lldsim run --help` lists all")
    return specs[name]


def describe_type(hint: Any) -> str:
    """Return a field's type in words, for help texts and errors."""
    if get_origin(hint) is Literal:
        return "one of " + ", ".join(map(str, get_args(hint)))
    if get_origin(hint) is types.UnionType:
        return " or ".join("none" if a is type(None) else describe_type(a) for a in get_args(hint))
    if get_origin(hint) is tuple:
        return "a list of numbers"
    return {int: "an integer", float: "a number", bool: "true or false"}.get(hint, str(hint))


def _coerce(value: Any, hint: Any) -> Any:
    """Turn a Python, YAML or command-line value into the type `hint`; raise ValueError when it is not one."""
    if get_origin(hint) is types.UnionType:
        inner = next(a for a in get_args(hint) if a is not type(None))
        is_none = value is None or (isinstance(value, str) and value.lower() in ("none", "null"))
        return None if is_none else _coerce(value, inner)
    if get_origin(hint) is Literal:
        if value not in get_args(hint):
            raise ValueError
        return value
    if get_origin(hint) is tuple:
        items = value.split(",") if isinstance(value, str) else value
        return tuple(_coerce(item, float) for item in items)
    if hint is bool:
        if isinstance(value, str):
            value = {"true": True, "false": False}[value.lower()] if value.lower() in ("true", "false") else value
        if not isinstance(value, bool):
            raise ValueError
        return value
    if isinstance(value, bool):
        raise ValueError
    number = float(value)
    if not math.isfinite(number):
        raise ValueError
    if hint is int:
        if number != int(number):
            raise ValueError
        return int(number)
    return number


# field: (lowest, highest) value allowed, both included.
_RANGES: dict[str, tuple[float, float]] = {
    "n_queries": (1, 4096),
    "group_size": (2, 1024),
    "max_turns": (1, 64),
    "turn_tokens": (2, 256),
    "n_features": (1, 4096),
    "n_answers": (2, 64),
    "hops": (1, 64),
    "world_seed": (0, 2**63 - 1),
    "top_k": (1, 10**6),
    "feature_rate": (0, math.inf),
    "sampler_noise": (0, math.inf),
    "gae_lambda": (0, 1),
    "critic_init": (-math.inf, math.inf),
    "critic_step": (0, 1),
    "cispo_cap": (1e-6, math.inf),
    "mis_high": (0, math.inf),
    "mis_low": (0, math.inf),
    "probability_weight": (0, 1),
    "nthr_beta": (0, math.inf),
    "nthr_eta": (0, 1),
    "invalid_threshold": (1, 256),
    "updates": (1, 10**6),
    "updates_per_rollout": (1, 10**4),
    "staleness": (0, 1000),
    "std_ddof": (0, 1),
    "seed": (0, 2**63 - 1),
    "learning_rate": (0, math.inf),
    "temperature": (1e-3, math.inf),
    "top_p": (1e-6, 1),
    "grad_clip": (1e-12, math.inf),
    "advantage_eps": (0, 1),
    "momentum": (0, 0.9999),
    "clip_eps": (0, 1),
    "clip_eps_high": (0, math.inf),
    "dual_clip": (1, math.inf),
    "tis_cap": (0, math.inf),
    "negative_weight": (0, math.inf),
    "base_power": (0, math.inf),
    "answer_weight": (0, math.inf),
    **dict.fromkeys(("kl_coef", "entropy_coef", "llds_coef"), (0, math.inf)),
    **dict.fromkeys(("near_miss", "question_similarity", "p_search_bad"), (0.0, 1.0)),
    **dict.fromkeys(("search_noise", "position_similarity", "anisotropy", "feedback_similarity"), (0.0, 1.0)),
    **dict.fromkeys(("decision_similarity", "canon_prob", "bad_feedback_factor"), (0.0, 1.0)),
    **dict.fromkeys(("p_search", "p_guess", "p_search_again", "p_answer"), (0.0, 1.0)),
}


def _validate(config: RunConfig) -> None:
    for name, value in config.flat().items():
        spec = field_spec(name)
        value = spec.check(value)
        low, high = _RANGES.get(name, (-math.inf, math.inf))
        if isinstance(value, int | float) and not low <= value <= high:
            raise ConfigError(f"{name}={value}: must lie in [{low:g}, {high:g}]")
    world, objective, trainer = config.world, config.objective, config.trainer
    if len(world.garbage_similarity) != len(world.recovery):
        raise ConfigError(
            f"garbage_similarity has {len(world.garbage_similarity)} drift levels and recovery {len(world.recovery)}: "
            "give both the same number"
        )
    for name in ("garbage_similarity", "recovery"):
        if not all(0 <= x <= 1 for x in getattr(world, name)):
            raise ConfigError(f"{name}={getattr(world, name)}: every level must lie in [0, 1]")
    words = world.vocab_size - world.n_answers - 1
    if words < world.turn_tokens - 1:
        raise ConfigError(
            f"vocab_size={world.vocab_size} leaves {words} words for {world.turn_tokens - 1} body positions: "
            f"set vocab_size to at least {world.n_answers + world.turn_tokens}"
        )
    blind = world.p_search + world.n_answers * world.p_guess
    seeing = world.p_search_again + world.p_answer
    if blind > 1 or seeing > 0.95:
        raise ConfigError(
            f"decision probabilities exceed 1: p_search + n_answers * p_guess = {blind:g}, and "
            f"p_search_again + p_answer + .05 = {seeing + 0.05:g}"
        )
    if world.n_queries * world.group_size % trainer.updates_per_rollout:
        raise ConfigError(
            f"updates_per_rollout={trainer.updates_per_rollout} does not divide the "
            f"{world.n_queries * world.group_size} responses of a rollout batch (n_queries * group_size)"
        )
    corrections = [
        name
        for name, on in (
            ("ratio_to='sampler'", objective.ratio_to == "sampler"),
            ("tis_cap", objective.tis_cap is not None),
            ("mis_high", objective.mis_high is not None),
        )
        if on
    ]
    if len(corrections) > 1:
        raise ConfigError(f"{' and '.join(corrections)} correct the same gap twice; keep one of them")
    if world.p_search_bad is not None and world.p_search_bad > 0.95:
        raise ConfigError(
            f"p_search_bad={world.p_search_bad}: .05 goes to words and the rest to guesses; give .95 or less"
        )
    if objective.nthr_beta is not None and trainer.feature_rate > 0:
        raise ConfigError("nthr_beta is exact for fixed hidden states only; set feature_rate=0")
    if trainer.advantage == "gae" and (objective.nthr_beta is not None or objective.mask_shared_prefix):
        raise ConfigError(
            "nthr_beta and mask_shared_prefix read right and wrong from the group's advantage; set advantage='group'"
        )
    if objective.llds_coef > 0 and trainer.updates_per_rollout == 1 and not trainer.allow_inert_llds:
        raise ConfigError(
            "llds_coef > 0 with updates_per_rollout=1: old and current policy are equal on the only step, so the gate "
            "can never open; raise updates_per_rollout, or set allow_inert_llds to show exactly that"
        )


_OBJECTIVE_PRESETS: dict[str, dict[str, Any]] = {
    "paper": {"aggregation": "seq-mean-token-mean", "normalizer": "preserving", "entropy_coef": 0.0},
    "released_code": {"aggregation": "token-mean", "normalizer": "all", "entropy_coef": 0.001},
}
SIMILARITY_OFF: dict[str, Any] = {  # every source of similar hidden states at its null
    "position_similarity": 0.0,
    "anisotropy": 0.0,
    "feedback_similarity": 0.0,
    "garbage_similarity": (0.0, 0.0, 0.0, 0.0),
}
# name: (fields, what it is for). Later presets may build on earlier ones by hand; all start from the defaults.
PRESETS: dict[str, tuple[dict[str, Any], str]] = {
    "spiral": (_OBJECTIVE_PRESETS["released_code"], "sharp, stale sampler and similar hidden states: collapses"),
    "null": (_OBJECTIVE_PRESETS["released_code"] | SIMILARITY_OFF, "spiral's twin with similarity 0"),
    "paper": (_OBJECTIVE_PRESETS["paper"], "spiral's world under the paper's equations"),
    "released_code": (_OBJECTIVE_PRESETS["released_code"], "the released code's loss; same as spiral"),
}


def preset(name: str) -> RunConfig:
    """Return the named preset, or raise ConfigError with the nearest known name."""
    if name not in PRESETS:
        raise ConfigError(f"unknown preset {name!r}{suggest(name, PRESETS)}; known: {', '.join(PRESETS)}")
    return RunConfig().replace(**PRESETS[name][0])


def matched_twin(config: RunConfig) -> RunConfig:
    """Return the on-policy twin of `config`: the same first rollouts from a sampler that is not sharper.

    The base probabilities B become B^(1/temperature), renormalised, and the sampler's temperature 1, so the sampled
    distribution at the start is identical; the learning rate is divided by the old temperature, which keeps the speed
    of the sampler's logits. What changes is the leak: the trainer's policy now equals the sampler's (up to staleness).
    """
    temperature = config.trainer.temperature
    return config.replace(
        base_power=config.world.base_power / temperature,
        temperature=1.0,
        learning_rate=config.trainer.learning_rate / temperature,
    )


def from_mapping(values: Mapping[str, Any], *, base: RunConfig | None = None) -> RunConfig:
    """Return a configuration from a flat mapping (YAML, JSON); a key `preset` chooses the start."""
    values = dict(values)
    start = preset(values.pop("preset")) if "preset" in values else (base or RunConfig())
    return start.replace(**values)
