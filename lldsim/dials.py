"""The dials: every ingredient that could cause a collapse, with the setting that takes it away.

A dial changes fields of one base run. Causes are on in `spiral`, and `null` takes one of them away. Extras are off
there, and `on` adds one, to `spiral` or to its on-policy twin (a sampler as sharp as the trainer, equally stale). Where
a null changes the task's difficulty, `calibrate` names the field that a search moves until first rollouts earn what
spiral's do (causal/twins.py), so that the twin differs in the dial and not in where it starts.
What this file does not do: run anything (causal/), or hold cures (arms.py).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

from lldsim.config import SIMILARITY_OFF, RunConfig, matched_twin, preset
from lldsim.errors import ConfigError, suggest

Base = Literal["spiral", "twin"]


@dataclass(frozen=True)
class Dial:
    """One dial: what it is, its null and its on setting as changes of the base, and how its twin is matched."""

    name: str
    family: Literal["sampler", "similarity", "likelihood", "structure", "trainer"]
    what: str
    null: dict[str, Any] = field(default_factory=dict)
    on: dict[str, Any] = field(default_factory=dict)
    base: Base = "spiral"
    calibrate: str | None = None  # field moved until the null starts at spiral's reward; None = starts there anyway
    factor: bool = False  # takes part in the factorial design

    @property
    def cause(self) -> bool:
        """True if spiral has the dial on, so that the null is what differs from it."""
        return not self.on

    def config(self, setting: Literal["null", "on"]) -> RunConfig:
        """Return the (uncalibrated) configuration of a setting."""
        return apply(base_config(self.base), self.null if setting == "null" else self.on)


def base_config(base: Base) -> RunConfig:
    """Return spiral, or its twin whose sampler is not sharper than the trainer (first rollouts identical)."""
    return preset("spiral") if base == "spiral" else matched_twin(preset("spiral"))


def apply(config: RunConfig, changes: dict[str, Any]) -> RunConfig:
    """Return `config` with `changes`; the key `matched_sampler` stands for `matched_twin`, which is no single field."""
    changes = dict(changes)
    if changes.pop("matched_sampler", False):
        config = matched_twin(config)
    return config.replace(**changes)


_FLAT = {"recovery": (1.0, 1.0, 1.0, 1.0)}
DIALS: tuple[Dial, ...] = (
    Dial("sharpness", "sampler", "sampler temperature .7", null={"matched_sampler": True}, factor=True),
    Dial("staleness", "sampler", "sampler 8 updates behind", null={"staleness": 0}, factor=True),
    Dial("sharpness_staleness", "sampler", "both", null={"matched_sampler": True, "staleness": 0}),
    Dial("staleness_2", "sampler", "sampler 2 updates behind instead of 8", on={"staleness": 2}),
    Dial("top_p", "sampler", "top-p .9 in place of a temperature", on={"top_p": 0.9}, base="twin"),
    Dial("top_k", "sampler", "top-k 8 in place of a temperature", on={"top_k": 8}, base="twin"),
    Dial("noise", "sampler", "logit noise .5 in place of a temperature", on={"sampler_noise": 0.5}, base="twin"),
    Dial("similarity", "similarity", "all sources of similar hidden states", null=SIMILARITY_OFF, factor=True),
    Dial(
        "position",
        "similarity",
        "what body tokens of one position share",
        null={"position_similarity": 0.0, "anisotropy": 0.0},
    ),
    Dial("feedback", "similarity", "one direction after any feedback", null={"feedback_similarity": 0.0}),
    Dial(
        "garbage",
        "similarity",
        "one direction when words go astray",
        null={"garbage_similarity": (0.0, 0.0, 0.0, 0.0)},
    ),
    Dial("decision", "similarity", "what decisions share", null={"decision_similarity": 0.0}),
    Dial("question", "similarity", "one direction per question", on={"question_similarity": 0.5}),
    Dial(
        "bad_feedback",
        "likelihood",
        "words after bad feedback are less likely",
        null={"bad_feedback_factor": 1.0},
        calibrate="canon_prob",
    ),
    Dial("recovery", "likelihood", "words after a stray word are less likely", null=_FLAT, calibrate="canon_prob"),
    Dial(
        "ood_feedback",
        "likelihood",
        "both effects of feedback: direction and likelihood",
        null={"feedback_similarity": 0.0, "bad_feedback_factor": 1.0},
        calibrate="canon_prob",
        factor=True,
    ),
    Dial(
        "low_likelihood",
        "likelihood",
        "both low likelihoods",
        null={"bad_feedback_factor": 1.0, **_FLAT},
        calibrate="canon_prob",
    ),
    Dial(
        "longer_wrong",
        "structure",
        "wrong responses are longer",
        null={"invalid_ends_episode": True},
        calibrate="canon_prob",
        factor=True,
    ),
    Dial("shared_first", "structure", "a group shares its first action", on={"shared_first_action": True}),
    Dial("near_miss", "structure", "a fifth of good documents name a wrong answer", on={"near_miss": 0.2}),
    Dial(
        "updates_2",
        "trainer",
        "2 updates per rollout, same total step",
        on={"updates_per_rollout": 2, "learning_rate": 125.0},
    ),
    Dial(
        "updates_1",
        "trainer",
        "1 update per rollout, same total step",
        on={"updates_per_rollout": 1, "learning_rate": 250.0},
    ),
    Dial("std_ddof", "trainer", "population instead of unbiased std", on={"std_ddof": 0}),
    Dial(
        "std_off", "trainer", "no division by std, learning rate 50", on={"std_normalize": False, "learning_rate": 50.0}
    ),
    Dial("seq_mean", "trainer", "mean per response, then over them", on={"aggregation": "seq-mean-token-mean"}),
    Dial(
        "seq_sum",
        "trainer",
        "sum per response, learning rate over 43 tokens",
        on={"aggregation": "seq-mean-token-sum", "learning_rate": 25.0 / 43},
    ),
    Dial("kl", "trainer", "KL .001", null={"kl_coef": 0.0}),
    Dial("kl_raw", "trainer", "unclamped k3, explodes by itself", on={"kl_form": "raw"}),
    Dial("entropy_bonus", "trainer", "entropy bonus .001", null={"entropy_coef": 0.0}),
    Dial("clip", "trainer", "clip range .2", null={"clip_eps": 1.0, "clip_eps_high": 1e9}),
    Dial("clip_higher", "trainer", "upper clip .28", on={"clip_eps_high": 0.28}),
    Dial("dual_clip", "trainer", "dual clip 3", on={"dual_clip": 3.0}),
    Dial("adam", "trainer", "Adam, learning rate .01", on={"optimizer": "adam", "learning_rate": 0.01}),
    Dial("rate_half", "trainer", "half the learning rate", on={"learning_rate": 12.5}),
    Dial("rate_double", "trainer", "twice the learning rate", on={"learning_rate": 50.0}),
    Dial(
        "rate_onpolicy",
        "trainer",
        "on-policy twin at 4 times its rate",
        on={"learning_rate": 143.0, "staleness": 0},
        base="twin",
    ),
    Dial("features", "trainer", "trained features at .003 of the rate", on={"feature_rate": 0.003}),
    Dial("richest", "trainer", "128 words and trained features", on={"vocab_size": 128, "feature_rate": 0.003}),
)


def dial(name: str) -> Dial:
    """Return the dial called `name`, or raise ConfigError with the nearest known one."""
    known = {d.name: d for d in DIALS}
    if name not in known:
        raise ConfigError(f"unknown dial {name!r}{suggest(name, known)}; known: {', '.join(known)}")
    return known[name]
