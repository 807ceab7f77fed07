"""The causal table as a picture: collapse rates with intervals, by dial, by cure, and for every mix of causes.

Rows come from `lldsim causal` as mappings. What this file does not do: run, select or sort by outcome; rows are drawn
in the order given, so that a reader finds a dial where the table has it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from lldsim.plots.style import color

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Rows = Sequence[Mapping[str, Any]]
_FAMILY_GAP = 0.7
_COLUMNS = (1.22, 1.44, 1.66)  # right edges of the columns of numbers, on the rate axis
_DOT = 0.1  # width of one column of dots, on the rate axis


def draw_rates(ax: Axes, rows: Rows) -> None:
    """Draw each row's collapse rate with its Wilson interval; beside it median step, G's lead and final reward."""
    place, y, family = [], 0.0, rows[0]["family"]
    for row in rows:
        y += _FAMILY_GAP * (row["family"] != family)
        family = row["family"]
        place.append(y)
        y += 1.0
    for at, row in zip(place, rows, strict=True):
        shade = color("grpo") if row["setting"] == "default" else color("reward")
        _point(ax, at, row, shade=shade, filled=True)
        numbers = (_whole(row["median_step"]), _whole(row.get("pull_lead")), f"{row['final_reward']:.2f}")
        for x, text in zip(_COLUMNS, numbers, strict=True):
            ax.text(x, at, text, va="center", ha="right", fontsize=6)
    ax.set_yticks(place, [_label(row) for row in rows], fontsize=6)
    _frame(ax, place[-1])
    ax.set_xlim(0, _COLUMNS[-1])
    for x, text in zip(_COLUMNS, ("median\nstep", "lead\nof G", "final\nreward"), strict=True):
        ax.text(x, -0.8, text, va="bottom", ha="right", fontsize=6)


def draw_cures(ax: Axes, rows: Rows) -> None:
    """Draw each arm's collapse rate at its published setting (filled) and its tuned one (open), with intervals."""
    names = list(dict.fromkeys(row["name"] for row in rows))
    for row in rows:
        published = row["setting"] == "published"
        at = names.index(row["name"]) + (-0.17 if published else 0.17)
        shade = color("llds") if row["name"].startswith("llds") else color("reward")
        _point(ax, at, row, shade=shade, filled=published)
    ax.set_yticks(range(len(names)), names, fontsize=6)
    _frame(ax, len(names) - 1)


def draw_factorial(ax: Axes, rows: Rows, names: Sequence[str]) -> None:
    """Draw every combination of the causes `names` (dots where a cause is on) with its collapse rate."""
    n = len(names)
    for at, row in enumerate(rows):
        _point(ax, at, row, shade=color("grpo") if at == len(rows) - 1 else color("reward"), filled=True)
        for i, name in enumerate(names):
            shade = color("null") if row[name] else "none"
            ax.plot(-_DOT * (n - i), at, "o", ms=3.2, mew=0.6, mec=color("null"), mfc=shade, clip_on=False)
    for i, name in enumerate(names):
        ax.text(-_DOT * (n - i + 0.2), -0.8, name.replace("_", " "), rotation=60, va="bottom", ha="left", fontsize=6)
    _frame(ax, len(rows) - 1)
    ax.set_yticks([])
    ax.set_xlim(-_DOT * (n + 0.5), 1)
    ax.spines.left.set_visible(False)
    ax.axvline(0, lw=0.7, color="black")


def _point(ax: Axes, at: float, row: Mapping[str, Any], *, shade: str, filled: bool) -> None:
    ax.plot([row["rate_low"], row["rate_high"]], [at, at], lw=0.9, color=shade, alpha=0.55, solid_capstyle="butt")
    ax.plot(row["rate"], at, "o", ms=3.2, mew=0.8, mec=shade, mfc=shade if filled else "white", clip_on=False, zorder=3)


def _whole(value: float | None) -> str:
    return "" if value is None or value != value else f"{value:.0f}"


def _label(row: Mapping[str, Any]) -> str:
    word = {"null": "without ", "on": "with ", "default": ""}[row["setting"]]
    base = " (on twin)" if row["setting"] == "on" and row["base"] == "twin" else ""
    return f"{word}{row['name'].replace('_', ' ')}{base}"


def _frame(ax: Axes, last: float) -> None:
    ax.set_ylim(last + 0.6, -0.6)
    ax.set_xlim(0, 1)
    ax.set_xticks([0, 0.25, 0.5, 0.75, 1], ["0", "", ".5", "", "1"])
    ax.set_xlabel("share of seeds that collapse", loc="left")
    ax.grid(axis="y", visible=False)
