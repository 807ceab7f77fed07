"""The house around the package.

Locked here: imports point one way; importing is light; pyproject, environment.yml, constraints and CITATION agree;
default test selection; `make help` and the message without a fitting Python; README links; notebooks are stripped and
runnable by name; committed figures are the full ones and are as their manifest says; no path of one machine anywhere.
"""

from __future__ import annotations

import ast
import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from packaging.requirements import Requirement

import lldsim
from lldsim.figures import discover_figures
from lldsim.figures.manifest import intact, read_manifest

ROOT = Path(__file__).resolve().parents[1]
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
PROJECT = PYPROJECT["project"]

# A module imports from its own layer or a lower one. A new module is given its place here first.
LAYER = {
    **dict.fromkeys(["names", "errors", "k3", "progress", "hosted"], 0),
    **dict.fromkeys(["types", "config"], 1),
    **dict.fromkeys(["draws", "features", "policy", "world", "dials", "arms"], 2),
    **dict.fromkeys(
        ["kernels", "arm_kernels", "critic", "rollout", "advantages", "objectives", "theory", "record", "published"], 3
    ),
    **dict.fromkeys(["engine", "trainer", "diagnostics", "traces"], 4),
    **dict.fromkeys(["sweep", "backends", "monitor", "snapshot", "probe"], 5),
    **dict.fromkeys(["plots", "experiments", "mechanism", "prediction", "prediction_grid"], 6),
    **dict.fromkeys(["paper_worlds", "trace_runs", "causal", "signatures", "transformer", "exercises"], 6),
    **dict.fromkeys(["figures", "explore"], 7),
    **dict.fromkeys(["cli", "__main__"], 8),
}
TOY = {"draws", "features", "world", "kernels", "arm_kernels", "critic", "rollout", "engine", "trainer", "sweep"}
TOY |= {"backends", "snapshot", "probe", "mechanism", "prediction", "prediction_grid", "trace_runs", "signatures"}
# Within what the layers allow, these are forbidden as well.
FORBIDDEN = {
    "objectives": TOY | {"policy", "theory", "record", "published"},
    "theory": TOY | {"record", "published"},
    "diagnostics": TOY,
    "monitor": TOY,
    "plots": TOY,
}
DRAWING = {"plots", "figures", "explore", "cli"}
SHARED_WITH_FULL_SCALE = {"names", "errors", "types", "config", "objectives", "advantages", "diagnostics", "record"}
HEAVY = {"transformers", "trl", "vllm", "verl", "accelerate", "datasets", "peft"}


def imported(path: Path, *, module_level: bool = False) -> Iterator[str]:
    """Dotted names that a file imports; `from a import b` gives `a.b`."""
    for node in ast.walk(ast.parse(path.read_text())):
        if module_level and getattr(node, "col_offset", 0) > 0:
            continue
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path.name}: relative import; write the full name"
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def package_files(package: str) -> list[Path]:
    return sorted((ROOT / package).rglob("*.py"))


def part(path: Path) -> str:
    """Name of a file's top-level module inside its package: `objectives` for lldsim/objectives/llds.py."""
    return path.relative_to(ROOT).parts[1].removesuffix(".py")


def parts_of_lldsim(names: Iterator[str]) -> set[str]:
    return {name.split(".")[1] for name in names if name.startswith("lldsim.")} - {"__version__"}


@pytest.mark.parametrize("path", package_files("lldsim"), ids=lambda path: path.relative_to(ROOT).as_posix())
def test_imports_point_one_way(path: Path) -> None:
    module = part(path)
    if module == "__init__":
        return
    used = parts_of_lldsim(imported(path)) - {module}
    assert {module, *used} <= LAYER.keys(), f"give a new module its place in LAYER: {({module, *used}) - LAYER.keys()}"
    assert {name for name in used if LAYER[name] > LAYER[module]} == set()
    assert used & FORBIDDEN.get(module, set()) == set()
    assert "plots" not in used or module in DRAWING


