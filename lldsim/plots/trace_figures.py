"""Figure 10: traces token by token - coloured by log-likelihood, feedback hatched because it is masked.

What this file does not do: pick the traces (traces.py) or collect them (trace_runs.py).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import Normalize
from matplotlib.figure import Figure
from matplotlib.patches import Patch, Rectangle

from lldsim.errors import MissingDataError
from lldsim.plots.style import color
from lldsim.traces import Action, Trace

LOWEST = -6.0  # nats; a token this unlikely or more so is darkest
_SCALE = Normalize(LOWEST, 0.0)
_CELLS = colormaps["cividis"]
_HEADER, _ACTION, _FEEDBACK, _GAP = 1.15, 1.1, 1.0, 0.75  # heights in lines
_LINE = 0.19  # inches
_GUTTER, _DECISION, _SUMS = 1.1, 4.0, 4.6  # widths in cells
_MASKED: dict[str, Any] = {"fc": "#F4F4F4", "ec": "#BBBBBB", "hatch": "////"}

Section = tuple[str, Sequence[Trace]]  # a title and its traces, drawn under one another


def traces_figure(left: Sequence[Section], right: Sequence[Section]) -> Figure:
    """Draw two columns of titled traces; see `trace_height` for how tall they are."""
    lines = max(sum(_HEADER + sum(map(trace_height, traces)) for _, traces in column) for column in (left, right))
    fig = Figure(figsize=(9.0, _LINE * lines + 0.75))
    for ax, column in zip(fig.subplots(1, 2), (left, right), strict=True):
        widest = max(len(trace.actions[0].tokens) for _, traces in column for trace in traces)
        ax.set(xlim=(0, _GUTTER + widest + _DECISION + _SUMS), ylim=(lines, 0))
        ax.axis("off")
        y = 0.0
        for title, traces in column:
            ax.text(0, y + _HEADER / 2, title, fontsize=7.5, fontweight="bold", va="center")
            y += _HEADER
            for trace in traces:
                draw_trace(ax, trace, y)
                y += trace_height(trace)
    bar = fig.colorbar(
        ScalarMappable(_SCALE, _CELLS), ax=fig.axes, location="bottom", fraction=0.02, aspect=60, pad=0.01, extend="min"
    )
    bar.set_label("log-likelihood of the token before the update (nats)", fontsize=7)
    fig.legend(handles=_legend(), loc="outside lower center", ncols=4, fontsize=6.5)
    fig.suptitle("simulated: traces of the toy world, each token as it was sampled", x=0.01, ha="left")
    return fig


def trace_height(trace: Trace) -> float:
    """Return how many lines a trace takes."""
    feedback = sum(bool(a.feedback) for a in trace.actions)
    return _HEADER + _ACTION * len(trace.actions) + _FEEDBACK * feedback + _GAP


def draw_trace(ax: Axes, trace: Trace, y: float) -> None:
    """Draw one trace with its top at line `y`: a header, then each action with its feedback below."""
    right = trace.reward > 0
    role = "correct" if right else "wrong"
    header = (
        f"{'right' if right else 'wrong'}, advantage {trace.advantage:+.2f}; hidden answer {trace.hidden_answer}"
        f"  ({trace.where})"
    )
    ax.text(0, y + _HEADER / 2, header, fontsize=6, color=color(role), va="center")
    cells = len(trace.actions[0].tokens)
    ax.text(
        _GUTTER + cells + _DECISION + _SUMS, y + _HEADER / 2, "Σ ln π, change", fontsize=5.5, ha="right", va="center"
    )
    y += _HEADER
    for action in trace.actions:
        ax.add_patch(Rectangle((0, y + 0.04), 0.7, _ACTION - 0.08, fc=color(role), lw=0))
        ax.text(0.35, y + _ACTION / 2, "+" if trace.advantage > 0 else "−" if trace.advantage < 0 else "0",
                color="white", fontsize=6, ha="center", va="center")  # fmt: skip
        _draw_action(ax, action, y)
        y += _ACTION
        if action.feedback:
            _draw_feedback(ax, action, y, cells)
            y += _FEEDBACK


def _draw_action(ax: Axes, action: Action, y: float) -> None:
    last = len(action.tokens) - 1
    for k, (token, expected, logp) in enumerate(zip(action.tokens, action.canonical, action.logps, strict=True)):
        width = _DECISION if k == last else 1.0
        x = _GUTTER + k + (0.15 if k == last else 0)
        shade = _CELLS(_SCALE(max(logp, LOWEST)))
        ink = "black" if _SCALE(logp) > 0.55 else "white"
        edge = {"ec": "white", "lw": 0.4} if expected else {"ec": color("grpo"), "lw": 1.0, "zorder": 3}
        ax.add_patch(Rectangle((x + 0.03, y + 0.06), width - 0.06, _ACTION - 0.12, fc=shade, **edge))
        text = action.decision if k == last else f"w{k + 1}" if expected else f"{token}"
        ax.text(x + width / 2, y + _ACTION / 2, text, fontsize=5.5 if k == last else 4.2, color=ink, ha="center",
                va="center", zorder=4)  # fmt: skip
    sums = f"{action.logps.sum():.1f}, {action.logp_change:+.2f}"
    ax.text(_GUTTER + last + _DECISION + _SUMS + 1, y + _ACTION / 2, sums, fontsize=6, ha="right", va="center")


def feedback_text(action: Action) -> str:
    """Return what the tool said to an action in words; MissingDataError after a final action, which has no feedback."""
    if not action.feedback:
        raise MissingDataError(f"the action {action.decision!r} ends its trace: there is no feedback to show")
    return {
        "document": f"document: “the answer is {action.named}”",
        "useless document": "document without the answer",
        "error message": "error: the action is invalid, try again",
    }[action.feedback]


def _draw_feedback(ax: Axes, action: Action, y: float, cells: int) -> None:
    text = feedback_text(action)
    width = cells + _DECISION - 0.85
    ax.add_patch(
        Rectangle((_GUTTER, y + 0.1), width, _FEEDBACK - 0.2, fc="#F4F4F4", ec="#BBBBBB", hatch="////", lw=0.4)
    )
    label = {"fc": "#F4F4F4", "ec": "none", "pad": 0.8}
    ax.text(_GUTTER + width / 2, y + _FEEDBACK / 2, text, fontsize=5.5, ha="center", va="center", bbox=label)


def _legend() -> list[Patch]:
    return [
        Patch(fc=color("correct"), label="right response (sign: of its advantage)"),
        Patch(fc=color("wrong"), label="wrong response"),
        Patch(fc="white", ec=color("grpo"), lw=1.0, label="unexpected word"),
        Patch(**_MASKED, label="tool feedback: masked in the loss"),
    ]
