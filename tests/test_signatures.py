"""The table of signatures: rules, measurements, worlds, picture.

Locked here: a verdict is a comparison with two bounds, inclusive, in either direction, and an unmeasured number lacks;
each measurement reads what its words say from records made by hand; a curve without the signature gets another verdict;
the worlds' arms are paired and differ in LLDS alone; entropy lasts in the strict world because its groups tie while it
is high; every cell of the picture carries its verdict and number; the committed table follows from the committed
numbers by the rules of today.
"""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lldsim.config import preset
from lldsim.diagnostics.collapse import collapse_step
from lldsim.diagnostics.signatures import SIGNATURES, Signature, WorldRuns, signature_rows
from lldsim.engine import simulate
from lldsim.errors import ConfigError
from lldsim.record import RunRecord
from lldsim.signatures import WORLDS, level_counts, run_world, world, world_arms

FALL, UPDATES = 80, 150
U = np.arange(UPDATES)


def record(**columns: np.ndarray) -> RunRecord:
    """A run that falls at 80: reward rises to 40, likelihood decays from 40 and plunges at 70, entropy surges, dies."""
    table = {
        "reward": np.where(U < FALL, 0.5 + np.minimum(U, 40) / 100, 0.0),
        "logp_correct": np.where(U < 40, -0.2, np.where(U < 70, -0.4, -2.0)),
        "logp_wrong": np.where(U < 40, -0.22, np.where(U < 70, -0.8, -4.0)),
        "logp_wrong_action1": np.full(UPDATES, -1.0),
        "logp_wrong_action2": np.full(UPDATES, -3.0),
        "first_search_wrong": np.where(U < 60, 0.2, 0.6),
        "entropy": np.where(U < 50, 1.0, np.where(U < FALL, 3.0, 0.1)),
        "grad_norm": np.where((U >= 70) & (U < FALL), 20.0, 1.0),
        "response_length": np.where(U < FALL, 40.0, 120.0),
        "valid_searches": np.where(U < FALL, 1.0, 0.0),
    } | columns
    return RunRecord(table, {}, "", {})


def healthy() -> RunRecord:
    flat = np.ones(UPDATES)
    return record(reward=0.9 * flat, logp_correct=-0.2 * flat, entropy=flat, grad_norm=flat, valid_searches=flat)


def values(runs: WorldRuns) -> dict[str, float]:
    return {s.name: s.measure(runs) for s in SIGNATURES}


def levels(runs: WorldRuns) -> dict[str, str]:
    return {str(row["signature"]): str(row["level"]) for row in signature_rows("x", runs)}


def runs(grpo: RunRecord, **others: Any) -> WorldRuns:
    arms: dict[str, Any] = {name: [healthy()] for name in ("small", "llds", "llds_ma")} | others
    return WorldRuns(grpo=[grpo], **arms)


def test_a_verdict_compares_with_two_bounds_in_either_direction() -> None:
    high = Signature("a", "1", "", "", 2.0, 1.0, lambda _: 0.0)
    assert [high.level(x) for x in (2.0, 1.99, 1.0, 0.99, float("nan"))] == [
        "has",
        "partly",
        "partly",
        "lacks",
        "lacks",
    ]
    low = Signature("a", "1", "", "", 1.0, 2.0, lambda _: 0.0)
    assert [low.level(x) for x in (1.0, 1.01, 2.0, 2.01, float("nan"))] == ["has", "partly", "partly", "lacks", "lacks"]
    assert len({s.name for s in SIGNATURES}) == len(SIGNATURES)
    assert all(s.has != s.partly for s in SIGNATURES)


def test_measurements_read_what_their_words_say() -> None:
    probed = record(similarity=np.where(U < 60, 0.2, 0.3))
    later = record(reward=np.where(U < 100, 0.9, 0.0))
    found = values(runs(record(), small=[later], probed=[probed], eq3=np.array([-1.0, -0.3, -0.1, np.nan])))
    assert found["GRPO collapses"] == 1.0
    assert found["I: reward up, likelihood flat"] == pytest.approx(0.38, abs=0.03)
    assert found["II: likelihood falls, reward holds"] == pytest.approx(0.5, abs=0.08)
    assert found["II: gradient norm flat"] == pytest.approx(1.0)
    assert found["III: gradient norm explodes"] == pytest.approx(20.0)
    assert found["III: reward to 0 for good"] == 0.0
    assert found["queries displaced before the fall"] == pytest.approx(2 / 3)
    assert found["right-wrong similarity rises"] == pytest.approx(1.5)
    assert found["entropy rises slowly first"] == pytest.approx(3.0)
    assert found["entropy surges"] == pytest.approx(3.0)
    assert found["entropy stays high"] == pytest.approx(0.1)
    assert found["length, searches flat before"] == pytest.approx(0.0)
    assert found["length, searches flat after"] == pytest.approx(2.0)
    assert found["wrong begin ever more rightly"] == pytest.approx(0.4)
    assert found["first action below the second"] == pytest.approx(2.0)
    assert found["lambda .01 delays"] == 1.0
    assert found["LLDS prevents"] == 0.0
    assert found["wrong become less likely"] == pytest.approx(0.02 / 2.0)
    assert found["GRPO stays at one search"] == pytest.approx(1.0)
    assert found["LLDS-MA searches more than LLDS"] == pytest.approx(0.0)


