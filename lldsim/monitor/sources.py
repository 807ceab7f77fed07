"""Which file of a run to read, what format it is in, and its rows as a stream.

The format is found from the content; only TensorBoard also goes by name. A folder may hold many runs.
What this file does not do: interpret keys, or unpack (streams.py).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import BinaryIO

from lldsim.errors import MissingDataError
from lldsim.monitor.binary_logs import completions_rows, tensorboard_rows, wandb_rows
from lldsim.monitor.streams import Progress, opened
from lldsim.monitor.text_logs import Row, Trouble, csv_rows, json_lines, json_objects, printed_rows

# What runs leave in their folders, in order of preference: a run's one file (the last of several); files of which
# several are several runs; parts of one run; and text, which counts only where no folder inside holds anything better.
_WHOLE = ("record.csv", "trainer_state.json", "checkpoint-*/trainer_state.json")
_SEVERAL = ("*.jsonl", "*.jsonl.gz", "*.wandb")
_PARTS = ("events.out.tfevents.*", "completions_*.parquet", "completions/completions_*.parquet")
_PLAIN = ("*.csv", "*.csv.gz", "*.log", "*.log.gz", "*.txt", "*.json", "*.json.gz")
MAX_FOLDERS = 2_000  # looked into below a path


def find_runs(path: Path) -> list[Path]:
    """Return the runs at a path: itself for a file or one run's folder, else one path for every run below it.

    Raises MissingDataError where there is none, or more folders than `MAX_FOLDERS`.
    """
    try:
        if path.is_file():
            return [path]
        if not path.is_dir():
            raise MissingDataError(f"{path} does not exist; give a log file or a run's folder")
        seen: set[Path] = set()
        runs = _runs(path, seen) or _runs(path, set(), plain=True)
    except (OSError, ValueError) as error:
        if isinstance(error, MissingDataError):
            raise
        raise MissingDataError(f"{str(path)[:200]!r} cannot be read: {error}") from None
    if not runs:
        raise MissingDataError(f"{path} holds no log that is known here; give the log file itself")
    return runs


def _runs(folder: Path, seen: set[Path], *, plain: bool = False, depth: int = 0) -> list[Path]:
    if folder.resolve() in seen or depth > 6:
        return []
    seen.add(folder.resolve())
    if len(seen) > MAX_FOLDERS:
        raise MissingDataError(f"more than {MAX_FOLDERS} folders to look into; give a folder nearer to the log")
    if not plain and any(_matches(folder, pattern) for pattern in _WHOLE):
        return [folder]
    for pattern in _PLAIN if plain else _SEVERAL:
        if found := _matches(folder, pattern):
            return found if len(found) > 1 and not _by_step(found) else [folder]
    if not plain and any(_matches(folder, pattern) for pattern in _PARTS):
        return [folder]
    inside = (p for p in folder.iterdir() if p.is_dir() and not p.name.startswith("."))
    inside = sorted(inside, key=lambda p: (p.is_symlink(), p.name))  # a link to a run is no second run
    return [run for part in inside for run in _runs(part, seen, plain=plain, depth=depth + 1)]


def _by_step(files: list[Path]) -> bool:
    """Return whether files are named by numbers, as verl names those of `rollout_data_dir`: then they are one run."""
    return all(path.name.split(".")[0].isdigit() for path in files)


def find_files(path: Path) -> list[Path]:
    """Return the files of the run at a path; MissingDataError where there is none, or more than one run."""
    runs = find_runs(path)
    if len(runs) > 1:
        some = ", ".join(str(run.relative_to(path)) for run in runs[:5]) + (", ..." if len(runs) > 5 else "")
        raise MissingDataError(f"{path} holds {len(runs)} runs ({some}); give one of them")
    if runs[0].is_file():
        return runs
    for pattern in (*_WHOLE, *_SEVERAL, *_PARTS, *_PLAIN):
        if found := _matches(runs[0], pattern):
            return found[-1:] if pattern in _WHOLE else found
    raise MissingDataError(f"{path} holds no log that is known here; give the log file itself")


def _matches(folder: Path, pattern: str) -> list[Path]:
    return sorted((p for p in folder.glob(pattern) if p.is_file()), key=_natural)


def _natural(path: Path) -> tuple[int, str]:
    digits = "".join(c for c in path.parent.name + path.stem if c.isdigit())
    return int(digits[-15:] or 0), str(path)


@contextmanager
def open_rows(path: Path, trouble: Trouble, on_progress: Progress | None) -> Iterator[tuple[str, Iterator[Row]]]:
    """Give the format of a file in words, and its rows; MissingDataError where it is none that is known."""
    try:
        with opened(path, Trouble()) as file:
            head = file.read(2**16)
        with opened(path, trouble, on_progress) as file:
            if not head.strip(b"\x00 \t\r\n"):
                raise MissingDataError(f"{path} is empty")
            kind = sniff(head, path.name)
            if kind not in _READERS:
                raise MissingDataError(
                    f"{path} is in no format that is known here: RunRecord, TRL trainer_state.json or completions, "
                    "verl JSONL or console, TensorBoard events, W&B offline run or CSV, JSON lines, CSV with a header"
                )
            name, reader = _READERS[kind]
            yield name, completions_rows(path, trouble) if kind == "parquet" else reader(file, trouble)
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
