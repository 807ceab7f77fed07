# pyright: reportMissingImports=false
"""LLDSGRPOTrainer on a random Qwen2 of some ten thousand parameters, end to end on the CPU.

Locked here: with coefficient 0 losses and gradient norms are plain TRL's, bit for bit; LLDS is exactly 0 on the first
optimiser step of every rollout batch and positive on a later one; it changes the loss and takes no second forward pass;
micro-batches of any size give one penalty; a resume at a rollout boundary equals no interruption; layouts in which
nothing can fire, and checkpoints inside a rollout batch, are refused; what is logged is what a hand count gives.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from full_tools import CharTokenizer, needs, parity_reward, tiny_run

from full_scale.config import FullConfig, trl_arguments
from full_scale.protocol import Limits, Trajectory
from lldsim.errors import ConfigError

needs("transformers", "trl", "datasets", "accelerate", "bm25s", "countryinfo", "mendeleev")
pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    from full_scale.factworld import build_factworld
    from full_scale.tiny import make_model, train_tokenizer

    path = tmp_path_factory.mktemp("tiny")
    tokenizer = train_tokenizer(build_factworld(), vocab_size=400)
    make_model(tokenizer, hidden_size=32).save_pretrained(path)
    tokenizer.save_pretrained(path)
    return str(path)


@pytest.fixture(autouse=True)
def _reward(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setattr("full_scale.train.reward_function", parity_reward)


def run(config: FullConfig, out: Path, *, resume: bool = False) -> list[dict[str, Any]]:
    from full_scale.train import train

    train(config, out, resume=resume)
    return [json.loads(line) for line in (out / "log.jsonl").read_text().splitlines()]


def column(log: list[dict[str, Any]], name: str) -> list[float]:
    return [line[name] for line in log]


def test_coefficient_zero_is_plain_trl_bit_for_bit(folder: str, tmp_path: Path) -> None:
    from trl import GRPOConfig, GRPOTrainer

    from full_scale.train import make_trainer

    config = tiny_run(folder)
    ours = run(config, tmp_path / "ours")
    template = make_trainer(config, tmp_path / "unused")
    plain = GRPOTrainer(
        model=template.model,
        reward_funcs=parity_reward(config),
        args=GRPOConfig(**trl_arguments(config, output_dir=str(tmp_path / "plain"))),
        train_dataset=template.train_dataset,
        processing_class=template.processing_class,
        rollout_func=template.rollout_func,
    )
    plain.train()
    theirs = [line for line in plain.state.log_history if "loss" in line]
    assert len(ours) == len(theirs) == 4
    for name in ("loss", "grad_norm", "entropy", "kl"):
        assert column(ours, name) == column(theirs, name), name
    assert 0 < ours[0]["reward"] < 1  # there is a graded group, so the surrogate has a gradient
    assert len(set(column(ours, "loss"))) == 4


@pytest.mark.parametrize("normalizer", ["preserving", "all"])
def test_llds_is_zero_first_and_positive_later(folder: str, tmp_path: Path, normalizer: str) -> None:
    log = run(tiny_run(folder, llds_coef=0.5, normalizer=normalizer), tmp_path / "llds")
    penalty, drop = column(log, "llds/penalty"), column(log, "llds/drop_max")
    assert penalty[0::2] == [0.0, 0.0]
    assert drop[0::2] == [0.0, 0.0]
    assert min(penalty[1::2]) > 0
    assert min(column(log, "llds/gate_fraction")[1::2]) > 0
    base = run(tiny_run(folder, llds_coef=0.0, normalizer=normalizer), tmp_path / "base")
    assert log[0]["loss"] == base[0]["loss"]
    assert log[1]["loss"] - base[1]["loss"] == pytest.approx(0.5 * penalty[1], rel=1e-4)


def test_there_is_no_second_forward_pass(folder: str, tmp_path: Path) -> None:
    from full_scale.train import make_trainer

    counts = []
    for coef in (0.0, 0.5):
        trainer = make_trainer(tiny_run(folder, llds_coef=coef, rollouts=1), tmp_path / str(coef))
        seen: list[int] = []
        trainer.model.register_forward_hook(lambda module, args, out, seen=seen: seen.append(torch.is_grad_enabled()))
        trainer.train()
        counts.append(sum(seen))
    assert counts == [2, 2]  # passes with gradient: one per micro-batch


def test_micro_batches_do_not_change_the_step(folder: str, tmp_path: Path) -> None:
    whole, split = (
        run(tiny_run(folder, llds_coef=0.5, micro_batch=size, rollouts=1), tmp_path / str(size)) for size in (10, 5)
    )
    for name in ("llds/penalty", "grad_norm"):
        assert column(whole, name) == pytest.approx(column(split, name), rel=2e-4, abs=1e-7), name
    assert column(whole, "llds/penalty")[1] > 0


def test_resume_equals_no_interruption(folder: str, tmp_path: Path) -> None:
    config = tiny_run(folder, llds_coef=0.5, rollouts=3)
    straight = run(config, tmp_path / "straight")
    _interrupt(config, tmp_path / "halted", after=4)
    resumed = run(config, tmp_path / "halted", resume=True)
    for name in ("step", "loss", "grad_norm", "llds/penalty", "rollout/reward"):
        assert [x.get(name) for x in straight] == [x.get(name) for x in resumed], name
    first, second = (torch.load(tmp_path / d / "checkpoint-6" / "optimizer.pt") for d in ("straight", "halted"))
    for a, b in zip(first["state"].values(), second["state"].values(), strict=True):
        assert torch.equal(a["exp_avg_sq"], b["exp_avg_sq"])


def _interrupt(config: FullConfig, out: Path, *, after: int) -> None:
    """Train until one step beyond a checkpoint, as a killed run does."""
    from transformers import TrainerCallback

    from full_scale.train import make_trainer

    class Stop(TrainerCallback):
        def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> Any:
            control.should_training_stop = state.global_step > after
            return control

    trainer = make_trainer(config, out)
    trainer.add_callback(Stop())
    trainer.train()
    assert trainer.state.global_step == after + 1
    for path in out.glob(f"checkpoint-{after + 1}"):  # a killed run has none here
        import shutil

        shutil.rmtree(path)


def test_layouts_that_cannot_work_are_refused(folder: str, tmp_path: Path) -> None:
    from trl import GRPOConfig

    from full_scale.train import make_trainer
    from full_scale.trl_trainer import LLDS, LLDSGRPOTrainer

    template = make_trainer(tiny_run(folder), tmp_path)

    def build(llds: LLDS, **changes: Any) -> None:
        arguments = trl_arguments(tiny_run(folder), output_dir=str(tmp_path)) | changes
        LLDSGRPOTrainer(
            model=template.model,
            reward_funcs=parity_reward(None),
            args=GRPOConfig(**arguments),
            train_dataset=template.train_dataset,
            processing_class=template.processing_class,
            llds=llds,
        )

    with pytest.raises(ConfigError, match="never fire"):
        build(LLDS(coef=0.2), gradient_accumulation_steps=2, steps_per_generation=2)
    with pytest.raises(ConfigError, match="save_steps=3"):
        build(LLDS(coef=0.2), save_steps=3)
    with pytest.raises(ConfigError, match="mix two rollout batches"):
        build(LLDS(), gradient_accumulation_steps=2, steps_per_generation=3, per_device_train_batch_size=5)


def test_a_reference_that_is_not_the_policy_is_noticed() -> None:
    from full_scale.metrics import check_reference

    old = torch.full((1, 3), -2.0)
    batch = {"completion_mask": torch.tensor([[1, 1, 0]]), "old_per_token_logps": old}
    check_reference(batch)
    check_reference(batch | {"ref_per_token_logps": old + torch.tensor([0.01, 0.0, 9.0])})
    with pytest.raises(ConfigError, match=r"0\.150 nats"):
        check_reference(batch | {"ref_per_token_logps": old + torch.tensor([0.3, 0.0, 0.0])})


def test_rollout_statistics_by_hand() -> None:
    from full_scale.metrics import rollout_statistics

    tokenizer = CharTokenizer()

    def trajectory(*turns: str) -> Trajectory:
        made = Trajectory([1], Limits(), tokenizer)
        for turn in turns:
            ids = tokenizer.encode(turn)
            if made.act(ids, [-1.0] * len(ids)):
                made.observe("doc")
        return made

    right = trajectory("<search>q</search>", "<answer>P</answer>")
    wrong = trajectory("<answer>Q</answer>")
    width = max(len(t.completion_ids) for t in (right, wrong))

    def pad(rows: list[list[int]], value: int) -> torch.Tensor:
        return torch.tensor([row + [value] * (width - len(row)) for row in rows])

    both = [right, wrong]
    batch = {
        "completion_mask": pad([[1] * len(t.completion_ids) for t in both], 0),
        "tool_mask": pad([t.action_mask for t in both], 1),
        "action_id": pad([t.action_id for t in both], -1),
        "old_per_token_logps": torch.where(pad([t.action_id for t in both], -1) == 1, -2.0, -1.0),
    }
    stats = {k: (s / n if n else None) for k, (s, n) in rollout_statistics(batch, both, [1.0, 0.0]).items()}
    assert stats["reward"] == 0.5
    assert (stats["logp_correct_action1"], stats["logp_correct_action2"]) == (-1.0, -2.0)
    assert (stats["logp_wrong"], stats["logp_wrong_action2"]) == (-1.0, None)
    assert stats["logp_correct"] == -1.5  # both actions have 18 tokens
    assert (stats["valid_searches"], stats["first_search_wrong"]) == (0.5, 0.0)
    assert stats["sampler_gap"] == pytest.approx(18 / 54)
