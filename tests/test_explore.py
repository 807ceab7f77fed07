"""Locks the explorer without a browser: widget values in, picture, words and record out.

- dials: the default is `spiral`, three presets are the package's own configurations, every offered value is valid
- app: a move runs once and replaces picture, words and download; a preset moves many dials and runs once; a dial that
  comes back is answered from memory; a refused value is shown as text and the last picture stays
- words: every number in them is the diagnostics' own; the comparison names the right direction
- static twin: one column per value; bad dials and values are errors before anything runs
- speed is printed, not asserted
"""

from __future__ import annotations

import base64
import re
import sys
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from ipywidgets.widgets.widget import Widget

from lldsim.config import matched_twin, preset
from lldsim.diagnostics.collapse import collapse_step
from lldsim.diagnostics.phases import falls_while_reward_holds, find_phases
from lldsim.engine import simulate
from lldsim.errors import ConfigError, MissingDataError
from lldsim.explore import DIALS, Settings, explore, figure, small_multiples, what_happened
from lldsim.explore import app as app_module
from lldsim.explore.settings import preset_settings
from lldsim.explore.story import what_changed
from lldsim.probe import probe_run, pull_run
from lldsim.record import RunRecord, load, make_record


@pytest.fixture(autouse=True)
def closed_widgets() -> Iterator[None]:
    yield
    Widget.close_all()


