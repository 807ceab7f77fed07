"""The monitor on a live run.

Locked here: a duck-typed trainer's events work, also those of no interest; stop asks the trainer to stop; lambda is
raised by the schedule and no more; `measure` equals a hand computation and the engine's own columns; JSON lines are
written; the cost is far below half a percent of a step; verl's metrics gain the signals.
"""

from __future__ import annotations

import json
import logging
import time
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from monitor_logs import rows, run

from lldsim.errors import ConfigError, ShapeError
from lldsim.monitor import LLDMonitor, measured_metrics, read_log
from lldsim.monitor.callback import LambdaSchedule


class FakeTrainer:
    """Calls callbacks as transformers' CallbackHandler does."""

    def __init__(self, monitor: LLDMonitor) -> None:
        self.monitor, self.state = monitor, SimpleNamespace(global_step=0)
        self.control = SimpleNamespace(should_training_stop=False)

    def event(self, name: str, **more: object) -> None:
        result = getattr(self.monitor, name)(SimpleNamespace(), self.state, self.control, model=None, **more)
        self.control = self.control if result is None else result

    def train(self, logs: list[dict[str, float]]) -> None:
        self.event("on_init_end")
        self.event("on_train_begin")
        for log in logs:
            self.event("on_step_begin")
            self.state.global_step = int(log["step"])
            self.event("on_log", logs={k: v for k, v in log.items() if k != "step"})
            if self.control.should_training_stop:
                break
        self.event("on_train_end")


def test_warns_through_logging_and_lets_the_run_go_on(caplog: pytest.LogCaptureFixture) -> None:
    trainer = FakeTrainer(LLDMonitor())
    with caplog.at_level(logging.WARNING, logger="lldsim.monitor"):
        trainer.train(rows(run(sick=True)))
    assert trainer.state.global_step == 159
    assert "likelihood-entropy" in caplog.text


def test_stops_a_sick_run_before_the_reward_falls_and_leaves_a_healthy_one() -> None:
    sick, healthy = FakeTrainer(LLDMonitor(action="stop")), FakeTrainer(LLDMonitor(action="stop"))
    sick.train(rows(run(sick=True)))
    healthy.train(rows(run(sick=False)))
    assert 50 < sick.state.global_step < 90
    assert healthy.state.global_step == 159


def test_lambda_rises_by_the_schedule() -> None:
    given: list[float] = []
    monitor = LLDMonitor(set_llds_coef=given.append)
    FakeTrainer(monitor).train(rows(run(sick=True)))
    assert given == [0.1, 0.2, 0.3][: len(given)]
    assert len(given) >= 2
    assert LambdaSchedule().after(0.5) == 0.5
    with pytest.raises(ConfigError, match="'halt'"):
        LLDMonitor(action="halt")  # type: ignore[arg-type]


def test_resumed_steps_and_odd_values_are_no_error(tmp_path: Path) -> None:
    monitor = LLDMonitor(path=tmp_path / "deep" / "monitor.jsonl")
    heard = [
        *monitor.observe(5, {"reward": torch.tensor(0.5), "text": "hi", "entropy": None}),
        *monitor.observe(3, {"reward": 1}),
    ]
    assert heard == []
    assert [a.rule for a in monitor.observe(6, {"grad_norm": float("nan"), "reward": 0.5})] == ["non-finite grad_norm"]
    lines = [json.loads(line) for line in (tmp_path / "deep" / "monitor.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines] == [5, 6]
    assert read_log(tmp_path / "deep" / "monitor.jsonl").record["reward"].tolist() == [0.5, 0.5]
    with pytest.raises(AttributeError, match="no attribute 'nope'"):
        _ = monitor.nope


def test_measure_against_hand_computation() -> None:
    logps = torch.tensor([[-1.0, -2.0, 9.0, -3.0], [-4.0, -5.0, 9.0, 9.0]], requires_grad=True)
    mask = torch.tensor([[1, 1, 0, 1], [1, 1, 0, 0]])
    found = LLDMonitor.measure(logps, torch.tensor([1.0, 0.0]), mask, old_logps=logps - torch.tensor(0.5))
    assert found == {
        "lldsim/logp_all": -3.0,
        "lldsim/logp_correct": -2.0,
        "lldsim/logp_wrong": -4.5,
        "lldsim/logp_correct_action1": -1.5,
        "lldsim/logp_correct_action2": -3.0,
        "success_rate": 0.5,
        "lldsim/ratio_max": pytest.approx(np.exp(0.5)),
    }
    assert "lldsim/logp_correct" not in LLDMonitor.measure(logps, torch.zeros(2), mask)
    with pytest.raises(ShapeError, match=r"rewards \(3,\)"):
        LLDMonitor.measure(logps, torch.zeros(3), mask)


def test_measure_equals_the_records_columns() -> None:
    from lldsim.config import RunConfig
    from lldsim.draws import draw
    from lldsim.policy import LinearSoftmaxPolicy, select
    from lldsim.rollout import rollout
    from lldsim.trainer import train
    from lldsim.world import build_world

    config = RunConfig().replace(updates=1, n_queries=4)
    policy = LinearSoftmaxPolicy(build_world(config.world, seed=0))
    batch = rollout(policy, draw(config, 0), group_size=5, temperature=0.7, top_p=1.0)
    logps = select(policy.logps_all(batch.context), batch.tokens)
    found = LLDMonitor.measure(logps, batch.rewards, batch.action_mask, action_id=batch.action_id)
    record = train(config)
    for name in ("logp_correct", "logp_wrong", "logp_correct_action1", "logp_correct_action2"):
        assert found[f"lldsim/{name}"] == pytest.approx(record[name][0], rel=1e-6), name


def test_cost_is_below_half_a_percent_of_a_step() -> None:
    """A CPU step of the smallest real transformer takes .37 s; half a percent of that is 1.8 ms."""
    monitor, logs = LLDMonitor(), rows(run(sick=True)) * 4
    start = time.process_time()
    for step, row in enumerate(logs):
        monitor.observe(step, row)
    assert (time.process_time() - start) / len(logs) < 1.8e-3


def test_verls_metrics_gain_the_signals() -> None:
    mask = torch.tensor([[1, 1, 0, 1], [1, 1, 0, 0]])
    table = {
        "old_log_probs": torch.tensor([[-1.0, -2.0, 9.0, -3.0], [-4.0, -5.0, 9.0, 9.0]]),
        "token_level_scores": torch.tensor([[0.0, 0.0, 0.0, 0.9], [0.0, 0.1, 0.0, 0.0]]),
        "response_mask": mask,
    }
    seen: list[bool] = []

    def compute(batch: SimpleNamespace, use_critic: bool = True) -> dict[str, float]:
        seen.append(use_critic)
        return {"critic/score/mean": batch.batch["token_level_scores"].sum(-1).mean().item()}

    found = measured_metrics(compute)(batch=SimpleNamespace(batch=table), use_critic=False)
    assert seen == [False]
    assert found["critic/score/mean"] == pytest.approx(0.5)
    assert (found["lldsim/logp_correct"], found["lldsim/logp_wrong"]) == (-2.0, -4.5)
    assert found["success_rate"] == 0.5
    strict = measured_metrics(compute, correct_above=0.95)(batch=SimpleNamespace(batch=table))
    assert "lldsim/logp_correct" not in strict
    del table["old_log_probs"]
    assert set(measured_metrics(compute)(SimpleNamespace(batch=table))) == {"critic/score/mean"}
