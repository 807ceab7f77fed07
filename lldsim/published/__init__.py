"""The paper's tables 1-4 as printed (arXiv 2512.04220 v2), their averages recomputed, and where the two disagree.

What this package does not do: correct a printed number, or hold any result of ours. Everything here has the label
*published*; v1's tables are not included.
"""

from __future__ import annotations

from lldsim.published.checks import AverageCheck, Statement, check_averages, check_statements, same_row_twice
from lldsim.published.tables import AVERAGES, BENCHMARKS, PublishedRow, load_tables, table_rows

__all__ = [
    "AVERAGES",
    "BENCHMARKS",
    "AverageCheck",
    "PublishedRow",
    "Statement",
    "check_averages",
    "check_statements",
    "load_tables",
    "same_row_twice",
    "table_rows",
]
