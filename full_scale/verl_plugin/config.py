# pyright: reportMissingImports=false, reportGeneralTypeIssues=false
"""The keys of `actor_rollout_ref.actor.policy_loss` that LLDS adds to verl's, typed and checked.

verl refuses unknown keys of this section, so the section's `_target_` names this class; launch.py sets it.
What this file does not do: choose values (full_scale/config.py does, launch.py hands them over).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import get_args

from verl.workers.config import PolicyLossConfig

from full_scale.verl_plugin import BASES, LOSS
from lldsim.errors import ConfigError, suggest
from lldsim.names import Gate, Normalizer
from lldsim.objectives.answer_weight import AnswerWeightRule


@dataclass
class LLDSPolicyLossConfig(PolicyLossConfig):
    """verl's PolicyLossConfig with LLDS; meanings and defaults as in full_scale.config.FullConfig."""

    loss_mode: str = LOSS
    llds_base: str = "grpo"
    llds_coef: float = 0.2  # [P 5]
    llds_gate: str = "action"  # [P Eq. 4]
    llds_normalizer: str = "preserving"  # [P Eq. 4]; "all" is the released code's
    llds_answer_weight_rule: str = "fixed"

    def __post_init__(self) -> None:
        """Raise ConfigError for a value that means nothing."""
        if not (self.llds_coef >= 0 and math.isfinite(self.llds_coef)):
            raise ConfigError(f"llds_coef={self.llds_coef} must be a finite number >= 0 (paper: 0.2)")
        choices = {
            "llds_base": tuple(BASES),
            "llds_gate": get_args(Gate),
            "llds_normalizer": get_args(Normalizer),
            "llds_answer_weight_rule": get_args(AnswerWeightRule),
        }
        for name, allowed in choices.items():
            value = getattr(self, name)
            if value not in allowed:
                raise ConfigError(f"{name} is {value!r}; choose one of {allowed}{suggest(str(value), allowed)}")
