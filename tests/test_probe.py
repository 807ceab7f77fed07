"""The probe on a running simulation.

Locked here: the engine's arrays become the batch that rollout.rollout samples from the same draws; a probed run is bit
for bit the unprobed one; Eq. 3 equals a plain autograd step on each query; G predicts the measured change to first
order; the null twin's similarity is near 0; a spacing below 1 is refused.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest
import torch

from lldsim.config import RunConfig, preset
from lldsim.diagnostics.displacement import query_change, response_change
from lldsim.draws import PROBE_STREAM, draw
from lldsim.engine import Run, simulate
from lldsim.errors import ConfigError
from lldsim.objectives import total_loss
from lldsim.policy import LinearSoftmaxPolicy, select, token_entropy
from lldsim.probe import look, measure_batch, measure_change, probe_run, single_update, to_batch
from lldsim.rollout import rollout

SMALL = {"n_queries": 4, "max_turns": 4, "updates": 4, "updates_per_rollout": 4, "staleness": 1}


def small(name: str = "spiral", **changes: Any) -> RunConfig:
    return preset(name).replace(**(SMALL | changes))


def test_engine_arrays_become_the_batch_of_the_plain_rollout() -> None:
    run = Run(small(seed=3, canon_prob=0.8))
    for _ in range(3):  # later batches lie on what earlier ones left in the arrays
        run.step()
    draws = draw(run.config, run.update)
    batch = to_batch(run.sample(draws), run.world)
    stale = torch.from_numpy(run.state()["past"][(run.update - 1) % 2])
    plain = rollout(
        LinearSoftmaxPolicy(run.world, stale), draws, group_size=5, temperature=run.config.trainer.temperature
    )
    for field in dataclasses.fields(plain):
        ours, theirs = getattr(batch, field.name), getattr(plain, field.name)
        assert ours.shape == theirs.shape, field.name
        if field.name == "sampler_logps":
            torch.testing.assert_close(ours, theirs * plain.action_mask, rtol=0, atol=1e-10)
        else:
            assert torch.equal(ours.to(theirs.dtype), theirs), field.name


@pytest.mark.parametrize("changes", [{}, {"llds_coef": 0.2}, {"optimizer": "adam", "learning_rate": 0.01}])
def test_a_probed_run_is_bit_for_bit_the_unprobed_one(changes: dict[str, Any]) -> None:
    config = small(**changes)
    plain, probed = simulate(config), probe_run(config, every=2, eq3_every=3)
    for name, column in plain.columns.items():
        np.testing.assert_array_equal(probed[name], column, err_msg=name)
    assert np.isfinite(probed["change_correct"][::2]).all()
    assert np.isnan(probed["change_correct"][1::2]).all()
    assert np.isfinite(probed["eq3_bare"][[0, 3]]).all()
    assert (probed.config_hash, probed.label) == (plain.config_hash, "simulated")


def test_eq3_is_one_plain_step_on_each_query_from_the_same_weights() -> None:
    run = Run(small(seed=1))
    run.step()
    found = single_update(run, batches=1, group_size=8)
    config = run.config.replace(group_size=8, updates_per_rollout=1)
    probe = Run(config, world=dataclasses.replace(run.world, config=config.world))
    probe.restore(run.state())
    roll = probe.sample(draw(config, run.update, stream=PROBE_STREAM))
    batch, change = to_batch(roll, probe.world), torch.zeros(32)
    for q in range(4):
        members = batch.group == q
        weights = torch.from_numpy(run.weights.copy()).requires_grad_()
        policy = LinearSoftmaxPolicy(run.world, weights)
        context, tokens, mask = batch.context[members], batch.tokens[members], batch.action_mask[members]

        logps_all = policy.logps_all(context)
        logps = select(logps_all, tokens)
        loss, _ = total_loss(
            logps, logps.detach(), torch.from_numpy(roll.advantage)[members], mask, config=config.objective,
            ref_logps=policy.ref_logps(context, tokens), entropy=token_entropy(logps_all),
            sampler_logps=batch.sampler_logps[members], answer_mask=batch.answer_mask[members],
            action_id=batch.action_id[members], mean_valid_searches=1.0,
        )  # fmt: skip
        loss.backward()
        assert weights.grad is not None
        moved = LinearSoftmaxPolicy(run.world, weights.detach() - config.trainer.learning_rate * weights.grad)
        after = select(moved.logps_all(context), tokens)
        change[members] = torch.from_numpy(response_change((after - logps).detach(), mask)).float()
    expected = query_change(change, batch.rewards > 0, batch.group)[1]
    assert np.isfinite(found).sum() >= 2, "needs queries with both kinds of response"
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)


def test_g_predicts_the_change_of_a_small_step() -> None:
    config = small(learning_rate=1e-4, updates_per_rollout=1, kl_coef=0.0, entropy_coef=0.0, canon_prob=0.8)
    run = Run(config)
    seen = look(run)
    before = measure_batch(seen)
    run.step()
    after = measure_change(seen, run)
    tokens = seen.batch.action_mask.sum(-1)[seen.batch.rewards > 0].double().mean().item()
    assert after["change_correct"] == pytest.approx(-before["gwhes_batch"] * tokens * 1e-4, rel=1e-3)


def test_without_similarity_right_and_wrong_are_unlike() -> None:
    spiral, null = (measure_batch(look(Run(preset(name)))) for name in ("spiral", "null"))
    assert abs(null["similarity"]) < 0.05 < 0.2 < spiral["similarity"]
    assert spiral["gwhes_batch_negative"] > 5 * abs(null["gwhes_batch_negative"])


def test_a_look_leaves_the_run_where_it_was() -> None:
    run, twin = Run(small()), Run(small())
    assert run.step() == twin.step()
    look(run)
    single_update(run, batches=1)
    np.testing.assert_array_equal(run.weights, twin.weights)
    assert run.step() == twin.step()
    np.testing.assert_array_equal(run.state()["past"], twin.state()["past"])


def test_a_spacing_below_one_is_refused() -> None:
    with pytest.raises(ConfigError, match="every=0"):
        probe_run(small(), every=0)
