"""Figures of the transformer: its phases beside the toy's, what is inside them, the table of conditions drawn, LLDS.

What this file does not do: run anything; records come from transformer.study, the toy's from experiments.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from lldsim.diagnostics.collapse import collapse_step, smooth
from lldsim.diagnostics.statistics import collapse_rate
from lldsim.diagnostics.thresholds import DEFAULT
from lldsim.plots import panels
from lldsim.plots.collapse_figures import typical_collapse
from lldsim.plots.style import color
from lldsim.record import Arms, RunRecord
from lldsim.transformer.conditions import COEFS, CONDITIONS, GATES, llds_name, plainly
from lldsim.transformer.study import HORIZON, lowest_share, padded

ROWS = ("reward", "logp_correct", "entropy", "grad_norm")
BEFORE, AFTER = 40, 3  # updates around the collapse in aligned panels
_SIDES = {"leak": "grpo", "llds": "llds", "clean": "onpolicy"}
_NAMES = {
    "leak": "GRPO (sharp, stale sampler)",
    "llds": "the same + LLDS (λ = 0.2)",
    "clean": "GRPO, on-policy sampler",
}
_ACTIONS = {"1": ("-", "first action"), "2": ("--", "second"), "3": (":", "third and later")}
_AFTER = {"none": "nothing (first action)", "good": "a good document", "bad": "a useless document", "error": "an error"}


def beside_the_toy(toy: Arms, network: Arms) -> Figure:
    """Draw figure x1: reward, likelihood, entropy and gradient norm, toy left and transformer right."""
    fig = Figure(figsize=(9.0, 7.0))
    axes = fig.subplots(len(ROWS), 2, sharex="col", sharey="row")
    columns = ((toy, {"grpo": "grpo", "llds": "llds", "onpolicy": "onpolicy"}), (network, _SIDES))
    for (arms, roles), column in zip(columns, axes.T, strict=True):
        same = {name: padded(arms[name], max(map(len, arms[name])) if arms is toy else HORIZON) for name in roles}
        for ax, name in zip(column, ROWS, strict=True):
            for arm, role in roles.items():
                arm_curves(ax, same[arm], name, role=role)
            ax.set_xlim(0, len(next(iter(same.values()))[0]) - 1)
        steps = [s for r in arms[next(iter(roles))] if (s := collapse_step(r["reward"])) is not None]
        column[0].plot(steps, [1.06] * len(steps), "|", ms=6, mew=0.9, color=color("grpo"), clip_on=False)
        column[-1].set_xlabel("update")
        column[0].set_title(_column_title("linear toy" if arms is toy else "115,392-parameter Qwen2", arms, roles))
    for ax, name in zip(axes[:, 0], ROWS, strict=True):
        ax.set_ylabel(panels.LABELS[name])
    axes[0, 0].set_ylim(-0.03, 1.1)
    axes[1, 0].set_ylim(-4.0, 0.1)
    axes[3, 0].set_yscale("log")
    fig.legend(handles=_legend(), loc="outside lower center", ncols=3)
    fig.suptitle("simulated: the same loss in a linear toy and in a transformer (ticks: collapses)", x=0.01, ha="left")
    return fig


def _legend() -> list[Line2D]:
    return [Line2D([], [], color=color(role), label=_NAMES[name]) for name, role in _SIDES.items()]


def _column_title(what: str, arms: Arms, roles: Mapping[str, str]) -> str:
    rates = [collapse_rate([collapse_step(r["reward"]) for r in arms[name]]) for name in roles]
    return f"{what}: " + ", ".join(f"{rate.k}/{rate.n}" for rate in rates) + " collapse"


def inside_the_network(arms: Arms, probes: Sequence[Mapping[str, Any]]) -> Figure:
    """Draw figure x2: six panels on the runs that collapse, aligned to it, and on those that do not.

    `probes` are rows of `probe_along` with the keys `arm` and `to_collapse` (update minus collapse step, None without).
    """
    fig = Figure(figsize=(9.0, 5.4))
    axes = fig.subplots(2, 3)
    fallen = [r for r in arms["leak"] if collapse_step(r["reward"]) is not None]
    for place, (dash, words) in _ACTIONS.items():
        aligned_median(axes[0, 0], fallen, f"logp_correct_action{place}", shade=color("logp"), dash=dash, label=words)
    axes[0, 0].set(ylabel="log-likelihood of correct\nresponses (nats per token)")
    shades = ("#555555", color("onpolicy"), color("gspo"), color("wrong"))
    for (name, words), shade in zip(_AFTER.items(), shades, strict=True):
        aligned_median(axes[0, 1], fallen, f"logp_after_{name}", sign=-1, shade=shade, dash="-", label=words)
    axes[0, 1].set(ylabel="−log-likelihood of all responses\nby what was read before", yscale="log")
    aligned_median(
        axes[0, 2], fallen, "logp_correct", shade=color("logp"), dash="-", label="under the trainer's policy"
    )
    aligned_median(
        axes[0, 2], fallen, "sampler_logp_correct", shade=color("gspo"), dash="--", label="as the sampler reports it"
    )
    axes[0, 2].set(ylabel="log-likelihood of correct\nresponses (nats per token)")
    for name, role in _SIDES.items():
        arm_curves(axes[1, 0], padded(arms[name]), "similarity_all", role=role)
    axes[1, 0].set(xlabel="update", ylabel="cosine of right and wrong hidden\nstates, first action", xlim=(0, HORIZON))
    _probe_panels(axes[1, 1], axes[1, 2], probes)
    for ax in axes[0]:
        ax.legend(fontsize=6)
        ax.set_xlabel("update relative to the collapse")
    fig.legend(handles=_legend(), loc="outside lower center", ncols=3)
    title = f"simulated: inside the transformer; upper row: medians of {len(fallen)} runs that collapse"
    fig.suptitle(title, x=0.01, ha="left")
    return fig


def arm_curves(ax: Axes, records: Sequence[RunRecord], column: str, *, role: str) -> None:
    """Draw every run faintly; boldly the median, or where most collapse the run that does at their median step.

    A median over runs that end one after the other would rise again each time that a fallen one drops out.
    """
    window = DEFAULT.reward_window if column == "reward" else DEFAULT.signal_window
    lines = np.array([np.where(np.isnan(r["reward"]), np.nan, smooth(r[column], window)) for r in records])
    steps = [collapse_step(r["reward"]) for r in records]
    for line in lines:
        ax.plot(records[0]["update"], line, color=color(role), alpha=0.2, lw=0.6, rasterized=True)
    mostly = 2 * sum(step is not None for step in steps) >= len(steps)
    bold = lines[typical_collapse(list(records))] if mostly else _median(lines)
    ax.plot(records[0]["update"], bold, color=color(role), lw=1.6)


def aligned_median(
    ax: Axes, records: Sequence[RunRecord], column: str, *, shade: str, dash: str, label: str, sign: int = 1
) -> None:
    """Draw the median over records of 3-update means of `column`, times `sign`, against the update minus collapse."""
    lines = []
    for record in records:
        step = collapse_step(record["reward"])
        if step is None:
            continue
        wide = np.pad(smooth(record[column], 3), (BEFORE, AFTER + 1), constant_values=np.nan)
        lines.append(sign * wide[step : step + BEFORE + AFTER + 1])
    stack = np.array(lines)
    ax.plot(np.arange(-BEFORE, AFTER + 1), _median(stack), color=shade, ls=dash, label=label)


def _median(lines: np.ndarray) -> np.ndarray:
    """Return the median (U,) over lines (N, U), NaN where fewer than half of them have a value."""
    known = np.isfinite(lines).mean(axis=0) >= 0.5
    middle = np.full(lines.shape[1], np.nan)
    middle[known] = np.nanmedian(lines[:, known], axis=0)
    return middle


def _probe_panels(change: Axes, share: Axes, probes: Sequence[Mapping[str, Any]]) -> None:
    """Draw Eq. 3 by run, and the unembedding's share of the first-order change, near the collapse and before."""
    for arm in ("leak", "llds"):
        for seed in sorted({row["seed"] for row in probes if row["arm"] == arm}):
            rows = [row for row in probes if (row["arm"], row["seed"]) == (arm, seed)]
            x = [row["update"] for row in rows]
            shade = color(_SIDES[arm])
            change.plot(x, [row["eq3_change"] for row in rows], color=shade, marker="o", ms=2, lw=0.8)
            parts = np.array([[row["change"], row["change_head"]] for row in rows], dtype=float)
            if arm == "leak":
                share.plot(parts[:, 0], parts[:, 1], "o", ms=3, color=shade, alpha=0.8)
    change.axhline(0, color="black", lw=0.7)
    change.set_yscale("symlog", linthresh=0.1)
    change.set(xlabel="update", ylim=(-60, 1), ylabel="Eq. 3: D(x) of one update\n(nats per correct response)")
    share.axhline(0, color="black", lw=0.7)
    share.axvline(0, color="black", lw=0.7)
    share.axline((0, 0), slope=1, color="#999999", lw=0.8, ls=":")
    share.set_xscale("symlog", linthresh=1e-3)
    share.set_yscale("symlog", linthresh=1e-3)
    share.set_xticks([-10, -0.1, 0, 0.1])
    share.set_yticks([-10, -0.1, 0, 0.1])
    share.set(xlabel="first-order change, all parameters", ylabel="its unembedding part (−G)")


