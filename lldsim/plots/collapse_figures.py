"""Figures 2 and 8: the collapse with its cure, and the lambda ablation.

What this file does not do: run the experiments (experiments.py) or write files (save.py).
"""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import to_hex, to_rgb
from matplotlib.figure import Figure

from lldsim.diagnostics.collapse import collapse_step, smooth
from lldsim.diagnostics.phases import Phase, find_phases
from lldsim.diagnostics.thresholds import DEFAULT
from lldsim.plots import panels
from lldsim.plots.style import PHASE_SHADE, color
from lldsim.record import Arms

_COLUMNS = ("reward", "logp_correct", "grad_norm")


def three_phases(arms: Arms, *, before: int = 60, after: int = 8) -> Figure:
    """Draw figure 2: one run with its phases and all seeds faintly (top), all runs aligned to the collapse (bottom)."""
    fig = Figure(figsize=(9.0, 5.4))
    axes = fig.subplots(2, 3)
    typical = typical_collapse(arms["grpo"])
    phases = find_phases(arms["grpo"][typical])
    starts = panels.median_phases(arms["grpo"])
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "All-NaN slice")  # a collapsed run has no correct response to average
        for ax, column in zip(axes[0], _COLUMNS, strict=True):
            panels.shade_phases(ax, phases)
            panels.curves(ax, arms["null"], column, role="null", faint=False, linestyle="--")
            panels.curves(ax, arms["onpolicy"], column, role="onpolicy", faint=False, linestyle="-.")
            panels.curves(ax, arms["grpo"], column, role="grpo", bold=typical)
            panels.curves(ax, arms["llds"], column, role="llds", bold=typical)
            ax.set(ylabel=panels.LABELS[column], xlabel="update", xlim=(0, phases.length - 1))
        for ax, column in zip(axes[1], _COLUMNS, strict=True):
            _shade_aligned(ax, starts, before, after)
            panels.aligned(ax, arms["grpo"], column, role="grpo", before=before, after=after)
            ax.set(ylabel=panels.LABELS[column], xlabel="updates from the collapse", xlim=(-before, after))
    seed = arms["grpo"][typical].config["seed"]
    axes[0, 0].set_title(f"one world (seed {seed}); faint: the others")
    axes[1, 0].set_title("every collapsed run, aligned; bold: median")
    for row in axes:
        row[0].set_ylim(-0.03, 1.03)
        row[2].set(yscale="log", ylim=(5e-4, None))  # after a collapse every group ties and the gradient vanishes
    axes[0, 1].set_ylim(*_likelihood_limits(arms))
    axes[1, 1].set_ylim(*_likelihood_limits(arms))
    handles, _ = axes[0, 0].get_legend_handles_labels()
    order = [2, 3, 0, 1]
    fig.legend(
        handles=[handles[i] for i in order] + panels.phase_handles(), loc="outside lower center", ncols=4, fontsize=8
    )
    return fig


def lambda_figure(arms: Arms, numbers: dict[str, Any]) -> Figure:
    """Draw figure 8: reward by lambda, share of runs not yet collapsed, and delay of each seed against lambda = 0."""
    fig = Figure(figsize=(9.0, 3.1))
    left, middle, right = fig.subplots(1, 3)
    reference = next(iter(arms))
    horizon = len(arms[reference][0])
    steps = {name: [collapse_step(r["reward"]) for r in records] for name, records in arms.items()}
    for i, (name, records) in enumerate(arms.items()):
        shade = blend(i / (len(arms) - 1))
        reward = np.array([smooth(r["reward"], DEFAULT.reward_window) for r in records])
        dash = "--" if i == len(arms) - 1 else "-"  # the two largest often coincide
        left.plot(records[0]["update"], reward.mean(axis=0), color=shade, ls=dash, label=f"λ = {name}")
        panels.survival_curve(middle, records, shade=shade, label=f"λ = {name}")
        if name != reference:
            panels.delays(right, i, steps[name], steps[reference], horizon)
            delay = numbers[name]["paired_delay"]
            right.plot([i - 0.33, i + 0.33], [delay["median"]] * 2, color="black", lw=1.2, zorder=4)
            right.plot([i, i], delay["interval"], color="black", lw=1.2, zorder=4)
    left.set(xlabel="update", ylabel="reward, mean over seeds", ylim=(-0.03, 1.03), xlim=(0, horizon - 1))
    middle.set(xlabel="update", ylabel="share of runs not collapsed", ylim=(-0.03, 1.03), xlim=(0, horizon))
    right.set(xlabel="λ", ylabel="updates later than at λ = 0,\nsame seed")
    right.axhline(0, color="black", lw=0.7)
    right.set_xticks(range(1, len(arms)), list(arms)[1:])
    left.legend(loc="lower left")
    right.set_title("△ not collapsed by the end: a lower bound", fontsize=7)
    return fig


def typical_collapse(records: list[Any]) -> int:
    """Return the index of the record whose collapse step is the (lower) median of those that collapsed, else 0."""
    steps = [(step, i) for i, r in enumerate(records) if (step := collapse_step(r["reward"])) is not None]
    return sorted(steps)[(len(steps) - 1) // 2][1] if steps else 0


def blend(share: float) -> str:
    """Return a colour between GRPO's (0) and LLDS's (1)."""
    r, g, b = ((1 - share) * x + share * y for x, y in zip(to_rgb(color("grpo")), to_rgb(color("llds")), strict=True))
    return to_hex((r, g, b))


def _shade_aligned(ax: Axes, starts: dict[Phase, float], before: int, after: int) -> None:
    edges = [(Phase.STAGNATION, float(-before)), *sorted(starts.items(), key=lambda item: item[1])]
    for (phase, start), end in zip(edges, [s for _, s in edges[1:]] + [float(after)], strict=True):
        if end > start:
            ax.axvspan(max(start, -before), end, color=PHASE_SHADE[phase.name], lw=0, zorder=-10)


def _likelihood_limits(arms: Arms) -> tuple[float, float]:
    """Return limits that show phases I to III; single runs may fall below while nothing correct is left."""
    lowest = [np.nanmin(smooth(r["logp_correct"], DEFAULT.signal_window)) for r in arms["grpo"]]
    return float(max(np.median(lowest), -6.0)), 0.05
