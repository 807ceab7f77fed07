"""Every threshold that turns a curve into a word, in one place, used alike for all arms and all worlds.

They were fixed before the runs that the figures show. What this file does not do: apply them (phases.py, collapse.py,
displacement.py, conditions.py).
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Thresholds:
    """Smoothing windows in updates (centred), and ratios without unit."""

    reward_window: int = 9  # reward is smoothed over this many updates before anything is read from it
    signal_window: int = 5  # likelihood, entropy and gradient norm over this many
    collapse_share: float = 0.5  # collapsed: smoothed reward below this share of its running peak
    decay_ratio: float = 1.25  # decay: -log-probability of correct responses above this multiple of its lowest value
    acceleration_ratio: float = 3.0  # acceleration: above this multiple
    early: tuple[int, int] = (2, 10)  # updates that "early" means, first included, last excluded
    plateau_share: float = 0.95  # reward "holds its peak" while above this share of its running peak
    # Displacement (Def. 4.1, Eq. 3), nats per action or response; the bare rule is change <= 0.
    displaced_size: float = 0.25  # displaced by size: change <= -this; a response has about 40 tokens
    # The three conditions of Def. A.3, each read from a smoothed curve.
    spiral_drop: float = 0.05  # (1) mean change of correct responses <= -this at every update, nats per response
    spiral_similarity: float = 0.1  # (2) similarity of correct and wrong responses at least this (cosine, all pairs)
    spiral_lag: int = 5  # (3) the change is below what it was this many updates before
    # The pull of wrong responses (causal/lead.py): what the negative part of G alone would lower in one update.
    pull_size: float = 0.06  # large: nats per token of correct responses and update; twice an early update's
    pull_looks: int = 2  # in this many looks running


DEFAULT = Thresholds()