def conditions_figure(arms: Arms) -> Figure:
    """Draw figure x3: share of runs that collapsed, with 95 % intervals, and what each kept of its peak reward."""
    names = list(arms)
    fig = Figure(figsize=(9.0, 0.24 * len(names) + 1.3))
    left, right = fig.subplots(1, 2, sharey=True, width_ratios=(1, 1.3))
    for y, name in enumerate(names):
        records, shade = arms[name], color(CONDITIONS[name.split(",")[0]].role)
        rate = collapse_rate([collapse_step(r["reward"]) for r in records])
        left.plot([rate.low, rate.high], [y, y], color=shade, lw=1.2)
        left.plot(rate.k / rate.n, y, "o", color=shade, ms=4)
        left.annotate(f"{rate.k}/{rate.n}", (1.06, y), fontsize=6, va="center", annotation_clip=False)
        kept = [lowest_share(r) for r in records]
        right.plot(kept, [y] * len(kept), "|", color=shade, ms=7, mew=1.0)
        right.plot(np.median(kept), y, "o", color=shade, ms=4)
    left.set_yticks(range(len(names)), [CONDITIONS[name.split(",")[0]].words for name in names], fontsize=6.5)
    left.set(xlim=(-0.03, 1.03), ylim=(len(names) - 0.4, -0.6), xlabel=f"share of runs collapsed by update {HORIZON}")
    right.axvline(0.5, color="#999999", lw=0.7, ls=":")
    right.set(xlim=(-0.03, 1.03), xlabel="lowest share of the peak reward (each run; dot: median)")
    fig.suptitle("simulated: what makes the transformer collapse, and what prevents it", x=0.01, ha="left")
    return fig


