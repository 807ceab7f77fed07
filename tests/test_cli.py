"""The command line: files written, flags and YAML keys typed, bad input answered in one line with a remedy, exit 2."""

from __future__ import annotations

import csv
import json
import subprocess
import sys

import pytest

from lldsim.cli import main
from lldsim.record import COLUMNS, load

TINY = ["--n-queries", "4", "--updates-per-rollout", "2", "--max-turns", "2", "--updates", "12"]


def test_run_writes_a_record_and_a_picture(tmp_path, capsys):
    assert main(["run", "--preset", "spiral", "--llds-coef", "0.2", "--seed", "5", "--out", str(tmp_path), *TINY]) == 0
    record = load(tmp_path)
    assert list(record.columns) == list(COLUMNS)
    assert len(record) == 12
    assert (record.config["llds_coef"], record.config["seed"]) == (0.2, 5)
    assert (tmp_path / "record.png").read_bytes().startswith(b"\x89PNG")
    assert "no collapse" in capsys.readouterr().out


def test_a_transformer_runs_by_its_preset_under_the_same_flags(tmp_path, capsys):
    few = ["--n-queries", "4", "--updates-per-rollout", "2", "--updates", "2", "--warm-start", "1"]
    args = ["run", "--preset", "transformer-spiral", "--llds-coef", "0.2", "--seed", "5", "--out", str(tmp_path), *few]
    assert main(args) == 0
    record = load(tmp_path)
    assert set(COLUMNS) < set(record.columns)
    assert (record.config["policy"], record.config["llds_coef"], record.config["seed"]) == ("transformer", 0.2, 5)
    assert all(json.loads((tmp_path / "record.json").read_text())["columns"].values()), "every column is described"
    assert (tmp_path / "record.png").read_bytes().startswith(b"\x89PNG")
    assert main(["presets"]) == 0
    assert "transformer-spiral" in capsys.readouterr().out


def test_both_engines_write_the_same_record(tmp_path):
    for engine in ("compiled", "plain"):
        assert main(["run", "--out", str(tmp_path / engine), "--engine", engine, "--no-picture", *TINY]) == 0
    ours, plain = (load(tmp_path / engine) for engine in ("compiled", "plain"))
    assert ours["reward"].tolist() == plain["reward"].tolist()
    assert not (tmp_path / "plain" / "record.png").exists()


def test_flags_win_over_the_file_and_the_file_over_the_preset(tmp_path):
    path = tmp_path / "run.yaml"
    path.write_text("preset: 'null'\nlearning_rate: 3\nseed: 1\n")
    args = ["run", "--config", str(path), "--seed", "2", "--out", str(tmp_path / "out"), "--no-picture", *TINY]
    assert main(args) == 0
    config = load(tmp_path / "out").config
    assert (config["position_similarity"], config["learning_rate"], config["seed"]) == (0.0, 3.0, 2)


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["run", "--out", "x", "--llds-coeff", "0.2"], "did you mean '--llds-coef'"),
        (["run", "--out", "x", "--sede=3"], "did you mean '--seed'"),
        (["run", "--out", "x", "--seed", "three"], "expected an integer"),
        (["run", "--out", "x", "--preset", "spirl"], "did you mean 'spiral'"),
        (["run", "--out", "x", "--preset", "transformer-spirl"], "did you mean 'transformer-spiral'"),
        (["run", "--out", "x", "--preset", "transformer-spiral", "--anisotropy", "1"], "has no field 'anisotropy'"),
        (["run", "--out", "x", "--warm-start", "1"], "unknown configuration field 'warm_start'"),
        (["run", "--out", "x", "--config", "nowhere.yaml"], "nowhere.yaml does not exist"),
        (["run", "--out", "x", "--llds-coef", "0.2", "--updates-per-rollout", "1"], "the gate can never open"),
        (["sweep", "nowhere.yaml", "--out", "x"], "nowhere.yaml does not exist"),
    ],
)
def test_bad_input_is_answered_in_one_line(args, message, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(args) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1
    assert list(tmp_path.iterdir()) == []  # nothing half-written


def test_unknown_yaml_key_is_an_error_that_suggests(tmp_path, capsys):
    path = tmp_path / "run.yaml"
    path.write_text("lerning_rate: 3\n")
    assert main(["run", "--config", str(path), "--out", str(tmp_path / "out")]) == 2
    assert "did you mean 'learning_rate'" in capsys.readouterr().err


def test_sweep_writes_one_row_per_run(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "grid.yaml").write_text(
        "preset: spiral\nfixed: {n_queries: 4, updates_per_rollout: 2, max_turns: 2, updates: 12}\n"
        "grid: {llds_coef: [0, 0.2], seed: [0, 1]}\n"
    )
    assert main(["sweep", "grid.yaml", "--out", "out"]) == 0
    rows = list(csv.DictReader((tmp_path / "out/runs.csv").read_text().splitlines()))
    assert [(row["llds_coef"], row["seed"]) for row in rows] == [("0.0", "0"), ("0.0", "1"), ("0.2", "0"), ("0.2", "1")]
    assert "of 4 runs collapsed" in capsys.readouterr().out


def test_help_lists_every_field_and_loads_nothing_heavy(capsys):
    with pytest.raises(SystemExit):
        main(["run", "--help"])
    text = capsys.readouterr().out
    assert "--llds-coef" in text
    assert "--garbage-similarity" in text
    code = "import sys, lldsim.cli; print([m for m in ('torch', 'numba', 'numpy', 'matplotlib') if m in sys.modules])"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert json.loads(out.replace("'", '"')) == []
