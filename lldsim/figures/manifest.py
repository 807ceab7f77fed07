"""What a folder of figures says about itself: `manifest.json`, one row per figure, and the gallery README.

A row holds the figure's command, label, caption, parameters, seeds, versions, seconds and the SHA-256 of each
file. What this file does not do: run a notebook, or decide when one is out of date (runner.py does).
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from lldsim.figures.notebook import figure_order

LABELS = ("simulated", "measured", "published")


def sha256(path: Path) -> str:
    """Return the SHA-256 of a file as hex."""
    return hashlib.sha256(path.read_bytes()).hexdigest()


def read_manifest(out: Path) -> dict[str, dict[str, Any]]:
    """Return the rows by figure name; an empty mapping where nothing has been drawn yet."""
    path = out / "manifest.json"
    return json.loads(path.read_text(encoding="utf-8"))["figures"] if path.exists() else {}


def write_manifest(manifest: Mapping[str, Any], out: Path) -> None:
    """Write the rows to `manifest.json`, keys sorted."""
    text = json.dumps({"figures": dict(manifest)}, indent=2, sort_keys=True, ensure_ascii=False)
    (out / "manifest.json").write_text(text + "\n", encoding="utf-8")


def intact(row: Mapping[str, Any], out: Path) -> bool:
    """Return whether every file of a row is there, byte for byte as it was written."""
    return all((out / name).is_file() and sha256(out / name) == sha for name, sha in row["files"].items())


def remove_stale(old: Mapping[str, Any] | None, new: Mapping[str, Any], out: Path) -> None:
    """Remove the files that a figure's former row names and its new one does not."""
    # A table that this run no longer writes would stay beside the new picture as if it were its data.
    for name in (old or {}).get("files", {}).keys() - new["files"].keys():
        (out / name).unlink(missing_ok=True)


def write_gallery(manifest: Mapping[str, Any], out: Path) -> None:
    """Write the gallery README: per figure its picture, label, caption, command, seconds and data files."""
    lines = ["# Figures", "", "Written by `make figures`; edit the notebooks in `notebooks/figures` instead.", ""]
    for name in sorted(manifest, key=figure_order):
        row = manifest[name]
        links = [f"[{Path(file).name}]({file})" for file in row["files"] if file.startswith(("data/", "numbers/"))]
        notes = [f"`{row['command']}`", f"{row['seconds']:.0f} s", *links]
        quick = " This is a fast run: fewer seeds or steps than the full figure." if row["fast"] else ""
        lines += [f"## {name}", "", f"![{name}]({name}.png)", "", f"*{row['label']}.* {row['caption']}{quick}", ""]
        lines += [" · ".join(notes), ""]
    (out / "README.md").write_text("\n".join(lines), encoding="utf-8")
