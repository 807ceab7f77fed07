"""The causal table: from settings to rows.

Locked here: censored runs are counted, never dropped; medians beyond the horizon are None; phase likelihoods are those
of the phases; calibration makes a twin start at its target's reward and refuses what it cannot reach; the factorial
has every combination with spiral at its end; the pull of wrong responses crosses without looking ahead, and its lead is
counted apart from its false alarms; the strongest dials are those whose null collapses least; tuning picks by the
score, on seeds that are not reported; CSV cells.
"""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lldsim.arms import arm
from lldsim.causal import (
    calibrated,
    causal_settings,
    cure_rows,
    factorial_settings,
    failure_settings,
    first_rollouts,
    strongest,
    tune,
)
from lldsim.causal.command import write_csv
from lldsim.causal.cures import TUNING_SEEDS, best_settings
from lldsim.causal.lead import crossing, lead_row, lead_rows, pull_record
from lldsim.causal.rows import Setting, median_survival, run_row, setting_row, table
from lldsim.causal.twins import CALIBRATION_SEEDS
from lldsim.cli import main
from lldsim.config import RunConfig, matched_twin, preset
from lldsim.dials import dial
from lldsim.errors import ConfigError
from lldsim.probe import probe_run
from lldsim.record import RunRecord


def record(reward: np.ndarray, logp: np.ndarray) -> RunRecord:
    flat = np.ones(len(reward))
    columns = {"reward": reward, "logp_correct": logp, "entropy": flat, "grad_norm": flat, "ratio_max": flat}
    return RunRecord(columns, {}, "", {})


def collapsing() -> RunRecord:
    """Likelihood holds to 40, decays to 80, plunges; reward falls at 100."""
    u = np.arange(150)
    logp = np.where(u < 40, -0.2, np.where(u < 80, -0.4, -2.0))
    return record(np.where(u < 100, 0.9, 0.0), logp)


def healthy() -> RunRecord:
    return record(np.full(150, 0.9), np.full(150, -0.2))


def test_run_row_reads_phases_and_rewards() -> None:
    row = run_row(collapsing())
    assert 96 <= row["collapse_step"] <= 102
    assert (row["peak_reward"], row["min_reward"], row["final_reward"]) == pytest.approx((0.9, 0.0, 0.0))
    assert row["logp_stagnation"] == pytest.approx(-0.2, abs=0.02)
    assert row["logp_decay"] == pytest.approx(-0.4, abs=0.06)
    assert row["logp_acceleration"] == pytest.approx(-2.0, abs=0.2)
    assert row["entropy_after"] == pytest.approx(1.0)
    calm = run_row(healthy())
    assert calm["collapse_step"] is None
    assert np.isnan(calm["logp_decay"])
    assert np.isnan(calm["entropy_after"])


def test_a_fall_before_the_final_peak_is_seen_and_counts_as_recovered() -> None:
    reward = np.concatenate([np.full(40, 0.8), np.full(40, 0.1), np.full(70, 0.95)])
    row = run_row(record(reward, np.full(150, -0.2)))
    assert row["collapse_step"] is not None
    assert row["kept_share"] == pytest.approx(1.0)
    assert row["lowest_share"] == pytest.approx(0.1 / 0.8)
    assert row["recovered"]
    assert not run_row(collapsing())["recovered"]
    assert not run_row(healthy())["recovered"]
    assert setting_row({}, [row, run_row(healthy())], horizon=150)["recovered"] == 1


def test_censored_runs_count_in_rate_and_median() -> None:
    runs = [run_row(collapsing()), run_row(healthy()), run_row(healthy())]
    row = setting_row({"name": "x"}, runs, horizon=150)
    assert (row["collapsed"], row["runs"], row["median_step"]) == (1, 3, None)
    assert row["rate_low"] < 1 / 3 < row["rate_high"]
    assert (row["decayed"], row["accelerated"]) == (1, 1)
    assert row["final_reward"] == pytest.approx(0.9)
    assert row["final_reward_mean"] == pytest.approx(0.6)
    both = setting_row({"name": "x"}, [runs[0]] * 2 + [runs[1]], horizon=150)
    assert both["median_step"] == runs[0]["collapse_step"]


def test_median_of_survival() -> None:
    assert median_survival([10, 20, 30], 150)[0] == 20
    assert median_survival([None, None], 150) == (None, None, None)
    steps = list(range(10, 110, 5))
    median, low, high = median_survival(steps, 150)
    assert median == 55
    assert low is not None
    assert high is not None
    assert low < 55 < high


SMALL: dict[str, Any] = {
    "n_queries": 4, "max_turns": 4, "turn_tokens": 8, "vocab_size": 20, "n_features": 10, "invalid_threshold": 3,
    "updates_per_rollout": 4, "staleness": 1,
}  # fmt: skip


