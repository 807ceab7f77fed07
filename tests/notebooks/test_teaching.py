"""Locks the teaching notebooks: they run, they are short, and their checks tell right from wrong.

- every notebook and every solution runs with FAST, in this process (slow: by papermill, where figures are pictures)
- form: "You will: 1 2 3", a parameters cell with FAST, at most 25 code cells, markdown before each, three exercises
- an untouched notebook has no right answer, its solutions have three, and a wrong answer gets a hint and not the value
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import pytest

from lldsim.errors import MissingDataError
from lldsim.exercises import EXERCISES, check

NOTEBOOKS = Path(__file__).resolve().parents[2] / "notebooks"
NUMBERS = sorted({key.split(".")[0] for key in EXERCISES})
TEACHING = [path for number in NUMBERS for path in NOTEBOOKS.glob(f"{number}_*.ipynb")]
SOLUTIONS = [NOTEBOOKS / "solutions" / f"{number}_solutions.ipynb" for number in NUMBERS]


def cells(path: Path) -> list[dict[str, Any]]:
    return json.loads(path.read_text())["cells"]


def source(cell: dict[str, Any]) -> str:
    return "".join(cell["source"])


@pytest.fixture(autouse=True)
def closed_figures() -> Iterator[None]:
    yield
    plt.close("all")


def run(path: Path, capsys: pytest.CaptureFixture[str]) -> list[str]:
    """Execute a notebook's code here with FAST and return the lines of its check cell."""
    namespace: dict[str, Any] = {"__name__": "__main__"}
    for cell in cells(path):
        if cell["cell_type"] == "code":
            exec(compile(source(cell), path.name, "exec"), namespace)
            if "parameters" in cell["metadata"].get("tags", []):
                namespace["FAST"] = True
            plt.close("all")
    return re.findall(r"^exercise \d: .*$", capsys.readouterr().out, flags=re.MULTILINE)


def test_every_exercise_has_its_notebook_and_solution() -> None:
    assert [path.name[:2] for path in TEACHING] == NUMBERS
    assert all(path.exists() for path in SOLUTIONS)


@pytest.mark.parametrize("path", TEACHING, ids=lambda path: path.stem)
def test_a_notebook_runs_and_has_no_answer_yet(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(path, capsys) == [f"exercise {k}: no answer yet" for k in (1, 2, 3)]


@pytest.mark.parametrize("path", SOLUTIONS, ids=lambda path: path.stem)
def test_solutions_are_right(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(path, capsys) == [f"exercise {k}: right" for k in (1, 2, 3)]


@pytest.mark.parametrize("path", TEACHING, ids=lambda path: path.stem)
def test_form(path: Path) -> None:
    found = cells(path)
    opening = source(found[0])
    assert "You will:" in opening
    assert re.findall(r"^(\d)\. ", opening, flags=re.MULTILINE) == ["1", "2", "3"]
    code = [index for index, cell in enumerate(found) if cell["cell_type"] == "code"]
    assert len(code) <= 25
    assert all(found[index - 1]["cell_type"] == "markdown" for index in code)
    (tagged,) = [cell for cell in found if "parameters" in cell["metadata"].get("tags", [])]
    assert source(tagged).startswith("FAST = False")
    text = "\n".join(map(source, found))
    assert re.findall(r"\*\*Exercise (\d)\.\*\*", text) == ["1", "2", "3"]
    assert f"solutions/{path.name[:2]}_solutions.ipynb" in text


@pytest.mark.parametrize("key", EXERCISES)
def test_a_wrong_answer_is_told_and_not_given_away(key: str) -> None:
    notebook, number = key.split(".")
    value = EXERCISES[key].value()
    assert check(notebook, int(number), value) == f"exercise {number}: right"
    for wrong in (value + 0.01, -value - 0.01):
        told = check(notebook, int(number), wrong)
        assert told.startswith(f"exercise {number}: not yet; ")
        assert f"{value:.3g}" not in re.findall(r"-?\d*\.?\d+", told.split(";")[1])


def test_an_unknown_exercise_is_an_error() -> None:
    with pytest.raises(MissingDataError, match=r"no exercise 04\.9 .*did you mean"):
        check("04", 9, 1.0)


@pytest.mark.slow
@pytest.mark.parametrize("path", [*TEACHING, *SOLUTIONS], ids=lambda path: path.stem)
def test_a_kernel_runs_it(path: Path, tmp_path: Path, repo_root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    papermill = pytest.importorskip("papermill")
    monkeypatch.setenv("PYTHONPATH", str(repo_root))
    monkeypatch.delenv("MPLBACKEND")  # the tests' own; a kernel draws inline
    parameters = {"FAST": True} if path in TEACHING else {}
    done = papermill.execute_notebook(
        path, tmp_path / path.name, parameters=parameters, kernel_name="python3", progress_bar=False, cwd=repo_root,
        extra_arguments=["--log-level=50"],
    )  # fmt: skip
    outputs = [output for cell in done.cells for output in cell.get("outputs", [])]
    assert not [output for output in outputs if output.get("name") == "stderr"]
    figures = [o["data"] for o in outputs if "<Figure" in str(o.get("data", {}).get("text/plain", ""))]
    assert all("image/png" in data for data in figures), "a figure is shown as text: call use_style()"
