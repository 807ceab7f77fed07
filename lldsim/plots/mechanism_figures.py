"""Figures 3, 4, 5, 6 and 9a: what the likelihood does, token by token and query by query, while the reward still holds.

Data come in as records (figure 3: with the columns of probe.py); every function returns one figure.
What this file does not do: run the experiments or write files.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from lldsim.diagnostics.collapse import collapse_step, smooth
from lldsim.diagnostics.thresholds import DEFAULT
from lldsim.plots import panels
from lldsim.plots.style import color
from lldsim.record import RunRecord

Records = Sequence[RunRecord]
ARMS = ("grpo", "llds", "null")
_DASH = {"grpo": "-", "llds": "-", "null": "--"}
_EARLY, _LATE = f"updates {DEFAULT.early[0]}-{DEFAULT.early[1] - 1}", "before the collapse"
_TWIN_WINDOW = {_EARLY: _EARLY, _LATE: "last updates"}


def displacement(
    changes: Mapping[str, Sequence[np.ndarray]], checkpoints: Sequence[str], arms: Mapping[str, Records]
) -> Figure:
    """Draw figure 3: D(x) of every probed query at checkpoints (top), and the mechanism through the run (bottom).

    `changes[arm][i]` holds D(x) of the queries probed at checkpoint i over all seeds, NaN for tied groups.
    """
    fig = Figure(figsize=(9.0, 6.2))
    grid = fig.add_gridspec(2, 1, height_ratios=(1.25, 1))
    top = grid[0].subgridspec(len(changes), len(checkpoints))
    for row, (arm, values) in enumerate(changes.items()):
        for column, label in enumerate(checkpoints):
            ax = fig.add_subplot(top[row, column])
            _bars(ax, values[column])
            if row == 0:
                ax.set_title(label, fontsize=8)
            if column == 0:
                ax.set_ylabel(panels.ARM_NAMES[arm].replace(", ", ",\n").replace(" + ", "\n+ "), fontsize=7)
            else:
                ax.set_yticklabels([])
    axes = [fig.add_subplot(cell) for cell in grid[1].subgridspec(1, 4)]
    names = {
        "displaced_sized": f"share of correct responses that\nan update lowers by {DEFAULT.displaced_size:g} nats",
        "displaced_bare": "the same by any amount",
        "gwhes_batch_negative": "pull of wrong responses\n(negative part of G)",
        "similarity": "right-wrong similarity of\nhidden states (mean cosine)",
    }
    for ax, (column, label) in zip(axes, names.items(), strict=True):
        for arm in ARMS:
            _middle(ax, arms[arm], column, role=arm)
        ax.set(ylabel=label, xlabel="update", xlim=(0, len(arms["grpo"][0]) - 1))
    axes[2].set_yscale("symlog", linthresh=1e-5)
    axes[2].set_ylim(-2e-5, None)
    axes[0].set_ylim(-0.03, 1.03)
    axes[1].set_ylim(-0.03, 1.03)
    axes[3].set_ylim(0, None)
    handles, labels = axes[0].get_legend_handles_labels()
    fig.legend(handles, labels, loc="outside lower center", ncols=3, fontsize=8)
    return fig


def signatures(arms: Mapping[str, Records]) -> Figure:
    """Draw figure 4: entropy, response length, valid searches and reward, against the updates before the collapse."""
    fig = Figure(figsize=(9.0, 2.9))
    names = {
        "reward": "reward",
        "entropy": "entropy (nats per token)",
        "response_length": "response length (tokens)",
        "valid_searches": "valid searches per response",
    }
    for ax, (column, label) in zip(fig.subplots(1, 4), names.items(), strict=True):
        _against_twins(ax, arms, column, before=60, after=20)
        ax.set_ylabel(label)
        ax.set_ylim(0, None)
    _legend(fig, fig.axes[0])
    return fig


def actions(arms: Mapping[str, Records]) -> Figure:
    """Draw figure 5: likelihood of the first and second action of wrong responses, and their shared first search."""
    fig = Figure(figsize=(9.0, 3.0))
    left, middle, right = fig.subplots(1, 3)
    for ax, outcome in ((left, "wrong"), (middle, "correct")):
        for action, dash in ((1, "-"), (2, "--")):
            column = f"logp_{outcome}_action{action}"
            _aligned_band(ax, arms["grpo"], column, shade=color(outcome), dash=dash, label=f"action {action}")
        ax.set(title=f"{outcome} responses, GRPO", ylabel="log-likelihood (nats per token)", ylim=(-4.2, 0.05))
        ax.legend(loc="lower left")
    _against_twins(right, arms, "first_search_wrong", before=60, after=10)
    right.set(ylabel="share of wrong responses whose\nfirst action is a valid search", ylim=(-0.03, 1.03))
    for ax in (left, middle):
        ax.set(xlabel="updates from the collapse", xlim=(-60, 10))
        ax.axvline(0, color="black", lw=0.7)
    _legend(fig, right)
    return fig


def tool_rounds(arms: Mapping[str, Records], *, window: tuple[int, int]) -> Figure:
    """Draw figure 6: -log-likelihood by action and by number of valid searches, early and shortly before collapse.

    `arms` are probed records; `window` counts updates before the collapse (first, last excluded).
    """
    fig = Figure(figsize=(9.0, 2.9))
    axes = fig.subplots(1, 2, sharey=True)
    cuts = (
        ("nll_action", (1, 2, 3), "index of the action"),
        ("nll_rounds", (0, 1, 2, 3), "valid searches in the response"),
    )
    early = DEFAULT.early
    for ax, (stem, numbers, label) in zip(axes, cuts, strict=True):
        for offset, arm in zip((-0.12, 0.0, 0.12), ARMS, strict=True):
            for when, dash, marker in ((_EARLY, "--", "o"), (_LATE, "-", "s")):
                values = np.array(
                    [[_mean_in(r, f"{stem}{i}", when, early, window) for i in numbers] for r in arms[arm]]
                )
                with warnings.catch_warnings():
                    warnings.filterwarnings("ignore", "All-NaN slice")
                    middle = np.nanmedian(values, axis=0)
                    low, high = np.nanquantile(values, [0.25, 0.75], axis=0)
                name = f"{panels.ARM_NAMES[arm]}, {when if arm == 'grpo' else _TWIN_WINDOW[when]}"
                ax.errorbar(
                    np.array(numbers) + offset, middle, yerr=[middle - low, high - middle], color=color(arm), ls=dash,
                    marker=marker, markerfacecolor="none" if when == _EARLY else color(arm), capsize=2, lw=1.1,
                    label=name,
                )  # fmt: skip
        ax.set_xticks(numbers)
        ax.set_xlabel(label)
    axes[0].set(ylabel="-log-likelihood (nats per token)", yscale="log")
    axes[0].set_yticks([0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5], ["0.02", "0.05", "0.1", "0.2", "0.5", "1", "2", "5"])
    axes[0].minorticks_off()
    handles, labels = axes[0].get_legend_handles_labels()
    fig.legend(handles, labels, loc="outside right center", fontsize=7)
    return fig


def right_wrong(arms: Mapping[str, Records]) -> Figure:
    """Draw figure 9a: likelihood of right and wrong responses, aligned to the collapse and in the twins."""
    fig = Figure(figsize=(9.0, 2.9))
    axes = fig.subplots(1, 4, sharey=True)
    for outcome in ("correct", "wrong"):
        _aligned_band(axes[0], arms["grpo"], f"logp_{outcome}", shade=color(outcome), dash="-", label=outcome)
    axes[0].set(
        title="GRPO, aligned", xlabel="updates from the collapse", xlim=(-60, 10), ylim=(-4.2, 0.05),
        ylabel="log-likelihood (nats per token)",
    )  # fmt: skip
    axes[0].axvline(0, color="black", lw=0.7)
    for ax, arm in zip(axes[1:], ("grpo", "llds", "null"), strict=True):
        for outcome in ("correct", "wrong"):
            _middle(ax, arms[arm], f"logp_{outcome}", role=outcome)
        ax.set(title=panels.ARM_NAMES[arm], xlabel="update", xlim=(0, len(arms[arm][0]) - 1))
    axes[1].set_title("GRPO, until its collapse")
    axes[0].legend(loc="lower left")
    return fig


def _bars(ax: Axes, change: np.ndarray) -> None:
    """Draw sorted D(x) as bars, red where an update on the query's own group lowers its correct responses."""
    values = np.sort(change[np.isfinite(change)])[::-1]
    n = max(len(values), 1)
    shades = np.where(values <= 0, color("grpo"), "#9DB4C0")
    ax.bar((np.arange(len(values)) + 0.5) / n, values, width=1 / n, color=shades, lw=0)
    ax.axhline(0, color="black", lw=0.6)
    ax.set_yscale("symlog", linthresh=0.1)
    ax.set(ylim=(-20, 2), xlim=(0, 1), xticks=[], yticks=[-10, -1, 0, 1], yticklabels=["-10", "-1", "0", "1"])
    share, sized = (float((values <= at).mean()) if len(values) else np.nan for at in (0, -DEFAULT.displaced_size))
    text = f"n = {len(values)}\n{share:.0%} below 0\n{sized:.0%} by {DEFAULT.displaced_size:g} nats"
    box = {"facecolor": "white", "alpha": 0.75, "lw": 0, "pad": 1.0}
    ax.text(0.03, 0.06, text, transform=ax.transAxes, fontsize=6.5, va="bottom", bbox=box)
    ax.grid(visible=False, axis="x")


