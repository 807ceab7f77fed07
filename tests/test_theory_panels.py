"""Locks the theory's panels: what they draw is what they were given.

- ticks of a symlog axis; stacked pulls end where the parts do and their dots are the sum; a ranked table is top-down
- the zero line is drawn inside the map only, and says whether it is
"""

from __future__ import annotations

from collections.abc import Iterator

import matplotlib.pyplot as plt
import numpy as np
import pytest
from matplotlib.axes import Axes
from matplotlib.patches import Rectangle

from lldsim.plots import theory_panels


@pytest.fixture
def ax() -> Iterator[Axes]:
    fig, ax = plt.subplots()
    yield ax
    plt.close(fig)


def bars(ax: Axes) -> list[Rectangle]:
    return [patch for patch in ax.patches if isinstance(patch, Rectangle)]


def test_symlog_ticks_are_symmetric_and_end_at_the_limit() -> None:
    assert theory_panels.signed_decades(2.0, above=0.01, every=1) == [-1.0, -0.1, 0.0, 0.1, 1.0]
    assert theory_panels.signed_decades(2e2, above=0.01, every=2) == [-100.0, -1.0, 0.0, 1.0, 100.0]


def test_stacked_pulls_add_up(ax: Axes) -> None:
    pulls = {"a": np.array([1.0, -2.0]), "b": np.array([3.0, 5.0]), "c": np.array([-1.0, -1.0])}
    theory_panels.stacked_pulls(ax, pulls, dict.fromkeys(pulls, "red"))
    ends = [(bar.get_y() + bar.get_height(), bar.get_x()) for bar in bars(ax)]
    assert max(y for y, x in ends if x < 0.5) == 4.0
    assert min(y for y, x in ends if x > 0.5) == -3.0
    assert np.asarray(ax.lines[-1].get_ydata()).tolist() == [3.0, 2.0]


def test_zero_line_stays_inside(ax: Axes) -> None:
    q = np.linspace(0, 0.9, 10)
    assert theory_panels.zero_line(ax, q, 0.3 / (1 - q), inside=(-1.0, 1.0))
    assert not theory_panels.zero_line(ax, q, 3.0 / (1 - q), inside=(-1.0, 1.0))
    drawn = np.asarray(ax.lines[0].get_ydata(), dtype=float)
    assert np.nanmax(drawn) <= 1.0
    assert np.isnan(drawn[-1])


def test_ranked_sources_have_the_first_on_top(ax: Axes) -> None:
    theory_panels.ranked_sources(ax, ["strong", "weak"], np.array([2.0, 1.0]), ["wrong", "correct"])
    heights = {bar.get_width(): bar.get_y() for bar in bars(ax)}
    assert heights[2.0] > heights[1.0]
    assert ax.get_yticklabels()[0].get_text() == "strong"


def test_scatter_separates_right_from_wrong(ax: Axes) -> None:
    x = np.array([0.1, -0.2, 0.3])
    theory_panels.predicted_measured(ax, x, x, np.array([True, False, True]), linear_below=0.01)
    counts = {c.get_label(): len(np.asarray(c.get_offsets())) for c in ax.collections}
    assert counts == {"actions of right responses": 2, "actions of wrong responses": 1}
    assert ax.get_xlim() == ax.get_ylim()
