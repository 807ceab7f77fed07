"""The explorer's pictures: five panels of one run, and small multiples over a dial's values for those who only read.

What this file does not do: run anything but the runs of `small_multiples`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from lldsim.diagnostics.collapse import smooth
from lldsim.diagnostics.phases import find_phases
from lldsim.diagnostics.thresholds import DEFAULT
from lldsim.errors import ConfigError, suggest
from lldsim.explore.settings import DIALS, Settings
from lldsim.plots.style import color, style_context
from lldsim.record import RunRecord

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Panel: (title, columns with their colour roles, logarithmic)
PANELS: tuple[tuple[str, tuple[tuple[str, str, str], ...], bool], ...] = (
    ("reward", (("reward", "reward", "reward"),), False),
    (
        "log-likelihood (nats per token)",
        (("logp_correct", "correct", "right responses"), ("logp_wrong", "wrong", "wrong responses")),
        False,
    ),
    ("entropy (nats per token)", (("entropy", "entropy", "entropy"),), False),
    ("gradient norm", (("grad_norm", "grad_norm", "gradient norm"),), True),
)
LEAST_PULL = 1e-5  # nats per unit of learning rate; below it the axis of G is linear


def figure(record: RunRecord, *, previous: RunRecord | None = None, title: str = "") -> Figure:
    """Return the panels of `record` over its phases, G where it was looked at, `previous` dashed in grey behind."""
    import matplotlib
    from matplotlib.figure import Figure

    from lldsim.plots.panels import phase_handles

    # Fixed margins: a layout solved for every move would cost time.
    with style_context(), matplotlib.rc_context({"figure.constrained_layout.use": False}):
        fig = Figure(figsize=(9.0, 4.6))
        axes = fig.subplots(2, 3, sharex=True)
        fig.subplots_adjust(left=0.06, right=0.99, top=0.89, bottom=0.1, hspace=0.22, wspace=0.22)
        for ax, (name, lines, log) in zip((*axes[0, :2], *axes[1, :2]), PANELS, strict=True):
            _panel(ax, record, lines, log=log, previous=previous)
            ax.set_title(name)
        _pull_panel(axes[0, 2], record, previous)
        handles, labels = axes[0, 1].get_legend_handles_labels()
        if previous is not None:
            handles += axes[0, 1].plot([], [], color="#888888", ls="--", lw=0.9)
            labels.append("the run before")
        handles += axes[0, 2].plot([], [], color="black", marker=".")
        axes[1, 2].axis("off")
        shades = phase_handles()
        axes[1, 2].legend(
            [*handles, *shades], [*labels, "G: wrong less right", *(str(s.get_label()) for s in shades)], loc="center"
        )
        for ax in (*axes[1, :2], axes[0, 2]):
            ax.set_xlabel("update")
        axes[0, 2].tick_params(labelbottom=True)
        axes[0, 0].set(xlim=(0, max(len(record) - 1, 1)), ylim=(-0.02, 1.02))
        fig.suptitle(title or f"simulated, seed {record.config.get('seed')}", x=0.06, y=0.985, ha="left")
    return fig


def small_multiples(
    dial: str, values: Sequence[Any] | None = None, *, settings: Settings | None = None
) -> tuple[Figure, list[RunRecord]]:
    """Return the static twin of a dial: a column per value with reward and likelihoods, and the records drawn.

    One run each, from the same seed. Raises ConfigError for an unknown dial, no values, or a value out of range.
    """
    if dial not in DIALS:
        raise ConfigError(f"unknown dial {dial!r}{suggest(dial, DIALS)}; dials are {', '.join(DIALS)}")
    values = DIALS[dial].values if values is None else list(values)
    if not values:
        raise ConfigError(f"{dial}: give at least one value to draw")
    from matplotlib.figure import Figure

    from lldsim.engine import simulate
    from lldsim.plots.panels import phase_handles

    settings = settings or Settings()
    configs = [settings.replace(**{dial: value}).config() for value in values]  # all checked before any runs
    records = [simulate(config) for config in configs]
    with style_context():
        fig = Figure(figsize=(max(1.8 * len(values) + 0.6, 4.2), 3.4))
        axes = fig.subplots(2, len(values), sharex="col", sharey="row", squeeze=False)
        for column, value, record in zip(axes.T, values, records, strict=True):
            for ax, (_, lines, log) in zip(column, PANELS[:2], strict=True):
                _panel(ax, record, lines, log=log)
            column[0].set_title(f"{DIALS[dial].label} {value}" if value == values[0] else f"{value}")
            column[1].set(xlabel="update", xlim=(0, max(len(record) - 1, 1)))
        axes[0, 0].set(ylabel="reward", ylim=(-0.02, 1.02))
        axes[1, 0].set_ylabel("log-likelihood\n(nats per token)")
        handles, labels = axes[1, 0].get_legend_handles_labels()
        shades = phase_handles()
        fig.legend(
            [*handles, *shades], [*labels, *(str(s.get_label()) for s in shades)], loc="outside lower center", ncols=3
        )
    return fig, records


def _pull_panel(ax: Axes, record: RunRecord, previous: RunRecord | None) -> None:
    """Draw G of right responses and its two parts: what wrong ones pull down and right ones lift."""
    from lldsim.plots.panels import shade_phases

    shade_phases(ax, find_phases(record))
    ax.set_title("G per token of right responses")
    ax.axhline(0, color="black", lw=0.6)
    ax.set_yscale("symlog", linthresh=LEAST_PULL)
    ax.set_yticks([-0.1, -1e-3, 0, 1e-3, 0.1])
    ax.minorticks_off()
    for shown, dashed in ((previous, True), (record, False)):
        if shown is None or "gwhes_batch" not in shown.columns:
            continue
        at = np.isfinite(shown["gwhes_batch"])
        total, wrong = shown["gwhes_batch"][at], shown["gwhes_batch_negative"][at]
        if dashed:
            ax.plot(shown["update"][at], total, color="#888888", ls="--", lw=0.9)
            continue
        ax.plot(shown["update"][at], wrong, color=color("wrong"), lw=0.9)
        ax.plot(shown["update"][at], wrong - total, color=color("correct"), lw=0.9)
        ax.plot(shown["update"][at], total, color="black", marker=".", lw=1.4)


def _panel(
    ax: Axes, record: RunRecord, lines: Sequence[tuple[str, str, str]], *, log: bool, previous: RunRecord | None = None
) -> None:
    from lldsim.plots.panels import shade_phases

    shade_phases(ax, find_phases(record))
    for column, role, label in lines:
        window = DEFAULT.reward_window if column == "reward" else DEFAULT.signal_window
        if previous is not None:
            ax.plot(previous["update"], smooth(previous[column], window), color="#888888", ls="--", lw=0.9)
        if np.isfinite(record[column]).any():
            ax.plot(record["update"], record[column], color=color(role), alpha=0.3, lw=0.6)
        ax.plot(record["update"], smooth(record[column], window), color=color(role), lw=1.6, label=label)
    if log:
        ax.set_yscale("log")