def _middle(ax: Axes, records: Records, column: str, *, role: str) -> None:
    """Draw median and middle half over seeds, each record up to its collapse, at the updates that were measured."""
    raw = np.array([record[column] for record in records])
    measured = np.isfinite(raw).any(axis=0)
    lines = np.array([smooth(line, DEFAULT.signal_window) for line in raw[:, measured]])
    x = records[0]["update"][measured]
    ends = [len(record) if (step := collapse_step(record["reward"])) is None else step for record in records]
    lines[x[None, :] >= np.array(ends)[:, None]] = np.nan
    _band(ax, x, lines, shade=color(role), dash=_DASH.get(role, "-"), label=panels.ARM_NAMES.get(role, role))


def _against_twins(ax: Axes, arms: Mapping[str, Records], column: str, *, before: int, after: int) -> None:
    """Draw GRPO aligned to each seed's collapse, and the twins of the same seeds at the same updates."""
    steps = [collapse_step(r["reward"]) for r in arms["grpo"]]
    for arm in ARMS:
        _aligned_band(ax, arms[arm], column, shade=color(arm), dash=_DASH[arm], label=panels.ARM_NAMES[arm],
                      steps=steps, before=before, after=after)  # fmt: skip
    ax.set(xlabel="updates from the collapse\nof the seed's GRPO run", xlim=(-before, after))
    ax.axvline(0, color="black", lw=0.7)


