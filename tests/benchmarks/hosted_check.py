"""`make hosted-check`: what Binder does, in an environment of its own, with the time and memory that it takes.

Installs binder/requirements.txt (its index lines left to PIP_ARGS), runs binder/postBuild, then notebook 00 as a user
would, and fails above 2 GB of resident memory in the largest process. What this file does not do: build Binder's image.
"""

from __future__ import annotations

import os
import resource
import shlex
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
LIMIT_GB = 2.0
NOTEBOOK = "notebooks/00_collapse_in_one_minute.ipynb"


def main() -> int:
    """Run the steps and return 0 when they pass and stay below the limit."""
    home = ROOT / "build" / "hosted"
    home.mkdir(parents=True, exist_ok=True)
    lines = (ROOT / "binder" / "requirements.txt").read_text().splitlines(keepends=True)
    (home / "requirements.txt").write_text("".join(line for line in lines if not line.startswith("--")))
    python = home / "venv" / "bin" / "python"
    pip = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    extra = shlex.split(os.environ.get("PIP_ARGS", ""))
    environment = os.environ | {"PATH": f"{python.parent}{os.pathsep}{os.environ['PATH']}"}
    for name in ("PYTHONPATH", "MPLBACKEND"):  # the package must come from the installation, figures from Jupyter
        environment.pop(name, None)
    options = ["--log-level", "CRITICAL", "--no-progress-bar", "-k", "python3", "--cwd", str(home)]
    steps = {
        "environment": [sys.executable, "-m", "venv", "--clear", str(home / "venv")],
        "requirements": [*pip, *extra, "-r", str(home / "requirements.txt")],
        "postBuild": ["bash", str(ROOT / "binder" / "postBuild")],
        "kernel": [str(python), "-m", "ipykernel", "install", "--sys-prefix", "--name", "python3"],
        "notebook 00": [str(python), "-m", "papermill", str(ROOT / NOTEBOOK), str(home / "done.ipynb"), *options],
    }
    for name, command in steps.items():
        start = time.perf_counter()
        done = subprocess.run(command, cwd=ROOT, env=environment)
        if done.returncode:
            print(f"hosted-check: {name} failed with status {done.returncode}", file=sys.stderr)
            return 1
        print(f"{name:14s} {time.perf_counter() - start:6.1f} s")
    # The last steps' largest process; pip before them is smaller. Linux counts kilobytes, macOS bytes.
    peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * (1 if sys.platform == "darwin" else 1024) / 1e9
    print(f"largest process {peak:.2f} GB (limit {LIMIT_GB} GB)")
    return int(peak > LIMIT_GB)


if __name__ == "__main__":
    sys.exit(main())
