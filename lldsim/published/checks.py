"""Do the printed averages and the sentences about them follow from the printed scores?

Everything is recomputed from tables.csv. What this file does not do: say which of two numbers is the right one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from lldsim.published.tables import AVERAGES, PublishedRow, find_row

Verdict = Literal["agrees", "rounding", "mismatch", "blank"]
# Scores are printed with three digits, so each may be off by .0005, their mean by as much, and the printed mean by
# .0005 again: a larger difference cannot come from rounding. One ten-thousandth is finer than any sum of them.
_HALF_DIGIT, _GRAIN = 5e-4, 1e-6


@dataclass(frozen=True)
class AverageCheck:
    """One printed average beside the mean of the printed scores; `recomputed` has four digits."""

    row: PublishedRow
    average: str
    printed: float | None
    recomputed: float | None
    verdict: Verdict


def check_averages(rows: Sequence[PublishedRow]) -> list[AverageCheck]:
    """Return one check per row and average.

    `agrees`: equal at three digits, up to a tie. `rounding`: off by at most .001, which rounded scores can explain.
    `mismatch`: off by more. `blank`: the paper leaves the average or one of its scores empty.

    >>> from lldsim.published import load_tables
    >>> [(c.row.method, c.printed, c.recomputed) for c in check_averages(load_tables()) if c.verdict == "mismatch"]
    [('StepSearch', 0.382, 0.3837)]
    """
    return [_check(row, average) for row in rows for average in AVERAGES]


@dataclass(frozen=True)
class Statement:
    """A number in the paper's text beside what the tables give; `recomputed` maps each reading to its value."""

    where: str
    printed: str
    recomputed: dict[str, str]
    agrees: bool


def check_statements(rows: Sequence[PublishedRow]) -> list[Statement]:
    """Return the headline gains and the score quoted in section 6.2 (v2), each recomputed from the tables.

    A gain is LLDS average / GRPO average - 1. v1's 3B headline, +37.8 %, is 0.430 / 0.312: the score that v2's text
    still quotes.
    """

    def average(table: int, model: str, method: str, train_set: str = "nq+hotpotqa") -> float:
        value = find_row(table, model, method, train_set, rows).scores["avg"]
        assert value is not None, f"table {table}, {model}, {method}: the average is blank"
        return value

    small, large, grpo = "Qwen2.5-3B-Base", "Qwen2.5-7B-Base", "Search-R1-GRPO"
    best = average(1, small, "GRPO+LLDS-MA")
    same_data, nq_only = average(1, small, grpo), average(3, small, grpo, "nq")
    large_best, large_grpo = average(2, large, "GRPO+LLDS"), average(2, large, grpo)
    gain = {
        f"{best:.3f} / {same_data:.3f}, both trained on NQ + HotpotQA": best / same_data - 1,
        f"{best:.3f} / {nq_only:.3f}, GRPO trained on NQ alone": best / nq_only - 1,
    }
    large_gain = large_best / large_grpo - 1
    return [
        Statement(
            "headline, 3B-Base, GRPO+LLDS-MA (v2)",
            "+45.2 %",
            {reading: f"{value:+.1%}".replace("%", " %") for reading, value in gain.items()},
            agrees=f"{next(iter(gain.values())):.3f}" == "0.452",
        ),
        Statement(
            "headline, 7B-Base, GRPO+LLDS (v2)",
            "+37.1 %",
            {f"{large_best:.3f} / {large_grpo:.3f}, table 2": f"{large_gain:+.1%}".replace("%", " %")},
            agrees=f"{large_gain:.3f}" == "0.371",
        ),
        Statement(
            "section 6.2, average of LLDS-MA (v2)", "0.430", {"table 1": f"{best:.3f}"}, agrees=f"{best:.3f}" == "0.430"
        ),
    ]


def same_row_twice(rows: Sequence[PublishedRow]) -> list[tuple[PublishedRow, PublishedRow]]:
    """Return the pairs of rows that two tables print for the same model, training set and method."""
    pairs = []
    for i, first in enumerate(rows):
        key = (first.model, first.train_set, first.method)
        pairs += [(first, r) for r in rows[i + 1 :] if (r.model, r.train_set, r.method) == key]
    return pairs


def _check(row: PublishedRow, average: str) -> AverageCheck:
    printed, mean = row.scores[average], row.recomputed(average)
    if printed is None or mean is None:
        return AverageCheck(row, average, printed, mean, "blank")
    values = [row.scores[name] or 0.0 for name in AVERAGES[average]]
    difference = abs(printed - sum(values) / len(values))
    verdict: Verdict = "mismatch"
    if difference <= _HALF_DIGIT + _GRAIN:
        verdict = "agrees"
    elif difference <= 2 * _HALF_DIGIT + _GRAIN:
        verdict = "rounding"
    return AverageCheck(row, average, printed, mean, verdict)
