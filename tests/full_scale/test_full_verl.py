# pyright: reportMissingImports=false
"""The plug-in inside verl, on a CPU: registry, typed configuration, mini-batch counts, start-up check.

Locked here: a fresh process that imports verl has our loss by the entry point; the check refuses each way in which a
run would silently train something else; the loss refuses a micro-batch whose mini-batch is unknown; counts see nested
tensors, leave padding rows out and are added over processes; verl's actor worker is exchanged for ours, with its loss
wrapped; unknown values and keys are errors.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from full_tools import needs

from full_scale.config import load_config
from full_scale.verl_plugin import FIELD
from full_scale.verl_plugin.launch import write_run
from lldsim.errors import ConfigError, MissingDataError

needs("verl", "countryinfo", "mendeleev", "pyarrow")
pytestmark = pytest.mark.filterwarnings("ignore")


# old and new log-probabilities, advantages and mask of two responses; the first one's likelihood fell
TENSORS = (
    torch.full((2, 3), -1.0),
    torch.tensor([[-1.5, -1.0, -1.2], [-1.0, -0.9, -1.0]]),
    torch.tensor([[1.0, 1.0, 1.0], [-1.0, -1.0, 0.0]]),
    torch.tensor([[1, 1, 1], [1, 1, 0]]),
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("run")
    changes = {"updates_per_rollout": 8, "train_data": "factworld", "eval_data": "factworld"}
    write_run(load_config("3b_base_llds_ma", changes), out, nodes=2)
    return out


def test_a_process_that_imports_verl_has_the_loss() -> None:
    code = "import verl; from verl.trainer.ppo.core_algos import get_policy_loss_fn as f; print(f('llds').__module__)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd="/", check=True)
    assert done.stdout.split() == ["full_scale.verl_plugin.loss"], "install the package: pip install --no-deps -e ."


def test_check_passes_and_says_what_it_saw(folder: Path) -> None:
    from full_scale.verl_plugin.check import check_run

    lines = "\n".join(check_run(folder))
    assert "grpo + 0.2 * LLDS, gate action, N over preserving" in lines
    assert "8 updates per rollout batch of 512 x 5" in lines


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("algorithm.rollout_correction.bypass_mode", True, "gap between engines"),
        ("data.train_batch_size", 64, "never fire"),
        ("actor_rollout_ref.actor.policy_loss.loss_mode", "vanilla", "another loss"),
        ("actor_rollout_ref.model.external_lib", None, "not be counted"),
        ("actor_rollout_ref.rollout.agent.default_agent_loop", "single_turn_agent", "not be Search-R1's"),
        ("actor_rollout_ref.rollout.name", "sglang", "stop strings"),
        ("reward.custom_reward_function.path", None, "custom_reward_function"),
        ("actor_rollout_ref.actor.policy_loss.llds_gate", "actoin", "did you mean 'action'"),
        ("actor_rollout_ref.actor.policy_loss.llds_coef", -0.1, "llds_coef=-0.1"),
    ],
)
def test_check_refuses_what_would_train_something_else(folder: Path, key: str, value: Any, message: str) -> None:
    from omegaconf import OmegaConf

    from full_scale.verl_plugin.check import check_config, compose

    config = compose(folder)
    OmegaConf.update(config, key, value)
    with pytest.raises(Exception, match=message):  # hydra wraps an error of the typed section in its own
        check_config(config)


def test_unknown_key_and_absent_run_are_errors(folder: Path, tmp_path: Path) -> None:
    from omegaconf import OmegaConf, open_dict

    from full_scale.verl_plugin.check import check_config, compose

    config = compose(folder)
    with open_dict(config):
        OmegaConf.update(config, "actor_rollout_ref.actor.policy_loss.llds_coeff", 0.2)
    with pytest.raises(Exception, match="llds_coeff"):
        check_config(config)
    with pytest.raises(MissingDataError, match="launch"):
        compose(tmp_path)


def test_check_names_an_unregistered_loss(monkeypatch: pytest.MonkeyPatch) -> None:
    from full_scale.verl_plugin import worker

    monkeypatch.delitem(worker.POLICY_LOSS_REGISTRY, "llds")
    with pytest.raises(ConfigError, match="plug-in was not loaded"):
        worker.check_registered()


def test_loss_refuses_a_micro_batch_without_its_mini_batch() -> None:
    from full_scale.parity_engines import _verl_actor
    from full_scale.verl_plugin.loss import llds_policy_loss
    from lldsim.config import ObjectiveConfig

    actor = _verl_actor(ObjectiveConfig(kl_coef=0.0, llds_coef=0.2), 2)
    loss, metrics = llds_policy_loss(*TENSORS, config=actor)
    assert metrics["actor/llds_penalty"] > 0
    assert loss.item() != llds_policy_loss(*TENSORS, config=_verl_actor(ObjectiveConfig(kl_coef=0.0), 2))[0].item()
    actor.global_batch_info.update(dp_size=2, batch_num_tokens=20, global_batch_size=4)
    with pytest.raises(ConfigError, match="external_lib"):
        llds_policy_loss(*TENSORS, config=actor)
    adaptive = _verl_actor(ObjectiveConfig(kl_coef=0.0, llds_coef=0.2, answer_weight_rule="paper"), 2)
    with pytest.raises(ConfigError, match="answer tokens"):
        llds_policy_loss(*TENSORS, config=adaptive)


def nested_batch(searches: list[int]) -> Any:
    from tensordict.tensorclass import NonTensorData, NonTensorStack
    from verl.utils import tensordict_utils as tu

    def jagged(*rows: list[float]) -> torch.Tensor:
        return torch.nested.as_nested_tensor([torch.tensor(row) for row in rows], layout=torch.jagged)

    notes = [{FIELD: {"searches": n, "answer_tokens": [0]}} for n in searches]
    return tu.get_tensordict(
        {
            "response_mask": jagged([1.0, 1.0, 0.0], [1.0, 0.0], [0.0]),
            "advantages": jagged([0.5, 0.5, 0.0], [-0.5, 0.0], [0.0]),
            "extra_fields": NonTensorStack.from_list([NonTensorData(note) for note in notes]),
        }
    )


def test_counts_of_a_mini_batch() -> None:
    from full_scale.verl_plugin.worker import mean_searches, preserving_tokens

    data = nested_batch([2, 1, 9])  # the last row is padding: no policy token
    assert preserving_tokens(data) == 2.0
    assert mean_searches(data) == 1.5
    assert preserving_tokens(data, lambda values: [2 * v for v in values]) == 4.0
    data.pop("extra_fields")
    assert mean_searches(data) is None


def test_verl_trains_with_our_worker_and_wrapped_loss(monkeypatch: pytest.MonkeyPatch) -> None:
    from verl.workers.engine_workers import ActorRolloutRefWorker, TrainingWorker

    from full_scale.verl_plugin.batch import current
    from full_scale.verl_plugin.worker import LLDSTrainingWorker

    assert ActorRolloutRefWorker.actor_worker_cls is LLDSTrainingWorker
    assert ActorRolloutRefWorker.ref_worker_cls is TrainingWorker
    worker: Any = LLDSTrainingWorker.__new__(LLDSTrainingWorker)
    worker.engine = SimpleNamespace(get_data_parallel_group=lambda: None)
    seen = []

    def fake(self: Any, data: Any) -> str:  # verl's loop calls the loss once per micro-batch
        self.loss_fn(model_output={}, data=data)
        return "trained"

    monkeypatch.setattr(TrainingWorker, "train_batch", fake)
    monkeypatch.setattr(TrainingWorker, "train_mini_batch", lambda self, data: self.train_batch(data))
    worker.set_loss_fn(lambda model_output, data, dp_group: seen.append(current()))
    assert worker.train_mini_batch(nested_batch([2, 1, 9])) == "trained"
    (batch,) = seen
    assert (batch.preserving_tokens, batch.mean_searches, batch.answers) == (2.0, 1.5, ((0,), (0,), (0,)))
    assert current() is None
