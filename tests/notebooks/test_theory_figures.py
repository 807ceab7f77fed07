"""Locks the theory's figures: found by short name, and a fast run's numbers say what the captions say.

- figt1 to figt3 are figures like the paper's, after them in order
- fast run (slow): error of first order; map and closed form agree; the four pulls of the pair add up to G
"""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest

from lldsim.figures import discover_figures, run_figures, select_figures

NAMES = ["figt1_predicted_measured", "figt2_similarity_likelihood", "figt3_attribution"]


def test_theory_figures_are_found_by_short_name_in_their_order(repo_root: Path) -> None:
    specs = discover_figures(repo_root)
    assert [spec.name for spec in specs if spec.name.startswith("figt")] == NAMES
    assert [spec.name for spec in select_figures(specs, ["figt1", "figt3"])] == [NAMES[0], NAMES[2]]


@pytest.mark.slow
def test_fast_figures_say_what_was_computed(repo_root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(repo_root))
    results = run_figures(["figt1", "figt2", "figt3"], fast=True, out=tmp_path, root=repo_root)
    assert [result.row["label"] for result in results] == ["simulated"] * 3
    numbers = [json.loads((tmp_path / "numbers" / f"{name}.json").read_text()) for name in NAMES]
    fits, cases, pulls = numbers[0]["fits"], numbers[1]["cases"], numbers[2]
    assert abs(fits["order_min"] - 1) < 0.1
    assert abs(fits["order_max"] - 1) < 0.1
    assert fits["error_smallest_rate_max"] < 1e-4
    assert fits["update_correlation_min"] > 0.9
    assert max(case["largest_difference"] for case in cases.values()) < 1e-12
    assert {case["kappa"] > 0 for case in cases.values()} == {True, False}
    assert sum(pulls["pull_on_response"].values()) == pytest.approx(pulls["gwhes_of_response"], rel=1e-6)
    assert 0 < pulls["census"]["pulled_down"] < pulls["census"]["pairs"]
    with (tmp_path / "data" / "figt3_attribution.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == pulls["tokens"]
    parts = ("the wrong twin", "other wrong responses", "itself", "other right responses")
    for row in rows:
        assert sum(float(row[part]) for part in parts) == pytest.approx(float(row["gwhes"]), abs=1e-11)
