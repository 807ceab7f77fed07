"""The compiled engine: the plain trainer's twin, exact in its gradient, independent of its batch, and deterministic.

Locked here: whole trajectories equal trainer.train's for every objective and dial; the closed-form gradient of the
whole loss equals autograd's to 1e-10; LLDS is inert on the first step of a batch and with one step per batch; same
seed, same bytes; a run does not depend on others, on the number of workers or on being interrupted; float32 tells the
same story; a non-finite gradient is an error that says what to do.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch

from lldsim.advantages import group_advantages
from lldsim.config import preset
from lldsim.draws import draw
from lldsim.engine import Run, simulate, simulate_many
from lldsim.errors import NonFiniteError
from lldsim.policy import LinearSoftmaxPolicy
from lldsim.record import COLUMNS
from lldsim.rollout import rollout
from lldsim.trainer import minibatch_loss, old_policy, train

SPIRAL = preset("spiral")
SMALL = SPIRAL.replace(n_queries=8, updates_per_rollout=4, max_turns=4, updates=3, staleness=1)
OBJECTIVES = {
    "grpo": {},
    "paper preset": {"aggregation": "seq-mean-token-mean", "normalizer": "preserving", "entropy_coef": 0.0},
    "sequence sums": {"aggregation": "seq-mean-token-sum", "learning_rate": 0.5},
    "gspo": {"surrogate": "gspo", "aggregation": "seq-mean-token-mean", "clip_eps": 0.01},
    "llds action": {"llds_coef": 0.2},
    "llds token, paper normaliser": {"llds_coef": 1.0, "gate": "token", "normalizer": "preserving"},
    "llds response, paper answer weight": {"llds_coef": 1.0, "gate": "response", "answer_weight_rule": "paper"},
    "llds action, released answer weight": {"llds_coef": 1.0, "answer_weight_rule": "released"},
    "llds action, fixed answer weight": {"llds_coef": 1.0, "answer_weight": 0.3},
    "clip-higher": {"clip_eps": 0.01, "clip_eps_high": 0.02},
    "dual clip": {"dual_clip": 1.01},
    "ratio to the sampler": {"ratio_to": "sampler"},
    "truncated importance weights": {"tis_cap": 1.1},
    "negatives down-weighted": {"negative_weight": 0.25},
    "positive-only": {"negative_weight": 0.0, "llds_coef": 0.2},
    "kl clamped": {"kl_coef": 0.5},
    "kl linear": {"kl_coef": 0.5, "kl_form": "linear"},
    "kl raw": {"kl_coef": 0.5, "kl_form": "raw"},
    "entropy bonus": {"entropy_coef": 0.05},
    "no std": {"std_normalize": False},
    "population std": {"std_ddof": 0},
    "adam": {"optimizer": "adam", "learning_rate": 0.05},
    "momentum": {"momentum": 0.9, "learning_rate": 5.0},
    "gradient clipping": {"grad_clip": 0.005},
    "top-p": {"top_p": 0.88, "temperature": 1.0},
    "invalid ends": {"invalid_ends_episode": True, "canon_prob": 0.7},
    "one step": {"updates_per_rollout": 1, "learning_rate": 200.0},
    "fresh sampler": {"staleness": 0},
}


@pytest.mark.parametrize("changes", OBJECTIVES.values(), ids=OBJECTIVES)
def test_trajectory_is_the_plain_trainers(changes):
    config = SMALL.replace(**changes)
    ours, plain = simulate(config), train(config)
    for name in COLUMNS:
        np.testing.assert_allclose(ours[name], plain[name], rtol=1e-9, atol=1e-12, err_msg=name)


@pytest.mark.parametrize("changes", OBJECTIVES.values(), ids=OBJECTIVES)
def test_gradient_of_the_whole_loss_is_autograds(changes):
    """At weights moved away from the rollout's, so that ratios, gates, clips and the KL all act."""
    config = SMALL.replace(**({"updates_per_rollout": 2} | changes))
    rng = np.random.default_rng(1)
    run = Run(config)
    shape = run.weights.shape
    run.weights[:] = rng.normal(0, 0.3, shape)
    draws = draw(config, 0)
    run.sample(draws)
    run.weigh()
    policy = LinearSoftmaxPolicy(run.world, torch.from_numpy(run.weights.copy()))
    t = config.trainer
    batch = rollout(policy, draws, group_size=config.world.group_size, temperature=t.temperature, top_p=t.top_p)
    members = torch.from_numpy(draws.order[: 40 // t.updates_per_rollout])
    old_logps, _ = old_policy(policy, batch, [torch.arange(40)])
    advantages = group_advantages(
        batch.rewards, batch.group, std_ddof=t.std_ddof, eps=t.advantage_eps, std_normalize=t.std_normalize
    )
    run.weights += rng.normal(0, 0.1, shape)
    moved = LinearSoftmaxPolicy(run.world, torch.from_numpy(run.weights.copy()).requires_grad_())
    loss, _ = minibatch_loss(moved, batch, members, old_logps, advantages, config)
    (expected,) = torch.autograd.grad(loss, moved.weights)
    ours = run.gradient(members.numpy())
    assert np.abs(ours - expected.numpy()).max() <= 1e-10 * expected.abs().max()


def test_gradient_is_a_finite_difference_of_the_loss():
    """A second oracle that shares no code with the first: central differences of the loss along random directions."""
    config = SMALL.replace(llds_coef=0.5, kl_coef=0.1, entropy_coef=0.02, clip_eps=1.0, clip_eps_high=10.0)
    draws = draw(config, 0)
    run = Run(config)
    run.sample(draws)
    policy = LinearSoftmaxPolicy(run.world)
    batch = rollout(policy, draws, group_size=5, temperature=0.7)
    old_logps, _ = old_policy(policy, batch, [torch.arange(40)])
    advantages = group_advantages(batch.rewards, batch.group)
    members = torch.from_numpy(draws.order[:10])
    rng = np.random.default_rng(2)
    run.weights[:] = rng.normal(0, 0.3, run.weights.shape)
    gradient = run.gradient(members.numpy())

    def loss_at(weights):
        at = LinearSoftmaxPolicy(run.world, torch.from_numpy(weights))
        return minibatch_loss(at, batch, members, old_logps, advantages, config)[0].item()

    for _ in range(5):
        direction = rng.normal(size=gradient.shape)
        step = 1e-5
        slope = (loss_at(run.weights + step * direction) - loss_at(run.weights - step * direction)) / (2 * step)
        assert slope == pytest.approx((gradient * direction).sum(), rel=1e-5)


def test_llds_is_inert_until_the_first_step_of_a_batch_is_taken():
    config = SMALL.replace(llds_coef=5.0)
    with_llds, without = Run(config), Run(SMALL)
    draws = draw(config, 0)
    for run in (with_llds, without):
        run.sample(draws)
    members = draws.order[:10]
    np.testing.assert_array_equal(with_llds.gradient(members), without.gradient(members))
    for run in (with_llds, without):
        run.weights -= 25 * without.gradient(members)
    later = draws.order[10:20]
    assert not np.array_equal(with_llds.gradient(later), without.gradient(later))


def test_llds_with_one_step_per_batch_changes_nothing():
    config = SMALL.replace(updates_per_rollout=1, learning_rate=200.0, updates=6)
    inert = simulate(config.replace(llds_coef=0.2, allow_inert_llds=True))
    bare = simulate(config)
    assert not inert["gate_fraction"].any()
    for name in COLUMNS:
        np.testing.assert_array_equal(inert[name], bare[name])


def test_same_seed_gives_the_same_bytes_and_another_seed_does_not(tmp_path):
    for name, seed in (("a", 3), ("b", 3), ("c", 4)):
        simulate(SMALL.replace(seed=seed)).save(tmp_path / name)
    a, b, c = ((tmp_path / name / "record.csv").read_bytes() for name in "abc")
    assert a == b
    assert (tmp_path / "a/record.json").read_bytes() == (tmp_path / "b/record.json").read_bytes()
    assert a != c


def test_a_run_does_not_depend_on_its_neighbours_or_on_workers():
    configs = [SMALL.replace(seed=0), SMALL.replace(seed=1, llds_coef=0.2), SPIRAL.replace(seed=0, updates=2)]
    alone = [simulate(config) for config in configs]
    for workers in (1, 2):
        together = dict(simulate_many(configs[::-1], workers=workers))
        for i, record in enumerate(alone):
            for name in COLUMNS:
                np.testing.assert_array_equal(together[len(configs) - 1 - i][name], record[name])


@pytest.mark.parametrize(
    "changes", [{}, {"optimizer": "adam", "learning_rate": 0.05}, {"momentum": 0.9, "staleness": 3}]
)
def test_resuming_equals_never_having_stopped(changes):
    config = SMALL.replace(**changes)
    straight = Run(config)
    rows = [straight.step() for _ in range(8)]
    first = Run(config)
    for _ in range(4):
        first.step()
    second = Run(config)
    second.restore(first.state())
    assert [second.step() for _ in range(4)] == rows[4:]


def test_sampler_is_as_stale_as_the_dial_says():
    config = SMALL.replace(staleness=2)
    run = Run(config)
    weights = []
    for update in range(5):
        weights.append(run.weights.copy())
        run.step()
        sampler = LinearSoftmaxPolicy(run.world, torch.from_numpy(weights[max(0, update - 2)]))
        batch = rollout(sampler, draw(config, update), group_size=5, temperature=0.7)
        np.testing.assert_array_equal(run.roll.reward, batch.rewards.numpy())


def test_float32_tells_the_story_of_float64():
    double, single = (simulate(SPIRAL.replace(dtype=dtype, updates=20)) for dtype in ("float64", "float32"))
    np.testing.assert_allclose(single["logp_correct"], double["logp_correct"], atol=0.01)
    assert np.abs(single["reward"] - double["reward"]).mean() < 0.01


def test_a_gradient_that_is_not_finite_stops_the_run_with_a_remedy():
    with pytest.raises(NonFiniteError, match=r"update 0 is not finite \(seed 0\); lower learning_rate=1000000"):
        simulate(SMALL.replace(kl_form="raw", kl_coef=1.0, learning_rate=1e6))
