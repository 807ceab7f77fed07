"""The experiments and pictures behind figures 3 to 6 and 9a.

Locked here: queries are probed at the same updates in every arm, seeds without a collapse left out; the conditions of
Def. A.3 are counted over looks up to the collapse; aligned values are those at the collapse minus the lead; every
figure draws what its arms hold, without a warning, and cuts GRPO at its collapse.
"""

from __future__ import annotations

import numpy as np
import pytest

from lldsim.config import preset
from lldsim.mechanism import aligned_values, band, change_numbers, changes_before, conditions_of, spiral_table
from lldsim.plots import mechanism_figures as figures
from lldsim.plots.prediction_figure import prediction_figure
from lldsim.prediction_grid import FORMS, score_numbers
from lldsim.probe import PROBE_COLUMNS
from lldsim.record import COLUMNS, RunRecord, make_record


def made_up(*, collapse: int | None, updates: int = 60, every: int = 2, seed: int = 0) -> RunRecord:
    """A record whose reward drops from 1 to 0 at `collapse`, with a spiral in the 20 updates before it."""
    rng = np.random.default_rng(seed)
    n = np.arange(updates)
    columns: dict[str, np.ndarray] = {name: rng.uniform(0.1, 0.2, updates) for name in (*COLUMNS, *PROBE_COLUMNS)}
    columns["update"] = n.astype(float)
    columns["reward"] = np.where(n >= (collapse or updates), 0.0, 1.0)
    columns["similarity"] = np.full(updates, 0.25)
    columns["change_wrong"] = np.full(updates, -0.5)
    fall = np.clip(n - ((collapse or 10**6) - 20), 0, None)
    columns["change_correct"] = 0.1 - 0.3 * fall
    for name in PROBE_COLUMNS:
        columns[name] = np.where(n % every == 0, columns[name], np.nan)
    return make_record(columns, {"seed": seed}, "0" * 12)


@pytest.fixture(scope="module")
def arms() -> dict[str, list[RunRecord]]:
    """Three arms of four made-up records; three GRPO runs collapse."""
    grpo = [made_up(collapse=c, seed=i) for i, c in enumerate((40, 45, 50, None))]
    return {"grpo": grpo} | {name: [made_up(collapse=None, seed=i) for i in range(4)] for name in ("llds", "null")}


def test_queries_are_probed_at_the_same_updates_and_censored_seeds_left_out() -> None:
    small = preset("spiral").replace(n_queries=4, updates=6, updates_per_rollout=4, max_turns=3)
    configs = {"grpo": [small, small.replace(seed=1)], "null": [preset("null").replace(**_SMALL)] * 2}
    changes = changes_before(configs, [5, None], before=[3, 1], batches=2)
    assert [len(x) for values in changes.values() for x in values] == [8, 8, 8, 8]
    rows = change_numbers(changes, [3, 1])
    assert [(r["arm"], r["updates_before_collapse"]) for r in rows] == [
        ("grpo", 3), ("grpo", 1), ("null", 3), ("null", 1)
    ]  # fmt: skip
    assert all(0 < r["queries"] <= 8 and 0 <= r["displaced_sized"] <= r["displaced_bare"] <= 1 for r in rows)
    nothing = change_numbers(changes_before({"grpo": [small]}, [None], before=[3]), [3])
    assert (nothing[0]["queries"], nothing[0]["mean_change"]) == (0, None)


_SMALL = {"n_queries": 4, "updates": 6, "updates_per_rollout": 4, "max_turns": 3}


def test_conditions_count_looks_up_to_the_collapse(arms: dict[str, list[RunRecord]]) -> None:
    found = conditions_of(arms["grpo"][0])
    assert found.similar == found.wrong_not_rising == 0
    assert found.falling is not None
    assert 16 <= found.falling <= 26
    table = spiral_table(arms)
    assert table["grpo"]["spiral"]["runs"] == 3
    assert table["grpo"]["falling"]["median_updates"] == pytest.approx(20, abs=5)
    assert table["llds"]["falling"]["runs"] == table["null"]["spiral"]["runs"] == 0


def test_aligned_values_are_read_before_the_collapse(arms: dict[str, list[RunRecord]]) -> None:
    values = aligned_values(arms["grpo"], "update", 10)
    assert values.tolist() == [30.0, 35.0, 40.0]
    found = band(values)
    assert (found["median"], found["n"]) == (35.0, 3)
    assert 30 <= found["low"] <= found["high"] <= 40
    assert band(np.array([np.nan]))["n"] == 0


def test_figures_draw_their_arms(arms: dict[str, list[RunRecord]]) -> None:
    drawn = [figures.signatures(arms), figures.actions(arms), figures.right_wrong(arms)]
    drawn.append(figures.tool_rounds(arms, window=(20, 5)))
    change = np.array([0.5, -1.0, np.nan])
    drawn.append(figures.displacement({name: [change, np.array([])] for name in arms}, ["a", "b"], arms))
    for fig in drawn:
        fig.draw_without_rendering()
    displaced = drawn[-1].axes[6]
    grpo = next(line for line in displaced.get_lines() if line.get_label() == "GRPO")
    x, y = (np.asarray(data, dtype=float) for data in grpo.get_data())
    assert np.isfinite(y[x < 40]).all()
    assert np.isnan(y[x >= 50]).all(), "after the collapse there is nothing to compare"


def test_prediction_figure_shows_the_scores() -> None:
    row = {"temperature": 0.7, "learning_rate": 25.0, "staleness": 8, "share_measured": 1.0, "step_measured": 60.0}
    forms = FORMS
    rows = [row | {f"{what}_{form}": value for form in forms for what, value in (("share", 1.0), ("step", 90.0))}]
    rows.append(rows[0] | {"staleness": 0, "share_measured": 0.0, "step_measured": None})
    scores = {form: score_numbers(rows, form) for form in forms}
    fig = prediction_figure(rows, scores)
    fig.draw_without_rendering()
    heights = [bar.get_height() for bar in fig.axes[0].patches]  # type: ignore[attr-defined]
    assert heights == [0.5] * 4
