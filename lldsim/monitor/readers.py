"""Any training log in, one `Log` out: which format it is, which signals it has, what was odd about it.

    >>> log = read_log("runs/a")  # doctest: +SKIP
    >>> log.record["reward"]      # doctest: +SKIP

A path is a file or a run's folder. The format is found from the content, not the name. Everything streams.
What this file does not do: judge the run (diagnose.py).
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from lldsim import record as records
from lldsim.errors import ConfigError, MissingDataError, suggest
from lldsim.monitor import aliases
from lldsim.monitor.binary_logs import completions_rows, tensorboard_rows, wandb_rows
from lldsim.monitor.table import TableBuilder
from lldsim.monitor.text_logs import Row, Trouble, csv_rows, json_lines, json_objects, printed_rows
from lldsim.record import RunRecord

Progress = Callable[[int, int], None]  # bytes read, bytes in all
_FOLDER_ORDER = (
    "record.csv", "trainer_state.json", "checkpoint-*/trainer_state.json", "*.jsonl", "events.out.tfevents.*", "*.wandb",
    "completions_*.parquet", "completions/completions_*.parquet", "*.csv", "*.log", "*.txt", "*/*.jsonl",
    "*/events.out.tfevents.*", "*/*.wandb",
)  # fmt: skip


@dataclass
class Log:
    """A run's log by step: `record` holds the signals (column `update` = step), the rest says how it was read."""

    path: str
    format: str
    record: RunRecord
    sources: dict[str, str]  # signal -> key in the log
    trusted: bool  # log-probabilities are ours, so their meaning is known
    unknown_keys: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    restarts: list[float] = field(default_factory=list)
    nonfinite: dict[str, list[float]] = field(default_factory=dict)  # signal -> first steps with NaN or infinity

    @property
    def steps(self) -> np.ndarray:
        """Steps (N,), rising."""
        return self.record["update"]

    def has(self, name: str) -> bool:
        """Return whether a signal was logged at least once."""
        return name in self.record.columns


def read_log(path: Path | str, *, columns: Mapping[str, str] | None = None, on_progress: Progress | None = None) -> Log:
    """Return the log at `path`.

    `columns` maps a signal (or `step`) to the log's key and wins over the alias table. Raises MissingDataError when the
    path is absent, is no log or holds no signal, and ConfigError for an unknown signal in `columns`.
    """
    columns = dict(columns or {})
    for name in columns:
        if name != "step" and name not in aliases.ALIASES:
            raise ConfigError(f"--map {name}=...: no such signal{suggest(name, aliases.ALIASES)}")
    path = Path(path)
    files = find_files(path)
    if files[0].name == "record.csv":
        return _own_record(files[0].parent)
    builder, trouble, unknown = TableBuilder(), Trouble(), {}
    by_key = {key: name for name, key in columns.items()}
    chosen: dict[str, tuple[str, int, str] | None] = {}
    kind, row_number, stepless = "", 0, 0
    for file in files:
        kind, rows = _open(file, trouble, on_progress)
        for row in rows:
            step, values = math.nan, {}
            for key, value in row.items():
                if by_key.get(key) == "step" or ("step" not in columns and aliases.is_step(key)):
                    step = value
                    continue
                if key not in chosen and len(chosen) < 10_000:
                    chosen[key] = (by_key[key], -1, "map") if key in by_key else aliases.lookup(key)
                if chosen.get(key):
                    values[key] = value
                elif len(unknown) < 200:
                    unknown[key[:80]] = None
            if values:
                row_number += 1
                stepless += math.isnan(step)
                builder.add(float(row_number if math.isnan(step) else step), values)
    for name, key in columns.items():
        if name != "step" and key not in chosen:
            near = suggest(key, [*chosen, *unknown])
            raise ConfigError(f"--map {name}={key}: {path.name} has no key {key!r}{near}")
    return _finish(path, kind, builder, trouble, list(unknown), chosen, stepless)


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


def _own_record(folder: Path) -> Log:
    loaded = records.load(folder)
    if "update" not in loaded.columns:
        raise MissingDataError(f"{folder / 'record.csv'} has no column 'update'")
    present = {k: v for k, v in loaded.columns.items() if k == "update" or np.isfinite(v).any()}
    slim = RunRecord(present, loaded.config, loaded.config_hash, loaded.versions, loaded.label)
    return Log(str(folder), "RunRecord", slim, {k: k for k in present if k != "update"}, trusted=True)


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
        self._file.close()

    def _count(self, data: bytes) -> bytes:
        if self._say:
            at = self._file.tell()
            if at >= self._next or not data:
                self._next = at + 2**22
                self._say(at, self._size)
        return data


