"""The weight of answer tokens in LLDS-MA: the paper's rule, the released code's rule, or a fixed number.

What this file does not do: it does not find the answer tokens (the rollout marks them) and does not count searches.
"""

from __future__ import annotations

import math
from typing import Literal

import torch

from lldsim.errors import ConfigError, NonFiniteError

AnswerWeightRule = Literal["fixed", "paper", "released"]


def answer_weight(
    mean_valid_searches: float | torch.Tensor | None,
    *,
    rule: AnswerWeightRule,
    llds_coef: float,
    fixed: float = 1.0,
    mask_weight: float | None = None,
) -> float:
    r"""Weight beta of the answer tokens inside LLDS (Eq. 5 of arXiv 2512.04220 and its released code).

        "paper"     beta = min(V / 2, 1)
        "released"  beta = min(mask_weight * max(V - 1, 0), llds_coef) / llds_coef
        "fixed"     beta = fixed                (released code without adaptation: min(mask_weight, lambda) / lambda)

    V is the mean number of valid searches per rollout now. The two adaptive rules agree only from V = 2 on: at V = 1
    they give 0.5 and 0. `mask_weight` None means llds_coef (ours: beta then reaches 1 at V = 2 for every lambda).

    Shapes: `mean_valid_searches` a number or a scalar tensor, ignored by "fixed"; result dimensionless, >= 0.
    Raises: ConfigError (V missing or negative, lambda <= 0 with "released", negative weight, unknown rule),
    NonFiniteError (V).

    >>> [answer_weight(v, rule="paper", llds_coef=0.2) for v in (0, 1, 1.5, 3)]
    [0.0, 0.5, 0.75, 1.0]
    >>> [round(answer_weight(v, rule="released", llds_coef=0.2), 9) for v in (0, 1, 1.5, 3)]
    [0.0, 0.0, 0.5, 1.0]
    """
    if rule == "fixed":
        if not (fixed >= 0 and math.isfinite(fixed)):
            raise ConfigError(
                f"answer_weight={fixed} must be a finite number >= 0 (1 = answer tokens weigh like others)"
            )
        return float(fixed)
    if rule not in ("paper", "released"):
        raise ConfigError(f"answer_weight_rule is {rule!r}; choose 'fixed', 'paper' or 'released'")
    if mean_valid_searches is None:
        raise ConfigError(f"answer_weight_rule={rule!r} needs mean_valid_searches; pass the batch mean, or use 'fixed'")
    searches = float(mean_valid_searches)
    if not math.isfinite(searches):
        raise NonFiniteError(f"mean_valid_searches is {searches}; average valid_searches over a non-empty batch")
    if searches < 0:
        raise ConfigError(f"mean_valid_searches={searches} is a count per rollout and cannot be negative")
    if rule == "paper":
        return min(searches / 2, 1.0)
    if not llds_coef > 0:
        raise ConfigError(f"answer_weight_rule='released' divides by llds_coef={llds_coef}; set llds_coef > 0")
    slope = llds_coef if mask_weight is None else mask_weight
    if not slope >= 0:
        raise ConfigError(f"mask_weight={slope} must be >= 0, or None for llds_coef")
    return min(slope * max(searches - 1, 0.0), llds_coef) / llds_coef