@pytest.fixture
def runs(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Configurations that the explorer simulated, in order."""
    seen: list[Any] = []

    def counted(config: Any) -> RunRecord:
        seen.append(config)
        return pull_run(config)

    monkeypatch.setattr(app_module, "pull_run", counted)
    return seen


def falling_record(level: float, *, fall: int | None, updates: int = 60) -> RunRecord:
    """A record whose right responses lose likelihood from update 20 on and whose reward is gone at `fall`."""
    u = np.arange(updates, dtype=float)
    reward = np.full(updates, level)
    if fall is not None:
        reward[fall:] = 0.0
    columns = {
        "update": u,
        "reward": reward,
        "logp_correct": np.where(u < 20, -0.1, -0.1 - 0.05 * (u - 19)),
        "logp_wrong": np.full(updates, -0.5),
        "entropy": np.ones(updates),
        "grad_norm": np.ones(updates),
    }
    return make_record(columns, {"seed": 0}, f"{level}{fall}")


# --- dials ---------------------------------------------------------------------------------------------------------


def test_presets_are_the_configurations_of_the_package() -> None:
    def config(name: str) -> Any:
        return preset_settings(name, keep=Settings()).config()

    spiral = preset("spiral")
    assert Settings().config() == spiral
    assert config("cured") == spiral.replace(llds_coef=0.2)
    assert config("similarity 0") == preset("null")
    assert config("on-policy") == matched_twin(spiral.replace(staleness=0))
    assert config("too little LLDS").objective.llds_coef == 0.01


@pytest.mark.parametrize("name", DIALS)
def test_every_offered_value_is_valid_and_does_something(name: str) -> None:
    default = getattr(Settings(), name)
    assert default in DIALS[name].values
    settings = Settings(llds_coef=0.0 if name == "updates_per_rollout" else 0.1)
    configs = {settings.replace(**{name: value}).config() for value in DIALS[name].values}
    assert len(configs) == len(DIALS[name].values)


def test_total_step_and_first_rollouts_stay_when_their_dials_move() -> None:
    spiral, often = preset("spiral"), Settings(updates_per_rollout=20).config()
    assert often.trainer.learning_rate * 20 == spiral.trainer.learning_rate * 10
    warm = Settings(temperature=0.9).config()
    assert warm.world.base_power / 0.9 == pytest.approx(1 / 0.7)
    first = [simulate(config.replace(updates=1))["reward"][0] for config in (spiral, warm)]
    assert first[0] == first[1]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"similarity": -0.1}, r"similarity=-0\.1"),
        ({"similarity": 7.0}, r"must lie in \[0, 1\]"),
        ({"temperature": 0.0}, r"temperature=0\.0"),
        ({"temperature": float("nan")}, "temperature=nan"),
        ({"rate": "fast"}, "rate='fast'"),
        ({"updates_per_rollout": 3}, "does not divide"),
        ({"updates_per_rollout": 1, "llds_coef": 0.2}, "gate can never open"),
        ({"gate": "sentence"}, "gate='sentence'"),
        ({"seed": -1}, "seed=-1"),
    ],
)
def test_bad_values_are_typed_errors(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Settings().replace(**changes).config()


def test_unknown_names_are_typed_errors() -> None:
    with pytest.raises(ConfigError, match=r"unknown dial 'lamda'.*dials are"):
        explore(lamda=0.1)
    with pytest.raises(ConfigError, match=r"unknown preset 'spirall' \(did you mean 'spiral'"):
        preset_settings("spirall", keep=Settings())


# --- app -----------------------------------------------------------------------------------------------------------


def test_a_move_replaces_picture_words_and_download(runs: list[Any], tmp_path: Any) -> None:
    shown = explore(updates=30)
    before = bytes(shown.image.value)
    assert before.startswith(b"\x89PNG")
    shown.dials["llds_coef"].value = 0.2
    assert [config.objective.llds_coef for config in runs] == [0.0, 0.2]
    assert bytes(shown.image.value) != before
    record = simulate(runs[1])
    assert shown.record is not None
    assert all(np.array_equal(shown.record[name], record[name], equal_nan=True) for name in record.columns)
    assert what_happened(shown.record, pull_run(runs[0])) == shown.words
    assert shown.preset.value == app_module.OWN
    for name in ("record.csv", "record.json"):
        (data,) = re.findall(rf'base64,([^"]+)">{name}', shown.download.value)
        (tmp_path / name).write_bytes(base64.b64decode(data))
    assert load(tmp_path).config_hash == runs[1].config_hash()


def test_a_preset_runs_once_and_a_known_setting_not_at_all(runs: list[Any]) -> None:
    shown = explore(updates=20, seed=1)
    shown.preset.value = "on-policy"
    assert runs[1:] == [matched_twin(preset("spiral").replace(staleness=0, updates=20, seed=1))]
    assert shown.preset.value == "on-policy"
    shown.preset.value = "spiral"
    assert len(runs) == 2
    assert shown.settings == Settings(updates=20, seed=1)


def test_a_refused_value_is_text_and_the_last_picture_stays(runs: list[Any]) -> None:
    shown = explore(updates=20, llds_coef=0.2)
    picture, record = bytes(shown.image.value), shown.record
    shown.dials["updates_per_rollout"].value = 1
    assert "gate can never open" in shown.status.value
    assert "that of the last run" in shown.status.value
    assert bytes(shown.image.value) == picture
    assert shown.record is record
    shown.dials["llds_coef"].value = 0.0
    assert "gate can never open" not in shown.status.value
    assert len(runs) == 2


def test_errors_are_escaped_and_unforeseen_ones_are_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(config: Any) -> RunRecord:
        raise RuntimeError("<b>disk</b>")

    shown = explore(updates=20)
    monkeypatch.setattr(app_module, "pull_run", broken)
    shown.dials["seed"].value = 5
    assert "RuntimeError: &lt;b&gt;disk&lt;/b&gt;" in shown.status.value
    shown.dials["seed"].value = -5
    assert "seed=-5: must lie in" in shown.status.value


def test_without_widgets_the_error_names_the_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "lldsim.explore.app")
    monkeypatch.setitem(sys.modules, "ipywidgets", None)
    with pytest.raises(MissingDataError, match=r"ipywidgets is not installed; .*notebooks"):
        explore()


def test_speed_of_a_move_is_recorded(capsys: pytest.CaptureFixture[str]) -> None:
    shown = explore()
    start, seconds = time.process_time(), []
    for seed in (1, 2):
        shown.dials["seed"].value = seed
        seconds.append(shown.seconds)
    cpu = (time.process_time() - start) / 2
    with capsys.disabled():
        print(f"\nexplorer: a move of 150 updates takes {cpu:.2f} s of one core, {min(seconds):.2f} s on this clock")
    assert min(seconds) > 0


# --- words ---------------------------------------------------------------------------------------------------------


def test_words_are_the_diagnostics() -> None:
    record = simulate(preset("spiral"))
    words = what_happened(record)
    assert f"Collapsed at update {collapse_step(record['reward'])}." in words
    assert f"falls from update {find_phases(record).decay} on, {falls_while_reward_holds(record)} updates" in words
    healthy = what_happened(simulate(preset("spiral").replace(llds_coef=0.2, updates=40)))
    assert healthy.startswith("No collapse in 40 updates")


def test_words_count_the_looks_with_g_above_0() -> None:
    config = preset("spiral").replace(updates=40)
    quick, full = pull_run(config), probe_run(config, every=15)
    for name in ("gwhes_batch", "gwhes_batch_negative", "reward"):
        assert np.array_equal(quick[name], full[name], equal_nan=True)
    count = sum(x > 0 for x in full["gwhes_batch"][[0, 15, 30]])
    assert f"(G > 0) in {count} of 3 looks." in what_happened(quick)
    assert "G > 0" not in what_happened(simulate(config))
    with pytest.raises(ConfigError, match="every=0"):
        pull_run(config, every=0)


@pytest.mark.parametrize(
    ("before", "after", "words"),
    [
        (None, 40, "The run before did not collapse."),
        (40, None, "The run before collapsed at update 40."),
        (30, 45, "That is 15 updates later than before."),
        (45, 30, "That is 15 updates earlier than before."),
        (None, None, "The run before did not collapse either; reward at the end is +0.10 different."),
    ],
)
def test_words_compare_with_the_run_before(before: int | None, after: int | None, words: str) -> None:
    old, new = falling_record(0.8, fall=before), falling_record(0.9, fall=after)
    assert what_happened(new, old).endswith(words)
    assert what_happened(new, new) == what_happened(new)


def test_what_changed_names_the_dials() -> None:
    assert what_changed(Settings(llds_coef=0.2), Settings()) == "LLDS λ 0.0 → 0.2"
    assert what_changed(Settings(), Settings()) == ""


# --- pictures ------------------------------------------------------------------------------------------------------


def test_figure_draws_the_record_and_its_phases() -> None:
    record = falling_record(0.8, fall=40)
    axes = figure(record, previous=falling_record(0.5, fall=None)).axes
    assert len(axes) == 6  # the last holds the legend
    drawn = [line.get_ydata() for line in axes[0].lines]
    assert any(np.array_equal(y, record["reward"]) for y in drawn)
    assert len(drawn) == 3  # the run before, the raw curve, the smooth one
    assert len(axes[0].patches) == len(find_phases(record).spans()) > 1


def test_figure_draws_g_where_it_was_looked_at() -> None:
    record = pull_run(preset("spiral").replace(updates=31))
    drawn = [np.asarray(line.get_ydata()) for line in figure(record, previous=record).axes[2].lines]
    at = [0, 15, 30]
    total, wrong = record["gwhes_batch"][at], record["gwhes_batch_negative"][at]
    for values in (total, wrong, wrong - total):
        assert any(np.array_equal(y, values) for y in drawn)
    assert all(len(np.unique(line.get_ydata())) <= 1 for line in figure(falling_record(0.8, fall=40)).axes[2].lines)


def test_small_multiples_have_a_column_per_value() -> None:
    fig, records = small_multiples("llds_coef", [0.0, 0.2], settings=Settings(updates=20))
    assert [record.config["llds_coef"] for record in records] == [0.0, 0.2]
    assert len(fig.axes) == 4
    assert [ax.get_title(loc="left") for ax in fig.axes[:2]] == ["LLDS λ 0.0", "0.2"]


@pytest.mark.parametrize(
    ("dial", "values", "message"),
    [("lamda", None, "unknown dial"), ("similarity", [], "at least one value"), ("similarity", [0.5, 9.0], "must lie")],
)
def test_small_multiples_refuse_before_running(
    dial: str, values: list[float] | None, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lldsim.engine.simulate", lambda _: pytest.fail("ran"))
    with pytest.raises(ConfigError, match=message):
        small_multiples(dial, values)
