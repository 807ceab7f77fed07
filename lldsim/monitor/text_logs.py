"""Text logs as a stream of flat rows: JSON lines, JSON files, CSV, and lines that trainers print.

Every function takes an open binary file and yields `{key: number}`; what cannot be read is counted in `Trouble`, never
raised. Memory is bounded by `MAX_LINE`. What this file does not do: interpret keys, or open paths (readers.py).
"""

from __future__ import annotations

import csv
import io
import json
import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, BinaryIO

MAX_LINE = 8 * 2**20  # a longer line is skipped
MAX_OBJECT = 16 * 2**20  # of one JSON object inside a file
Row = dict[str, float]
_NUMBER = r"[-+]?(?:\d+\.?\d*(?:[eE][-+]?\d+)?|\.\d+(?:[eE][-+]?\d+)?|nan|inf(?:inity)?)"
_VERL = re.compile(rf"(?:^|[\s(])([A-Za-z_][\w/@.\-]*):(?:np\.\w+\()?({_NUMBER})\)?(?=$|\s|,)", re.IGNORECASE)
_PRINTED = re.compile(
    rf"['\"]([^'\"]{{1,120}})['\"]:\s*['\"]?(?:np\.\w+\()?({_NUMBER})\)?['\"]?\s*[,}}]", re.IGNORECASE
)
_ANSI = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")
_BEGINS = re.compile(r"(?:^|\s)step:\d")
_RAY = re.compile(r"^\(\w+ pid=\d+(?:, ip=[^)]*)?\) ")
# What Ray prints after it has cut a line of verl's in two: the rest of it, which begins anywhere.
_REST = re.compile(rf"[^\s]* ?- [A-Za-z_][\w/@.\-]*:|(?:\w+:)?{_NUMBER}\)?\s*$", re.IGNORECASE)


@dataclass
class Trouble:
    """What went wrong while reading, as counts and notes for the reader of the report."""

    bad_lines: int = 0
    first_bad: int = 0
    truncated: bool = False
    notes: list[str] = field(default_factory=list)

    def bad(self, line: int) -> None:
        """Count an unreadable line."""
        self.bad_lines += 1
        self.first_bad = self.first_bad or line


def number(value: Any) -> float | None:
    """Return a value as a float (NaN and infinity included), or None when it is no number.

    >>> number("0.5"), number("45 %"), number("NaN"), number(True), number("x"), number([1])
    (0.5, 0.45, nan, 1.0, None, None)
    """
    if isinstance(value, str):
        value = value.strip()
        if value.endswith("%"):
            share = number(value[:-1])
            return None if share is None else share / 100
        if not re.fullmatch(_NUMBER, value, re.IGNORECASE):
            return None
    elif not isinstance(value, int | float):
        return None
    try:
        return float(value)
    except (ValueError, OverflowError):
        return math.inf


def flatten(value: Mapping[str, Any], prefix: str = "", depth: int = 0) -> Row:
    """Return the numbers of a nested mapping under keys joined by '/'; verl's wrapper `data` leaves no trace."""
    row: Row = {}
    for key, item in value.items():
        name = prefix + str(key)
        if isinstance(item, Mapping):
            if depth < 4:
                row |= flatten(item, "" if name == "data" else f"{name}/", depth + 1)
        elif (plain := number(item)) is not None:
            row[name] = plain
    return row


def _lines(file: BinaryIO, trouble: Trouble) -> Iterator[tuple[int, str]]:
    count = 0
    while line := file.readline(MAX_LINE):
        count += 1
        if len(line) == MAX_LINE and not line.endswith(b"\n"):
            trouble.bad(count)
            while (rest := file.readline(MAX_LINE)) and not rest.endswith(b"\n"):
                pass
            continue
        yield count, line.decode("utf-8", errors="replace")


def json_lines(file: BinaryIO, trouble: Trouble) -> Iterator[Row]:
    """Yield one row per line of JSON; the last line may be cut short."""
    last_bad = 0
    count = 0
    for count, line in _lines(file, trouble):
        if not line.strip("\ufeff \t\r\n\x00"):
            continue
        try:
            value = json.loads(line.lstrip("\ufeff"))
        except (ValueError, RecursionError):
            trouble.bad(count)
            last_bad = count
            continue
        if isinstance(value, dict):
            yield flatten(value)
        else:
            trouble.bad(count)
    trouble.truncated |= last_bad == count > 0


