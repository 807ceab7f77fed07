"""Locks snapshots: they are the run's own batches, and first order predicts what an update does as the rate shrinks.

- the sampled batch is the engine's, weights before and after are those of the run; other updates do not matter
- the predicted slope is measured / lr as lr -> 0, relative error of first order in lr
- the whole update (minibatches, their own normalisers) tends to its prediction when KL and entropy are off
- twin pairs share everything but the last token; errors name the update or the optimiser
"""

from __future__ import annotations

import numpy as np
import pytest
import torch

from lldsim import snapshot
from lldsim.config import RunConfig, preset
from lldsim.draws import draw
from lldsim.engine import Run
from lldsim.errors import ConfigError, MissingDataError
from lldsim.theory import attribution_table, loss_weights

SMALL = preset("spiral").replace(seed=3, n_queries=4, updates_per_rollout=4, staleness=2, max_turns=3)
PLAIN = {"kl_coef": 0.0, "entropy_coef": 0.0}


@pytest.mark.parametrize("sampler", [{}, {"top_k": 20, "sampler_noise": 0.3, "top_p": 0.99}])
def test_a_snapshot_is_what_the_run_trains_on(sampler: dict[str, float]) -> None:
    config = SMALL.replace(**sampler)
    run = Run(config)
    for _ in range(5):
        run.step()
    before = run.weights.copy()
    roll = run.sample(draw(config, 5))
    tokens, turns, advantage = roll.tokens.copy(), roll.turns.copy(), roll.advantage.copy()
    run.step()
    early, snap = snapshot.snapshots(config, [5, 2])
    assert (early.update, snap.update) == (2, 5)
    np.testing.assert_array_equal(snap.weights.numpy(), before)
    np.testing.assert_array_equal(snap.weights_after.numpy(), run.weights)
    np.testing.assert_allclose(snap.advantages.numpy(), advantage, rtol=1e-12)
    for b in range(len(turns)):
        written = snap.batch.tokens[b][snap.batch.action_mask[b]].numpy()
        np.testing.assert_array_equal(written, tokens[b, : turns[b]].ravel())
    logps = snap.token_logps(snap.weights)[snap.batch.action_mask]
    assert snap.row["reward"] == pytest.approx(float(snap.batch.rewards.mean()))
    chosen = snap.probs.gather(-1, snap.batch.tokens.clamp(min=0)[..., None])[..., 0][snap.batch.action_mask]
    torch.testing.assert_close(logps.exp(), chosen, rtol=1e-12, atol=0)


@pytest.mark.parametrize("aggregation", ["token-mean", "seq-mean-token-mean"])
def test_slope_and_first_order_on_a_sampled_batch(aggregation: str) -> None:
    (snap,) = snapshot.snapshots(SMALL.replace(aggregation=aggregation), [4])
    written = snapshot.written_actions(snap)
    slope = snapshot.predicted_slope(snap)[written]
    rates = np.array([1.0, 0.1, 0.01])
    errors = [
        float((snapshot.measured_step(snap, lr=lr)[written] / lr - slope).norm() / slope.norm())
        for lr in rates.tolist()
    ]
    assert errors[-1] < 1e-4
    assert np.polyfit(np.log(rates), np.log(errors), 1)[0] == pytest.approx(1.0, abs=0.1)


def test_whole_update_tends_to_its_prediction() -> None:
    """Minibatches of unequal token counts: the normaliser of each step counts."""
    errors = []
    for lr in (1.0, 0.1):
        (snap,) = snapshot.snapshots(SMALL.replace(learning_rate=lr, **PLAIN), [0])
        assert len({int(snap.batch.action_mask[m].sum()) for m in snap.minibatches}) > 1
        predicted, measured = snapshot.predicted_update(snap), snapshot.measured_update(snap)
        errors.append(float((measured - predicted).norm() / predicted.norm()))
    assert errors[1] < 0.2 * errors[0] < 0.02


def test_twin_pairs_differ_in_the_answer_alone() -> None:
    (snap,) = snapshot.snapshots(preset("spiral"), [0])
    batch = snap.batch
    pairs = snapshot.twin_pairs(snap)
    for right, wrong in pairs:
        assert batch.rewards[[right, wrong]].tolist() == [1.0, 0.0]
        assert batch.group[right] == batch.group[wrong]
        differs = (batch.tokens[right] != batch.tokens[wrong]).nonzero()[:, 0].tolist()
        assert differs == batch.action_mask[right].nonzero()[-1].tolist()
        assert torch.equal(batch.context[right], batch.context[wrong])
    right, wrong = pairs[0]
    weights = loss_weights(snap.advantages, batch.action_mask, aggregation="token-mean")
    table = attribution_table(*snap.inputs, weights, row=right, action_id=batch.action_id, top=None)
    # One context, two tokens, no dominant third: the wrong answer lifts the right one (trap 1).
    answer = [s for s in table if s.row == wrong and s.position == int(batch.action_mask[wrong].nonzero()[-1])]
    assert answer[0].alpha < 0
    assert answer[0].pull < 0


def test_errors_say_what_is_missing() -> None:
    with pytest.raises(ConfigError, match=r"updates=\[\]"):
        snapshot.snapshots(RunConfig(), [])
    (snap,) = snapshot.snapshots(SMALL.replace(optimizer="adam", learning_rate=0.01), [0])
    with pytest.raises(ConfigError, match="plain sgd"):
        snapshot.predicted_update(snap)
    with pytest.raises(ConfigError, match=r"feature_rate=0\.1"):
        snapshot.snapshots(SMALL.replace(feature_rate=0.1), [0])
    (capped,) = snapshot.snapshots(SMALL.replace(tis_cap=2.0), [0])
    with pytest.raises(ConfigError, match="tis_cap: a prediction"):
        snapshot.predicted_slope(capped)
    (lonely,) = snapshot.snapshots(SMALL.replace(n_queries=2, group_size=2, updates_per_rollout=2, seed=1), [0])
    with pytest.raises(MissingDataError, match="update 0 has no pair"):
        snapshot.twin_pairs(lonely)
    assert snapshot.twin_pairs(lonely, none_is_error=False) == []
