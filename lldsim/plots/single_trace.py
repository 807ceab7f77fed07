"""Figures 11 to 15: one trace large, token by token - log-likelihood, its change, and which tokens the loss sees.

Three strips per action: the words coloured by ln pi, the change by the update, and the weight that the surrogate gives
(the response's advantage on its own tokens, nothing on feedback). Figure 10 (trace_figures.py) has all of them, small.
What this file does not do: pick the trace (traces.py) or collect it (trace_runs.py).
"""

from __future__ import annotations

import numpy as np
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import Normalize
from matplotlib.figure import Figure
from matplotlib.patches import Patch, Rectangle

from lldsim.plots.style import color
from lldsim.plots.theory_panels import pull_colormap
from lldsim.plots.trace_figures import LOWEST, feedback_text
from lldsim.traces import Action, Trace

LARGEST = 0.2  # nats; a token that changed by this much or more has the strongest colour
_LIKELIHOOD, _CHANGE = Normalize(LOWEST, 0.0), Normalize(-LARGEST, LARGEST)
_CELLS = colormaps["cividis"]
_WORDS, _MOVES, _LOSS, _TOOL, _GAP = 1.15, 0.7, 0.55, 1.0, 0.35  # heights in lines
_LINE = 0.21  # inches
_LABELS, _DECISION, _SUMS = 2.3, 3.2, 2.9  # widths in cells


def single_trace_figure(trace: Trace, title: str) -> Figure:
    """Draw one trace; log-likelihoods in nats before the update, changes new - old by the whole update.

    The change strip is vermillion where a token became less likely and dark blue where it became more likely.
    """
    cells = len(trace.actions[0].tokens) - 1
    lines = sum(_action_height(action) for action in trace.actions) + 0.9
    fig = Figure(figsize=(6.75, _LINE * lines + 1.15))
    grid = fig.add_gridspec(2, 2, height_ratios=(_LINE * lines, 0.09))
    ax = fig.add_subplot(grid[0, :])
    ax.set(xlim=(0, _LABELS + cells + _DECISION + _SUMS), ylim=(lines, 0))
    ax.axis("off")
    right_edge = _LABELS + cells + _DECISION + _SUMS
    ax.text(right_edge, 0.45, "sum (nats)", fontsize=6.5, ha="right", va="center")
    y = 0.9
    for action in trace.actions:
        y = _draw(ax, trace, action, y, cells)
    _bars(fig, fig.add_subplot(grid[1, 0]), fig.add_subplot(grid[1, 1]))
    outcome = "right" if trace.reward > 0 else "wrong"
    about = f"{outcome}, advantage {trace.advantage:+.2f}; hidden answer {trace.hidden_answer}; {trace.where}"
    fig.suptitle(f"simulated · {title}\n{about}", x=0.01, ha="left", fontsize=8)
    return fig


def _action_height(action: Action) -> float:
    return _WORDS + _MOVES + _LOSS + (_TOOL + _LOSS if action.feedback else 0.0) + _GAP


def _draw(ax: Axes, trace: Trace, action: Action, y: float, cells: int) -> float:
    """Draw an action and the feedback to it from line `y` down; return the line below them."""
    change = action.logps_after - action.logps
    last = len(action.tokens) - 1
    width = cells + _DECISION
    for k in range(len(action.tokens)):
        x, wide = _LABELS + k, _DECISION if k == last else 1.0
        logp, expected = float(action.logps[k]), bool(action.canonical[k])
        edge = {"ec": "white", "lw": 0.4} if expected else {"ec": color("grpo"), "lw": 1.1, "zorder": 3}
        ax.add_patch(_cell(x, y, wide, _WORDS, fc=_CELLS(_LIKELIHOOD(max(logp, LOWEST))), **edge))
        ink = "black" if _LIKELIHOOD(logp) > 0.55 else "white"
        text = action.decision if k == last else f"w{k + 1}" if expected else f"{action.tokens[k]}"
        place = (x + wide / 2, y + _WORDS / 2)
        ax.text(*place, text, fontsize=6.5 if k == last else 5, color=ink, ha="center", va="center", zorder=4)
        shade = pull_colormap()(_CHANGE(np.clip(-change[k], -LARGEST, LARGEST)))
        ax.add_patch(_cell(x, y + _WORDS, wide, _MOVES, fc=shade, ec="#DDDDDD", lw=0.3))
    _labels(ax, y, "ln π", float(action.logps.sum()), height=_WORDS, signed=False)
    _labels(ax, y + _WORDS, "change", float(change.sum()), height=_MOVES, signed=True)
    y += _WORDS + _MOVES
    role = "correct" if trace.reward > 0 else "wrong"
    ax.add_patch(_cell(_LABELS, y, width, _LOSS, fc=color(role), lw=0))
    text = f"in the loss, each token with A = {trace.advantage:+.2f}"
    ax.text(_LABELS + width / 2, y + _LOSS / 2, text, fontsize=5.5, color="white", ha="center", va="center")
    y += _LOSS
    if action.feedback:
        ax.add_patch(_cell(_LABELS, y, width, _TOOL, fc="#F4F4F4", ec="#BBBBBB", hatch="////", lw=0.4))
        label = {"fc": "#F4F4F4", "ec": "none", "pad": 0.8}
        middle = _LABELS + width / 2
        ax.text(middle, y + _TOOL / 2, feedback_text(action), fontsize=6.5, ha="center", va="center", bbox=label)
        ax.text(middle, y + _TOOL + _LOSS / 2, "not in the loss", fontsize=5.5, ha="center", va="center")
        ax.text(_LABELS - 0.2, y + _TOOL / 2, "tool", fontsize=6.5, ha="right", va="center")
        y += _TOOL + _LOSS
    return y + _GAP


def _labels(ax: Axes, y: float, name: str, total: float, *, height: float, signed: bool) -> None:
    ax.text(_LABELS - 0.2, y + height / 2, name, fontsize=6.5, ha="right", va="center")
    text = f"{total:+.2f}" if signed else f"{total:.1f}"
    ax.text(ax.get_xlim()[1], y + height / 2, text, fontsize=6.5, ha="right", va="center")


def _cell(x: float, y: float, width: float, height: float, **style: object) -> Rectangle:
    return Rectangle((x + 0.03, y + 0.05), width - 0.06, height - 0.1, **style)  # type: ignore[arg-type]


def _bars(fig: Figure, left: Axes, right: Axes) -> None:
    """Draw both colour scales and what the frames mean below the trace."""
    bar = fig.colorbar(ScalarMappable(_LIKELIHOOD, _CELLS), cax=left, orientation="horizontal", extend="min")
    bar.set_label("ln π before the update (nats)", fontsize=6.5)
    moved = ScalarMappable(_CHANGE, pull_colormap().reversed())
    change = fig.colorbar(moved, cax=right, orientation="horizontal", extend="both")
    change.set_label("change by the update (nats)", fontsize=6.5)
    for each in (bar, change):
        each.ax.tick_params(labelsize=6)
    patch = Patch(fc="white", ec=color("grpo"), lw=1.1, label="a word that is not the expected one (w1, w2, …)")
    fig.legend(handles=[patch], loc="outside lower center", fontsize=6.5)