def json_objects(file: BinaryIO, trouble: Trouble, *, after: str | None = None) -> Iterator[Row]:
    """Yield the objects of a JSON array one by one, of the array that follows the key `after` if given.

    A file that is cut short yields what is whole. A single object of lists ({"reward": [...], ...}) yields its rows;
    one that holds lists of objects ({"config": ..., "history": [{...}, ...]}) yields those of the longest.
    """
    text = io.TextIOWrapper(file, "utf-8", errors="replace")
    decoder, buffer = json.JSONDecoder(), ""
    if after is not None:
        while f'"{after}"' not in buffer:
            more = text.read(2**20)
            if not more:
                return
            buffer = buffer[-200:] + more
        buffer = buffer.split(f'"{after}"', 1)[1].partition("[")[2]
    done = False
    while not done:
        start = _next_object(buffer)
        if start is None:
            buffer = text.read(2**20) if buffer is not None else ""
            if not buffer:
                trouble.truncated |= after is not None
                return
            continue
        if start < 0:
            return
        buffer = buffer[start:]
        while True:
            try:
                value, end = decoder.raw_decode(buffer)
                break
            except (ValueError, RecursionError):
                more = text.read(2**20) if len(buffer) < MAX_OBJECT else ""
                if not more:
                    trouble.truncated = True
                    return
                buffer += more
        buffer = buffer[end:]
        yield from _rows_of(value)


def _next_object(buffer: str) -> int | None:
    """Return where the next object starts, -1 where the array ends before one, None when more text is needed."""
    opens, closes = buffer.find("{"), buffer.find("]")
    if closes >= 0 and (opens < 0 or closes < opens):
        return -1
    return opens if opens >= 0 else None


def _rows_of(value: dict[str, Any]) -> Iterator[Row]:
    tables = [v for v in value.values() if isinstance(v, list) and len(v) > 1 and all(isinstance(x, dict) for x in v)]
    if tables:
        yield from map(flatten, max(tables, key=len))
        return
    lists = {k: v for k, v in value.items() if isinstance(v, list) and v and number(v[0]) is not None}
    if not lists:
        yield flatten(value)
        return
    for i in range(max(map(len, lists.values()))):
        row = {k: n for k, v in lists.items() if i < len(v) and (n := number(v[i])) is not None}
        if row:
            yield row


def csv_rows(file: BinaryIO, trouble: Trouble) -> Iterator[Row]:
    """Yield one row per line of a table with a header; the delimiter is a comma, tab or semicolon.

    With a semicolon a comma may be the decimal sign, as European spreadsheets write it.
    """
    lines = (line.replace("\x00", "").lstrip("\ufeff") for _, line in _lines(file, trouble))
    first = next(lines, "")
    delimiter = max(",\t;", key=first.count)
    try:
        header = next(csv.reader([first], delimiter=delimiter), [])
    except csv.Error:
        header = []
    count = 1
    for count, line in enumerate(lines, start=2):
        if not line.strip():
            continue
        try:
            cells = next(csv.reader([line], delimiter=delimiter), [])
        except csv.Error:
            trouble.bad(count)
            continue
        if len(cells) != len(header):
            trouble.bad(count)
            trouble.truncated = len(cells) < len(header)
        if delimiter == ";":
            cells = [cell.replace(",", ".") if cell.count(",") == 1 and "." not in cell else cell for cell in cells]
        row = {key: n for key, cell in zip(header, cells, strict=False) if (n := number(cell)) is not None}
        if row:
            yield row


def printed_rows(file: BinaryIO, trouble: Trouble) -> Iterator[Row]:
    """Yield rows from what trainers print: verl's `step:3 - actor/entropy:0.2 - ...` and TRL's `{'loss': 0.1, ...}`."""
    for line in _whole_lines(file, trouble):
        found = _PRINTED.findall(line) if "{" in line else []
        if len(found) < 2:
            found = _VERL.findall(line) if " - " in line or "step:" in line else []
        row = {key: n for key, text in found if (n := number(text)) is not None}
        if len(row) >= 2:
            yield row


def _whole_lines(file: BinaryIO, trouble: Trouble) -> Iterator[str]:
    """Yield printed lines without colours; a line of verl's that Ray has cut in two is put together again."""
    held = ""
    for _, line in _lines(file, trouble):
        line = _RAY.sub("", _ANSI.sub("", line[:200_000])).rstrip("\r\n")
        begins = _BEGINS.search(line) is not None
        if held and not begins and len(held) < 200_000 and _REST.match(line):
            held += line
            continue
        if held:
            yield held
        held = line if begins else ""
        if not held:
            yield line
    if held:
        yield held
