"""Records: what is saved is what is read, missing values stay missing, and damage is named."""

from __future__ import annotations

import json

import numpy as np
import pytest

from lldsim.errors import MissingDataError
from lldsim.record import RunRecord, load, make_record


@pytest.fixture
def record():
    columns = {"update": np.arange(3.0), "reward": np.array([0.1, 1 / 3, 1.0]), "logp_correct": [-0.5, np.nan, -1e-17]}
    return make_record({k: np.asarray(v, float) for k, v in columns.items()}, {"seed": 7}, "abc")


def test_round_trip_is_exact_and_keeps_missing_values(record, tmp_path):
    record.save(tmp_path / "deep" / "folder")
    again = load(tmp_path / "deep" / "folder")
    for name in record.columns:
        np.testing.assert_array_equal(again[name], record[name])
    assert (again.config, again.config_hash, again.versions, again.label) == (
        record.config, record.config_hash, record.versions, "simulated",
    )  # fmt: skip
    assert (tmp_path / "deep/folder/record.csv").read_text().splitlines()[2] == "1,0.3333333333333333,"


def test_json_names_versions_and_columns(record, tmp_path):
    record.save(tmp_path)
    about = json.loads((tmp_path / "record.json").read_text())
    assert about["versions"]["numpy"] == np.__version__
    assert set(about["columns"]) == set(record.columns)


def test_unknown_column_suggests_the_nearest(record):
    with pytest.raises(MissingDataError, match="did you mean 'reward'"):
        record["rewards"]


def test_columns_of_different_length_are_refused():
    with pytest.raises(MissingDataError, match="differ in length"):
        RunRecord({"a": np.zeros(2), "b": np.zeros(3)}, {}, "", {})


def damage_missing(folder):
    (folder / "record.json").unlink()


def damage_json(folder):
    text = (folder / "record.json").read_text()
    (folder / "record.json").write_text(text[: len(text) // 2])


def damage_csv(folder):
    text = (folder / "record.csv").read_text()
    (folder / "record.csv").write_text(text[: text.rindex(",")] + "\n")


def damage_end(folder):
    text = (folder / "record.csv").read_text()
    (folder / "record.csv").write_text(text[:-3])  # inside the last number: every line still has all its cells


def damage_cell(folder):
    text = (folder / "record.csv").read_text()
    (folder / "record.csv").write_text(text.replace("0.1", "zero"))


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (damage_missing, "record.json does not exist"),
        (damage_json, "record.json is cut short"),
        (damage_csv, "line 4 has 2 of 3 cells"),
        (damage_end, "does not end with a line break"),
        (damage_cell, "no number"),
    ],
)
def test_damaged_files_are_named(record, tmp_path, damage, message):
    record.save(tmp_path)
    damage(tmp_path)
    with pytest.raises(MissingDataError, match=message):
        load(tmp_path)
