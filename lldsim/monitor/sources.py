"""Which file of a run to read, what format it is in, and its rows as a stream.

The format is found from the content; only TensorBoard also goes by name. What this file does not do: interpret keys.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO

from lldsim.errors import MissingDataError
from lldsim.monitor.binary_logs import completions_rows, tensorboard_rows, wandb_rows
from lldsim.monitor.text_logs import Row, Trouble, csv_rows, json_lines, json_objects, printed_rows

Progress = Callable[[int, int], None]  # bytes read, bytes in all
_FOLDER_ORDER = (
    "record.csv", "trainer_state.json", "checkpoint-*/trainer_state.json", "*.jsonl", "events.out.tfevents.*",
    "*.wandb", "completions_*.parquet", "completions/completions_*.parquet", "*.csv", "*.log", "*.txt", "*/*.jsonl",
    "*/events.out.tfevents.*", "*/*.wandb",
)  # fmt: skip


def find_files(path: Path) -> list[Path]:
    """Return the file(s) of a run: the path itself, or what the first fitting pattern finds in a folder."""
    try:
        if path.is_file():
            return [path]
        if not path.is_dir():
            raise MissingDataError(f"{path} does not exist; give a log file or a run's folder")
        for pattern in _FOLDER_ORDER:
            if found := sorted((p for p in path.glob(pattern) if p.is_file()), key=_natural):
                several = "tfevents" in pattern or "parquet" in pattern
                return found if several else found[-1:]
    except (OSError, ValueError) as error:
        raise MissingDataError(f"{str(path)[:200]!r} cannot be read: {error}") from None
    raise MissingDataError(f"{path} holds no log that is known here; give the log file itself")


def _natural(path: Path) -> tuple[int, str]:
    digits = "".join(c for c in path.parent.name + path.stem if c.isdigit())
    return int(digits[-15:] or 0), str(path)


class _Counting:
    """A binary file that reports how far it has been read."""

    def __init__(self, file: BinaryIO, size: int, on_progress: Progress | None) -> None:
        self._file, self._size, self._say, self._next = file, size, on_progress, 0
        self.closed, self.readable, self.writable, self.seekable = False, lambda: True, lambda: False, lambda: False

    def read(self, n: int = -1) -> bytes:
        return self._count(self._file.read(n))

    def read1(self, n: int = -1) -> bytes:
        return self.read(n)

    def readline(self, n: int = -1) -> bytes:
        return self._count(self._file.readline(n))

    def flush(self) -> None:
        """Nothing is buffered here."""

    def close(self) -> None:
        """The opener closes; a text wrapper that is collected early must not."""

    def _count(self, data: bytes) -> bytes:
        if self._say:
            at = self._file.tell()
            if at >= self._next or not data:
                self._next = at + 2**22
                self._say(at, self._size)
        return data


@contextmanager
def open_rows(path: Path, trouble: Trouble, on_progress: Progress | None) -> Iterator[tuple[str, Iterator[Row]]]:
    """Give the format of a file in words, and its rows; MissingDataError where it is none that is known."""
    try:
        with path.open("rb") as file:
            head = file.read(2**16)
            if not head.strip(b"\x00 \t\r\n"):
                raise MissingDataError(f"{path} is empty")
            kind = sniff(head, path.name)
            if kind not in _READERS:
                raise MissingDataError(
                    f"{path} is in no format that is known here: RunRecord, TRL trainer_state.json or completions, "
                    "verl JSONL or console, TensorBoard events, W&B offline run or CSV, JSON lines, CSV with a header"
                )
            name, reader = _READERS[kind]
            file.seek(0)
            counting: Any = _Counting(file, path.stat().st_size, on_progress)
            yield name, completions_rows(path, trouble) if kind == "parquet" else reader(counting, trouble)
    except OSError as error:
        raise MissingDataError(f"{path} cannot be read: {error.strerror or error}") from None


_READERS: dict[str, tuple[str, Callable[[BinaryIO, Trouble], Iterator[Row]]]] = {
    "parquet": ("TRL completions", json_lines),  # has its own way in, see above
    "tensorboard": ("TensorBoard events", tensorboard_rows),
    "wandb": ("W&B offline run", wandb_rows),
    "trainer_state": ("TRL trainer state", partial(json_objects, after="log_history")),
    "json": ("JSON", json_objects),
    "jsonl": ("JSON lines", json_lines),
    "printed": ("console", printed_rows),
    "csv": ("CSV", csv_rows),
}


def sniff(head: bytes, name: str = "") -> str:
    """Return the kind of log from its first 64 KiB; an empty string when it is none.

    >>> sniff(b'{"step": 1, "reward": 0.5}'), sniff(b"step,reward"), sniff(b"step:1 - actor/entropy:0.3")
    ('jsonl', 'csv', 'printed')
    """
    if head.startswith(b":W&B"):
        return "wandb"
    if head.startswith(b"PAR1"):
        return "parquet"
    if "tfevents" in name or (len(head) > 12 and head[2:8] == b"\0" * 6 and not head[:2].isalnum()):
        return "tensorboard"
    text = head.decode("utf-8", errors="replace").lstrip("\ufeff \t\r\n\x00")
    first = text.split("\n", 1)[0].strip()
    if '"log_history"' in text and not first.endswith("}"):
        return "trainer_state"
    if text.startswith(("{", "[")):
        try:
            value = json.loads(first)
        except (ValueError, RecursionError):
            value = None
        if isinstance(value, dict):
            if "log_history" in value:
                return "trainer_state"
            return "json" if any(isinstance(v, list) for v in value.values()) and "\n" not in text.strip() else "jsonl"
        if text.startswith("{'"):
            return "printed"
        if value is None and text.startswith("{") and '"' in first and text.count("\n{") >= 1:
            return "jsonl"
        return "json"
    if "step:" in text or "{'" in text:
        return "printed"
    if any(mark in first for mark in ",\t;") and first.isprintable() | ("\t" in first):
        return "csv"
    return "jsonl" if '\n{"' in text else ""
