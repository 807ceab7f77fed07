"""The figure that holds the prediction to the simulation (prediction_grid.py), setting by setting.

What this file does not do: predict, simulate or score.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from lldsim.plots.style import color

_FORMS = {
    "constant": "drift\nconstant",
    "together": "drift follows\nthe fall",
    "apart": "words\none by one",
    "complete": "and entropy\nbonus, KL",
}


def prediction_figure(rows: Sequence[Mapping[str, Any]], scores: Mapping[str, Mapping[str, Any]]) -> Figure:
    """Draw right-side shares by form, collapse against lr x staleness, and predicted against measured times."""
    fig = Figure(figsize=(9.0, 3.2))
    left, middle, right = fig.subplots(1, 3)
    shares = [scores[form]["right_side"] for form in _FORMS]
    left.bar(range(len(_FORMS)), shares, color=["#BBBBBB", "#99BBDD", "#5599CC", color("llds")], width=0.65)
    for i, share in enumerate(shares):
        left.text(i, share + 0.01, f"{share:.0%}", ha="center", fontsize=8)
    majority = scores["complete"]["majority"]
    left.axhline(majority, color="black", lw=0.8, ls=":")
    left.set_title("dotted: always the commoner outcome", fontsize=7.5)
    left.set_xticks(range(len(_FORMS)), list(_FORMS.values()), fontsize=6.5)
    left.set(ylim=(0, 1.08), ylabel=f"settings on the right side (of {len(rows)})")
    _by_strength(middle, rows)
    _times(right, rows)
    return fig


def _by_strength(ax: Axes, rows: Sequence[Mapping[str, Any]]) -> None:
    """Draw the share of collapsed runs, predicted and measured, by lr x staleness and sampler temperature."""
    strength = np.array([row["learning_rate"] * row["staleness"] for row in rows])
    temperature = np.array([row["temperature"] for row in rows])
    levels = np.unique(strength)
    place = np.arange(len(levels))
    shades = {t: str(0.75 * i / max(1, len(set(temperature)) - 1)) for i, t in enumerate(np.unique(temperature))}
    for t, shade in shades.items():
        for source, dash, marker in (("measured", "-", "o"), ("complete", "--", "^")):
            values = [np.mean([r[f"share_{source}"] for r in _pick(rows, t, x)]) for x in levels]
            label = f"T = {t:g}" if source == "measured" else None
            ax.plot(place, values, color=shade, ls=dash, marker=marker, ms=3, lw=1.1, label=label)
    ax.set_xticks(place, [f"{x:g}" for x in levels], rotation=45)
    ax.set(xlabel="learning rate x staleness", ylabel="share of runs that collapse", ylim=(-0.03, 1.03))
    ax.set_title("solid: simulated, dashed: predicted", fontsize=7.5)
    ax.legend(loc="upper left", fontsize=6.5, title="sampler", title_fontsize=6.5)


def _times(ax: Axes, rows: Sequence[Mapping[str, Any]]) -> None:
    """Draw predicted against measured collapse steps of the settings in which both collapse."""
    both = [r for r in rows if r["share_complete"] > 0.5 and r["share_measured"] > 0.5]
    ax.plot([10, 160], [10, 160], color="black", lw=0.7)
    ax.plot([10, 80], [20, 160], color="black", lw=0.7, ls=":")
    if both:
        ax.scatter(
            [r["step_measured"] for r in both], [r["step_complete"] for r in both], s=9, color=color("llds"), alpha=0.6
        )
    ax.set(xscale="log", yscale="log", xlim=(10, 160), ylim=(10, 160))
    ax.set_xticks([10, 20, 50, 100], ["10", "20", "50", "100"], minor=False)
    ax.set_yticks([10, 20, 50, 100], ["10", "20", "50", "100"], minor=False)
    ax.minorticks_off()
    ax.set(xlabel="simulated collapse step", ylabel="predicted, complete form")
    ax.set_title("dotted: twice as late", fontsize=7.5)


def _pick(rows: Sequence[Mapping[str, Any]], temperature: float, strength: float) -> list[Mapping[str, Any]]:
    return [r for r in rows if r["temperature"] == temperature and r["learning_rate"] * r["staleness"] == strength]
