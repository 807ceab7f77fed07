"""`lldsim causal`: the causal table, the factorial design and the cures, from the cache or from scratch.

What this file does not do: anything but read arguments, call, print lines and write CSV files.
"""

from __future__ import annotations

import argparse
import csv
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from lldsim.causal.cures import cure_rows, tune
from lldsim.causal.lead import lead_rows
from lldsim.causal.rows import table
from lldsim.causal.settings import causal_settings, factorial_settings, failure_settings, strongest
from lldsim.errors import ConfigError, suggest
from lldsim.progress import Progress
from lldsim.sweep import DEFAULT_CACHE

PARTS = ("causal", "factorial", "cures")
SECONDS_PER_RUN = 0.8  # 150 updates on one idle core, collapsed and healthy runs mixed


def main(argv: Sequence[str] | None = None) -> int:
    """Run `lldsim causal` and return the exit status."""
    parser = argparse.ArgumentParser(prog="lldsim causal", description="Which ingredient makes GRPO collapse?")
    parser.add_argument("--out", type=Path, required=True, metavar="DIR", help="folder for the CSV files")
    parser.add_argument("--parts", default=",".join(PARTS), help=f"some of {','.join(PARTS)}")
    parser.add_argument("--seeds", type=int, default=20, help="seeds of the causal table and the cures (default 20)")
    parser.add_argument("--factorial-seeds", type=int, default=20)
    parser.add_argument("--lead-seeds", type=int, default=10, help="seeds looked into for G's lead, 1 s each; 0 = none")
    parser.add_argument("--workers", type=int, default=1, help="single-thread processes (default 1)")
    parser.add_argument("--cache", type=Path, default=DEFAULT_CACHE, metavar="DIR")
    args = parser.parse_args(argv)
    parts = args.parts.split(",")
    for part in parts:
        if part not in PARTS:
            raise ConfigError(f"--parts has {part!r}{suggest(part, PARTS)}; choose from {', '.join(PARTS)}")
    rows: list[dict[str, Any]] = []
    if "causal" in parts or "factorial" in parts:
        settings = [*causal_settings(), *failure_settings()]
        rows = run_part("causal table", settings, args.seeds, args)
        if args.lead_seeds:
            with Progress("lead of G", say=print) as done:
                leads = lead_rows(settings, seeds=range(args.lead_seeds), cache_dir=args.cache, on_done=done)
            rows = [row | lead for row, lead in zip(rows, leads, strict=True)]
        write_csv(args.out / "causal_table.csv", rows)
    if "factorial" in parts:
        names = strongest(rows)
        write_csv(
            args.out / "factorial.csv",
            run_part(f"factorial of {', '.join(names)}", factorial_settings(names), args.factorial_seeds, args),
        )
    if "cures" in parts:
        with Progress("tuning", say=print) as done:
            tuned = tune(cache_dir=args.cache, workers=args.workers, on_done=done)
        write_csv(args.out / "tuning.csv", tuned)
        with Progress("cures", say=print) as done:
            cures = cure_rows(tuned, seeds=range(args.seeds), cache_dir=args.cache, workers=args.workers, on_done=done)
        write_csv(args.out / "cures.csv", cures)
    return 0


def run_part(title: str, settings: Any, seeds: int, args: argparse.Namespace) -> list[dict[str, Any]]:
    """Announce, run and return one table."""
    runs = len({s.config for s in settings}) * seeds
    print(f"{title}: {runs} runs, about {runs * SECONDS_PER_RUN / args.workers:.0f} s when none is cached")
    with Progress(title, say=print) as done:
        return table(settings, seeds=range(seeds), cache_dir=args.cache, workers=args.workers, on_done=done)


def write_csv(path: Path, rows: Sequence[dict[str, Any]]) -> None:
    """Write rows with equal keys; None and NaN become empty cells, numbers keep ten digits."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, rows[0], lineterminator="\n")
        writer.writeheader()
        writer.writerows({name: _cell(value) for name, value in row.items()} for row in rows)
    print(f"{len(rows)} rows -> {path}")


def _cell(value: Any) -> Any:
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return ""
    return f"{value:.10g}" if isinstance(value, float) else value