@pytest.mark.parametrize("path", package_files("lldsim") + package_files("full_scale"), ids=lambda path: path.name)
def test_laboratory_and_full_scale_meet_at_the_border(path: Path) -> None:
    if path.relative_to(ROOT).parts[0] == "lldsim":
        assert not any(name.split(".")[0] == "full_scale" for name in imported(path))
    else:
        assert parts_of_lldsim(imported(path)) <= SHARED_WITH_FULL_SCALE
    # The plug-in's modules are imported by verl itself; its classes need verl's as bases.
    heavy = HEAVY - {"verl"} if "verl_plugin" in path.parts else HEAVY
    assert {name.split(".")[0] for name in imported(path, module_level=True)} & heavy == set()


@pytest.mark.parametrize("module", ["lldsim", "lldsim.plots", "lldsim.figures", "full_scale", "full_scale.verl_plugin"])
def test_importing_is_light(module: str) -> None:
    watched = HEAVY | {"torch", "numba", "matplotlib", "pandas", "papermill", "nbformat"}
    code = f"import sys, {module}; print(*sorted({watched!r} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.split() == []


# --- files that must agree --------------------------------------------------------------------------------------


def ranges(requirements: list[str]) -> dict[str, str]:
    parsed = [Requirement(text) for text in requirements]
    return {requirement.name: str(requirement.specifier) for requirement in parsed}


def test_environment_and_pyproject_ranges_agree() -> None:
    listed = yaml.safe_load((ROOT / "environment.yml").read_text())["dependencies"]
    (pip_lines,) = [item["pip"] for item in listed if isinstance(item, dict)]
    conda_names = {"matplotlib-base": "matplotlib", "pytorch-cpu": "torch"}
    conda = ranges([item for item in listed if isinstance(item, str) and item != "pip"])
    conda = {conda_names.get(name, name): specifier for name, specifier in conda.items()}
    extras = PROJECT["optional-dependencies"]
    declared = ranges([*PROJECT["dependencies"], *extras["notebooks"], *extras["train"]])
    assert conda.pop("python") == PROJECT["requires-python"]
    assert conda.keys() == ranges([*PROJECT["dependencies"], *extras["notebooks"]]).keys()
    editable, direct = [[line for line in pip_lines if line.startswith("-e") is flag] for flag in (True, False)]
    assert editable == ["-e .[notebooks,train,test]"]
    for name, specifier in {**conda, **ranges(direct)}.items():
        assert specifier == declared[name], name


def test_constraint_pins_a_torch_that_the_range_allows() -> None:
    lines = [line for line in (ROOT / "constraints" / "cpu.txt").read_text().splitlines() if not line.startswith("#")]
    (pin,) = [Requirement(line) for line in lines if Requirement(line).name == "torch"]
    (specifier,) = pin.specifier
    (declared,) = [Requirement(line) for line in PROJECT["dependencies"] if Requirement(line).name == "torch"]
    assert specifier.operator == "=="
    assert declared.specifier.contains(specifier.version)
    assert "+" not in specifier.version, "a local version such as +cpu cannot be resolved from every index"


def test_citation_and_package_have_one_version_and_one_licence() -> None:
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert citation["version"] == lldsim.__version__
    assert citation["license"] == PROJECT["license"] == "Apache-2.0"
    assert "Apache License" in (ROOT / "LICENSE").read_text()


def test_every_marker_is_left_out_by_default() -> None:
    options = PYPROJECT["tool"]["pytest"]["ini_options"]
    names = [marker.split(":")[0] for marker in options["markers"]]
    assert names == ["slow", "gpu", "browser"]
    assert options["addopts"][-2:] == ["-m", " and ".join(f"not {name}" for name in names)]


# --- commands -----------------------------------------------------------------------------------------------------

needs_make = pytest.mark.skipif(shutil.which("make") is None, reason="make is not installed")


def make(*arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("MAKE")}
    return subprocess.run(["make", *arguments], cwd=ROOT, capture_output=True, text=True, env=environment)


