"""`lldsim diagnose PATH...`: read logs, print verdicts or JSON, write reports, choose an exit status for CI.

What this file does not do: draw. The command line hands in a function that turns a diagnosis into a PNG.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from lldsim.errors import ConfigError, LldsimError
from lldsim.monitor.diagnose import ORDER, Diagnosis, diagnose
from lldsim.monitor.readers import Log, read_log
from lldsim.monitor.report import write_report
from lldsim.monitor.sources import find_runs
from lldsim.monitor.streams import Progress as OnProgress
from lldsim.progress import Progress

Draw = Callable[[Diagnosis], bytes]
FAIL_ON = {"stagnation": "stagnating", "decay": "decaying", "acceleration": "accelerating", "collapse": "collapsed"}
BIG = 64 * 2**20  # bytes from which on reading shows its progress


def main(argv: Sequence[str] | None = None, *, draw: Draw | None = None) -> int:
    """Run `lldsim diagnose`: 0 done, 1 a run is at least as sick as --fail-on, 2 bad input or an unreadable log."""
    args = _parser().parse_args(argv)
    try:
        columns = _columns(args.map)
        if not args.steps_per_update > 0:
            raise ConfigError(f"--steps-per-update {args.steps_per_update:g}: give a positive number")
    except LldsimError as error:
        print(f"lldsim diagnose: {error}", file=sys.stderr)
        return 2
    found: list[Diagnosis] = []
    rows: list[dict[str, Any]] = []
    failed = False
    for path, alone in _runs(args.paths):
        try:
            with _progress(path) as on_progress:
                log = read_log(path, columns=columns, on_progress=on_progress)
            log.notes += _unit(log, args.steps_per_update)
            result = diagnose(log, steps_per_update=args.steps_per_update)
        except LldsimError as error:
            failed |= alone or isinstance(error, ConfigError)
            rows.append({"path": str(path), "error": str(error)})
            print(f"lldsim diagnose: {error}", file=sys.stderr)
            continue
        found.append(result)
        rows.append(result.as_dict())
        if not args.json:
            print(summary(result))
        if args.report is not None:
            target = write_report(result, args.report, draw=draw, index=len(found))
            print(f"report -> {target}", file=sys.stderr)
    if args.json:
        print(json.dumps(rows, indent=1, allow_nan=False))
    if failed or not found:
        return 2
    return int(args.fail_on is not None and any(_sick(d, args.fail_on) for d in found))


def _unit(log: Log, steps_per_update: float) -> list[str]:
    """Return a note where steps look finer than updates and nothing was said about it."""
    gaps = np.diff(log.steps)
    binned = any("bins" in note for note in log.notes)
    if steps_per_update != 1 or binned or len(gaps) < 4 or np.median(gaps) < 3:
        return []
    return [
        f"rows are {np.median(gaps):g} steps apart, and rules count updates: if one rollout batch takes N steps, say "
        "--steps-per-update N"
    ]


def _runs(paths: Sequence[Path]) -> Iterator[tuple[Path, bool]]:
    """Yield every run, and whether it must be readable: of a folder's files some may be no logs."""
    for path in paths:
        try:
            runs = find_runs(path)
        except LldsimError:
            runs = [path]  # whose reading says what is wrong
        yield from ((run, len(runs) == 1) for run in runs)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="lldsim diagnose",
        description="Look for lazy likelihood displacement in training logs.",
        allow_abbrev=False,
    )
    parser.add_argument(
        "paths", nargs="+", type=Path, metavar="PATH", help="a log file, a run's folder, or a folder of runs"
    )
    parser.add_argument("--json", action="store_true", help="print a JSON list, one object per run")
    parser.add_argument(
        "--map", action="append", default=[], metavar="SIGNAL=KEY", help="name a log's key, e.g. logp_correct=lp"
    )
    parser.add_argument(
        "--steps-per-update", type=float, default=1.0, metavar="N", help="log steps per rollout batch (default 1)"
    )
    parser.add_argument("--fail-on", choices=(*FAIL_ON, "undecidable"), help="exit 1 when a run is at least this sick")
    parser.add_argument("--report", type=Path, metavar="DIR", help="write a one-page report per run (HTML and PNG)")
    return parser


def _columns(pairs: Sequence[str]) -> dict[str, str]:
    columns: dict[str, str] = {}
    for pair in pairs:
        name, equals, key = pair.partition("=")
        if not (equals and name and key):
            raise ConfigError(f"--map takes SIGNAL=KEY, got {pair!r}")
        columns[name] = key
    return columns


@contextmanager
def _progress(path: Path) -> Iterator[OnProgress | None]:
    """Give what shows how far a long file is read: a bar on a terminal, else a line on stderr now and then."""
    if not (path.is_file() and path.stat().st_size >= BIG):
        yield None
        return
    say = partial(print, file=sys.stderr, flush=True)
    with Progress(f"reading {path.name[:40]}", say=say, unit="megabyte") as progress:
        reached = -1

        def on_progress(done: int, total: int) -> None:
            nonlocal reached
            if done >> 20 > reached:
                reached = done >> 20
                progress(reached, total >> 20)

        on_progress(0, path.stat().st_size)
        yield on_progress


def _sick(result: Diagnosis, fail_on: str) -> bool:
    if fail_on == "undecidable":
        return result.verdict == "undecidable"
    return ORDER.index(result.verdict) >= ORDER.index(FAIL_ON[fail_on])  # type: ignore[arg-type]


def summary(result: Diagnosis) -> str:
    """Return a screenful of text about one run."""
    log = result.log
    lines = [f"{result.path}: {result.verdict.upper()} - {result.why}"]
    span = f"steps {log.steps[0]:g} to {log.steps[-1]:g}" if len(log.steps) else "no steps"
    lines.append(f"  {log.format}, {len(log.record)} rows, {span}; signals: {', '.join(log.sources)}")
    for phase in result.phases:
        lines.append(f"  phase {phase['phase']:<13} from {phase['from']:g} [{phase['low']:g}, {phase['high']:g}]")
    for name, state in result.conditions.items():
        word = {True: "holds", False: "does not hold", None: "cannot be told"}[state["holds"]]
        lines.append(f"  condition {name}: {word}" + ("" if state["from"] is None else f" from step {state['from']:g}"))
    lines += [f"  {a.severity} at step {a.step:g}, {a.rule}: {a.message}" for a in result.alarms[:12]]
    if result.trap in ("corrected", "suspected"):
        lines.append(
            f"  the likelihood looks like the released metric, which falls when the success rate rises: {result.trap}"
        )
    lines += [f"  not logged: {name}; that rules out {why}" for name, why in result.missing.items()]
    lines += [f"  note: {note}" for note in log.notes]
    if log.unknown_keys:
        shown = ", ".join(log.unknown_keys[:6]) + (", ..." if len(log.unknown_keys) > 6 else "")
        lines.append(f"  not read: {len(log.unknown_keys)} other key(s): {shown}")
    return "\n".join(lines)
