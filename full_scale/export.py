"""`python -m full_scale.export DIR`: a run's log.jsonl becomes a RunRecord (record.csv, record.json) in DIR.

One row per rollout batch, columns as in lldsim.record.COLUMNS, so that the laboratory's panels and diagnostics read a
full-scale run like a toy run. Columns that a batch cannot have (no correct response, no second action) stay empty.
What this file does not do: draw, or read logs that full_scale did not write.
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np

from full_scale.config import FullConfig
from lldsim.errors import MissingDataError
from lldsim.record import COLUMNS, RunRecord, versions

# Column of the record -> (name in the log, how the steps of a rollout batch are reduced).
SOURCES: dict[str, tuple[str, str]] = {
    "entropy": ("entropy", "mean"),
    "grad_norm": ("grad_norm", "mean"),
    "ratio_max": ("llds/ratio_max", "max"),
    "tied_groups": ("frac_reward_zero_std", "first"),
    "gate_fraction": ("llds/gate_fraction", "mean"),
    "clip_fraction": ("clip_ratio/region_mean", "mean"),
    "kl": ("kl", "mean"),
    "llds": ("llds/penalty", "mean"),
} | {
    name: (f"rollout/{name}", "first")
    for name in (
        "reward", "response_length", "valid_searches", "invalid_actions", "sampler_gap", "first_search_wrong",
        "logp_correct", "logp_wrong", "logp_correct_action1", "logp_correct_action2", "logp_wrong_action1",
        "logp_wrong_action2",
    )
}  # fmt: skip


def export(folder: str | Path) -> RunRecord:
    """Return the record of a run folder; MissingDataError names the file that is absent or cut short."""
    folder = Path(folder)
    for name in ("log.jsonl", "config.json"):
        if not (folder / name).is_file():
            raise MissingDataError(f"{folder / name} does not exist; `python -m full_scale.train` writes it")
    config = FullConfig(**json.loads((folder / "config.json").read_text()))
    lines = []
    for number, text in enumerate((folder / "log.jsonl").read_text().splitlines(), start=1):
        try:
            lines.append(json.loads(text))
        except ValueError:
            raise MissingDataError(f"{folder / 'log.jsonl'} line {number} is cut short") from None
    by_rollout: dict[int, list[dict[str, Any]]] = {}
    for line in lines:
        by_rollout.setdefault((line["step"] - 1) // config.updates_per_rollout, []).append(line)
    rows = [{"update": float(k)} | _reduce(steps) for k, steps in sorted(by_rollout.items())]
    columns = {name: np.array([row.get(name, math.nan) for row in rows], dtype=float) for name in COLUMNS}
    about = json.loads((folder / "config.json").read_text())
    return RunRecord(columns, about, config.config_hash(), versions_full(), "measured")


def _reduce(steps: list[dict[str, Any]]) -> dict[str, float]:
    found = {}
    for column, (name, how) in SOURCES.items():
        values = [step[name] for step in steps if step.get(name) is not None]
        if values:
            found[column] = {"mean": sum(values) / len(values), "max": max(values), "first": values[0]}[how]
    return found


def versions_full() -> dict[str, str]:
    """Return lldsim's version stamp with the packages that decide a full-scale result added."""
    found = versions()
    for package in ("transformers", "trl", "accelerate", "datasets", "vllm", "bm25s"):
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            found[package] = "not installed"
    return found


def main(argv: Sequence[str] | None = None) -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(prog="python -m full_scale.export", description="Turn a run's log into a record.")
    parser.add_argument("folder", help="what `python -m full_scale.train --out` wrote")
    parser.add_argument("--out", help="folder for record.csv and record.json (default: FOLDER/record)")
    args = parser.parse_args(argv)
    record = export(args.folder)
    out = Path(args.out or Path(args.folder) / "record")
    record.save(out)
    print(f"{len(record)} rollout batches -> {out}")


if __name__ == "__main__":
    main()
