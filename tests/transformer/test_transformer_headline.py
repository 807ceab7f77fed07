"""The headline on the real network, minutes long: the leak collapses, LLDS and the on-policy sampler keep the reward.

Locked here, in bands, because sums of float32 differ between machines: a leak run collapses on all three warm starts;
likelihood of correct responses falls before the reward does, second actions first; the same seeds with LLDS do not.
"""

from __future__ import annotations

import numpy as np
import pytest

from lldsim.diagnostics.collapse import collapse_step, kept_share, smooth, surge
from lldsim.record import RunRecord
from lldsim.transformer.conditions import condition_runs
from lldsim.transformer.train import train

SEEDS = (6, 1, 5)  # one per warm start, the three that collapse first in the packaged study


@pytest.fixture(scope="module")
def leaks() -> list[RunRecord]:
    return [train(config) for config in condition_runs("leak", SEEDS)]


@pytest.mark.slow
def test_the_leak_collapses_on_every_warm_start(leaks: list[RunRecord]) -> None:
    for record in leaks:
        step = collapse_step(record["reward"])
        assert step is not None
        assert 25 <= step <= 80
        assert surge(record["entropy"]) > 3
    assert np.median([surge(record["grad_norm"]) for record in leaks]) > 3


@pytest.mark.slow
def test_likelihood_falls_first_and_second_actions_before_first(leaks: list[RunRecord]) -> None:
    for record in leaks:
        reward = smooth(record["reward"], 9)
        falls = int(np.flatnonzero(reward < 0.9 * np.fmax.accumulate(reward))[0])
        logp = smooth(record["logp_correct"], 5)
        assert logp[falls - 3] < 1.5 * logp[:falls].max()
    step = [collapse_step(r["reward"]) or 0 for r in leaks]
    first, second = (
        np.mean([smooth(r[f"logp_correct_action{i}"], 3)[s - 5] for r, s in zip(leaks, step, strict=True)])
        for i in (1, 2)
    )
    assert second < first


@pytest.mark.slow
def test_llds_and_a_clean_sampler_keep_the_reward() -> None:
    for name in ("llds", "clean"):
        for config in condition_runs(name, SEEDS[:2], updates=60):
            record = train(config)
            assert collapse_step(record["reward"]) is None
            assert kept_share(record["reward"]) > 0.9
