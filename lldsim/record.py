"""RunRecord: one run as a tidy table, one row per update, with the configuration and versions that made it.

A toy run, a transformer run and a GPU log all end as a RunRecord and are drawn by the same panels. Files: `record.csv`
(the table; empty cell = missing) and `record.json` (everything else). The same seed gives the same bytes, so neither
holds a time or a machine name. What this file does not do: read other people's logs.
"""

from __future__ import annotations

import csv
import json
import math
import platform
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any, Literal

import numpy as np

from lldsim.errors import MissingDataError, suggest

# Columns of a toy record. Log-probabilities are per action token, under the trainer's policy before the update, at
# temperature 1, over the responses named; other rates are means over the rollout batch unless said.
COLUMNS: dict[str, str] = {
    "update": "rollout batch, from 0",
    "reward": "mean reward",
    "logp_correct": "mean log-probability per action token of correct responses",
    "logp_wrong": "the same for wrong responses",
    "entropy": "mean entropy per action token, nats",
    "grad_norm": "gradient norm before clipping, mean over the update's optimiser steps",
    "ratio_max": "largest probability ratio in the update",
    "response_length": "action tokens per response",
    "valid_searches": "valid searches per response",
    "invalid_actions": "invalid actions per response",
    "tied_groups": "share of groups whose rewards are all equal",
    "gate_fraction": "share of the preserved units of the gate (actions) that were open, mean over optimiser steps",
    "clip_fraction": "share of tokens (GSPO: responses) whose surrogate was clipped, mean over optimiser steps",
    "kl": "mean k3 to the base policy per optimiser step, aggregated as the loss is",
    "llds": "mean LLDS penalty per optimiser step, not multiplied by llds_coef",
    "sampler_gap": "mean of sampler minus trainer log-probability per action token",
    "logp_correct_action1": "logp_correct over first actions",
    "logp_correct_action2": "logp_correct over second actions",
    "logp_wrong_action1": "logp_wrong over first actions",
    "logp_wrong_action2": "logp_wrong over second actions",
    "first_search_wrong": "share of wrong responses whose first action is a valid search",
}


@dataclass(frozen=True)
class RunRecord:
    """One run's table and provenance; `label` says simulated, measured (which machine: `info`) or published."""

    columns: dict[str, np.ndarray]  # name -> (updates,) float64
    config: dict[str, Any]
    config_hash: str
    versions: dict[str, str]
    label: Literal["simulated", "measured", "published"] = "simulated"

    def __post_init__(self) -> None:
        lengths = {name: len(values) for name, values in self.columns.items()}
        if len(set(lengths.values())) > 1:
            raise MissingDataError(f"columns differ in length: {lengths}; give every column one value per update")

    def __getitem__(self, name: str) -> np.ndarray:
        if name not in self.columns:
            raise MissingDataError(f"the record has no column {name!r}{suggest(name, self.columns)}")
        return self.columns[name]

    def __len__(self) -> int:
        return len(next(iter(self.columns.values()), ()))

    def save(self, folder: Path | str, *, descriptions: Mapping[str, str] = COLUMNS) -> None:
        """Write `record.csv` and `record.json` into `folder`, creating it; `descriptions` say what a column holds."""
        folder = Path(folder)
        folder.mkdir(parents=True, exist_ok=True)
        with (folder / "record.csv").open("w", newline="") as file:
            writer = csv.writer(file, lineterminator="\n")
            writer.writerow(self.columns)
            writer.writerows([_cell(x) for x in row] for row in zip(*self.columns.values(), strict=True))
        about = {
            "label": self.label,
            "config_hash": self.config_hash,
            "config": self.config,
            "versions": self.versions,
            "columns": {name: descriptions.get(name, "") for name in self.columns},
        }
        (folder / "record.json").write_text(json.dumps(about, indent=1, sort_keys=True) + "\n")


Arms = dict[str, list[RunRecord]]  # name of an arm -> its records, one per seed


def load(folder: Path | str) -> RunRecord:
    """Read a record that `RunRecord.save` wrote; MissingDataError says which file or row is absent or cut short."""
    folder = Path(folder)
    for name in ("record.csv", "record.json"):
        if not (folder / name).is_file():
            raise MissingDataError(f"{folder / name} does not exist; `lldsim run --out {folder}` writes it")
    try:
        about = json.loads((folder / "record.json").read_text())
        about = {key: about[key] for key in ("config", "config_hash", "versions", "label")}
    except (ValueError, KeyError, TypeError) as error:
        raise MissingDataError(f"{folder / 'record.json'} is cut short or no record: {error!r}") from None
    text = (folder / "record.csv").read_text()
    if not text.endswith("\n"):
        raise MissingDataError(f"{folder / 'record.csv'} does not end with a line break: the file is cut short")
    header, *rows = csv.reader(text.splitlines())
    for number, row in enumerate(rows, start=2):
        if len(row) != len(header):
            raise MissingDataError(
                f"{folder / 'record.csv'} line {number} has {len(row)} of {len(header)} cells: the file is cut short"
            )
    try:
        table = np.array([[float(x) if x else math.nan for x in row] for row in rows]).reshape(len(rows), len(header))
    except ValueError as error:
        raise MissingDataError(f"{folder / 'record.csv'} holds a cell that is no number: {error}") from None
    return RunRecord({name: table[:, i] for i, name in enumerate(header)}, **about)


def find_records(folder: Path | str) -> dict[str, RunRecord]:
    """Return the measured records under `folder` by name, the path from it; {} where the folder is absent or empty.

    A record's folder may be called `record`, as full_scale leaves it: then the name is that of the run's folder.
    Simulated and published records are passed over. Raises MissingDataError for a record that is cut short.
    """
    root, found = Path(folder), dict[str, RunRecord]()
    for file in sorted(root.rglob("record.json")):
        record, inside = load(file.parent), file.parent.relative_to(root)
        named = inside.parent if inside.name == "record" and inside.parent.name else inside
        if record.label == "measured":
            found[named.as_posix()] = record
    return found


def versions() -> dict[str, str]:
    """Return the versions of Python and of the packages that decide a result."""
    found = {"python": platform.python_version()}
    for package in ("lldsim", "numpy", "numba", "torch"):
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            found[package] = "not installed"
    return found


def make_record(columns: Mapping[str, np.ndarray], config: dict[str, Any], config_hash: str) -> RunRecord:
    """Return a simulated record stamped with the running versions."""
    return RunRecord(dict(columns), config, config_hash, versions())


def _cell(x: float) -> str:
    if math.isnan(x):
        return ""
    return str(int(x)) if float(x).is_integer() and abs(x) < 1e15 else repr(float(x))
