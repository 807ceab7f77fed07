"""Measured runs over the simulated ones: the same axes, dark green and dotted, each named and labelled measured.

    measured = find_records("paper_figures/records")     # {} where there is no such folder: nothing is drawn
    overlay(ax, measured, {"entropy": "-"}, aligned=True)

On an axis that counts updates from the collapse a run that collapsed is placed by its own collapse, and one that did
not by its last update, which its label says. What this file does not do: scale one onto the other; where a measured
value leaves the axis, the axis grows.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from lldsim.diagnostics.collapse import collapse_step, smooth
from lldsim.plots.style import color
from lldsim.record import RunRecord

Records = Mapping[str, RunRecord]
WINDOW = 3  # updates, as the aligned bands of the simulated runs


def overlay(ax: Axes, records: Records, columns: Mapping[str, str], *, aligned: bool) -> None:
    """Draw the named columns (column -> dash) of every record; a column that a record lacks is left out.

    `aligned`: x counts updates from the collapse, else updates.
    """
    for name, record in records.items():
        step = collapse_step(record["reward"])
        zero = 0 if not aligned else len(record) - 1 if step is None else step
        label = f"measured: {name}" + (", 0 = its end" if aligned and step is None else "")
        for column, dash in columns.items():
            if column not in record.columns or not np.isfinite(record[column]).any():
                continue
            x, y = record["update"] - record["update"][zero if aligned else 0], smooth(record[column], WINDOW)
            low, high = ax.get_xlim()
            if not aligned:
                ax.set_xlim(low, max(high, float(x[-1])))
            inside = (x >= low) & (x <= ax.get_xlim()[1])
            _draw(ax, x[inside], y[inside], dash=dash, label=label)
            label = f"_{label}"  # one entry in the legend per run


def overlay_actions(ax: Axes, records: Records, *, window: tuple[int, int]) -> None:
    """Draw figure 6's x axis for measured runs: -ln pi per token of actions 1 and 2 of right responses.

    The mean from `window[0]` to `window[1]` updates before the collapse, or before the end of a run without one.
    """
    for name, record in records.items():
        step = collapse_step(record["reward"])
        end = len(record) if step is None else step
        part = slice(max(0, end - window[0]), max(1, end - window[1]))
        values = [_mean(record, f"logp_correct_action{a}", part) for a in (1, 2)]
        if np.isfinite(values).any():
            _draw(ax, np.array([1.0, 2.0]), -np.array(values), dash=":", label=f"measured: {name}, right responses")


def legend(fig: Figure, ax: Axes) -> None:
    """Add a legend of what `overlay` drew into `ax`, if it drew anything, at the figure's upper edge."""
    found = [line for line in ax.lines if str(line.get_label()).startswith("measured: ")]
    if found:
        fig.legend(handles=found, loc="outside upper center", ncols=3, fontsize=7)


def caption(records: Records) -> str:
    """Return a sentence that names the measured runs and their configurations; empty without any."""
    if not records:
        return ""
    shown = ", ".join(f"{name} (configuration {record.config_hash})" for name, record in records.items())
    return f" Dotted: measured runs {shown}, one each, on other scales of tokens and updates."


def label(records: Records) -> str:
    """Return the figure's label: "simulated", or "simulated+measured" when a measured run is drawn."""
    return "simulated+measured" if records else "simulated"


def _draw(ax: Axes, x: np.ndarray, y: np.ndarray, *, dash: str, label: str) -> None:
    known = y[np.isfinite(y)]
    if not known.size:
        return
    low, high = ax.get_ylim()
    ax.plot(x, y, color=color("measured"), ls=":" if dash == "-" else dash, marker=".", ms=2.5, lw=1.2, label=label)
    ax.set_ylim(min(low, float(known.min())), max(high, float(known.max())))


def _mean(record: RunRecord, column: str, part: slice) -> float:
    values = record[column][part] if column in record.columns else np.array([np.nan])
    return float(np.nanmean(values)) if np.isfinite(values).any() else float("nan")
