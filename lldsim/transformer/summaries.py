"""What captions say about a study: medians before the collapse, and the unembedding's share of the displacement.

What this file does not do: the table of conditions (study.py).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from lldsim.diagnostics.collapse import collapse_step, smooth
from lldsim.record import RunRecord


def before_collapse(
    records: Sequence[RunRecord], columns: Sequence[str], *, at: Sequence[int], window: int = 3
) -> dict[str, list[float | None]]:
    """Return per column the median over collapsing records of its smoothed value `at` updates from the collapse.

    None where fewer than half of those records have a value there.
    """
    fallen = [(r, step) for r in records if (step := collapse_step(r["reward"])) is not None]
    found: dict[str, list[float | None]] = {}
    for name in columns:
        curves = [(smooth(record[name], window), step) for record, step in fallen]
        found[name] = [_median([c[step + a] for c, step in curves if 0 <= step + a < len(c)], len(fallen)) for a in at]
    return found


def _median(values: Sequence[float], of: int) -> float | None:
    known = [v for v in values if np.isfinite(v)]
    return float(np.median(known)) if known and 2 * len(known) >= of else None


def share_by_phase(probes: Sequence[Mapping[str, Any]], *, least: float = 0.0) -> dict[str, dict[str, Any]]:
    """Return, for probes whose first-order change is above `least` and below -`least`, the unembedding's share of it.

    A share is `change_head` / `change`: 1 if the output matrix explains all, negative if it has the wrong sign.
    `same_sign` counts the probes where it has the right one.
    """
    out = {}
    for name, sign in (("rises", 1), ("falls", -1)):
        pairs = [(row["change_head"], row["change"]) for row in probes if sign * row["change"] > least]
        shares = np.array([head / full for head, full in pairs])
        median = float(np.median(shares)) if len(shares) else None
        span = [float(x) for x in np.quantile(shares, [0.25, 0.75])] if len(shares) else None
        out[name] = {"n": len(shares), "median": median, "quartiles": span, "same_sign": int((shares > 0).sum())}
    return out
