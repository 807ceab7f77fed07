"""The probe on the network.

Locked here: the full first-order change is what a small step measures; parts add up; a probed run is bit for bit the
run that was not probed; a moment without a graded group is missing, not zero.
"""

from __future__ import annotations

import math

import numpy as np
import pytest
from transformer_tools import tiny_config, tiny_start

from lldsim.transformer.probe import probe_along, probe_moment
from lldsim.transformer.train import Moment, first_state, train, train_update
from lldsim.transformer.warm_start import WarmStart, packaged


def a_moment(start: WarmStart, **changes: float) -> tuple[Moment, dict[str, float]]:
    config = tiny_config(**changes)
    moment = train_update(config, first_state(config, start), start.world(config.world), start.shape)[1]
    return moment, probe_moment(config, moment)


def test_first_order_change_is_what_a_small_step_measures() -> None:
    _, row = a_moment(packaged(0), body_tokens=10, invalid_threshold=7, staleness=0)
    assert row["change"] > 0
    assert row["measured"] == pytest.approx(row["change"], rel=0.1)
    assert 0 < row["graded_groups"] <= 1
    assert 0 <= row["eq3_sized"] <= row["eq3_bare"] <= 1


def test_a_probed_run_is_the_run_that_was_not_probed() -> None:
    config = tiny_config(body_tokens=10, invalid_threshold=7, updates=2, updates_per_rollout=2)
    plain = train(config, start=packaged(0))
    seen: list[int] = []
    rows = probe_along(config, every=1, start=packaged(0), on_update=seen.append)
    again = train(config, start=packaged(0))
    assert seen == [0, 1]
    assert [row["update"] for row in rows] == [0, 1]
    assert all(np.array_equal(plain[name], again[name], equal_nan=True) for name in plain.columns)


def test_without_a_graded_group_numbers_are_missing() -> None:
    _, row = a_moment(tiny_start(std=0.01))  # near-uniform weights never answer
    assert row["reward"] == 0
    assert row["graded_groups"] == 0
    assert math.isnan(row["change"])
    assert math.isnan(row["eq3_bare"])
