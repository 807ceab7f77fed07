"""Write a figure, its data and its numbers: the same input gives the same bytes.

This file alone knows where things lie under an output folder (`FigurePaths`). Images carry no date, no
software name and no random ids, so a changed byte means a changed picture; that holds for one version of
matplotlib, so across versions compare the CSV and JSON, not pixels.
What this file does not do: draw, choose a folder (callers pass `out`), or write a manifest (figures.py does).
"""

from __future__ import annotations

import csv
import io
import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lldsim.errors import ConfigError, NonFiniteError, ShapeError
from lldsim.plots.style import FILE_FORMAT_RC

if TYPE_CHECKING:
    from matplotlib.figure import Figure

DPI = 200
SIGNIFICANT_DIGITS = 10  # below float64's noise floor: sums that a machine orders differently still agree
# A key set to None is left out of the file by matplotlib; each of these holds a date or a version by default.
_NO_METADATA: dict[str, dict[str, Any]] = {
    "png": {"Software": None},
    "svg": {"Date": None, "Creator": None},
    "pdf": {"CreationDate": None, "Creator": None, "Producer": None},
}


@dataclass(frozen=True)
class FigurePaths:
    """Where the outputs of one figure lie under an output folder."""

    png: Path
    svg: Path
    pdf: Path
    table: Path
    numbers: Path


def figure_paths(name: str, *, out: str | Path) -> FigurePaths:
    """Return the paths of figure or table `name` under `out`; nothing is created.

    Raises ConfigError for a name that is not letters, digits, `_`, `-`, because it becomes a file name.

    >>> figure_paths("fig02_three_phases", out="paper_figures").table.as_posix()
    'paper_figures/data/fig02_three_phases.csv'
    """
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_-]*", name):
        raise ConfigError(f"a figure name is made of letters, digits, '_' and '-' only, got {name!r}")
    root = Path(out)
    images = (root / f"{name}.{kind}" for kind in ("png", "svg", "pdf"))
    return FigurePaths(*images, table=root / "data" / f"{name}.csv", numbers=root / "numbers" / f"{name}.json")


def save_figure(fig: Figure, name: str, *, out: str | Path, pdf: bool = False) -> list[Path]:
    """Write `fig` as PNG (200 dpi) and SVG, and as PDF on request, and return the paths written.

    The figure keeps the layout it is saved with: artists added later no longer move its axes.
    Raises ConfigError for a name that cannot be a file name.
    """
    import matplotlib as mpl

    paths = figure_paths(name, out=out)
    targets = {"png": paths.png, "svg": paths.svg} | ({"pdf": paths.pdf} if pdf else {})
    with mpl.rc_context(FILE_FORMAT_RC):
        # Constrained layout moves axes a little on every draw, and with some artists never stops: the PNG would
        # differ from the SVG, and a second save from the first.
        fig.draw_without_rendering()
        fig.set_layout_engine("none")
        for kind, path in targets.items():
            image = io.BytesIO()
            fig.savefig(image, format=kind, dpi=DPI, metadata=_NO_METADATA[kind])
            _write(path, image.getvalue())
    return list(targets.values())


def save_table(table: Any, name: str, *, out: str | Path) -> Path:
    """Write the numbers behind a plot to `data/NAME.csv`, floats with 10 significant digits, and return the path.

    `table` is a mapping column -> values, a sequence of row mappings, or a data frame. None and NaN become
    empty cells, booleans `true`/`false`.
    Raises ShapeError for columns of unequal length or rows with different keys, ConfigError for an empty table.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as out:
    ...     save_table({"step": [1, 2], "reward": [0.1, 1 / 3]}, "demo", out=out).read_text().split()
    ['step,reward', '1,0.1', '2,0.3333333333']
    """
    columns = _as_columns(table)
    lengths = {column: len(values) for column, values in columns.items()}
    if not columns or not any(lengths.values()):
        raise ConfigError(f"table {name!r} is empty; a figure without data behind it cannot be checked")
    if len(set(lengths.values())) > 1:
        raise ShapeError(f"table {name!r}: columns differ in length: {lengths}")
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(columns)
    writer.writerows([_cell(value) for value in row] for row in zip(*columns.values(), strict=True))
    return _write(figure_paths(name, out=out).table, text.getvalue().encode())


def save_numbers(numbers: Mapping[str, Any], name: str, *, out: str | Path) -> Path:
    """Write a figure's headline numbers to `numbers/NAME.json`, keys sorted, and return the path.

    The figure runner reads the keys `label` ("simulated", "measured" or "published"), `caption`, and where
    present `config_hash` and `seeds`. NumPy and torch scalars and arrays become plain numbers and lists.
    Raises NonFiniteError for NaN or infinity (write None for "did not happen"), ConfigError for other types.
    """
    plain = _plain(dict(numbers), where=name)
    text = json.dumps(plain, indent=2, sort_keys=True, ensure_ascii=False, allow_nan=False)
    return _write(figure_paths(name, out=out).numbers, (text + "\n").encode())


def _write(path: Path, content: bytes) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    return path


def _as_columns(table: Any) -> dict[str, list[Any]]:
    if isinstance(table, Mapping) or hasattr(table, "columns"):  # a data frame indexes by column, as a mapping does
        return {str(column): _as_list(table[column]) for column in getattr(table, "columns", table)}
    rows: Sequence[Mapping[str, Any]] = list(table)
    for number, row in enumerate(rows):
        if row.keys() != rows[0].keys():
            raise ShapeError(f"row {number} has keys {sorted(row)}, row 0 has {sorted(rows[0])}")
    return {column: [row[column] for row in rows] for column in rows[0]} if rows else {}


def _as_list(values: Any) -> list[Any]:
    return list(values.tolist() if hasattr(values, "tolist") else values)


def _cell(value: Any) -> str:
    value = value.item() if hasattr(value, "item") else value
    match value:
        case None:
            return ""
        case bool():
            return "true" if value else "false"
        case float():
            return "" if math.isnan(value) else f"{value:.{SIGNIFICANT_DIGITS}g}"
        case _:
            return str(value)


def _plain(value: Any, *, where: str) -> Any:
    match value.tolist() if hasattr(value, "tolist") else value:
        case None | bool() | int() | str() as same:
            return same
        case float() as number if math.isfinite(number):
            return float(f"{number:.{SIGNIFICANT_DIGITS}g}")
        case float() as number:
            raise NonFiniteError(f"{where} is {number}; JSON has no such number, write None for 'did not happen'")
        case Mapping() as mapping:
            return {str(key): _plain(item, where=f"{where}.{key}") for key, item in mapping.items()}
        case list() | tuple() | range() as items:
            return [_plain(item, where=f"{where}[{index}]") for index, item in enumerate(items)]
        case Path() as path:
            raise ConfigError(f"{where} is a path ({path.name}); paths of one machine do not belong in results")
        case other:
            raise ConfigError(f"{where} has type {type(other).__name__}; give numbers, text, lists or mappings")