def test_calibration_matches_the_first_reward() -> None:
    target = RunConfig().replace(**SMALL)
    harder = target.replace(invalid_ends_episode=True, canon_prob=0.8)
    twin = calibrated(harder, "canon_prob", target=target)
    wanted, before, after = (first_rollouts(config)[0] for config in (target, harder, twin))
    assert abs(before - wanted) > 0.03
    assert abs(after - wanted) < 0.01
    assert twin.replace(canon_prob=0.8) == harder
    with pytest.raises(ConfigError, match="no canon_prob makes the twin start"):
        calibrated(target.replace(search_noise=1.0), "canon_prob", target=target)


def test_settings_start_with_the_references() -> None:
    settings = causal_settings(["similarity", "top_k"])
    assert [s.labels["name"] for s in settings] == ["spiral", "twin", "similarity", "top_k"]
    assert settings[0].config == preset("spiral")
    assert settings[1].config == matched_twin(preset("spiral"))
    assert settings[2].config == preset("null")
    assert [s.labels["setting"] for s in settings[2:]] == ["null", "on"]


def test_factorial_has_every_combination() -> None:
    names = ["staleness", "similarity", "sharpness"]
    settings = factorial_settings(names, updates=7)
    assert len({s.config for s in settings}) == len(settings) == 8
    assert settings[-1].config == preset("spiral").replace(updates=7)
    assert settings[0].config == matched_twin(preset("null").replace(updates=7)).replace(staleness=0)
    assert [s.labels["staleness"] for s in settings] == [0] * 4 + [1] * 4


def test_rows_where_llds_fails_have_their_grpo_beside_them() -> None:
    settings = {s.labels["name"]: s.config for s in failure_settings(updates=50)}
    assert settings["lambda_01"] == preset("spiral").replace(updates=50, llds_coef=0.01)
    for world in ("two_hops", "noisy_two_hops"):
        assert settings[world].trainer.updates == 100
        for name, coef in (("lambda_2", 0.2), ("lambda_1", 1.0)):
            assert settings[f"{world}_{name}"] == settings[world].replace(llds_coef=coef)
    assert [s.labels["name"] for s in failure_settings(["two_hops"])] == ["two_hops"]
    with pytest.raises(ConfigError, match="did you mean 'two_hops'"):
        failure_settings(["two_hop"])


def test_lead_is_the_time_from_a_lasting_pull_to_the_collapse() -> None:
    def looks(values: list[float]) -> np.ndarray:
        curve = np.full(2 * len(values), np.nan)
        curve[::2] = values
        return curve

    calm, loud = looks([0.01] * 25), looks([0.5] * 5 + [0.01] * 5 + [0.1] + [0.01] * 4 + [0.1] * 10)
    assert crossing(loud) == 32  # not the early updates, not the single look at 20
    assert crossing(calm) is None
    unknown = np.full(50, np.nan)
    assert lead_row([50, 50, None, None, 50], [loud, calm, loud, calm, unknown]) == {
        "pull_runs": 4, "pull_collapsed": 2, "pull_announced": 1, "pull_lead": 18.0, "pull_false": 1,
    }  # fmt: skip
    assert lead_row([32], [loud])["pull_announced"] == 0, "a crossing at the collapse announces nothing"


@pytest.mark.parametrize("change", [{}, {"aggregation": "seq-mean-token-mean"}, {"feature_rate": 0.01}])
def test_pull_is_the_probes_column_times_the_flow_time_of_an_update(change: dict[str, Any]) -> None:
    config = RunConfig().replace(**SMALL, updates=16, **change)
    record, probe = pull_record(config, until=15), probe_run(config, every=2)
    assert np.flatnonzero(np.isfinite(record["pull"])).tolist() == [10, 12, 14]
    wanted = 25.0 * 4 * probe["gwhes_batch_negative"]
    np.testing.assert_allclose(record["pull"][10::2], wanted[10:15:2], rtol=1e-12)


def test_leads_are_cached_and_unknown_under_adam(tmp_path: Path) -> None:
    config = RunConfig().replace(**SMALL, updates=14)
    settings = [Setting({}, config), Setting({}, config.replace(optimizer="adam", learning_rate=0.01))]
    first = lead_rows(settings, seeds=(0, 1), cache_dir=tmp_path)
    stamps = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("record.csv")}
    again = lead_rows(settings, seeds=(0, 1), cache_dir=tmp_path)
    assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("record.csv")} == stamps
    np.testing.assert_equal(again, first)
    assert [row["pull_runs"] for row in first] == [2, 0]


def test_strongest_are_factors_whose_null_collapses_least() -> None:
    def row(name: str, rate: float, kept: float, setting: str = "null") -> dict[str, Any]:
        return {"name": name, "setting": setting, "rate": rate, "kept_share": kept}

    rows = [
        row("staleness", 0.5, 0.5), row("similarity", 0.0, 0.9), row("sharpness", 0.0, 0.99), row("kl", 0.0, 1.0),
        row("longer_wrong", 0.0, 0.1, setting="on"), row("ood_feedback", 0.9, 0.0),
    ]  # fmt: skip
    assert strongest(rows, 2) == ["sharpness", "similarity"]
    assert all(dial(name).factor for name in strongest(rows, 4))


