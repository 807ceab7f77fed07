"""Tables 1-4 as printed.

Locked here: 56 rows in print order, read without loss; which averages and sentences disagree with the scores, and that
no other does; rows that two tables share are equal; a damaged file, a bad table number and a bad average are refused by
name; a changed score changes the verdict.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from lldsim.errors import ConfigError, MissingDataError
from lldsim.published import (
    AVERAGES,
    BENCHMARKS,
    check_averages,
    check_statements,
    load_tables,
    same_row_twice,
    table_rows,
)
from lldsim.published import tables as module
from lldsim.published.tables import find_row

SOURCE = Path(module.__file__).with_name("tables.csv")


def test_every_row_and_cell_is_read() -> None:
    rows = load_tables()
    assert [len(table_rows(n)) for n in (1, 2, 3, 4)] == [20, 17, 16, 3]
    assert [row.table for row in rows] == sorted(row.table for row in rows)
    last = rows[-1]
    assert (last.model, last.method, last.scores["bamboogle"], last.scores["avg"]) == (
        "Llama3.2-3B-Base", "GRPO+LLDS-MA", 0.298, 0.427,
    )  # fmt: skip
    blank = [row for row in rows if None in row.scores.values()]
    assert {row.method for row in blank} == {"CriticSearch"}
    assert all(row.scores["nq"] is None and row.scores["mh_avg"] is not None for row in blank)


def test_only_one_average_cannot_be_rounding() -> None:
    verdicts = {(c.row.table, c.row.method, c.average): c for c in check_averages(load_tables())}
    (wrong,) = [c for c in verdicts.values() if c.verdict == "mismatch"]
    assert (wrong.row.table, wrong.row.method, wrong.average) == (2, "StepSearch", "avg")
    assert (wrong.printed, wrong.recomputed) == (0.382, 0.3837)


def test_averages_that_rounded_scores_can_explain() -> None:
    near = [c for c in check_averages(load_tables()) if c.verdict == "rounding"]
    assert [(c.row.table, c.row.method, c.average, c.printed, c.recomputed) for c in near] == [
        (1, "StepSearch", "gen_avg", 0.375, 0.3757),
        (1, "Tree-GRPO", "avg", 0.424, 0.4246),
        (1, "GSPO+LLDS", "avg", 0.451, 0.4503),
        (2, "Search-o1", "avg", 0.206, 0.2066),
        (2, "Tree-GRPO", "avg", 0.439, 0.4396),
        (3, "GRPO+LLDS", "gen_avg", 0.517, 0.518),
        (3, "GSPO+LLDS", "avg", 0.451, 0.4503),
    ]


def test_blank_averages_are_not_judged() -> None:
    blank = [(c.row.table, c.average) for c in check_averages(load_tables()) if c.verdict == "blank"]
    assert blank == [(1, "gen_avg"), (1, "avg"), (2, "gen_avg"), (2, "avg")]


def test_headlines_and_section_6_2() -> None:
    small, large, text = check_statements(load_tables())
    assert list(small.recomputed.values()) == ["+41.0 %", "+45.2 %"]
    assert not small.agrees  # the first reading compares like with like, and gives another number
    assert (large.printed, *large.recomputed.values(), large.agrees) == ("+37.1 %", "+37.1 %", True)
    assert (text.printed, text.recomputed, text.agrees) == ("0.430", {"table 1": "0.440"}, False)


def test_the_score_that_section_6_2_quotes_gives_the_first_version_s_headline() -> None:
    grpo = find_row(1, "Qwen2.5-3B-Base", "Search-R1-GRPO", "nq+hotpotqa", load_tables()).scores["avg"]
    assert grpo is not None
    assert f"{0.430 / grpo - 1:.1%}" == "37.8%"


def test_tables_that_share_a_row_print_it_alike() -> None:
    pairs = same_row_twice(load_tables())
    assert len(pairs) == 6
    assert all({a.table, b.table} == {1, 3} for a, b in pairs)
    assert all(a.scores == b.scores for a, b in pairs)


def test_a_changed_score_is_noticed() -> None:
    row = load_tables()[0]
    off = replace(row, scores=row.scores | {"musique": 0.120})
    assert [c.verdict for c in check_averages([row])] == ["agrees"] * 3
    assert [c.verdict for c in check_averages([off])] == ["agrees", "mismatch", "mismatch"]
    assert set(AVERAGES["gen_avg"]) | set(AVERAGES["mh_avg"]) == set(BENCHMARKS)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        (",0.134\n", "\n", "line 2 has 14 of 15 cells"),
        ("0.134", "none", "line 2, avg: 'none' is no number"),
        ("0.134", "13.4", r"line 2, avg: 13.4 is outside \[0, 1\]"),
        ("\n1,", "\n7,", "line 2: table '7'"),
        ("bamboogle", "bambogle", "bambogle, bamboogle"),
    ],
)
def test_a_damaged_file_is_refused_by_line(tmp_path: Path, old: str, new: str, message: str) -> None:
    damaged = tmp_path / "tables.csv"
    damaged.write_text(SOURCE.read_text().replace(old, new, 1))
    with pytest.raises(MissingDataError, match=message):
        load_tables(damaged)


def test_absent_file_table_row_and_average_are_named(tmp_path: Path) -> None:
    with pytest.raises(MissingDataError, match=r"gone\.csv does not exist"):
        load_tables(tmp_path / "gone.csv")
    with pytest.raises(ConfigError, match="table=5"):
        table_rows(5)
    with pytest.raises(MissingDataError, match="no row 'PPO'"):
        find_row(1, "Qwen2.5-3B-Base", "PPO", "nq", load_tables())
    with pytest.raises(ConfigError, match="no average 'nq'"):
        load_tables()[0].recomputed("nq")
