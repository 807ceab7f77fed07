"""Figures 1, 7, 9b, 10 and tables 1-4 as drawn.

Locked here: bars are as tall as the printed scores; a table shades exactly the cells that its rows contradict and
writes the recomputed mean beside the one mismatch; Markdown holds every row; counts in panel titles are those of the
records; a trace draws one cell per token and a masked box per feedback, darker where less likely; an arm's look; short
names of the notebooks.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from matplotlib.colors import to_hex, to_rgb
from matplotlib.patches import Rectangle

from lldsim.config import RunConfig
from lldsim.figures import discover_figures, select_figures
from lldsim.paper_worlds import FOUR_WORLDS
from lldsim.plots import color, style_context, trace_figures, world_figures
from lldsim.plots.published_figures import BARS, bar_rows, bars, markdown, tables
from lldsim.published import BENCHMARKS, load_tables
from lldsim.record import RunRecord, make_record
from lldsim.traces import Action, Trace


@pytest.fixture(autouse=True)
def styled():
    with style_context():
        yield


def test_bars_are_as_tall_as_the_printed_scores() -> None:
    rows = load_tables()
    (ax,) = bars(rows).axes
    boxes = [p for p in ax.patches if isinstance(p, Rectangle)]
    heights = np.array([p.get_height() for p in boxes]).reshape(len(BARS), len(BENCHMARKS) + 1)
    for row, drawn in zip(bar_rows(rows), heights, strict=True):
        assert drawn[:-1].tolist() == [row.scores[name] for name in BENCHMARKS]
        assert drawn[-1] == row.recomputed("avg")
    shades = [to_hex(p.get_facecolor()).upper() for p in boxes[:: len(BENCHMARKS) + 1]]
    assert shades[BARS.index("GRPO+LLDS")] == color("llds").upper()
    assert len(set(shades)) == len(BARS)


def test_tables_shade_what_does_not_follow() -> None:
    fig = tables(load_tables())
    shaded = [[to_hex(p.get_facecolor()) for p in ax.patches] for ax in fig.axes]
    mismatch, rounding = "#f3c9a8", "#efefef"
    assert [found.count(mismatch) for found in shaded] == [0, 1, 0, 0]
    assert [found.count(rounding) for found in shaded] == [3, 2, 2, 0]
    assert [len(found) for found in shaded] == [3, 3, 2, 0]
    texts = [text.get_text() for text in fig.axes[1].texts]
    assert "≠ 0.3837" in texts


def test_markdown_has_every_row_and_marks_the_averages() -> None:
    lines = markdown(load_tables()).splitlines()
    assert sum(line.startswith(("| Qwen", "| Llama")) for line in lines) == 56
    marked = [line for line in lines if "≠" in line and line.startswith("|")]
    assert len(marked) == 1
    assert "0.382 (≠ 0.3837)" in marked[0]
    assert sum(line.count("(~") for line in lines) == 7


def test_their_notebooks_are_found_by_short_names(repo_root: Path) -> None:
    specs = discover_figures(repo_root)
    names = ["fig01_bars", "fig07_four_models", "fig09b_searches", "fig10_traces", "figp1_tables"]
    assert [spec.name for spec in select_figures(specs, ["fig01", "fig07", "fig09b", "fig10", "figp1"])] == names


def record(reward: np.ndarray) -> RunRecord:
    n = len(reward)
    columns = {"update": np.arange(n, dtype=float), "reward": reward, "valid_searches": 2 * reward}
    return make_record(columns, RunConfig().flat(), "0" * 12)


def test_panels_count_their_own_records() -> None:
    healthy = record(np.full(40, 0.9))
    fallen = record(np.r_[np.full(20, 0.9), np.zeros(20)])
    arms = {f"{world} {role}": [healthy, healthy] for world in FOUR_WORLDS for role in ("grpo", "llds", "null")}
    arms["7B-Base grpo"] = [healthy, fallen]
    fig = world_figures.four_worlds_figure(arms)
    titles = [ax.get_title(loc="left") for ax in fig.axes]
    assert ["1/2 collapse" in title for title in titles] == [False, False, True, False]
    assert all("toy world" in title for title in titles)


def test_searches_figure_draws_every_arm_in_its_own_look() -> None:
    arms = {name: [record(np.linspace(0.3, 0.9, 30))] for name in ("0", "0.2", "0.2 MA", "1", "1 MA")}
    left, middle, right = world_figures.searches_figure(arms).axes
    looks = [(line.get_color(), line.get_linestyle()) for line in right.lines]
    assert len(set(looks)) == 5
    assert looks[0][0] == color("grpo")
    assert looks[2] == (color("llds_ma"), "--")
    searches, reward = (np.asarray(ax.lines[0].get_ydata(), dtype=float) for ax in (left, right))
    np.testing.assert_allclose(searches, 2 * reward)
    assert len(middle.lines) == 5


def trace() -> Trace:
    logps = np.array([0.0, -9.0, -1.0])
    first = Action(np.arange(3), np.array([True, False, True]), logps, logps, "search", "error message", None)
    last = Action(np.arange(3), np.ones(3, bool), logps, logps - 0.5, "answer 1", "", None)
    return Trace(0, 5, 2, 1, 3, 0.0, -1.2, (first, last))


def test_a_trace_has_a_cell_per_token_and_a_box_per_feedback() -> None:
    fig = trace_figures.traces_figure([("one", [trace()])], [("two", [trace(), trace()])])
    left, right = fig.axes[:2]
    for ax, traces in ((left, 1), (right, 2)):
        hatched = [p for p in ax.patches if p.get_hatch()]
        assert len(hatched) == traces  # one message each; the last action gets none
        assert len(ax.patches) == traces * (1 + 2 * (3 + 1))  # message, and per action three tokens and the sign
    boxes = [p for p in left.patches if isinstance(p, Rectangle)]
    cells = [p for p in boxes if p.get_width() == pytest.approx(0.94)]
    brightness = [sum(to_rgb(p.get_facecolor())) for p in cells]
    assert brightness[0] > brightness[1]
    assert to_hex(cells[1].get_edgecolor()).upper() == color("grpo").upper()
    texts = [text.get_text() for text in left.texts]
    assert texts.count("−") == 2
    assert "-10.0, -1.50" in texts
    assert any("seed 0, update 5, query 2, response 1" in text for text in texts)
