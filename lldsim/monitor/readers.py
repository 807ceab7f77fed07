"""Any training log in, one `Log` out: which format it is, which signals it has, what was odd about it.

    >>> log = read_log("runs/a")  # doctest: +SKIP
    >>> log.record["reward"]      # doctest: +SKIP

A path is a file or a run's folder. The format is found from the content, not the name. Everything streams.
What this file does not do: judge the run (diagnose.py).
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from lldsim import record as records
from lldsim.errors import ConfigError, MissingDataError, suggest
from lldsim.monitor import aliases
from lldsim.monitor.sources import find_files, open_rows
from lldsim.monitor.streams import Progress
from lldsim.monitor.table import TableBuilder
from lldsim.monitor.text_logs import Trouble
from lldsim.record import RunRecord


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
        return log_of_record(records.load(files[0].parent), path=str(files[0].parent))
    builder, trouble, unknown = TableBuilder(), Trouble(), dict[str, None]()
    by_key = {key: name for name, key in columns.items()}
    chosen: dict[str, tuple[str, int, str] | None] = {}
    ranks = dict[str, int | None]()
    formats, row_number, stepless, last_step = list[str](), 0, 0, math.nan
    for file in files:
        with open_rows(file, trouble, on_progress) as (kind, rows):
            formats.append(kind)
            for row in rows:
                if "train_runtime" in row:  # transformers' summary of the run, not a step of it
                    continue
                step, rank, values = math.nan, math.inf, {}
                for key, value in row.items():
                    place = _step_place(key, columns.get("step"), ranks)
                    if place is not None:
                        step, rank = (value, place) if place < rank else (step, rank)
                        continue
                    if key not in chosen and len(chosen) < 10_000:
                        chosen[key] = (by_key[key], -1, "map") if key in by_key else aliases.lookup(key)
                    if chosen.get(key):
                        values[key] = value
                    elif len(unknown) < 200:
                        unknown[key[:80]] = None
                if values:
                    row_number += 1
                    if math.isnan(step):  # belongs to the step before; in a log without any, rows are counted
                        stepless += 1
                        step = float(row_number) if math.isnan(last_step) else last_step
                    else:
                        last_step = step
                    builder.add(step, values)
    for name, key in columns.items():
        if key not in (ranks if name == "step" else chosen):
            near = suggest(key, [*chosen, *unknown])
            raise ConfigError(f"--map {name}={key}: {path.name} has no key {key!r}{near}")
    return _finish(path, formats[0], builder, trouble, list(unknown), chosen, stepless, math.isnan(last_step))


def _step_place(key: str, named: str | None, ranks: dict[str, int | None]) -> int | None:
    """Return how good a key is at counting steps, None where it does not; remembered in `ranks` if it does."""
    if key in ranks:
        return ranks[key]
    place = aliases.step_rank(key) if named is None else (0 if key == named else None)
    if place is not None:
        ranks[key] = place
    return place


def log_of_record(record: RunRecord, *, path: str = "record") -> Log:
    """Return one of our own records as a log, without its empty columns; raises MissingDataError without `update`."""
    if "update" not in record.columns:
        raise MissingDataError(f"{path} has no column 'update'")
    present = {k: v for k, v in record.columns.items() if k == "update" or np.isfinite(v).any()}
    slim = RunRecord(present, record.config, record.config_hash, record.versions, record.label)
    return Log(path, "RunRecord", slim, {k: k for k in present if k != "update"}, trusted=True)


def _finish(
    path: Path,
    kind: str,
    builder: TableBuilder,
    trouble: Trouble,
    unknown: list[str],
    chosen: Mapping[str, tuple[str, int, str] | None],
    stepless: int,
    counted: bool,
) -> Log:
    steps, by_key = builder.finish()
    notes = [*trouble.notes, *_notes(builder, trouble, stepless, counted)]
    used = [key for key, column in by_key.items() if np.isfinite(column).any() or key in builder.nonfinite]
    used, others = _one_run([key for key in used if chosen.get(key)])
    if others:
        names = ", ".join(others[:5]) + (", ..." if len(others) > 5 else "")
        notes.append(f"the table holds {1 + len(others)} runs; left out: {names}; export one run at a time for these")
    best: dict[str, tuple[int, str]] = {}
    for key in used:
        signal, rank, _ = chosen[key] or ("", 0, "")
        if signal.startswith("logp") and (by_key[key] > 0).sum() > 0.5 * np.isfinite(by_key[key]).sum():
            notes.append(
                f"{signal}: {key!r} is positive, so it is no log-probability (a loss? a probability?); left out: "
                "log ln p, which is at most 0"
            )
            continue
        if signal in best:
            notes.append(f"{signal}: both {best[signal][1]!r} and {key!r} are logged; the preferred one is used")
        if signal not in best or rank < best[signal][0]:
            best[signal] = (rank, key)
    if not best or len(steps) == 0:
        raise MissingDataError(f"{path} ({kind}) {_nothing(unknown)}")
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


def _one_run(keys: list[str]) -> tuple[list[str], list[str]]:
    """Return the keys of the first run of a Weights & Biases export (and of no run), and the other runs' names."""
    names = list(dict.fromkeys(name for key in keys if (name := aliases.run_name(key))))
    return [key for key in keys if aliases.run_name(key) in ("", *names[:1])], names[1:]


def _nothing(unknown: list[str]) -> str:
    """Return what to say of a log without a signal."""
    if not unknown:
        return "holds no row of numbers; give the file that the trainer logs its metrics to"
    some = ", ".join(unknown[:8]) + (", ..." if len(unknown) > 8 else "")
    if all(aliases.is_evaluation(key) or key == "epoch" for key in unknown):
        return f"holds evaluation only (keys: {some}), no training; give the training log, or --map reward=KEY"
    return f"logs no signal that is known here (keys: {some}); name one with --map reward=KEY"


def _notes(builder: TableBuilder, trouble: Trouble, stepless: int, counted: bool) -> Iterator[str]:
    if trouble.truncated:
        yield "the file is cut short; what is whole was read"
    if trouble.bad_lines:
        where = f", the first at line {trouble.first_bad}" if trouble.first_bad else ""
        yield f"{trouble.bad_lines} line(s) or record(s) could not be read{where}"
    if stepless:
        instead = "their number in the file stands in for it" if counted else "they were counted to the step before"
        yield f"{stepless} row(s) carry no step; {instead}"
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
