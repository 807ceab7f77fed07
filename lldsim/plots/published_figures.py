"""Figure 1 and tables 1-4 from the printed numbers, with the averages that do not follow marked.

What this file does not do: read the tables (published/), or draw any result of ours.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import to_hex, to_rgb
from matplotlib.figure import Figure
from matplotlib.patches import Patch, Rectangle

from lldsim.plots.style import color
from lldsim.published import AVERAGES, BENCHMARKS, PublishedRow, check_averages, table_rows

NAMES = {
    "nq": "NQ",
    "triviaqa": "TriviaQA",
    "popqa": "PopQA",
    "gen_avg": "average",
    "hotpotqa": "HotpotQA",
    "2wiki": "2Wiki",
    "musique": "MuSiQue",
    "bamboogle": "Bamboogle",
    "mh_avg": "average",
    "avg": "average",
}
COLUMNS = ("nq", "triviaqa", "popqa", "gen_avg", "hotpotqa", "2wiki", "musique", "bamboogle", "mh_avg", "avg")
TITLES = {
    1: "Table 1: Qwen2.5-3B",
    2: "Table 2: Qwen2.5-7B",
    3: "Table 3: gates and training sets, Qwen2.5-3B",
    4: "Table 4: Llama-3.2-3B-Base",
}
# Figure 1 compares on 7B-Instruct: the rows of table 2 that are that model's, weakest training first.
BARS = ("R1-instruct", "Search-R1-PPO-Ins", "ZeroSearch-Ins", "StepSearch", "Tree-GRPO", "Search-R1-GRPO", "GRPO+LLDS")
_MARKED = {"mismatch": "#F3C9A8", "rounding": "#EFEFEF"}
_LINE = 0.165  # inches per row of a table


def bar_rows(rows: Sequence[PublishedRow]) -> list[PublishedRow]:
    """Return the rows of figure 1 in the order of BARS: table 2 without its 7B-Base rows."""
    table = {row.method: row for row in table_rows(2, rows) if not row.model.endswith("-Base")}
    return [table[name] for name in BARS]


def bars(rows: Sequence[PublishedRow]) -> Figure:
    """Draw figure 1: EM of each method of BARS on the seven benchmarks, and the average that is recomputed."""
    chosen = bar_rows(rows)
    fig = Figure(figsize=(9.0, 3.2))
    ax = fig.subplots()
    positions = np.array([*range(len(BENCHMARKS)), len(BENCHMARKS) + 0.35])
    width = 0.86 / len(chosen)
    for i, row in enumerate(chosen):
        values = [row.scores[name] for name in BENCHMARKS] + [row.recomputed("avg")]
        heights = np.array([np.nan if value is None else value for value in values])
        shade = _bar_shade(row, i)
        left = positions + (i - (len(chosen) - 1) / 2) * width
        ax.bar(left, heights, width * 0.94, color=shade, edgecolor="#555555", linewidth=0.3, label=row.method)
        if i == len(chosen) - 1:
            for x, height in zip(left, heights, strict=True):
                ax.text(x, height + 0.008, f"{height:.3f}".lstrip("0"), ha="center", fontsize=6, color=shade)
    ax.axvline(len(BENCHMARKS) - 0.33, ymax=0.8, color="#999999", lw=0.6, ls=":")
    ax.set_xticks(positions, [*(NAMES[name] for name in BENCHMARKS), "average,\nrecomputed"])
    ax.set(ylabel="exact match, as printed", ylim=(0, 0.76), xlim=(-0.55, positions[-1] + 0.55))
    ax.grid(axis="x", visible=False)
    ax.legend(ncols=4, loc="upper center", bbox_to_anchor=(0.6, 1.0))
    ax.set_title("published: arXiv 2512.04220 v2, table 2, Qwen2.5-7B-Instruct and the baselines listed beside it")
    return fig


def tables(rows: Sequence[PublishedRow]) -> Figure:
    """Draw tables 1-4 as printed, under one another; a cell that its own row contradicts is shaded and annotated."""
    blocks = [table_rows(number, rows) for number in TITLES]
    heights = [len(block) + 3.2 for block in blocks]
    fig = Figure(figsize=(9.0, _LINE * (sum(heights) + 2)))
    axes = fig.subplots(len(blocks), 1, gridspec_kw={"height_ratios": heights})
    for ax, number, block, height in zip(axes, TITLES, blocks, heights, strict=True):
        _table(ax, number, block, height)
    handles = [
        Patch(fc=_MARKED["mismatch"], ec="#999999", lw=0.4, label="≠ the mean of the printed scores (at the right)"),
        Patch(fc=_MARKED["rounding"], ec="#999999", lw=0.4, label="off by at most .001: rounded scores can explain it"),
    ]
    sources = [Patch(alpha=0, label="ˢ from Search-R1   ᶜ from CriticSearch   bold: with LLDS")]
    fig.legend(handles=handles + sources, loc="outside lower center", ncols=3, fontsize=6.5)
    return fig


def markdown(rows: Sequence[PublishedRow]) -> str:
    """Return tables 1-4 as Markdown; a contradicted average is written `printed (≠ recomputed)`."""
    verdicts = {(id(c.row), c.average): c for c in check_averages(rows)}
    lines = ["# Tables 1-4 of arXiv 2512.04220 v2, as printed (published, exact match)", ""]
    for number, title in TITLES.items():
        lines += [f"## {title}", "", "| model | trained on | method | " + " | ".join(_long(n) for n in COLUMNS) + " |"]
        lines += ["|" + "---|" * (3 + len(COLUMNS))]
        for row in table_rows(number, rows):
            cells = []
            for name in COLUMNS:
                value, check = row.scores[name], verdicts.get((id(row), name))
                text = "" if value is None else f"{value:.3f}"
                if check is not None and check.verdict in _MARKED:
                    text += f" ({'≠' if check.verdict == 'mismatch' else '~'} {check.recomputed:.4f})"
                cells.append(text)
            source = f" ({row.mark})" if row.mark else ""
            lines += [f"| {row.model} | {row.train_set} | {row.method}{source} | " + " | ".join(cells) + " |"]
        lines += [""]
    lines += ["≠: cannot be rounding. ~: off by at most .001, which rounded scores can explain.", ""]
    return "\n".join(lines)


def _long(name: str) -> str:
    kind = {"gen_avg": "single-hop ", "mh_avg": "multi-hop ", "avg": "overall "}
    return kind.get(name, "") + NAMES[name]


def _table(ax: Axes, number: int, rows: Sequence[PublishedRow], height: float) -> None:
    """Write one table in a frame of `height` lines; x runs over characters of the page, 0 to 100."""
    verdicts = {(id(c.row), c.average): c for c in check_averages(rows)}
    ax.set(xlim=(0, 100), ylim=(height, 0))
    ax.axis("off")
    right = np.linspace(41.5, 93, len(COLUMNS))
    ax.text(0, 0.75, TITLES[number], fontsize=8.5, fontweight="bold", va="center")
    ax.text(
        100,
        0.75,
        "published, v2; average = single-hop, multi-hop, all seven",
        fontsize=7,
        color=color("published"),
        ha="right",
        va="center",
    )
    for x, text in zip((0, 13.5, 22), ("model", "trained on", "method"), strict=True):
        ax.text(x, 2.0, text, fontsize=6.5, color="#555555", va="center")
    for x, name in zip(right, COLUMNS, strict=True):
        ax.text(x, 2.0, NAMES[name], fontsize=6, color="#555555", ha="right", va="center")
    ax.plot([0, 100], [2.6, 2.6], color="#555555", lw=0.6)
    for line, row in enumerate(rows):
        y = line + 3.1
        previous = rows[line - 1] if line else row
        if row.model != previous.model:
            ax.plot([0, 100], [y - 0.5, y - 0.5], color="#BBBBBB", lw=0.4)
        weight = "bold" if row.with_llds else "normal"
        source = {"": "", "from Search-R1": " ˢ", "from CriticSearch": " ᶜ"}[row.mark]
        for x, text in zip((0, 13.5, 22), (row.model, row.train_set, row.method + source), strict=True):
            ax.text(x, y, text, fontsize=6.5, fontweight=weight, va="center")
        for x, name in zip(right, COLUMNS, strict=True):
            _number(ax, x, y, row.scores[name], verdicts.get((id(row), name)), weight)
    ax.plot([0, 100], [len(rows) + 2.65] * 2, color="#555555", lw=0.6)


def _number(ax: Axes, x: float, y: float, value: float | None, check: object, weight: str) -> None:
    verdict = getattr(check, "verdict", "agrees")
    text = "–" if value is None else f"{value:.3f}"
    if verdict in _MARKED:
        ax.add_patch(Rectangle((x - 4.4, y - 0.45), 4.7, 0.9, fc=_MARKED[verdict], lw=0))
    ax.text(x, y, text, fontsize=6.5, fontweight=weight, ha="right", va="center")
    if verdict == "mismatch":
        ax.text(100, y, f"≠ {getattr(check, 'recomputed', 0):.4f}", fontsize=6.5, ha="right", va="center")


def _bar_shade(row: PublishedRow, index: int) -> str:
    """Return GRPO's and LLDS's own colours, and for baselines a shade of the colour of printed numbers."""
    if row.with_llds or row.method == "Search-R1-GRPO":
        return color("llds" if row.with_llds else "grpo")
    share = 0.25 + 0.13 * index
    r, g, b = (1 - share + share * x for x in to_rgb(color("published")))
    return to_hex((r, g, b))


assert set(COLUMNS) == {*BENCHMARKS, *AVERAGES}
