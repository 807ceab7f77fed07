"""The figure runner on notebooks made here.

Locked here: a misspelt, mistyped, reserved, unread or overwritten parameter stops before anything runs; hero first;
fast and overridden runs stay out of paper_figures; a second run is a cache hit, a forced one gives the same bytes; a
changed notebook, parameter or output is no hit; two at a time give the same bytes; the failing cell is named and
earlier figures are kept; manifest rows.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from lldsim.errors import ConfigError, MissingDataError
from lldsim.figures import (
    FigureError,
    cache_key,
    check_parameters,
    command,
    discover_figures,
    main,
    notebook,
    run_figures,
    select_figures,
)

PARAMETERS = "FAST = False\nOUT = 'paper_figures'\nN_SEEDS = 3\nRATE: float = 0.5\nGATE = 'action'\nGRID = (0.1, 0.2)"
READS = "print(FAST, OUT, N_SEEDS, RATE, GATE, GRID)\nassert list(GRID) == [0.1, 0.2], GRID"
# Writes what a figure must write, without the seconds that importing matplotlib takes.
WRITES = """from pathlib import Path
from lldsim.plots import save_numbers, save_table
name = {name!r}
for kind in ("png", "svg"):
    (Path(OUT) / f"{{name}}.{{kind}}").write_text(kind)
save_table({{"seed": range(N_SEEDS), "gate": [GATE] * N_SEEDS}}, name, out=OUT)
save_numbers({{"label": "simulated", "caption": "A caption.", "seeds": range(N_SEEDS), "rate": RATE}}, name, out=OUT)"""
DRAWS = """import matplotlib.pyplot as plt
from lldsim.plots import save_figure, use_style
use_style()
fig, ax = plt.subplots()
ax.plot(GRID)
save_figure(fig, name, out=OUT)"""


def write_notebook(root: Path, name: str, cells: list[str], *, parameters: str = PARAMETERS) -> Path:
    def cell(source: str, tags: list[str]) -> dict[str, Any]:
        base = {"cell_type": "code", "execution_count": None, "id": f"c{abs(hash(source))}", "outputs": []}
        return {**base, "metadata": {"tags": tags} if tags else {}, "source": source}

    notebook = {
        "cells": [cell(parameters, ["parameters"]), *(cell(source, []) for source in cells)],
        "metadata": {"lldsim": {"expected_seconds": {"fast": 2, "full": 30}}},
        "nbformat": 4,
        "nbformat_minor": 5,
    }
    path = root / "notebooks" / "figures" / f"{name}.ipynb"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(notebook))
    return path


@pytest.fixture
def root(tmp_path: Path, repo_root: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A repository with two figures whose names sort against the hero; a kernel started in it finds lldsim."""
    monkeypatch.setenv("PYTHONPATH", str(repo_root))
    monkeypatch.setattr(command, "repository_root", lambda: tmp_path)
    monkeypatch.setattr(notebook, "HERO", "fig02_three_phases")
    monkeypatch.chdir(tmp_path)
    write_notebook(tmp_path, "fig01_bars", [READS])
    write_notebook(tmp_path, "fig02_three_phases", [READS, WRITES.format(name="fig02_three_phases")])
    return tmp_path


def test_hero_comes_first_and_short_names_work(root: Path) -> None:
    specs = discover_figures(root)
    assert [spec.name for spec in specs] == ["fig02_three_phases", "fig01_bars"]
    assert [spec.name for spec in select_figures(specs, ["fig01"])] == ["fig01_bars"]
    assert specs[0].parameters["GRID"] == (0.1, 0.2)
    with pytest.raises(ConfigError, match="did you mean 'fig02_three_phases'"):
        select_figures(specs, ["fig02_three_fases"])