def test_tuning_picks_the_best_score_of_each_arm() -> None:
    arms = [arm("kl")]
    rows = [{"arm": "kl", "score": s, "lowest": low} for s, low in [(1, 0), (3, 1), (2, 5), (3, 2), (0, 0), (0, 9)]]
    assert best_settings(arms, rows) == {"kl": arms[0].grid()[3]}
    assert not set(TUNING_SEEDS) & set(range(1000))
    assert not set(CALIBRATION_SEEDS) & (set(range(1000)) | set(TUNING_SEEDS))


def test_cures_run_both_settings_and_reuse_the_cache(tmp_path: Path) -> None:
    arms = [arm("llds_action"), arm("dr_grpo")]
    common: dict[str, Any] = {"updates": 12, "cache_dir": tmp_path}
    tuned = tune(arms, seeds=(7,), **common)
    assert len(tuned) == 12
    rows = cure_rows(tuned, arms, seeds=(0, 1), **common)
    assert [(row["name"], row["setting"]) for row in rows] == [
        ("llds_action", "published"), ("llds_action", "tuned"), ("dr_grpo", "published"), ("dr_grpo", "tuned"),
    ]  # fmt: skip
    stamps = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("record.csv")}
    np.testing.assert_equal(cure_rows(tuned, arms, seeds=(0, 1), **common), rows)
    assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("record.csv")} == stamps


def test_table_pairs_seeds_and_does_not_depend_on_company(tmp_path: Path) -> None:
    config = RunConfig().replace(**SMALL, updates=12)
    one, two = Setting({"name": "a"}, config), Setting({"name": "b"}, config.replace(llds_coef=0.5))
    together = table([one, two], seeds=range(2), cache_dir=None)
    alone = table([two], seeds=range(2), cache_dir=None)
    np.testing.assert_equal(alone[0], together[1])
    assert together[0]["start_reward"] != pytest.approx(0.0)


def test_csv_cells(tmp_path: Path) -> None:
    write_csv(tmp_path / "x" / "t.csv", [{"a": None, "b": float("nan"), "c": 1 / 3, "d": "kept, here"}])
    with (tmp_path / "x" / "t.csv").open() as file:
        assert list(csv.DictReader(file)) == [{"a": "", "b": "", "c": "0.3333333333", "d": "kept, here"}]


def test_command_writes_the_table_and_refuses_unknown_parts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    small = [Setting({"name": "x", "setting": "default"}, RunConfig().replace(**SMALL, updates=12))]
    monkeypatch.setattr("lldsim.causal.command.causal_settings", lambda: small)
    monkeypatch.setattr("lldsim.causal.command.failure_settings", lambda: [])
    given = ["causal", "--parts", "causal", "--seeds", "2", "--out", str(tmp_path), "--cache", str(tmp_path / "c")]
    given += ["--lead-seeds", "1"]
    assert main(given) == 0
    with (tmp_path / "causal_table.csv").open() as file:
        (row,) = csv.DictReader(file)
    assert (row["name"], row["runs"], row["collapsed"]) == ("x", "2", "0")
    assert (row["pull_runs"], row["pull_collapsed"], row["pull_lead"]) == ("1", "0", "")
    assert "2 runs, about" in capsys.readouterr().out
    assert main(["causal", "--parts", "cure", "--out", str(tmp_path)]) == 2
    assert "did you mean 'cures'" in capsys.readouterr().err


def test_picture_has_every_row_and_its_interval() -> None:
    import matplotlib.pyplot as plt

    from lldsim.plots.causal import draw_cures, draw_factorial, draw_rates

    numbers = {"rate": 0.5, "rate_low": 0.3, "rate_high": 0.7, "median_step": None, "final_reward": 0.25}
    rows = [
        {
            "name": "spiral",
            "setting": "default",
            "family": "reference",
            "base": "spiral",
            **numbers,
            "median_step": 92.0,
            "pull_lead": 14.0,
        },
        {"name": "top_p", "setting": "on", "family": "sampler", "base": "twin", **numbers},
        {"name": "kl", "setting": "null", "family": "trainer", "base": "spiral", **numbers},
    ]
    fig, axes = plt.subplots(1, 3)
    draw_rates(axes[0], rows)
    assert [t.get_text() for t in axes[0].get_yticklabels()] == ["spiral", "with top p (on twin)", "without kl"]
    assert {"92", "14", "0.25"} <= {t.get_text() for t in axes[0].texts}
    intervals = [line.get_xdata() for line in axes[0].lines if len(line.get_xdata()) == 2]
    assert [list(x) for x in intervals] == [[0.3, 0.7]] * 3
    draw_cures(axes[1], [{"name": "nthr", "setting": kind, **numbers} for kind in ("published", "tuned")])
    filled = [line.get_markerfacecolor() != "white" for line in axes[1].lines if line.get_marker() == "o"]
    assert filled == [True, False]
    draw_factorial(axes[2], [{"a": 0, "b": 1, **numbers}, {"a": 1, "b": 1, **numbers}], ["a", "b"])
    dots = [line for line in axes[2].lines if line.get_marker() == "o" and line.get_xdata()[0] < 0]
    assert [dot.get_markerfacecolor() != "none" for dot in dots] == [False, True, True, True]
    plt.close(fig)