def llds_figure(arms: Arms) -> Figure:
    """Draw figure x4: how much LLDS under which gate - every run's lowest share of peak reward, and who collapsed.

    A run is a mark whose shape says its warm start; the leftmost group of each panel is the leak without LLDS.
    """
    fig = Figure(figsize=(9.0, 2.9))
    axes = fig.subplots(1, len(GATES), sharey=True)
    for ax, gate in zip(axes, GATES, strict=True):
        names = ["leak", *(llds_name(gate, coef) for coef in COEFS)]
        for x, name in enumerate(names):
            records = arms.get(name, [])
            shade = color(CONDITIONS[name].role)
            for record, offset in zip(records, np.linspace(-0.28, 0.28, len(records)), strict=True):
                shape = "osv^D"[record.config["warm_start"] % 5]
                ax.plot(x + offset, lowest_share(record), shape, color=shade, ms=3, mew=0, alpha=0.75)
            fallen = sum(collapse_step(r["reward"]) is not None for r in records)
            ax.annotate(f"{fallen}/{len(records)}", (x, 1.05), fontsize=6.5, ha="center", annotation_clip=False)
        ax.set_xticks(range(len(names)), ["0", *map(plainly, COEFS)])
        ax.set_title(f"{gate} gate", pad=14)
        ax.axhline(0.5, color="#999999", lw=0.7, ls=":")
        ax.set(xlabel="λ", ylim=(-0.03, 1.03), xlim=(-0.6, len(names) - 0.4))
    axes[0].set_ylabel("lowest reward as a share\nof its running peak")
    title = f"simulated: LLDS in the transformer (collapsed by update {HORIZON} / runs; shapes: warm starts)"
    fig.suptitle(title, x=0.01, ha="left")
    return fig
