"""The three conditions of Def. A.3, the death spiral, read from a log.

What this file does not do: alarms; these statements look at the whole log.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from lldsim.monitor.readers import Log

MIN_ROWS = 12  # fewer rows decide nothing


def conditions_of(
    log: Log, likelihood: np.ndarray | None, end: int, *, steps_per_update: float = 1.0
) -> dict[str, dict[str, Any]]:
    """Return the three conditions of Def. A.3 ("death spiral"): whether each holds up to `end`, and from which step.

    1: correct responses' likelihood falls at every step; 2: wrong ones' does not rise (and hidden states stay
    similar, if logged); 3: the fall grows, i.e. the curvature since 1 began is negative by two standard errors.
    `holds` is None where the log cannot tell.
    """
    unknown = {"holds": None, "from": None}
    result: dict[str, dict[str, Any]] = {
        "1 correct falls": dict(unknown),
        "2 wrong does not rise": dict(unknown),
        "3 the fall grows": dict(unknown),
    }
    updates = log.steps[:end] / steps_per_update
    of_all = log.has("logp_all") and not log.has("logp_correct") and not log.has("logp_correct_over_all")
    if likelihood is not None and not of_all and _readable(likelihood[:end]):
        since = _since(updates, likelihood[:end], falling=True)
        result["1 correct falls"] = _condition(log, since)
        grows = since is not None and _accelerates(updates[since:], likelihood[since:end])
        at = float(log.steps[since]) if since is not None and grows else None
        result["3 the fall grows"] = {"holds": grows, "from": at}
    if log.has("logp_wrong") and _readable(log.record["logp_wrong"][:end]):
        since = _since(updates, log.record["logp_wrong"][:end], falling=False)
        result["2 wrong does not rise"] = _condition(log, since)
        similar = log.record["similarity"][:end] if log.has("similarity") else np.empty(0)
        if np.isfinite(similar).any():
            result["2 wrong does not rise"]["mean_similarity"] = float(np.nanmean(similar))
    return result


def _readable(values: np.ndarray) -> bool:
    return int(np.isfinite(values).sum()) >= MIN_ROWS


def _condition(log: Log, since: int | None) -> dict[str, Any]:
    return {"holds": since is not None, "from": None if since is None else float(log.steps[since])}


def _since(updates: np.ndarray, values: np.ndarray, *, falling: bool, window: int = 10) -> int | None:
    """Return the row since which the trailing slope per update is below -.001 (falling) or at most .001, up to the
    last row."""
    known = np.flatnonzero(np.isfinite(values))
    bound = -0.001 if falling else 0.001
    since = None
    for j in range(len(known) - 1, window - 2, -1):
        rows = known[j - window + 1 : j + 1]
        if np.polyfit(updates[rows] - updates[rows[0]], values[rows], 1)[0] > bound:
            break
        since = int(rows[0])
    return since


def _accelerates(steps: np.ndarray, values: np.ndarray) -> bool | None:
    known = np.isfinite(values)
    if known.sum() < 6:
        return None
    x = (steps[known] - steps[known].mean()) / max(np.ptp(steps[known]), 1e-12)
    design = np.stack([np.ones_like(x), x, x**2], axis=1)
    coefficients, *_ = np.linalg.lstsq(design, values[known], rcond=None)
    residual = values[known] - design @ coefficients
    variance = residual @ residual / max(1, len(x) - 3) * np.linalg.pinv(design.T @ design)[2, 2]
    return bool(coefficients[2] < -2 * math.sqrt(max(variance, 0.0)) and coefficients[2] < 0)
