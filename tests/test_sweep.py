"""Sweeps: grids expand in order, finished runs are not run again, damaged ones are, and workers change nothing."""

from __future__ import annotations

import numpy as np
import pytest

from lldsim import engine
from lldsim.config import preset
from lldsim.errors import ConfigError, MissingDataError
from lldsim.sweep import cache_path, expand_grid, load_grid, run_all, summary_rows

TINY = {"n_queries": 4, "updates_per_rollout": 2, "max_turns": 2, "updates": 12}


def configs(n=3):
    return [preset("spiral").replace(seed=s, **TINY) for s in range(n)]


def test_grid_is_the_product_with_the_last_list_fastest():
    grid = expand_grid({"llds_coef": [0.0, 0.2], "seed": [0, 1]}, fixed=TINY, preset="spiral")
    assert [(c.objective.llds_coef, c.trainer.seed) for c in grid] == [(0, 0), (0, 1), (0.2, 0), (0.2, 1)]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("grids: {}", "did you mean 'grid'"),
        ("grid: {llds_coeff: [0]}", "did you mean 'llds_coef'"),
        ("grid: {seed: 3}", "give a list"),
        ("grid: {seed: []}", "give a list"),
        ("- 1", "write the keys"),
        ("grid: {seed: [0", "is no YAML"),
        ("preset: spirl", "did you mean 'spiral'"),
        ("fixed: {seed: x}", "expected an integer"),
    ],
)
def test_bad_grids_are_refused_with_a_remedy(tmp_path, text, message):
    path = tmp_path / "grid.yaml"
    path.write_text(text)
    with pytest.raises(ConfigError, match=message):
        load_grid(path)


def test_missing_grid_file_is_named(tmp_path):
    with pytest.raises(MissingDataError, match=r"nowhere\.yaml does not exist"):
        load_grid(tmp_path / "nowhere.yaml")


def test_finished_runs_come_from_the_cache_and_damaged_ones_are_made_again(tmp_path, monkeypatch):
    first = run_all(configs(), cache_dir=tmp_path)
    made = []
    honest = engine.simulate
    monkeypatch.setattr(engine, "simulate", lambda config: made.append(config) or honest(config))
    again = run_all(configs(), cache_dir=tmp_path)
    assert made == []
    broken = cache_path(configs()[1], tmp_path) / "record.csv"
    broken.write_text(broken.read_text()[:-5])
    third = run_all(configs(), cache_dir=tmp_path)
    assert made == [configs()[1]]
    for records in (again, third):
        for a, b in zip(first, records, strict=True):
            for name in a.columns:
                np.testing.assert_array_equal(a[name], b[name])


def test_workers_and_order_change_nothing_and_progress_reaches_the_total(tmp_path):
    seen = []
    pooled = run_all(configs(), cache_dir=tmp_path, workers=2, on_done=lambda done, total: seen.append((done, total)))
    single = run_all(configs()[::-1], cache_dir=None)[::-1]
    for a, b in zip(pooled, single, strict=True):
        np.testing.assert_array_equal(a["reward"], b["reward"])
    assert seen == [(0, 3), (1, 3), (2, 3), (3, 3)]


def test_equal_configurations_are_run_once(tmp_path, monkeypatch):
    made = []
    honest = engine.simulate
    monkeypatch.setattr(engine, "simulate", lambda config: made.append(config) or honest(config))
    records = run_all(configs(1) * 3, cache_dir=None)
    assert len(made) == 1
    assert len(records) == 3


def test_table_has_what_varies_and_the_outcome():
    rows = list(summary_rows(configs(2), run_all(configs(2), cache_dir=None)))
    assert [row["seed"] for row in rows] == [0, 1]
    assert "learning_rate" not in rows[0]
    assert {"collapse_step", "peak_reward", "final_reward", "kept_share"} <= set(rows[0])
