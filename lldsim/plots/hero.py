"""The README's first picture: likelihood falls while reward holds, GRPO beside LLDS, phases, and where the alarm fires.

One row per policy, three panels: reward, log-likelihood of correct responses, gradient norm. Bold is the typical
seed (its GRPO run collapses at the median step) in both arms - the median where LLDS lacks that seed -, faint are the
other seeds, shades are the phases of the bold GRPO run, and the dotted line is the first alarm that the monitor raises
on it, from rows up to that update.
What this file does not do: run anything or choose thresholds.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from lldsim.diagnostics.collapse import smooth
from lldsim.diagnostics.phases import find_phases
from lldsim.diagnostics.thresholds import DEFAULT
from lldsim.plots import panels
from lldsim.plots.collapse_figures import typical_collapse
from lldsim.record import Arms

COLUMNS = ("reward", "logp_correct", "grad_norm")
ALARM_STYLE = {"color": "black", "lw": 1.0, "ls": ":"}


def hero(rows: Mapping[str, Arms], alarms: Mapping[str, float | None]) -> Figure:
    """Draw one row of panels per entry of `rows`, title -> arms with "grpo" and "llds" of some of the same seeds.

    `alarms` gives, under the same titles, the update of the first alarm on the typical GRPO run (None: no alarm).
    Raises KeyError when an arm or a title is missing.
    """
    fig = Figure(figsize=(9.0, 0.75 + 2.15 * len(rows)))
    grid = fig.subplots(len(rows), len(COLUMNS), squeeze=False)
    for axes, (title, arms) in zip(grid, rows.items(), strict=True):
        _row(axes, arms, alarms[title])
        axes[0].set_title(title)
    for ax in grid[-1]:
        ax.set_xlabel("update")
    lines, _ = grid[0, 0].get_legend_handles_labels()
    alarm = Line2D([], [], label="first alarm", **ALARM_STYLE)
    fig.legend(handles=[*lines, alarm, *panels.phase_handles()], loc="outside lower center", ncols=7, fontsize=7.5)
    return fig


def _row(axes: np.ndarray, arms: Arms, alarm: float | None) -> None:
    typical = typical_collapse(arms["grpo"])
    seed = arms["grpo"][typical].config["seed"]
    partner = next((i for i, record in enumerate(arms["llds"]) if record.config["seed"] == seed), None)
    phases = find_phases(arms["grpo"][typical])
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "All-NaN slice")  # a collapsed run has no correct response to average
        for ax, column in zip(axes, COLUMNS, strict=True):
            panels.shade_phases(ax, phases)
            panels.curves(ax, arms["grpo"], column, role="grpo", bold=typical)
            panels.curves(ax, arms["llds"], column, role="llds", bold=partner)
            if alarm is not None:
                ax.axvline(alarm, **ALARM_STYLE)
            ax.set(ylabel=panels.LABELS[column], xlim=(0, phases.length - 1))
    axes[0].set_ylim(-0.03, 1.03)
    axes[1].set_ylim(*_likelihood_limits(arms))
    _gradient_limits(axes[2], arms)


def _likelihood_limits(arms: Arms) -> tuple[float, float]:
    """Return limits that show phases I to III; below, hardly a response is correct and the mean says little."""
    lowest = [np.nanmin(smooth(r["logp_correct"], DEFAULT.signal_window)) for r in arms["grpo"]]
    return float(max(np.median(lowest), -4.0)), 0.05


def _gradient_limits(ax: Axes, arms: Arms) -> None:
    """Set a log axis from a tenth of the healthy arm's smallest norm: a collapsed run's gradient vanishes below it."""
    healthy = np.concatenate([smooth(r["grad_norm"], DEFAULT.signal_window) for r in arms["llds"]])
    ax.set(yscale="log", ylim=(float(np.nanquantile(healthy, 0.02)) / 3, None))
