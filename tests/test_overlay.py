"""Measured records over simulated panels.

Locked here: where no record is found nothing changes; simulated records are passed over; a measured one is drawn with
its own values on its own zero, named and labelled; an axis grows and never cuts; a changed record is a new cache key.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from matplotlib.figure import Figure

from lldsim.errors import MissingDataError
from lldsim.figures import FigureSpec, cache_key
from lldsim.plots import overlay
from lldsim.record import RunRecord, find_records, make_record


def measured(*, fall: int | None, updates: int = 40) -> RunRecord:
    reward = np.full(updates, 0.4)
    if fall is not None:
        reward[fall:] = 0.0
    columns = {
        "update": np.arange(updates, dtype=float),
        "reward": reward,
        "entropy": np.linspace(1.0, 9.0, updates),
        "logp_correct_action1": np.full(updates, -0.25),
        "logp_correct_action2": np.full(updates, -0.75),
        "first_search_wrong": np.full(updates, np.nan),
    }
    return replace(make_record(columns, {"seed": 0}, "abc"), label="measured")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    measured(fall=30).save(tmp_path / "grpo" / "record")
    measured(fall=None).save(tmp_path / "llds")
    replace(measured(fall=None), label="simulated").save(tmp_path / "toy")
    return tmp_path


def test_only_measured_records_are_found_and_named_by_their_folder(folder: Path) -> None:
    assert list(find_records(folder)) == ["grpo", "llds"]
    assert find_records(folder / "absent") == {}
    (folder / "llds" / "record.csv").write_text("update,reward\n1,")
    with pytest.raises(MissingDataError, match="cut short"):
        find_records(folder)


def test_no_record_leaves_the_figure_as_it_is() -> None:
    fig = Figure()
    ax = fig.subplots()
    ax.plot([0, 1], [0, 1])
    before = (ax.get_xlim(), ax.get_ylim(), len(ax.lines))
    overlay.overlay(ax, {}, {"entropy": "-"}, aligned=True)
    overlay.overlay_actions(ax, {}, window=(20, 5))
    overlay.legend(fig, ax)
    assert (ax.get_xlim(), ax.get_ylim(), len(ax.lines)) == before
    assert fig.legends == []
    assert (overlay.caption({}), overlay.label({})) == ("", "simulated")


def test_a_measured_run_is_drawn_on_its_own_zero_and_named(folder: Path) -> None:
    records = find_records(folder)
    fig = Figure()
    ax = fig.subplots()
    ax.set(xlim=(-60, 20), ylim=(0, 2))
    overlay.overlay(ax, records, {"entropy": "-"}, aligned=True)
    grpo, llds = ax.lines
    zero = int(np.asarray(grpo.get_xdata()).tolist().index(0.0))
    assert np.asarray(records["grpo"]["update"])[zero] in range(25, 35)  # the smoothed reward falls around update 30
    assert np.asarray(llds.get_xdata())[-1] == 0
    assert [line.get_label() for line in ax.lines] == ["measured: grpo", "measured: llds, 0 = its end"]
    assert np.asarray(grpo.get_ydata())[10] == pytest.approx(records["grpo"]["entropy"][10])
    assert ax.get_ylim()[1] > 8.5
    overlay.legend(fig, ax)
    assert [text.get_text() for text in fig.legends[0].get_texts()] == [line.get_label() for line in ax.lines]
    assert "grpo (configuration abc)" in overlay.caption(records)
    assert overlay.label(records) == "simulated+measured"


def test_missing_columns_are_left_out_and_a_plain_axis_grows(folder: Path) -> None:
    records = {"grpo": find_records(folder)["grpo"]}
    ax = Figure().subplots()
    ax.set(xlim=(0, 10))
    overlay.overlay(ax, records, {"first_search_wrong": "-", "no_such": "-"}, aligned=False)
    assert len(ax.lines) == 0
    overlay.overlay(ax, records, {"reward": "-"}, aligned=False)
    assert ax.get_xlim()[1] == 39
    overlay.overlay_actions(ax, records, window=(20, 5))
    assert np.allclose(np.asarray(ax.lines[-1].get_ydata()), [0.25, 0.75])


def test_a_new_record_is_a_new_cache_key(tmp_path: Path) -> None:
    spec = FigureSpec("fig90_x", tmp_path / "notebooks" / "figures" / "fig90_x.ipynb", {}, {}, ())
    parameters = {"FAST": False, "RECORDS": "records"}
    before = cache_key(spec, parameters)
    measured(fall=None).save(tmp_path / "records" / "a")
    assert cache_key(spec, parameters) != before
    assert cache_key(spec, {"FAST": False}) == cache_key(spec, {"FAST": False})
