"""Configuration of a transformer run: its world, its trainer and the objective that it shares with the toy.

Fields that mean the same have the toy's names, so `--llds-coef 0.2 --temperature 1` work alike, and their ranges and
combinations are checked by the toy's own rules. What this file does not do: build anything.

Sources: [P n] paper arXiv 2512.04220 v2 section n, [RC] its released code, [ours] found by measurement here.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Any, Literal, get_type_hints

from lldsim.config import FieldSpec, ObjectiveConfig, RunConfig, TrainerConfig, WorldConfig, preset
from lldsim.errors import ConfigError, suggest


@dataclass(frozen=True)
class TokenWorldConfig:
    """The world of world.py: a fact to look up, eight turns at most; every token is free."""

    n_queries: int = 16  # P, prompts in a rollout batch
    group_size: int = 5  # G [P 5]
    max_turns: int = 8  # [ours] with 3 to 5 turns a bad first document is often fatal, and LLDS loses that branch
    body_tokens: int = 10  # free words of one action before its search or answer
    invalid_threshold: int = 7  # an action with at least this many off-canon body tokens is invalid
    search_noise: float = 0.4  # probability that a right search returns a useless document


@dataclass(frozen=True)
class LoopConfig:
    """The training loop; defaults spiral [ours]."""

    seed: int = 0  # draws everything that is sampled in training
    warm_start: int = 0  # which packaged checkpoint to start from; each has its own world, traces and initial weights
    head_scale: float = 1.0  # output weights are multiplied by this at the start; 1 / T makes a matched start at T = 1
    updates: int = 100  # rollout batches
    updates_per_rollout: int = 10  # optimiser steps on each rollout batch [RC]
    optimizer: Literal["sgd", "adam"] = "sgd"  # [RC] adam; sgd shows the size of the gradient undivided
    learning_rate: float = 0.1  # of sgd; for adam 1e-4
    grad_clip: float = 1.0  # global norm
    std_ddof: int = 1  # [RC]
    std_normalize: bool = True  # False: advantage = reward - mean (Dr.GRPO)
    advantage_eps: float = 1e-6  # [RC]
    temperature: float = 0.7  # of the sampler; the trainer's log-probabilities are at 1
    staleness: int = 8  # the sampler's weights are this many rollout batches old
    stop_after_fall: bool = True  # stop when the mean reward of 6 updates is below .2 after it was above .4
    allow_inert_llds: bool = False  # run LLDS with updates_per_rollout = 1, where it can do nothing


def _released() -> ObjectiveConfig:
    return preset("released_code").objective


@dataclass(frozen=True)
class TransformerConfig:
    """One transformer run, validated on construction."""

    world: TokenWorldConfig = field(default_factory=TokenWorldConfig)
    objective: ObjectiveConfig = field(default_factory=_released)
    trainer: LoopConfig = field(default_factory=LoopConfig)

    def __post_init__(self) -> None:
        _validate(self)

    def replace(self, **changes: Any) -> TransformerConfig:
        """Return a copy with the named fields changed; an unknown name is an error that suggests the nearest.

        >>> TransformerConfig().replace(llds_coef=0.2).objective.llds_coef
        0.2
        """
        parts: dict[str, dict[str, Any]] = {"world": {}, "objective": {}, "trainer": {}}
        for name, value in changes.items():
            specs = transformer_fields()
            if name not in specs:
                raise ConfigError(f"a transformer run has no field {name!r}{suggest(name, specs)}")
            parts[specs[name].part][name] = specs[name].check(value)
        return TransformerConfig(**{k: dataclasses.replace(getattr(self, k), **new) for k, new in parts.items()})

    def flat(self) -> dict[str, Any]:
        """Return all fields of the three parts in one dictionary, and `policy`, which tells it from a toy run."""
        parts = (self.world, self.objective, self.trainer)
        return {"policy": "transformer"} | {k: v for part in parts for k, v in dataclasses.asdict(part).items()}

    def config_hash(self) -> str:
        """Return twelve hex digits that identify the configuration, seed included."""
        return hashlib.sha256(json.dumps(self.flat(), sort_keys=True).encode()).hexdigest()[:12]


@cache
def transformer_fields() -> dict[str, FieldSpec]:
    """Return every field of a transformer run by name."""
    parts = {"world": TokenWorldConfig, "objective": ObjectiveConfig, "trainer": LoopConfig}
    return {
        f.name: FieldSpec(f.name, part, get_type_hints(cls)[f.name], f.default)
        for part, cls in parts.items()
        for f in dataclasses.fields(cls)
    }


# name: (fields, what it is for)
TRANSFORMER_PRESETS: dict[str, tuple[dict[str, Any], str]] = {
    "transformer-spiral": ({}, "a 115,000-parameter Qwen2 with a sharp, stale sampler: collapses"),
    "transformer-clean": ({"temperature": 1.0, "staleness": 0}, "the same, sampled from the trainer's own policy"),
}


def transformer_preset(name: str) -> TransformerConfig:
    """Return the named preset, or raise ConfigError with the nearest known name."""
    if name not in TRANSFORMER_PRESETS:
        known = ", ".join(TRANSFORMER_PRESETS)
        raise ConfigError(f"unknown preset {name!r}{suggest(name, TRANSFORMER_PRESETS)}; known: {known}")
    return TransformerConfig().replace(**TRANSFORMER_PRESETS[name][0])


def transformer_from_mapping(values: Mapping[str, Any]) -> TransformerConfig:
    """Return a configuration from a flat mapping whose key `preset`, where given, chooses the start."""
    values = dict(values)
    return transformer_preset(values.pop("preset", "transformer-spiral")).replace(**values)


def _validate(config: TransformerConfig) -> None:
    world, loop = dataclasses.asdict(config.world), dataclasses.asdict(config.trainer)
    own = {name: loop.pop(name) for name in ("warm_start", "head_scale", "stop_after_fall")}
    body = world.pop("body_tokens")
    RunConfig(world=WorldConfig(**world), objective=config.objective, trainer=TrainerConfig(**loop))
    if not 1 <= body <= 16:
        raise ConfigError(f"body_tokens={body}: must lie in [1, 16], the number of canonical words")
    if not own["warm_start"] >= 0:
        raise ConfigError(f"warm_start={own['warm_start']}: give the number of a packaged checkpoint, from 0")
    if not 0 < own["head_scale"] < 100:
        raise ConfigError(f"head_scale={own['head_scale']}: must lie in (0, 100); 1 leaves the warm start as it is")
    if config.objective.nthr_beta is not None or config.objective.mask_shared_prefix:
        raise ConfigError("nthr_beta and mask_shared_prefix need the toy's fixed hidden states; leave them off here")
