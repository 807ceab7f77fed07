"""`python -m full_scale.resolve_check [NAME ...]`: do the pins of environment-*.yml resolve? A dry run of pip for each.

Installs nothing. Needs a package index and some minutes; `make resolve-check` runs it. The chosen versions of the
packages that matter are printed, so that a new release that no longer fits is seen before a user meets it.
What this file does not do: solve conda's part of the files (python and pip), or look at a GPU.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import yaml

from lldsim.errors import ConfigError

FOLDER = Path(__file__).parent
NAMES = ("gpu", "retriever", "verl")
SHOWN = ("torch", "transformers", "trl", "verl", "vllm", "accelerate", "datasets", "sentence-transformers", "faiss-cpu")


def requirements(name: str) -> list[str]:
    """Return the pip lines of environment-NAME.yml, the repository itself as a path with its extras."""
    if name not in NAMES:
        raise ConfigError(f"no environment {name!r}; choose from {NAMES}")
    listed = yaml.safe_load((FOLDER / f"environment-{name}.yml").read_text())["dependencies"]
    (lines,) = [item["pip"] for item in listed if isinstance(item, dict)]
    return [f"{FOLDER.parent}{line.removeprefix('-e ..')}" if line.startswith("-e ..") else line for line in lines]


def resolve(name: str) -> dict[str, str]:
    """Return package -> version as pip would install them into an empty environment; ConfigError if it cannot."""
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.json"
        command = [sys.executable, "-m", "pip", "install", "--dry-run", "--ignore-installed", "--quiet"]
        command += ["--disable-pip-version-check", "--report", str(report), *requirements(name)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            raise ConfigError(f"environment-{name}.yml does not resolve:\n{done.stderr[-2000:]}")
        found = json.loads(report.read_text())["install"]
    return {item["metadata"]["name"].lower(): item["metadata"]["version"] for item in found}


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit status."""
    parser = argparse.ArgumentParser(prog="python -m full_scale.resolve_check", description="Dry-run the environments.")
    parser.add_argument("names", nargs="*", help=f"from {', '.join(NAMES)}; default: all")
    failed = 0
    for name in parser.parse_args(argv).names or NAMES:
        try:
            found = resolve(name)
        except ConfigError as error:
            print(f"FAILED {name}: {error}")
            failed += 1
            continue
        shown = ", ".join(f"{package} {found[package]}" for package in SHOWN if package in found)
        print(f"ok     {name}: {len(found)} packages, {shown}")
    return int(failed > 0)


if __name__ == "__main__":
    raise SystemExit(main())
