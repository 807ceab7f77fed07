"""The table of signatures as a picture: one row per signature, one column per world, a cell's shade and its number.

What this file does not do: measure or judge; rows come from `signatures.signature_table`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from lldsim.plots.style import color

# Shade and sign say the same, so that the table also reads in grey and under colour blindness.
SIGNS = {"has": "●", "partly": "◐", "lacks": "○"}
_ALPHA = {"has": 0.55, "partly": 0.22, "lacks": 0.0}
_ROW = 0.2  # inches


def signature_figure(rows: Sequence[Mapping[str, Any]], worlds: Mapping[str, str]) -> Figure:
    """Draw the table; `worlds` maps a world's name to the words under it, in the order of the columns."""
    names = list(dict.fromkeys(row["signature"] for row in rows))
    about = {row["signature"]: row for row in rows}
    cells = {(row["signature"], row["world"]): row for row in rows}
    fig = Figure(figsize=(10.0, _ROW * (len(names) + 5.5)))
    fig.set_layout_engine("none")
    ax = fig.add_axes((0.01, 0.01, 0.98, 0.98))
    left = 6.6  # in units of one column: signature, what is measured, bounds
    ax.set_xlim(0, left + len(worlds))
    ax.set_ylim(len(names) + 1.2, -3.6)
    ax.axis("off")
    for x, text in (
        (0.0, "paper's figure and signature"),
        (2.75, "measured here (median over runs)"),
        (5.35, "has / partly"),
    ):
        ax.text(x, -0.75, text, va="bottom", fontsize=7, weight="bold")
    for column, (world, what) in enumerate(worlds.items()):
        ax.text(left + column + 0.5, -2.2, world, va="bottom", ha="center", fontsize=7.5, weight="bold")
        ax.text(left + column + 0.5, -2.1, _wrapped(what), va="top", ha="center", fontsize=5)
    for y, name in enumerate(names):
        row = about[name]
        ax.text(0.0, y, row["figure"], va="center", fontsize=6.5, color=color("null"))
        ax.text(0.42, y, name, va="center", fontsize=7)
        ax.text(2.75, y, row["measured"], va="center", fontsize=6.5, color=color("null"))
        sign = "≥" if row["has"] > row["partly"] else "≤"
        ax.text(5.35, y, f"{sign} {row['has']:g} / {row['partly']:g}", va="center", fontsize=6.5, color=color("null"))
        for column, world in enumerate(worlds):
            _cell(ax, left + column, y, cells[name, world])
    for column, world in enumerate(worlds):
        counts = {level: sum(row["level"] == level for row in rows if row["world"] == world) for level in SIGNS}
        text = "  ".join(f"{SIGNS[level]} {count}" for level, count in counts.items())
        ax.text(left + column + 0.5, len(names) + 0.3, text, va="center", ha="center", fontsize=6.5)
    key = "   ".join(f"{sign} {level}" for level, sign in SIGNS.items())
    ax.text(0.0, len(names) + 0.3, f"{key}      simulated", va="center", fontsize=6.5)
    return fig


def _cell(ax: Any, x: float, y: float, row: Mapping[str, Any]) -> None:
    level = row["level"]
    box = Rectangle((x + 0.04, y - 0.45), 0.92, 0.9, facecolor=color("onpolicy"), alpha=_ALPHA[level], linewidth=0)
    ax.add_patch(box)
    value = row["value"]
    number = "-" if value is None or value != value else f"{value:.2f}" if abs(value) < 10 else f"{value:.0f}"
    ax.text(x + 0.2, y, SIGNS[level], va="center", ha="center", fontsize=7)
    ax.text(x + 0.88, y, number, va="center", ha="right", fontsize=6.5)


def _wrapped(text: str, width: int = 24) -> str:
    import textwrap

    return "\n".join(textwrap.wrap(text, width))
