"""Panels of the theory's figures: predicted against measured, G over similarity and likelihood, who pulls whom.

Each function draws onto one given Axes from plain arrays. What this file does not do: compute a prediction, a contour
or a pull (lldsim.theory, lldsim.snapshot), or save (save.py).
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import numpy.typing as npt

from lldsim.plots.style import color

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.colors import Colormap

Floats = npt.NDArray[np.float64]


def pull_colormap() -> Colormap:
    """Return the diverging map of pulls: dark blue lifts the likelihood, white does nothing, vermillion pulls down."""
    from matplotlib.colors import LinearSegmentedColormap

    return LinearSegmentedColormap.from_list("pull", [color("correct"), "#FFFFFF", color("grpo")])


def letter(ax: Axes, text: str) -> None:
    """Set a panel's title, left-aligned and bold up to the first space (the panel's letter)."""
    head, _, rest = text.partition(" ")
    ax.set_title(f"$\\bf{{{head}}}$  {rest}")


def predicted_measured(
    ax: Axes,
    predicted: Floats,
    measured: Floats,
    correct: npt.NDArray[np.bool_],
    *,
    linear_below: float,
) -> None:
    """Scatter measured against predicted changes (nats), right and wrong actions apart, with the line y = x.

    Both axes are symmetric-logarithmic, linear below `linear_below` nats, so that small changes of either sign show.
    """
    limit = 1.6 * float(max(np.abs(predicted).max(), np.abs(measured).max()))
    ax.plot([-limit, limit], [-limit, limit], color="black", lw=0.8, zorder=3, label="y = x")
    for role, where in (("correct", correct), ("wrong", ~correct)):
        label = f"actions of {'right' if role == 'correct' else role} responses"
        ax.scatter(
            predicted[where], measured[where], s=4, lw=0, alpha=0.6, color=color(role), label=label, rasterized=True
        )
    ax.set_xscale("symlog", linthresh=linear_below, linscale=0.5)
    ax.set_yscale("symlog", linthresh=linear_below, linscale=0.5)
    ticks = signed_decades(limit, above=linear_below, every=1 if limit < 1e3 * linear_below else 2)
    ax.set(xlim=(-limit, limit), ylim=(-limit, limit), xticks=ticks, yticks=ticks, aspect="equal")
    ax.set(xlabel="predicted change of ln π (nats)", ylabel="measured change of ln π (nats)")


def signed_decades(limit: float, *, above: float, every: int = 1) -> list[float]:
    """Return 0 and the powers of ten of both signs from `limit` down to `above` (left out): ticks of a symlog axis.

    >>> signed_decades(0.5, above=0.001)
    [-0.1, -0.01, 0.0, 0.01, 0.1]
    """
    low, high = round(np.log10(above)), int(np.floor(np.log10(limit)))
    decades = [float(f"1e{k}") for k in range(high, low, -every)]
    return [*(-x for x in decades), 0.0, *reversed(decades)]


def error_lines(ax: Axes, rates: Floats, errors: Floats, *, own_rate: float) -> None:
    """Draw relative errors (snapshots, rates) against the learning rate, log-log, with a guide of slope 1."""
    ax.loglog(rates, errors.T, color=color("null"), lw=0.5, alpha=0.5)
    ax.loglog([], [], color=color("null"), lw=0.8, label="one sampled batch each")
    middle = np.median(errors, axis=0)
    ax.loglog(rates, middle, color="black", marker="o", label="their median")
    ax.loglog(rates, middle[-1] * rates / rates[-1] * 3, color=color("llds"), ls=":", label="slope 1 (guide)")
    ax.axvline(own_rate, color=color("grpo"), lw=0.8, ls="--", label="learning rate of the runs")
    ax.set(xlabel="learning rate of one gradient step", ylabel="relative error of the prediction", box_aspect=1)


def gwhes_panel(ax: Axes, similarity: Floats, p_wrong: Floats, grid: Floats, *, largest: float) -> Any:
    """Draw G over the wrong token's probability (x) and the similarity (y); vermillion = the right token falls.

    `grid` (len(similarity), len(p_wrong)) are cell centres. Returns the mesh for a shared colour bar.
    """
    ax.set(xlabel="probability q of the wrong token", xlim=(0, 1), ylim=(similarity.min(), similarity.max()))
    return ax.pcolormesh(
        p_wrong,
        similarity,
        grid,
        cmap=pull_colormap(),
        vmin=-largest,
        vmax=largest,
        shading="nearest",
        rasterized=True,
    )


def zero_line(ax: Axes, p_wrong: Floats, contour: Floats, *, inside: tuple[float, float]) -> bool:
    """Draw the closed-form zero contour where it lies within `inside`; return whether any of it does."""
    shown = np.where((contour >= inside[0]) & (contour <= inside[1]), contour, np.nan)
    ax.plot(p_wrong, shown, color="black", lw=1.8)
    return bool(np.isfinite(shown).any())


def action_marks(ax: Axes, starts: Sequence[int], names: Sequence[str], *, axis: Literal["x", "y"] = "x") -> None:
    """Separate actions by thin lines and name each one along the axis; positions are token indices."""
    line = ax.axvline if axis == "x" else ax.axhline
    for start in starts[1:-1]:
        line(start - 0.5, color="black", lw=0.7)
    middles = [(a + b - 1) / 2 for a, b in itertools.pairwise(starts)]
    if axis == "x":
        ax.set_xticks(middles, names)
    else:
        ax.set_yticks(middles, names, rotation=90, va="center")
    ax.tick_params(axis=axis, length=0)
    ax.grid(False, axis=axis)


def stacked_pulls(ax: Axes, pulls: dict[str, Floats], colors: dict[str, str]) -> None:
    """Stack each source's pull on every token, upward and downward apart, with their sum G as a black dot."""
    total = np.sum(list(pulls.values()), axis=0)
    tops = {1: np.zeros_like(total), -1: np.zeros_like(total)}
    at = np.arange(len(total))
    for name, values in pulls.items():
        for sign, top in tops.items():
            part = np.where(np.sign(values) == sign, values, 0.0)
            ax.bar(at, part, bottom=top, width=0.85, color=colors[name], label=name if sign == 1 else None)
            top += part
    ax.axhline(0, color="black", lw=0.7)
    ax.plot(at, total, "o", color="black", ms=2.6, label="their sum, G of the token")
    ax.set_xlim(-0.6, len(total) - 0.4)


def pull_matrix(ax: Axes, pulls: Floats, *, largest: float) -> Any:
    """Draw single pulls (target tokens x source tokens) on a symmetric square-root colour scale; return the image."""
    from matplotlib.colors import FuncNorm

    def forward(x: npt.ArrayLike) -> Floats:
        return np.sign(x) * np.sqrt(np.abs(x))

    def back(x: npt.ArrayLike) -> Floats:
        return np.sign(x) * np.square(x)

    norm = FuncNorm((forward, back), vmin=-largest, vmax=largest)
    return ax.imshow(pulls, cmap=pull_colormap(), norm=norm, aspect="auto", interpolation="nearest")


def ranked_sources(ax: Axes, names: Sequence[str], pulls: Floats, roles: Sequence[str]) -> None:
    """Draw a ranked table of sources as horizontal bars, the strongest on top, coloured by `roles`."""
    at = np.arange(len(names))[::-1]
    ax.barh(at, pulls, color=[color(role) for role in roles], height=0.75)
    ax.axvline(0, color="black", lw=0.7)
    ax.set_yticks(at, names)
    ax.tick_params(axis="y", length=0)
    ax.grid(False, axis="y")