def _open(path: Path, trouble: Trouble, on_progress: Progress | None) -> tuple[str, Iterator[Row]]:
    try:
        size = path.stat().st_size
        with path.open("rb") as file:
            head = file.read(2**16)
        file = path.open("rb")
    except OSError as error:
        raise MissingDataError(f"{path} cannot be read: {error.strerror}") from None
    if not head.strip(b"\x00 \t\r\n"):
        file.close()
        raise MissingDataError(f"{path} is empty")
    kind = sniff(head, path.name)
    counting: Any = _Counting(file, size, on_progress)
    match kind:
        case "parquet":
            file.close()
            return "TRL completions", completions_rows(path, trouble)
        case "tensorboard":
            return "TensorBoard events", tensorboard_rows(counting, trouble)
        case "wandb":
            return "W&B offline run", wandb_rows(counting, trouble)
        case "trainer_state":
            return "TRL trainer state", json_objects(counting, trouble, after="log_history")
        case "json":
            return "JSON", json_objects(counting, trouble)
        case "jsonl":
            return "JSON lines", json_lines(counting, trouble)
        case "printed":
            return "console", printed_rows(counting, trouble)
        case "csv":
            return "CSV", csv_rows(counting, trouble)
    file.close()
    raise MissingDataError(
        f"{path} is in no format that is known here: RunRecord, TRL trainer_state.json or completions, verl JSONL or "
        "console, TensorBoard events, W&B offline run or CSV, JSON lines, CSV with a header"
    )


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


def _finish(
    path: Path,
    kind: str,
    builder: TableBuilder,
    trouble: Trouble,
    unknown: list[str],
    chosen: Mapping[str, tuple[str, int, str] | None],
    stepless: int,
) -> Log:
    steps, by_key = builder.finish()
    notes = [*trouble.notes, *_notes(builder, trouble, stepless)]
    best: dict[str, tuple[int, str]] = {}
    for key, column in by_key.items():
        found = chosen.get(key)
        if found is None or not (np.isfinite(column).any() or key in builder.nonfinite):
            continue
        signal, rank, _ = found
        if signal in best:
            notes.append(f"{signal}: both {best[signal][1]!r} and {key!r} are logged; the preferred one is used")
        if signal not in best or rank < best[signal][0]:
            best[signal] = (rank, key)
    if not best or len(steps) == 0:
        some = ", ".join(unknown[:8]) or "none"
        raise MissingDataError(
            f"{path} ({kind}) logs no signal that is known here (keys: {some}); name one with --map reward=KEY"
        )
    sources = {signal: key for signal, (_, key) in best.items()}
    trusted = any(key.startswith("lldsim/") for key in sources.values())
    digest = hashlib.sha256(steps.tobytes())
    table = {"update": steps}
    for signal, key in sources.items():
        table[signal] = by_key[key]
        digest.update(signal.encode() + by_key[key].tobytes())
    config = {"source": path.name, "format": kind, "columns": sources}
    stamped = RunRecord(table, config, digest.hexdigest()[:12], records.versions(), "measured")
    nonfinite = {signal: builder.nonfinite[key] for signal, key in sources.items() if key in builder.nonfinite}
    return Log(str(path), kind, stamped, sources, trusted, unknown, notes, builder.restarts, nonfinite)


def _notes(builder: TableBuilder, trouble: Trouble, stepless: int) -> Iterator[str]:
    if trouble.truncated:
        yield "the file is cut short; what is whole was read"
    if trouble.bad_lines:
        where = f", the first at line {trouble.first_bad}" if trouble.first_bad else ""
        yield f"{trouble.bad_lines} line(s) or record(s) could not be read{where}"
    if stepless:
        yield f"{stepless} row(s) carry no step; their number in the file stands in for it"
    if builder.restarts:
        first = ", ".join(f"{step:g}" for step in builder.restarts[:5])
        yield f"{len(builder.restarts)} restart(s), at step {first}; {builder.dropped} abandoned step(s) were dropped"
    if builder.unsorted:
        yield f"steps are not in order ({builder.unsorted} times); they were sorted"
    if builder.repeated:
        yield f"{builder.repeated} value(s) repeat a step; repeats were averaged"
    if builder.bad_steps:
        yield f"{builder.bad_steps} row(s) have a step that is no finite number below 1e15; they were left out"
    if builder.width:
        yield f"more steps than are needed: averaged into bins of {builder.width:g} steps"