def test_overrides_are_typed_by_the_declared_default(root: Path) -> None:
    spec = discover_figures(root)[0]
    overrides = {"N_SEEDS": "2", "RATE": "1", "GATE": "a=b", "GRID": "(1, 0.3)"}
    effective = check_parameters(spec, overrides)
    assert effective == {**spec.parameters, "N_SEEDS": 2, "RATE": 1.0, "GATE": "a=b", "GRID": (1.0, 0.3)}
    assert type(effective["RATE"]) is float
    assert check_parameters(spec, {"GATE": "'token'"})["GATE"] == "token"


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ({"SEEDz": 3}, "no parameter 'SEEDz'.*it has N_SEEDS, RATE, GATE, GRID"),
        ({"N_SEED": 3}, "did you mean 'N_SEEDS'"),
        ({"N_SEEDS": True}, "N_SEEDS needs int as in its default 3, got bool True"),
        ({"N_SEEDS": "2.5"}, "N_SEEDS needs int .* got float 2.5"),
        ({"N_SEEDS": "many"}, "N_SEEDS needs int, got 'many'"),
        ({"RATE": "'fast'"}, "RATE needs float"),
        ({"GRID": "(1, 'x')"}, r"GRID\[1\] needs float"),
        ({"GRID": [0.1]}, "GRID needs tuple .* got list"),
        ({"FAST": True}, "FAST is set by --fast"),
    ],
)
def test_bad_override_stops_before_anything_runs(root: Path, overrides: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        run_figures(["fig02"], overrides=overrides, root=root)
    assert not (root / "build").exists()
    assert not (root / "paper_figures").exists()


@pytest.mark.parametrize(
    ("parameters", "cells", "message"),
    [
        (PARAMETERS + "\nDEAD = 1", [READS], "DEAD is declared, but no later cell reads it"),
        (PARAMETERS, ["N_SEEDS = 5", READS], "N_SEEDS is overwritten before any cell reads it"),
        (PARAMETERS, [READS, "x = ("], "a cell does not parse"),
        ("FAST = False", ["print(FAST)"], "must declare OUT"),
        ("FAST = False\nOUT = str(1)", ["print(FAST, OUT)"], "OUT must be a literal"),
        ("import os\nFAST = False", ["print(FAST)"], "line 1 of the parameters cell is not NAME = literal"),
    ],
)
def test_bad_notebook_is_refused(root: Path, parameters: str, cells: list[str], message: str) -> None:
    write_notebook(root, "fig03_bad", cells, parameters=parameters)
    with pytest.raises(ConfigError, match=message):
        run_figures(["fig03"], root=root)


def test_magics_and_updates_count_as_reading(root: Path) -> None:
    write_notebook(root, "fig03_ok", ["%matplotlib inline", "N_SEEDS = min(N_SEEDS, 2)", READS])
    assert [spec.name for spec in discover_figures(root)][-1] == "fig03_ok"


def test_key_follows_notebook_and_parameters_but_not_the_folder(root: Path) -> None:
    spec = discover_figures(root)[0]
    key = cache_key(spec, spec.parameters)
    assert cache_key(spec, {**spec.parameters, "OUT": "elsewhere"}) == key
    assert cache_key(spec, {**spec.parameters, "N_SEEDS": 4}) != key
    assert cache_key(spec, {**spec.parameters, "N_SEEDS": 3.0}) != key
    write_notebook(root, spec.name, [READS, WRITES.format(name=spec.name) + "\n# changed"])
    assert cache_key(discover_figures(root)[0], spec.parameters) != key


def test_run_then_hit_then_forced_run_with_the_same_bytes(root: Path) -> None:
    name = "fig02_three_phases"
    write_notebook(root, name, [READS, WRITES.format(name=name), DRAWS])
    lines: list[str] = []
    (first,) = run_figures(["fig02"], root=root, say=lines.append)
    out = root / "paper_figures"
    assert lines[0].startswith("1 figure(s), full version, about 30 s")
    row = json.loads((out / "manifest.json").read_text())["figures"][name]
    assert row == json.loads(json.dumps(first.row))
    assert row["command"] == "make fig02"
    assert (row["label"], row["seeds"], row["fast"], row["config_hash"]) == ("simulated", [0, 1, 2], False, None)
    assert row["parameters"] == {"N_SEEDS": 3, "RATE": 0.5, "GATE": "action", "GRID": [0.1, 0.2]}
    assert set(row["files"]) == {f"{name}.png", f"{name}.svg", f"data/{name}.csv", f"numbers/{name}.json"}
    gallery = (out / "README.md").read_text()
    assert f"![{name}]({name}.png)" in gallery
    assert "*simulated.* A caption." in gallery
    assert f"(data/{name}.csv)" in gallery

    (again,) = run_figures([name], root=root)
    assert (first.cached, again.cached) == (False, True)

    before = {file: (out / file).read_bytes() for file in row["files"]}
    (out / f"{name}.png").write_bytes(b"touched by hand")
    (third,) = run_figures([name], root=root)
    assert not third.cached
    assert {file: (out / file).read_bytes() for file in row["files"]} == before
    (fourth,) = run_figures([name], root=root, force=True)
    assert not fourth.cached
    assert fourth.row["files"] == first.row["files"]


def test_override_reaches_the_data_and_stays_out_of_paper_figures(root: Path) -> None:
    (result,) = run_figures(["fig02"], root=root, overrides={"N_SEEDS": "2"}, fast=True)
    assert result.out == root / "build" / "figures_fast"
    assert (result.out / "data" / "fig02_three_phases.csv").read_text() == "seed,gate\n0,action\n1,action\n"
    assert result.row["parameters"]["N_SEEDS"] == 2
    assert result.row["command"] == "lldsim figures fig02 --fast --set N_SEEDS=2"
    assert "This is a fast run" in (result.out / "README.md").read_text()
    assert not (root / "paper_figures").exists()


def test_failing_cell_is_named_and_earlier_figures_are_kept(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_notebook(root, "fig01_bars", [READS, "# a comment\nboom = {}['missing key']"])
    assert main([]) == 1
    captured = capsys.readouterr()
    assert "fig02_three_phases: " in captured.out
    assert "fig01_bars failed at In [4], which starts \"boom = {}['missing key']\"" in captured.err
    assert "KeyError: 'missing key'" in captured.err
    assert list(json.loads((root / "paper_figures" / "manifest.json").read_text())["figures"]) == ["fig02_three_phases"]


def test_two_at_a_time_give_the_same_files_and_stop_at_a_failure(
    root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    names = ("fig01_bars", "fig02_three_phases", "fig03_more", "fig04_last")
    for name in names:
        write_notebook(root, name, [READS, WRITES.format(name=name)])
    one = run_figures(root=root, out="one")
    two = run_figures(root=root, out="two", workers=2)
    assert [r.name for r in one] == [r.name for r in two] == [names[1], names[0], *names[2:]]  # the hero first
    assert [r.row["files"] for r in one] == [r.row["files"] for r in two]
    assert json.loads((root / "two" / "manifest.json").read_text())["figures"].keys() == set(names)
    write_notebook(root, "fig03_more", [READS, "boom = {}['missing key']"])
    assert main(["--workers", "2", "--out", "two"]) == 1
    assert "fig03_more failed at In [4]" in capsys.readouterr().err
    assert main(["--workers", "0"]) == 2
    assert "--workers 0" in capsys.readouterr().err


def test_figure_that_writes_nothing_fails(root: Path) -> None:
    with pytest.raises(FigureError, match=r"fig01_bars ran, but wrote no fig01_bars\.png"):
        run_figures(["fig01"], root=root)


def test_command_line_refuses_bad_input_and_lists(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["fig02", "--set", "SEEDz=3"]) == 2
    assert "no parameter 'SEEDz'" in capsys.readouterr().err
    assert main(["--set", "N_SEEDS"]) == 2
    assert "NAME=VALUE" in capsys.readouterr().err
    assert main(["--list"]) == 0
    assert capsys.readouterr().out.startswith("fig02_three_phases  [fast 2 s, full 30 s]  N_SEEDS=3, RATE=0.5")


def test_no_notebooks_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(MissingDataError, match="no figure notebooks"):
        run_figures(root=tmp_path)
