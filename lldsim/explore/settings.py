"""What the explorer's dials mean: each is relative to the preset `spiral`, where it stands at its default.

Similarity, unlikelihood and feedback shift are multiples of what `spiral` has, so 0 takes the ingredient away. The
sampler's temperature keeps the first rollouts: the base policy is sharpened in step with it (as `config.matched_twin`
does), so that only the gap between sampler and trainer changes. The learning rate is relative too, and is shared out
over the updates per rollout, so that a rollout batch is worth the same total step.
What this file does not do: run anything, or draw.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any, Literal

from lldsim.config import RunConfig, preset
from lldsim.errors import ConfigError, suggest
from lldsim.names import Gate

_SPIRAL = preset("spiral")


@dataclass(frozen=True)
class Dial:
    """One dial: its label, what it does, and the values that a slider offers (an error outside low..high)."""

    label: str
    what: str
    values: tuple[Any, ...]


def _steps(low: float, high: float, step: float) -> tuple[float, ...]:
    return tuple(round(low + i * step, 10) for i in range(round((high - low) / step) + 1))


DIALS: dict[str, Dial] = {
    "similarity": Dial("similarity", "how alike hidden states are; 1 as in spiral, 0 not at all", _steps(0, 1, 0.1)),
    "unlikelihood": Dial(
        "unlikelihood of wrong",
        "how much stray words and bad feedback lower the likelihood of what follows; 1 as in spiral, 0 not at all "
        "(this also makes the task easier)",
        _steps(0, 1, 0.1),
    ),
    "feedback_shift": Dial(
        "feedback shift", "how far feedback moves hidden states one way; 1 as in spiral", _steps(0, 3, 0.25)
    ),
    "temperature": Dial(
        "sampler temperature",
        "below 1 the sampler is sharper than the trainer; same first rollouts",
        _steps(0.5, 1, 0.1),
    ),
    "staleness": Dial("sampler staleness", "rollout batches that the sampler lags behind", (0, 1, 2, 4, 8, 16)),
    "updates_per_rollout": Dial(
        "updates per rollout", "optimiser steps on a batch; 1 makes LLDS inert", (1, 2, 5, 10, 20)
    ),
    "rate": Dial("learning rate (× spiral)", "total step on a rollout batch", (0.25, 0.5, 1.0, 2.0, 4.0)),
    "llds_coef": Dial("LLDS λ", "weight of the regulariser; 0 is plain GRPO", (0.0, 0.01, 0.03, 0.1, 0.2, 0.3)),
    "gate": Dial("LLDS gate", "what must fall for the penalty to act", ("action", "token", "response")),
    "updates": Dial("updates", "length of the run", (50, 100, 150, 200, 300)),
    "seed": Dial("seed", "draws the world and all luck", tuple(range(20))),
    "dtype": Dial("precision", "float32 is faster; its numbers are not those of float64", ("float64", "float32")),
}


@dataclass(frozen=True)
class Settings:
    """A position of all dials; the default is `spiral` itself.

    >>> Settings(llds_coef=0.2).config().objective.llds_coef
    0.2
    """

    similarity: float = 1.0
    unlikelihood: float = 1.0
    feedback_shift: float = 1.0
    temperature: float = 0.7
    staleness: int = 8
    updates_per_rollout: int = 10
    rate: float = 1.0
    llds_coef: float = 0.0
    gate: Gate = "action"
    updates: int = 150
    seed: int = 0
    dtype: Literal["float64", "float32"] = "float64"

    def replace(self, **changes: Any) -> Settings:
        """Return a copy with the named dials changed; an unknown name is a ConfigError that suggests the nearest."""
        for name in changes:
            if name not in DIALS:
                raise ConfigError(f"unknown dial {name!r}{suggest(name, DIALS)}; dials are {', '.join(DIALS)}")
        return dataclasses.replace(self, **changes)

    def config(self) -> RunConfig:
        """Return the run that the dials describe; ConfigError names a value that is out of range."""
        world, trainer = _SPIRAL.world, _SPIRAL.trainer
        for name in ("similarity", "unlikelihood", "feedback_shift", "temperature", "rate", "updates_per_rollout"):
            value, low = getattr(self, name), 0 if name in ("similarity", "unlikelihood", "feedback_shift") else 1e-3
            if isinstance(value, bool) or not isinstance(value, int | float) or not value >= low:
                raise ConfigError(f"{name}={value!r}: the dial needs a number of at least {low:g}")
        sharpness = trainer.temperature / self.temperature  # 1 at spiral's temperature; below 1 towards on-policy
        return _SPIRAL.replace(
            position_similarity=self.similarity * world.position_similarity,
            anisotropy=self.similarity * world.anisotropy,
            garbage_similarity=tuple(self.similarity * g for g in world.garbage_similarity),
            recovery=tuple(r + (1 - self.unlikelihood) * (1 - r) for r in world.recovery),
            bad_feedback_factor=world.bad_feedback_factor + (1 - self.unlikelihood) * (1 - world.bad_feedback_factor),
            feedback_similarity=self.feedback_shift * world.feedback_similarity,
            temperature=self.temperature,
            base_power=world.base_power / sharpness,
            staleness=self.staleness,
            updates_per_rollout=self.updates_per_rollout,
            learning_rate=self.rate
            * trainer.learning_rate
            * (trainer.updates_per_rollout / self.updates_per_rollout)
            / sharpness,
            llds_coef=self.llds_coef,
            gate=self.gate,
            updates=self.updates,
            seed=self.seed,
            dtype=self.dtype,
        )


# name: (dials that differ from the default, what it is for)
PRESETS: dict[str, tuple[dict[str, Any], str]] = {
    "spiral": ({}, "sharp, stale sampler and similar hidden states"),
    "cured": ({"llds_coef": 0.2}, "the same with LLDS"),
    "similarity 0": ({"similarity": 0.0, "feedback_shift": 0.0}, "the twin whose hidden states are not alike"),
    "on-policy": ({"temperature": 1.0, "staleness": 0}, "the twin whose sampler is the trainer"),
    "too little LLDS": ({"llds_coef": 0.01}, "delayed, not prevented"),
}


def preset_settings(name: str, *, keep: Settings) -> Settings:
    """Return a preset's dials, with length, seed and precision as in `keep`; ConfigError for an unknown name."""
    if name not in PRESETS:
        raise ConfigError(f"unknown preset {name!r}{suggest(name, PRESETS)}; known: {', '.join(PRESETS)}")
    return Settings(updates=keep.updates, seed=keep.seed, dtype=keep.dtype).replace(**PRESETS[name][0])