def test_a_curve_without_the_signature_gets_another_verdict() -> None:
    base = runs(record())
    assert levels(base)["entropy stays high"] == "lacks"
    changed = {
        "entropy stays high": runs(record(entropy=np.where(U < 50, 1.0, 3.0))),
        "III: gradient norm explodes": runs(record(grad_norm=np.ones(UPDATES))),
        "III: reward to 0 for good": runs(record(reward=np.where((U < FALL) | (U > 120), 0.9, 0.0))),
        "first action below the second": runs(record(logp_wrong_action1=np.full(UPDATES, -3.5))),
        "GRPO stays at one search": runs(record(valid_searches=np.where(U < FALL, 1.8, 0.0))),
        "LLDS prevents": runs(record(), llds=[record()]),
        "lambda .01 delays": runs(record(), small=[record(reward=np.where(U < 60, 0.9, 0.0))]),
        "wrong become less likely": runs(record(logp_wrong=record()["logp_correct"] - 0.5)),
        "LLDS-MA searches more than LLDS": runs(record(), llds_ma=[record(valid_searches=np.full(UPDATES, 2.3))]),
    }
    for name, other in changed.items():
        assert levels(other)[name] != levels(base)[name], name


def test_the_end_of_a_run_that_has_just_fallen_is_not_its_end() -> None:
    late = record(reward=np.where(U < 135, 0.9, 0.0), entropy=np.where(U < 100, 1.0, 3.0))
    assert np.isnan(values(runs(late))["entropy stays high"])
    assert levels(runs(late))["entropy stays high"] == "lacks"


def test_a_world_without_collapse_lacks_what_needs_one() -> None:
    found = levels(runs(healthy()))
    assert found["GRPO collapses"] == found["III: gradient norm explodes"] == found["entropy surges"] == "lacks"
    counts = level_counts(signature_rows("x", runs(healthy())))
    assert sum(counts["x"].values()) == len(SIGNATURES)


def test_worlds_are_spiral_with_other_dials_and_their_arms_are_paired() -> None:
    assert world("spiral").config() == preset("spiral")
    for chosen in WORLDS:
        arms = world_arms(chosen, [3, 4])
        assert [c.trainer.seed for c in arms["llds"]] == [3, 4]
        for grpo, small, llds, ma in zip(*arms.values(), strict=True):
            assert small == grpo.replace(llds_coef=0.01)
            assert llds == grpo.replace(llds_coef=chosen.llds_coef)
            assert ma == llds.replace(answer_weight_rule="paper")
    with pytest.raises(ConfigError, match="did you mean 'strict'"):
        world("strickt")


def test_a_run_world_is_probed_before_its_collapses(tmp_path: Path) -> None:
    arms, found = run_world(world("spiral"), [1], probe_seeds=1, every=40, updates=110, cache_dir=tmp_path)
    assert found.grpo == arms["grpo"]
    for name in arms["grpo"][0].columns:
        np.testing.assert_array_equal(found.probed[0][name], arms["grpo"][0][name], err_msg=name)
    assert np.isfinite(found.probed[0]["similarity"]).sum() > 0
    assert collapse_step(arms["grpo"][0]["reward"]) is not None
    assert np.isfinite(found.eq3).any()


def test_entropy_lasts_where_groups_tie_while_it_is_high() -> None:
    for name, lasts in (("strict", True), ("spiral", False)):
        found = simulate(world(name).config(updates=125))
        assert collapse_step(found["reward"]) is not None
        assert found["tied_groups"][-10:].mean() > 0.98, name
        assert bool(found["entropy"][-10:].mean() > 3 * found["entropy"][2:10].mean()) == lasts, name


def test_picture_has_a_cell_per_world_and_signature() -> None:
    from lldsim.plots.signature_table import SIGNS, signature_figure

    rows = signature_rows("one", runs(record())) + signature_rows("two", runs(healthy()))
    fig = signature_figure(rows, {"one": "a world", "two": "another"})
    texts = [text.get_text() for text in fig.axes[0].texts]
    for level, sign in SIGNS.items():
        assert texts.count(sign) == sum(row["level"] == level for row in rows)
    assert texts.count("-") == sum(not np.isfinite(float(str(row["value"]))) for row in rows)
    assert "● 0" not in "".join(texts)


def test_committed_table_follows_from_its_numbers(repo_root: Path) -> None:
    folder = repo_root / "paper_figures"
    with (folder / "data" / "figc2_signatures.csv").open() as file:
        rows = list(csv.DictReader(file))
    by_name = {s.name: s for s in SIGNATURES}
    assert len(rows) == len(SIGNATURES) * len(WORLDS)
    for row in rows:
        rule = by_name[row["signature"]]
        assert (float(row["has"]), float(row["partly"])) == (rule.has, rule.partly), row["signature"]
        assert row["level"] == rule.level(float(row["value"] or "nan")), row
    numbers = json.loads((folder / "numbers" / "figc2_signatures.json").read_text())
    assert numbers["counts"] == level_counts([{"world": r["world"], "level": r["level"]} for r in rows])
    assert numbers["label"] == "simulated"
