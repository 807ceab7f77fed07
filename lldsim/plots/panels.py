"""Panels that several figures share: seeds drawn faintly, their median boldly, phases shaded behind.

A panel takes axes and records and draws one thing. What this file does not do: run anything or write files, except
`draw_record`, the picture that `lldsim run` leaves beside its record.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from lldsim.diagnostics.collapse import collapse_step, smooth
from lldsim.diagnostics.phases import Phase, Phases, find_phases
from lldsim.diagnostics.statistics import survival
from lldsim.diagnostics.thresholds import DEFAULT
from lldsim.plots.style import PHASE_SHADE, color, style_context
from lldsim.record import RunRecord

LABELS = {
    "reward": "reward",
    "logp_correct": "log-likelihood of correct\nresponses (nats per token)",
    "logp_wrong": "log-likelihood of wrong\nresponses (nats per token)",
    "grad_norm": "gradient norm",
    "entropy": "entropy (nats per token)",
    "ratio_max": "largest ratio",
    "response_length": "response length (tokens)",
}
ARM_NAMES = {
    "grpo": "GRPO",
    "llds": "GRPO + LLDS (λ = 0.2)",
    "null": "GRPO, similarity 0",
    "onpolicy": "GRPO, on-policy sampler",
}
PHASE_NAMES = {
    Phase.STAGNATION: "I stagnation",
    Phase.DECAY: "II decay",
    Phase.ACCELERATION: "III acceleration",
    Phase.COLLAPSED: "collapsed",
}


def curves(
    ax: Axes,
    records: Sequence[RunRecord],
    column: str,
    *,
    role: str,
    faint: bool = True,
    bold: int | None = None,
    linestyle: str = "-",
) -> None:
    """Draw a column of every record faintly and, boldly, their median - or record number `bold`."""
    window = DEFAULT.reward_window if column == "reward" else DEFAULT.signal_window
    lines = np.array([smooth(r[column], window) for r in records])
    x = records[0]["update"]
    if faint:
        for line in lines:
            ax.plot(x, line, color=color(role), alpha=0.16, lw=0.6, rasterized=True)
    chosen = np.nanmedian(_at_least_half(lines), axis=0) if bold is None else lines[bold]
    ax.plot(x, chosen, color=color(role), lw=1.6, ls=linestyle, label=ARM_NAMES.get(role, role))


def aligned(ax: Axes, records: Sequence[RunRecord], column: str, *, role: str, before: int, after: int) -> None:
    """Draw a column against the update relative to each record's collapse step; records without one are left out."""
    window = DEFAULT.reward_window if column == "reward" else 3  # a short window: this is the close-up
    x = np.arange(-before, after + 1)
    lines = []
    for record in records:
        step = collapse_step(record["reward"])
        if step is not None:
            padded = np.pad(smooth(record[column], window), (before, after), constant_values=np.nan)
            lines.append(padded[step : step + before + after + 1])
            ax.plot(x, lines[-1], color=color(role), alpha=0.16, lw=0.6, rasterized=True)
    if lines:
        ax.plot(x, np.nanmedian(_at_least_half(np.array(lines)), axis=0), color=color(role), lw=1.6)


def shade_phases(ax: Axes, phases: Phases, *, offset: float = 0.0) -> None:
    """Shade a record's phases behind the curves."""
    for phase, start, end in phases.spans():
        ax.axvspan(start - offset, end - offset, color=PHASE_SHADE[phase.name], lw=0, zorder=-10)


def median_phases(records: Sequence[RunRecord]) -> dict[Phase, float]:
    """Return the median start of each phase relative to the collapse step, over the records that collapsed."""
    found = [p for p in map(find_phases, records) if p.collapsed is not None]
    decay = [p.decay - p.collapsed for p in found if p.decay is not None and p.collapsed is not None]
    rise = [p.acceleration - p.collapsed for p in found if p.acceleration is not None and p.collapsed is not None]
    starts = {Phase.COLLAPSED: 0.0}
    if decay:
        starts[Phase.DECAY] = float(np.median(decay))
    if rise:
        starts[Phase.ACCELERATION] = float(np.median(rise))
    return starts


def phase_handles() -> list[Patch]:
    """Return legend entries for the phase shades."""
    return [Patch(fc=PHASE_SHADE[phase.name], ec="#999999", lw=0.4, label=PHASE_NAMES[phase]) for phase in Phase]


def survival_curve(ax: Axes, records: Sequence[RunRecord], *, shade: str, label: str) -> None:
    """Draw the Kaplan-Meier share of runs that have not collapsed, with its 95 % band."""
    steps = [collapse_step(r["reward"]) for r in records]
    at, share, low, high = survival(steps, len(records[0]))
    ax.step(at, share, where="post", color=shade, label=label)
    ax.fill_between(at, low, high, step="post", color=shade, alpha=0.12, lw=0)


def delays(
    ax: Axes, position: float, steps: Sequence[int | None], reference: Sequence[int | None], horizon: int
) -> None:
    """Draw one dot per seed, collapse step minus the reference's; an upward triangle is a lower bound (no collapse)."""
    pairs = [(s, r) for s, r in zip(steps, reference, strict=True) if r is not None]
    values = np.array([(horizon if s is None else s) - r for s, r in pairs], dtype=float)
    censored = np.array([s is None for s, _ in pairs], dtype=bool)
    spread = position + np.linspace(-0.28, 0.28, len(values))[np.argsort(np.argsort(values, kind="stable"))]
    ax.scatter(spread[~censored], values[~censored], s=9, color=color("llds"), zorder=3)
    ax.scatter(
        spread[censored], values[censored], s=14, marker="^", facecolor="none", edgecolor=color("llds"), zorder=3
    )


def draw_record(record: RunRecord, path: Path | str) -> None:
    """Write one record's six panels, phases shaded, as a PNG."""
    role = "llds" if record.config.get("llds_coef", 0) > 0 else "grpo"
    with style_context():
        fig = Figure(figsize=(9.0, 4.4))
        axes = fig.subplots(2, 3, sharex=True)
        names = ("reward", "logp_correct", "grad_norm", "entropy", "logp_wrong", "response_length")
        phases = find_phases(record)
        for ax, column in zip(axes.flat, names, strict=True):
            shade_phases(ax, phases)
            ax.plot(record["update"], record[column], color=color(role), alpha=0.35, lw=0.7)
            curves(ax, [record], column, role=role, faint=False)
            ax.set_ylabel(LABELS[column])
        axes[0, 2].set_yscale("log")
        for ax in axes[1]:
            ax.set_xlabel("update")
        title = f"{record.label}, seed {record.config.get('seed')}, configuration {record.config_hash}"
        fig.suptitle(title, x=0.01, ha="left")
        fig.legend(handles=phase_handles(), loc="outside lower center", ncols=4)
        fig.savefig(path, dpi=150, metadata={"Software": None})


def _at_least_half(lines: np.ndarray) -> np.ndarray:
    """Return `lines` (N, U) with NaN where fewer than half of the rows have a value: a median of few would mislead."""
    return np.where(np.isfinite(lines).mean(axis=0) >= 0.5, lines, np.nan)
