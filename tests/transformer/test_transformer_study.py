"""The packaged study, its summaries and its figures.

Locked here: packing and reading keep every record and give the same bytes twice; rows count collapses as the
diagnostics do; padding adds nothing but missing values; summaries by hand; every condition's runs in the packaged study
are what conditions.py says; figures draw one line per run.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from lldsim.diagnostics.collapse import collapse_step
from lldsim.errors import MissingDataError
from lldsim.plots import style_context
from lldsim.plots.transformer_figures import arm_curves, conditions_figure, inside_the_network, llds_figure
from lldsim.record import Arms, RunRecord, make_record
from lldsim.transformer.conditions import COEFS, COMPARED, CONDITIONS, GATES, STRENGTHS, condition_runs, llds_name
from lldsim.transformer.study import (
    HORIZON,
    KEPT,
    PROBED,
    condition_row,
    load_probes,
    load_study,
    pack,
    pack_probes,
    padded,
)
from lldsim.transformer.summaries import before_collapse, share_by_phase


def a_record(name: str, seed: int, *, length: int = 60, falls_at: int | None = None) -> RunRecord:
    (config,) = condition_runs(name, [seed])
    columns = {column: np.full(length, 0.123456) for column in KEPT}
    columns["update"] = np.arange(length, dtype=float)
    columns["reward"] = np.where(columns["update"] < (falls_at or length), 0.9, 0.1)
    columns["logp_correct"] = -0.1 - columns["update"] / 100
    columns |= {f"logp_after_{kind}": np.full(length, -0.2) for kind in ("none", "good", "bad")}
    columns["logp_after_error"] = np.full(length, np.nan)
    return make_record(columns, config.flat(), config.config_hash())


@pytest.fixture
def arms() -> Arms:
    leak = [a_record("leak", s, falls_at=40 + s) for s in range(3)]
    return {"leak": leak, **{name: [a_record(name, s, length=100) for s in range(3)] for name in ("llds", "clean")}}


def test_packing_keeps_records_and_bytes(arms: Arms, tmp_path: Path) -> None:
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
        pack(arms, tmp_path / folder / "study.csv.gz")
    for name in ("study.csv.gz", "study.json"):
        assert (tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes()
    study = load_study(tmp_path / "a" / "study.csv.gz")
    assert {name: len(records) for name, records in study.arms.items()} == {"leak": 3, "llds": 3, "clean": 3}
    found, wanted = study.arms["leak"][2], arms["leak"][2]
    assert (found.config, found.config_hash) == (wanted.config, wanted.config_hash)
    assert found["entropy"] == pytest.approx(0.1235)
    assert np.isnan(found["logp_after_error"]).all()
    assert np.array_equal(found["reward"], wanted["reward"])


def test_a_missing_study_says_how_to_make_it(tmp_path: Path) -> None:
    with pytest.raises(MissingDataError, match=r"python -m lldsim\.transformer\.study"):
        load_study(tmp_path / "study.csv.gz")
    with pytest.raises(MissingDataError, match="--probes"):
        load_probes(tmp_path / "probes.json")


def test_a_row_counts_what_the_diagnostics_count(arms: Arms) -> None:
    row = condition_row("leak", [*arms["leak"], *arms["llds"][:1]])
    steps = [collapse_step(r["reward"]) for r in arms["leak"]]
    assert (row["runs"], row["collapsed"], row["warm_starts"]) == (4, 3, 3)
    assert row["steps"] == " ".join(map(str, steps)) + " -"
    assert row["low"] < 0.75 < row["high"]
    assert row["lost"] == 3
    assert row["lost_by_warm_start"] == "1/2 1/1 1/1"
    assert condition_row("llds", arms["llds"])["step_median"] is None


def test_padding_adds_only_missing_values(arms: Arms) -> None:
    (long,) = padded(arms["leak"][:1], 70)
    assert len(long) == 70
    assert np.array_equal(long["reward"][:60], arms["leak"][0]["reward"])
    assert np.isnan(long["reward"][60:]).all()
    assert long["update"].tolist() == list(range(70))
    assert len(padded(arms["llds"][:1], 50)[0]) == 50


def test_medians_before_the_collapse(arms: Arms) -> None:
    steps = [collapse_step(r["reward"]) or 0 for r in arms["leak"]]
    found = before_collapse(arms["leak"] + arms["llds"], ["logp_correct", "logp_after_error"], at=(-10, 1000))
    assert found["logp_correct"] == [pytest.approx(-0.1 - (np.median(steps) - 10) / 100), None]
    assert found["logp_after_error"] == [None, None]


def test_share_by_phase_by_hand() -> None:
    pairs = [(2.0, 1.0), (4.0, 1.0), (-10.0, -1.0), (-10.0, 0.5), (float("nan"), float("nan"))]
    rows = [{"change": full, "change_head": head} for full, head in pairs]
    found = share_by_phase(rows)
    assert share_by_phase(rows, least=3.0)["rises"]["n"] == 1
    assert found["rises"] == {"n": 2, "median": 0.375, "quartiles": [0.3125, 0.4375], "same_sign": 2}
    assert found["falls"]["n"] == 2
    assert found["falls"]["median"] == pytest.approx(0.025)
    assert found["falls"]["same_sign"] == 1


def test_probes_survive_their_file(tmp_path: Path) -> None:
    rows = [{"arm": "leak", "update": 5, "change": 1.23456}, {"arm": "leak", "update": 10, "change": float("nan")}]
    pack_probes(rows, tmp_path / "probes.json")
    first, second = load_probes(tmp_path / "probes.json")
    assert first == {"arm": "leak", "update": 5, "change": 1.235}
    assert np.isnan(second["change"])


def test_the_packaged_study_is_what_conditions_say() -> None:
    study = load_study()
    for name, records in study.arms.items():
        assert study.about["config_hashes"][name] == [r.config_hash for r in records], name
    assert set(COMPARED) <= study.arms.keys()
    for name in COMPARED:
        assert len(study.arms[name]) >= 10
        assert {r.config["warm_start"] for r in study.arms[name]} == {0, 1, 2}
    for row in load_probes():
        assert (row["arm"], row["seed"]) in PROBED


def test_figures_draw_every_run(arms: Arms) -> None:
    from matplotlib.figure import Figure

    with style_context():
        ax = Figure().subplots()
        arm_curves(ax, padded(arms["leak"]), "reward", role="grpo")
        assert len(ax.lines) == 4
        bold, middle = (np.asarray(ax.lines[i].get_ydata(), dtype=float) for i in (-1, 1))
        assert np.array_equal(bold, middle, equal_nan=True), "the run that collapses at the median step"
        fig = conditions_figure(arms)
        drawn = [np.atleast_1d(np.asarray(line.get_xdata(), dtype=float)) for line in fig.axes[0].lines]
        assert [x[0] for x in drawn if len(x) == 1] == [1.0, 0.0, 0.0]
        probe = {"arm": "leak", "seed": 0, "update": 5, "eq3_change": -1.0, "change": -0.5, "change_head": -0.01}
        axes = inside_the_network(arms, [probe]).axes
        assert np.asarray(axes[5].lines[0].get_xdata()).tolist() == [-0.5]
        assert axes[3].get_xlim() == (0, HORIZON)


def test_the_grid_of_llds_is_every_strength_under_every_gate() -> None:
    names = {llds_name(gate, coef): (gate, coef) for gate in GATES for coef in COEFS}
    assert names.keys() == {"llds", *STRENGTHS}
    for name, (gate, coef) in names.items():
        assert CONDITIONS[name].changes.get("llds_coef") == coef
        assert CONDITIONS[name].changes.get("gate", "action") == gate


def test_the_figure_of_llds_has_one_mark_per_run(arms: Arms) -> None:
    with style_context():
        fig = llds_figure(arms | {"llds token .01": [a_record("llds token .01", s, falls_at=50) for s in range(2)]})
    marks = [[line for line in ax.lines if len(np.atleast_1d(line.get_xdata())) == 1] for ax in fig.axes]
    assert [len(found) for found in marks] == [3 + 3, 3 + 2, 3]
    assert [text.get_text() for text in fig.axes[1].texts][:2] == ["3/3", "2/2"]
