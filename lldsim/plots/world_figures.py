"""Figures 7 and 9b: reward in four toy worlds, and searches per response in a two-hop world.

What this file does not do: run the experiments (paper_worlds.py) or write files (save.py).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from lldsim.diagnostics.collapse import collapse_step, smooth
from lldsim.diagnostics.statistics import collapse_rate, survival
from lldsim.diagnostics.thresholds import DEFAULT
from lldsim.paper_worlds import FOUR_WORLDS, escape_step
from lldsim.plots import panels
from lldsim.plots.style import color
from lldsim.record import Arms, RunRecord

_ROLES = ("grpo", "llds", "null")


def four_worlds_figure(arms: Arms) -> Figure:
    """Draw figure 7: reward in each world, every seed faintly and the median boldly; ticks mark collapses."""
    fig = Figure(figsize=(9.0, 2.9))
    axes = fig.subplots(1, len(FOUR_WORLDS), sharey=True)
    for ax, world in zip(axes, FOUR_WORLDS, strict=True):
        for role in ("grpo", "llds"):
            panels.curves(ax, arms[f"{world} {role}"], "reward", role=role)
        panels.curves(ax, arms[f"{world} null"], "reward", role="null", faint=False, linestyle=":")
        steps = {role: [collapse_step(r["reward"]) for r in arms[f"{world} {role}"]] for role in _ROLES}
        fallen = [s for s in steps["grpo"] if s is not None]
        ax.plot(fallen, [1.05] * len(fallen), "|", ms=5, mew=0.8, color=color("grpo"))
        rate = {role: collapse_rate(found) for role, found in steps.items()}
        grpo, llds, null = (f"{rate[role].k}/{rate[role].n}" for role in _ROLES)
        ax.set_title(f"toy world “{world}”\n{grpo} collapse; LLDS {llds}, null twin {null}", fontsize=7)
        ax.set(xlabel="update", xlim=(0, len(arms[f"{world} grpo"][0]) - 1), ylim=(-0.03, 1.1))
    axes[0].set_ylabel("reward")
    fig.legend(*axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=3)
    fig.suptitle("simulated: four toy worlds that stand for the paper's four models only in name", x=0.01, ha="left")
    return fig


def searches_figure(arms: Arms) -> Figure:
    """Draw figure 9b: searches per response, share of runs that have left one search, and reward (medians)."""
    fig = Figure(figsize=(9.0, 2.9))
    left, middle, right = fig.subplots(1, 3)
    for name, records in arms.items():
        shade, dash = _look(name)
        for ax, column in ((left, "valid_searches"), (right, "reward")):
            values = np.array([smooth(r[column], DEFAULT.reward_window) for r in records])
            ax.plot(records[0]["update"], np.median(values, axis=0), color=shade, ls=dash, label=_label(name))
        _escapes(middle, records, shade, dash)
    horizon = len(next(iter(arms.values()))[0])
    left.axhline(1, color="#999999", lw=0.6, ls=":")
    left.set(ylabel="valid searches per response,\nmedian over seeds", ylim=(0, None))
    middle.set(ylabel="share of runs that have left\none search", ylim=(-0.03, 1.03))
    right.set(ylabel="reward, median over seeds", ylim=(-0.03, 1.03))
    for ax in (left, middle, right):
        ax.set(xlabel="update", xlim=(0, horizon - 1))
    fig.legend(*left.get_legend_handles_labels(), loc="outside lower center", ncols=len(arms))
    fig.suptitle("simulated: a two-hop toy world (two good searches before the answer shows)", x=0.01, ha="left")
    return fig


def _escapes(ax: Axes, records: Sequence[RunRecord], shade: str, dash: str) -> None:
    at, share, low, high = survival([escape_step(r) for r in records], len(records[0]))
    ax.step(at, 1 - share, where="post", color=shade, ls=dash)
    ax.fill_between(at, 1 - high, 1 - low, step="post", color=shade, alpha=0.08, lw=0)


def _look(arm: str) -> tuple[str, str]:
    """Return colour and line style of an arm of figure 9b: the smallest lambda is dashed."""
    coef = float(arm.removesuffix(" MA"))
    role = "grpo" if coef == 0 else "llds_ma" if arm.endswith("MA") else "llds"
    return color(role), "--" if 0 < coef < 1 else "-"


def _label(arm: str) -> str:
    coef = arm.removesuffix(" MA")
    return "GRPO" if coef == "0" else f"LLDS{'-MA' if arm.endswith('MA') else ''}, λ = {coef}"