@needs_make
def test_make_alone_lists_the_commands() -> None:
    listed = re.findall(r"^  make (\S+)", make().stdout, flags=re.MULTILINE)
    wanted = {"help", "install", "figures", "figNN", "test", "test-slow", "lab", "lint", "bench", "clean"}
    assert wanted <= set(listed)


@needs_make
def test_make_without_a_fitting_python_says_what_to_do(tmp_path: Path) -> None:
    done = make("install", f"VENV={tmp_path / 'venv'}", "PYTHON=no-such-python")
    assert done.returncode != 0
    assert "found no Python >= 3.11" in done.stderr
    assert "python3-venv" in done.stderr
    assert not (tmp_path / "venv").exists()


@needs_make
def test_make_passes_figure_options_on() -> None:
    line = make(
        "-n", "-o", ".venv/.lldsim-installed", "fig02", "FAST=1", "SET=N_SEEDS=2 RATE=0.5", "OUT=build/x"
    ).stdout
    assert "-m lldsim.figures fig02 --fast  --set 'N_SEEDS=2' --set 'RATE=0.5' --out 'build/x'" in line
    assert "--fast" not in make("-n", "-o", ".venv/.lldsim-installed", "fig02", "FAST=0").stdout


# --- what readers see ---------------------------------------------------------------------------------------------


def notebooks() -> list[Path]:
    return [path for path in sorted((ROOT / "notebooks").rglob("*.ipynb")) if ".ipynb_checkpoints" not in path.parts]


def test_readme_is_short_and_its_links_exist() -> None:
    readme = ROOT / "README.md"
    if not readme.exists():
        return
    text = readme.read_text()
    assert len(text.splitlines()) < 250
    links = [link for link in re.findall(r"\]\(([^)\s#]+)", text) if not re.match(r"[a-z]+:", link)]
    assert [link for link in links if not (ROOT / link).exists()] == []


def test_notebooks_are_stripped() -> None:
    def unclean(cell: dict[str, Any]) -> bool:
        return bool(cell.get("outputs") or cell.get("execution_count") or "papermill" in cell["metadata"])

    for path in notebooks():
        notebook = json.loads(path.read_text())
        assert "papermill" not in notebook["metadata"], path.name
        assert not any(unclean(cell) for cell in notebook["cells"]), f"{path.name}: run `make format`"


def test_figure_notebooks_pass_the_runner_and_say_how_long_they_take() -> None:
    for spec in discover_figures(ROOT):
        assert set(spec.expected_seconds) == {"fast", "full"}, spec.name


def test_committed_figures_are_full_and_as_the_manifest_says() -> None:
    folder = ROOT / "paper_figures"
    for name, row in read_manifest(folder).items():
        assert (ROOT / "notebooks" / "figures" / f"{name}.ipynb").exists(), f"{name} has no notebook any more"
        assert intact(row, folder), f"{name} is not what `make figures` wrote; draw it again"
        assert not row["fast"], f"{name} is a fast version"


def text_files() -> list[Path]:
    folders = ["lldsim", "full_scale", "notebooks", "paper_figures", "tests", "constraints", ".ci"]
    kinds = {".py", ".md", ".toml", ".yml", ".yaml", ".cff", ".ipynb", ".json", ".csv", ".txt", ".svg"}
    found = [path for path in ROOT.iterdir() if path.suffix in kinds or path.name == "Makefile"]
    found += [path for folder in folders for path in (ROOT / folder).rglob("*") if path.suffix in kinds]
    return [path for path in [*found, ROOT / ".ci" / "run"] if ".ipynb_checkpoints" not in path.parts]


def test_no_path_of_one_machine() -> None:
    pattern = re.compile(r"(?:^|[^A-Za-z0-9_.])/(?:work|tmp|root|home|Users)/[A-Za-z.]", flags=re.MULTILINE)
    assert pattern.search("see " + "/".join(["", "home", "someone"]))
    assert [path.relative_to(ROOT).as_posix() for path in text_files() if pattern.search(path.read_text())] == []
