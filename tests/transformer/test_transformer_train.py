"""The loop, its runs and its configuration.

Locked here: the first step of a rollout batch has an LLDS of exactly zero and a ratio of exactly one; the same seed
gives the same record; an interrupted run goes on to the same bits; the record's columns; conditions; bad input.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from transformer_tools import TINY, tiny_config, tiny_start

from lldsim.errors import ConfigError, MissingDataError
from lldsim.record import COLUMNS
from lldsim.transformer.conditions import CONDITIONS, condition_runs
from lldsim.transformer.config import TransformerConfig, transformer_from_mapping, transformer_preset
from lldsim.transformer.measures import TRANSFORMER_COLUMNS
from lldsim.transformer.runs import load_state, run_all, save_state
from lldsim.transformer.train import (
    Moment,
    TrainState,
    fallen,
    first_state,
    minibatch_loss,
    minibatches,
    optimise,
    train,
    train_update,
)
from lldsim.transformer.warm_start import Recipe, Stage, load_warm_start, make_warm_start, packaged, save_warm_start


def same(a: dict[str, np.ndarray], b: dict[str, np.ndarray]) -> bool:
    return a.keys() == b.keys() and all(np.array_equal(a[k], b[k], equal_nan=True) for k in a)


def warm_moment(**changes: float) -> tuple[TransformerConfig, Moment]:
    """The first batch of a packaged network, where some responses are right."""
    config = tiny_config(body_tokens=10, invalid_threshold=7, n_queries=6, staleness=0, **changes)
    start = packaged(0)
    state = first_state(config, start)
    return config, train_update(config, state, start.world(config.world), start.shape)[1]


@pytest.mark.parametrize("gate", ["token", "response", "action"])
def test_llds_is_exactly_zero_on_the_first_step(gate: str) -> None:
    config, moment = warm_moment()
    config = config.replace(llds_coef=1.0, gate=gate)
    steps = list(optimise(config, moment))
    assert steps[0]["llds"] == 0
    assert steps[0]["gate_fraction"] == 0
    assert steps[0]["ratio_max"] == 1
    assert steps[-1]["llds"] > 0
    assert steps[-1]["ratio_max"] > 1


def test_llds_gradient_is_exactly_zero_on_the_first_step() -> None:
    config, moment = warm_moment()
    gradients = []
    for coef in (0.0, 1.0):
        chosen = config.replace(llds_coef=coef)
        loss, _ = minibatch_loss(chosen, moment, moment.state.flat, minibatches(chosen, 0)[0])
        gradients.append(torch.autograd.grad(loss, moment.state.flat)[0])
    assert torch.equal(*gradients)
    assert gradients[0].norm() > 0


def test_wrong_feedback_tokens_do_not_enter_the_loss() -> None:
    config, moment = warm_moment()
    members = minibatches(config, 0)[0]
    loss, _ = minibatch_loss(config, moment, moment.state.flat, members)
    for name in ("sampler_logps", "tokens"):
        getattr(moment.batch, name)[~moment.batch.action_mask] = 63
    again, _ = minibatch_loss(config, moment, moment.state.flat, members)
    assert loss.item() == again.item()


def test_same_seed_same_record_and_seeds_differ() -> None:
    first, second = (train(tiny_config(), start=tiny_start()) for _ in range(2))
    other = train(tiny_config(seed=1), start=tiny_start())
    assert same(first.columns, second.columns)
    assert not same(first.columns, other.columns)
    assert set(first.columns) == set(TRANSFORMER_COLUMNS) >= set(COLUMNS)
    assert first.config["policy"] == "transformer"


@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_resuming_is_not_interrupting(optimizer: str, tmp_path: Path) -> None:
    config = tiny_config(optimizer=optimizer, learning_rate=1e-2, llds_coef=0.2)
    start = tiny_start()
    states: list[Path] = []

    def keep(state: TrainState) -> None:
        states.append(tmp_path / f"{state.update}.npz")
        save_state(state, states[-1])

    whole = train(config, start=start, on_update=keep)
    state = first_state(config, start)
    load_state(state, states[1])
    assert state.update == 2
    resumed = train(config, start=start, state=state)
    assert same(whole.columns, resumed.columns)
    last = first_state(config, start)
    load_state(last, states[-1])
    assert torch.equal(last.flat, state.flat)


def test_a_broken_state_says_so(tmp_path: Path) -> None:
    (tmp_path / "state.npz").write_bytes(b"PK\x03\x04 cut")
    with pytest.raises(MissingDataError, match="remove it to start afresh"):
        load_state(first_state(tiny_config(), tiny_start()), tmp_path / "state.npz")


def test_run_all_reads_what_it_wrote(tmp_path: Path) -> None:
    config = tiny_config(updates=1, body_tokens=10, invalid_threshold=7)
    seen: list[tuple[int, int]] = []
    first, twin = run_all([config, config], cache_dir=tmp_path, on_done=lambda *done: seen.append(done))
    again = run_all([config], cache_dir=tmp_path)[0]
    assert seen == [(0, 1), (1, 1)]
    assert same(first.columns, again.columns)
    assert same(first.columns, twin.columns)
    assert not list(tmp_path.rglob("*.npz"))


def test_staleness_and_temperature_leave_their_mark() -> None:
    fresh = train(tiny_config(staleness=0, temperature=1.0, learning_rate=1.0), start=tiny_start())
    leaky = train(tiny_config(staleness=2, temperature=0.7, learning_rate=1.0), start=tiny_start())
    assert np.abs(fresh["sampler_gap"]).max() < 1e-5
    assert leaky["sampler_gap"].min() > 1e-3


def test_head_scale_matches_the_start_of_a_sharper_sampler() -> None:
    sharp = train(tiny_config(updates=1, temperature=0.5), start=tiny_start())
    scaled = train(tiny_config(updates=1, temperature=1.0, head_scale=2.0), start=tiny_start())
    for name in ("reward", "response_length", "invalid_actions"):
        assert sharp[name][0] == scaled[name][0]
    assert scaled["sampler_logp"][0] == pytest.approx(sharp["sampler_logp"][0], abs=1e-6)
    assert scaled["entropy"][0] < sharp["entropy"][0]


def test_a_run_stops_only_after_it_had_something_to_lose() -> None:
    config = TransformerConfig()
    never, lost = [{"reward": 0.1}] * 9, [{"reward": 0.9}] * 4 + [{"reward": 0.1}] * 6
    assert not fallen(config, never)
    assert fallen(config, lost)
    assert not fallen(config.replace(stop_after_fall=False), lost)


def test_warm_start_is_deterministic_and_survives_its_file(tmp_path: Path) -> None:
    recipe = Recipe(stages=tuple(Stage(stage.habits, 2, 1e-2) for stage in Recipe().stages), batch=3)
    first, second = (make_warm_start(5, recipe=recipe, shape=TINY) for _ in range(2))
    for name, start in (("a", first), ("b", second)):
        save_warm_start(start, tmp_path / name)
    assert (tmp_path / "a.npz").read_bytes() == (tmp_path / "b.npz").read_bytes()
    found = load_warm_start(tmp_path / "a")
    assert torch.equal(found.flat, first.flat)
    assert (found.canon, found.shape) == (first.canon, first.shape)
    assert found.about["recipe"]["batch"] == 3


def test_packaged_warm_starts_say_how_they_were_made_and_what_they_can() -> None:
    canons = set()
    for number in range(3):
        about = packaged(number).about
        canons.add(packaged(number).canon)
        assert about["seed"] == number
        assert about["recipe"]["stages"][0]["steps"] == 520
        assert 0.2 < about["measured"]["temperature 0.7"]["reward"] < 0.6
        assert about["measured"]["temperature 0.7"]["valid_actions"] > 0.95
    assert len(canons) == 3


def test_bad_files_and_numbers_are_named(tmp_path: Path) -> None:
    with pytest.raises(MissingDataError, match="does not exist"):
        load_warm_start(tmp_path / "none")
    (tmp_path / "cut.npz").write_bytes(b"PK\x03\x04")
    with pytest.raises(MissingDataError, match="cut short"):
        load_warm_start(tmp_path / "cut")
    with pytest.raises(ConfigError, match=r"warm_start=77: packaged are 0, 1, 2"):
        packaged(77)
    with pytest.raises(ConfigError, match="learned 4 canonical words"):
        tiny_start().world(TransformerConfig().world)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"llds_coeff": 0.2}, "llds_coef"),
        ({"llds_coef": 0.2, "updates_per_rollout": 1}, "gate can never open"),
        ({"body_tokens": 17}, "body_tokens=17"),
        ({"head_scale": 0.0}, "head_scale"),
        ({"warm_start": -1}, "warm_start=-1"),
        ({"mask_shared_prefix": True}, "leave them off"),
        ({"temperature": 0.0}, "temperature=0.0"),
        ({"feature_rate": 1.0}, "no field"),
        ({"staleness": "old"}, "staleness='old'"),
        ({"group_size": 7}, "does not divide"),
    ],
)
def test_bad_configurations_are_named(changes: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        TransformerConfig().replace(**changes)


def test_presets_and_mappings() -> None:
    clean = transformer_from_mapping({"preset": "transformer-clean", "seed": 3})
    assert (clean.trainer.temperature, clean.trainer.staleness, clean.trainer.seed) == (1.0, 0, 3)
    assert clean.config_hash() != transformer_preset("transformer-clean").config_hash()
    with pytest.raises(ConfigError, match="did you mean 'transformer-clean'"):
        transformer_preset("transformer-klean")


@pytest.mark.parametrize("name", CONDITIONS)
def test_conditions_are_one_change_to_the_same_run(name: str) -> None:
    runs, leak = condition_runs(name, range(4)), condition_runs("leak", range(4))
    assert [run.trainer.warm_start for run in runs] == [0, 1, 2, 0]
    for run, base in zip(runs, leak, strict=True):
        differing = {key for key, value in run.flat().items() if value != base.flat()[key]}
        assert differing == set(CONDITIONS[name].changes) - {
            key for key, value in CONDITIONS[name].changes.items() if value == base.flat()[key]
        }
    assert (name == "leak") == (runs == leak)
