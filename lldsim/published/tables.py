"""Read tables.csv, the exact-match (EM) scores of tables 1-4 as printed in arXiv 2512.04220 v2.

An empty cell is one that the paper leaves blank. What this file does not do: judge the numbers (checks.py).
"""

from __future__ import annotations

import csv
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from lldsim.errors import ConfigError, MissingDataError

BENCHMARKS = ("nq", "triviaqa", "popqa", "hotpotqa", "2wiki", "musique", "bamboogle")
# Printed average -> the benchmarks that it averages.
AVERAGES: dict[str, tuple[str, ...]] = {
    "gen_avg": BENCHMARKS[:3],  # single-hop ("general") questions
    "mh_avg": BENCHMARKS[3:],  # multi-hop questions
    "avg": BENCHMARKS,
}
TABLES = (1, 2, 3, 4)
_TEXT = ("table", "model", "train_set", "method", "mark")
_NUMBERS = (*BENCHMARKS[:3], "gen_avg", *BENCHMARKS[3:], "mh_avg", "avg")
_FILE = Path(__file__).with_name("tables.csv")


@dataclass(frozen=True)
class PublishedRow:
    """One printed row; `mark` says from which paper the authors took it, empty = their own runs or unmarked."""

    table: int
    model: str
    train_set: str
    method: str
    mark: str
    scores: dict[str, float | None]  # benchmarks and averages as printed, EM in [0, 1]; None = blank

    @property
    def with_llds(self) -> bool:
        """Whether the method contains LLDS."""
        return "LLDS" in self.method

    def recomputed(self, average: str) -> float | None:
        """Return the mean of the benchmarks that the printed `average` is over, or None where one is blank.

        Raises ConfigError for a name that is not one of the three averages.

        >>> table_rows(1)[0].recomputed("avg")
        0.1341
        """
        if average not in AVERAGES:
            raise ConfigError(f"no average {average!r}; choose one of {', '.join(AVERAGES)}")
        values = [self.scores[name] for name in AVERAGES[average]]
        known = [value for value in values if value is not None]
        return round(sum(known) / len(known), 4) if len(known) == len(values) else None


def load_tables(path: Path | str = _FILE) -> list[PublishedRow]:
    """Return every row of tables 1-4 in print order.

    Raises MissingDataError when the file or a column is absent, a row is cut short, or a cell is no EM in [0, 1].
    """
    path = Path(path)
    if not path.is_file():
        raise MissingDataError(f"{path.name} does not exist; it ships with the package, so install it again")
    header, *lines = list(csv.reader(path.read_text(encoding="utf-8").splitlines())) or [[]]
    if tuple(header) != _TEXT + _NUMBERS:
        odd = sorted({*_TEXT, *_NUMBERS} ^ {*header}) or ["their order"]
        raise MissingDataError(f"{path.name}: columns differ from what is expected in {', '.join(odd)}")
    return [_row(cells, header, where=f"{path.name} line {number}") for number, cells in enumerate(lines, start=2)]


def table_rows(table: int, rows: Sequence[PublishedRow] | None = None) -> list[PublishedRow]:
    """Return the rows of one table (1-4), of `rows` where given; raises ConfigError for another number.

    >>> [len(table_rows(number)) for number in TABLES]
    [20, 17, 16, 3]
    """
    if table not in TABLES:
        raise ConfigError(f"table={table!r}: the paper's result tables are {', '.join(map(str, TABLES))}")
    return [row for row in (load_tables() if rows is None else rows) if row.table == table]


def find_row(table: int, model: str, method: str, train_set: str, rows: Sequence[PublishedRow]) -> PublishedRow:
    """Return the one row with this model, method and training set; MissingDataError when there is none."""
    wanted = (table, model, method, train_set)
    for row in rows:
        if (row.table, row.model, row.method, row.train_set) == wanted:
            return row
    raise MissingDataError(f"table {table} has no row {method!r} of {model!r} trained on {train_set!r}")


def _row(cells: Sequence[str], header: Sequence[str], *, where: str) -> PublishedRow:
    if len(cells) != len(header):
        raise MissingDataError(f"{where} has {len(cells)} of {len(header)} cells: the file is cut short")
    values = dict(zip(header, cells, strict=True))
    if values["table"] not in map(str, TABLES):
        raise MissingDataError(f"{where}: table {values['table']!r} is not one of 1-4")
    scores = {name: _score(values[name], where=f"{where}, {name}") for name in _NUMBERS}
    text = {name: values[name] for name in _TEXT[1:]}
    return PublishedRow(table=int(values["table"]), **text, scores=scores)


def _score(cell: str, *, where: str) -> float | None:
    if not cell:
        return None
    try:
        value = float(cell)
    except ValueError:
        raise MissingDataError(f"{where}: {cell!r} is no number; leave it empty where the paper is blank") from None
    if not 0 <= value <= 1:
        raise MissingDataError(f"{where}: {cell} is outside [0, 1]; exact match is written as a share")
    return value
