"""The make targets of full scale: they end, and they install what they need before they run.

Locked here: a dry run finishes (two rules for one stamp once made it call itself for ever) and names the extras, the
command and the drawing in that order.
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
    ("target", "command"), [("full-scale-cpu", "-m full_scale.demo"), ("full-scale-test", "-m pytest")]
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
