# pyright: reportMissingImports=false
"""The monitor inside TRL 1.16's own GRPOTrainer, on full scale's tiny model.

Locked here: `measured` changes nothing that TRL computes, and what it logs is `LLDMonitor.measure` of the very tensors
of the loss, over all micro-batches; the callback stops a real trainer and raises lambda of a real LLDSGRPOTrainer,
whose penalty then acts; its file is read back; an unknown reward function is refused.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from full_tools import needs, parity_reward, tiny_run

from lldsim.errors import ConfigError
from lldsim.monitor import LLDMonitor, Rules, diagnose, measured, read_log

needs("transformers", "trl", "datasets", "accelerate", "bm25s", "countryinfo", "mendeleev")
pytestmark = pytest.mark.filterwarnings("ignore")

import write_trl_logs  # noqa: E402

QUICK = Rules(warm_up=2, fast_window=4, slope_window=6, joint_window=6)


@pytest.fixture(autouse=True)
def _offline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")


def history(trainer: Any) -> list[dict[str, float]]:
    trainer.train()
    return [row for row in trainer.state.log_history if "loss" in row]


def inject(trainer: Any, likelihood: Callable[[int], float]) -> None:
    """Let the trainer log a likelihood of our choice at every step."""
    compute = trainer._compute_loss

    def loss(model: Any, inputs: Any) -> Any:
        trainer._metrics["train"]["lldsim/logp_correct"].append(likelihood(trainer.state.global_step))
        return compute(model, inputs)

    trainer._compute_loss = loss


@pytest.mark.parametrize("micro_batches", [1, 4])
def test_measured_is_trl_bit_for_bit_and_measures_what_the_loss_saw(micro_batches: int, tmp_path: Path) -> None:
    from trl import GRPOTrainer

    options: dict[str, Any] = {
        "steps": 6,
        "per_device_train_batch_size": 8 // micro_batches,
        "gradient_accumulation_steps": micro_batches,
        "steps_per_generation": 2 * micro_batches,
    }
    plain = history(write_trl_logs.trainer_in(tmp_path / "a", **options))
    seen: dict[int, list[list[Any]]] = {}

    class Spy(measured(GRPOTrainer)):
        def _lld_measure(self, logps: Any, inputs: Any) -> None:
            rows = [inputs[k] for k in ("lldsim_rewards", "completion_mask", "old_per_token_logps")]
            seen.setdefault(self.state.global_step + 1, []).append([logps.clone(), *(row.clone() for row in rows)])
            super()._lld_measure(logps, inputs)

    ours = history(write_trl_logs.trainer_in(tmp_path / "b", trainer_class=Spy, **options))
    for before, after in zip(plain, ours, strict=True):
        same = [key for key in before if "time" not in key]
        assert {key: before[key] for key in same} == {key: after[key] for key in same}
        assert len(seen[int(after["step"])]) == micro_batches
        logps, rewards, mask, old = (torch.cat(parts) for parts in zip(*seen[int(after["step"])], strict=True))
        want = LLDMonitor.measure(logps, rewards, mask, old_logps=old)
        added = {key: value for key, value in after.items() if key.startswith("lldsim/") or key == "success_rate"}
        assert added == pytest.approx(want, rel=1e-5)
        assert after["success_rate"] == pytest.approx(rewards.mean().item())
    assert any("lldsim/logp_correct" in row for row in ours)
    assert max(row["lldsim/ratio_max"] for row in ours) > 1.0


def test_stops_a_real_trainer(tmp_path: Path) -> None:
    monitor = LLDMonitor(action="stop", rules=QUICK, path=tmp_path / "monitor.jsonl")
    trainer = write_trl_logs.trainer_in(tmp_path / "run", callbacks=[monitor])
    inject(trainer, lambda step: -0.5 - 0.1 * max(0, step - 6))
    trainer.train()
    assert 8 <= trainer.state.global_step <= 14
    assert trainer.state.global_step == monitor.alarms[-1].step
    log = read_log(tmp_path / "monitor.jsonl")
    assert len(log.steps) == trainer.state.global_step
    assert log.has("grad_norm")
    assert log.has("logp_correct")


def test_goes_on_where_nothing_decays(tmp_path: Path) -> None:
    monitor = LLDMonitor(action="stop", rules=QUICK)
    trainer = write_trl_logs.trainer_in(tmp_path, callbacks=[monitor])
    inject(trainer, lambda step: -0.5)
    trainer.train()
    assert trainer.state.global_step == write_trl_logs.STEPS
    assert not diagnose(read_log(tmp_path / f"checkpoint-{write_trl_logs.STEPS}")).decays


def test_raises_lambda_of_a_real_trainer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from full_scale.factworld import build_factworld
    from full_scale.tiny import make_model, train_tokenizer
    from full_scale.train import make_trainer

    monkeypatch.setattr("full_scale.train.reward_function", parity_reward)
    tokenizer = train_tokenizer(build_factworld(), vocab_size=400)
    make_model(tokenizer, hidden_size=32).save_pretrained(tmp_path / "start")
    tokenizer.save_pretrained(tmp_path / "start")
    trainer = make_trainer(tiny_run(str(tmp_path / "start"), rollouts=8, llds_coef=0.0), tmp_path / "run")
    monitor = LLDMonitor(
        rules=QUICK, set_llds_coef=lambda coef: setattr(trainer, "llds", replace(trainer.llds, coef=coef))
    )
    trainer.add_callback(monitor)
    inject(trainer, lambda step: -0.5 - 0.1 * max(0, step - 4))
    trainer.train()
    assert trainer.llds.coef == monitor.llds_coef == 0.1
    first = monitor.alarms[0].step
    assert any(row.get("llds/penalty", 0) > 0 for row in trainer.state.log_history if row["step"] > first)


def test_unknown_reward_function_is_refused(tmp_path: Path) -> None:
    from trl import GRPOTrainer

    trainer = write_trl_logs.trainer_in(
        tmp_path, steps=1, trainer_class=measured(GRPOTrainer, reward_func="exact_match")
    )
    with pytest.raises(ConfigError, match=r"'exact_match'.*letter_reward"):
        trainer.train()