def _aligned_band(
    ax: Axes, records: Records, column: str, *, shade: str, dash: str, label: str,
    steps: Sequence[int | None] | None = None, before: int = 60, after: int = 10,
) -> None:  # fmt: skip
    """Draw median and middle half of a column against the update relative to `steps` (default: own collapse)."""
    steps = [collapse_step(r["reward"]) for r in records] if steps is None else steps
    lines = []
    for record, step in zip(records, steps, strict=True):
        if step is not None:
            padded = np.pad(smooth(record[column], 3), (before, after), constant_values=np.nan)
            lines.append(padded[step : step + before + after + 1])
    if lines:
        _band(ax, np.arange(-before, after + 1), np.array(lines), shade=shade, dash=dash, label=label)


def _band(ax: Axes, x: np.ndarray, lines: np.ndarray, *, shade: str, dash: str, label: str) -> None:
    """Draw the median of `lines` (N, U) and their middle half where at least half of the rows have a value."""
    enough = np.isfinite(lines).mean(axis=0) >= 0.5
    lines = np.where(enough, lines, np.nan)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "All-NaN slice")
        low, middle, high = np.nanquantile(lines, [0.25, 0.5, 0.75], axis=0)
    ax.fill_between(x, low, high, color=shade, alpha=0.15, lw=0)
    ax.plot(x, middle, color=shade, ls=dash, label=label)


def _mean_in(record: RunRecord, column: str, when: str, early: tuple[int, int], window: tuple[int, int]) -> float:
    """Return a column's mean over early updates, or over `window` before the collapse (twins: before the end)."""
    step = collapse_step(record["reward"])
    end = len(record) if step is None else step
    first, last = early if when == _EARLY else (max(0, end - window[0]), max(0, end - window[1]))
    values = record[column][first:last]
    return float(np.nanmean(values)) if np.isfinite(values).any() else float("nan")


def _legend(fig: Figure, ax: Axes) -> None:
    handles, labels = ax.get_legend_handles_labels()
    fig.legend(handles, labels, loc="outside lower center", ncols=3, fontsize=8)
