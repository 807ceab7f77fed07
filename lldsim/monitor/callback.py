"""LLDMonitor: the rules on a live run, as a transformers/TRL callback or called from any loop.

    monitor = LLDMonitor(action="stop")
    trainer = measured(GRPOTrainer)(..., callbacks=[monitor])  # TRL
    # or, in any loop:
    alarms = monitor.observe(step, {"reward": r, **monitor.measure(logps, rewards, action_mask)})

Few trainers log the likelihood of correct responses. `measured(GRPOTrainer)` is a TRL trainer that does
(trl_signals.py), `measured_metrics` adds it to verl's metrics (verl_signals.py); any other loop calls `measure`.
What this file does not do: import transformers. The callback has every `on_...` method by duck typing.
"""

from __future__ import annotations

import json
import logging
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np

from lldsim.errors import ConfigError, ShapeError
from lldsim.monitor.aliases import lookup
from lldsim.monitor.rules import DEFAULT_RULES, Alarm, Rules, Watch
from lldsim.monitor.text_logs import number

logger = logging.getLogger("lldsim.monitor")
Action = Literal["warn", "stop"]


@dataclass(frozen=True)
class LambdaSchedule:
    """How alarms raise the weight of LLDS: lambda <- min(max(factor * lambda, first), most), at most every `rest`
    updates.

    The defaults are the paper's: .1 is the smallest weight of its Fig. 8 that prevents collapse, .3 the largest it
    uses.

    >>> LambdaSchedule().after(0.0), LambdaSchedule().after(0.2)
    (0.1, 0.3)
    """

    first: float = 0.1
    factor: float = 2.0
    most: float = 0.3
    rest: float = 10.0

    def after(self, llds_coef: float) -> float:
        """Return the weight after one alarm; a weight already above `most` is left alone."""
        return max(llds_coef, min(max(self.factor * llds_coef, self.first), self.most))


class LLDMonitor:
    """Watch a run: warn through `logging`, and on request stop it or raise the weight of LLDS.

    `action="stop"` sets `control.should_training_stop` at the first alarm of severity warning or worse.
    `set_llds_coef` is called with the new weight when the schedule raises it; `llds_coef` is the weight at the
    start. `on_alarm` gets every alarm. `path` receives one JSON line per observed row. `steps_per_update` as in
    `Watch`.
    """

    def __init__(
        self,
        *,
        action: Action = "warn",
        rules: Rules = DEFAULT_RULES,
        steps_per_update: float = 1.0,
        set_llds_coef: Callable[[float], None] | None = None,
        llds_coef: float = 0.0,
        schedule: LambdaSchedule | None = None,
        on_alarm: Callable[[Alarm], None] | None = None,
        path: Path | str | None = None,
    ) -> None:
        if action not in ("warn", "stop"):
            raise ConfigError(f"action={action!r}: choose 'warn' or 'stop'")
        self.action, self.llds_coef, self.alarms = action, llds_coef, list[Alarm]()
        self.watch = Watch(rules, steps_per_update=steps_per_update)
        self._unit, self._set, self._schedule = steps_per_update, set_llds_coef, schedule or LambdaSchedule()
        self._on_alarm, self._path = on_alarm, None if path is None else Path(path)
        self._raised_at = self._last_step = -math.inf
        if self._path is not None:
            self._path.parent.mkdir(parents=True, exist_ok=True)

    def observe(self, step: float, row: Mapping[str, Any]) -> list[Alarm]:
        """Take what was logged at `step`, under any framework's names, and return the alarms that begin here."""
        if step < self._last_step:  # a resumed run replays steps; the rules know time only as rising
            return []
        self._last_step = step
        values, rank = dict[str, float](), dict[str, int]()
        for key, raw in row.items():
            found, value = lookup(str(key)), number(raw.item() if hasattr(raw, "item") else raw)
            if found and value is not None and found[1] < rank.get(found[0], 10**6):
                values[found[0]], rank[found[0]] = value, found[1]
            self.watch.trusted |= key == "lldsim/logp_correct"
        alarms = self.watch.add(float(step), values) if values else []
        for alarm in alarms:
            self._tell(alarm)
        if self._path is not None and values:
            line = {"step": step, **{k: v for k, v in values.items() if math.isfinite(v)}}
            with self._path.open("a") as file:
                file.write(json.dumps(line | ({"alarms": [a.as_dict() for a in alarms]} if alarms else {})) + "\n")
        return alarms

    def _tell(self, alarm: Alarm) -> None:
        self.alarms.append(alarm)
        if self._on_alarm:
            self._on_alarm(alarm)
        if alarm.severity == "info":
            return
        logger.warning("LLD monitor, step %g, %s: %s", alarm.step, alarm.rule, alarm.message)
        if self._set and alarm.step - self._raised_at >= self._schedule.rest * self._unit:
            raised = self._schedule.after(self.llds_coef)
            if raised > self.llds_coef:
                logger.warning("LLD monitor: llds_coef %g -> %g", self.llds_coef, raised)
                self.llds_coef, self._raised_at = raised, alarm.step
                self._set(raised)

    def on_log(self, args: Any, state: Any, control: Any, logs: Mapping[str, Any] | None = None, **_: Any) -> Any:
        """Read a trainer's log (transformers calls this); sets `control.should_training_stop` when asked to stop."""
        alarms = self.observe(float(getattr(state, "global_step", 0)), logs or {})
        if self.action == "stop" and any(a.severity != "info" for a in alarms):
            control.should_training_stop = True
        return control

    def __getattr__(self, name: str) -> Callable[..., None]:
        if name.startswith("on_"):  # the events of transformers.TrainerCallback that are of no interest here
            return _ignore
        raise AttributeError(f"{type(self).__name__} has no attribute {name!r}")

    @staticmethod
    def measure(
        logps: Any, rewards: Any, action_mask: Any, *, action_id: Any = None, old_logps: Any = None, correct: Any = None
    ) -> dict[str, float]:
        r"""Return the signals that trainers do not log, from one batch of responses.

        logp_correct = sum_{i correct} sum_k m_{ik} ln pi_{ik} / sum_{i correct} sum_k m_{ik}    (paper, section 6)

        `logps` (B, T) current log-probabilities, `rewards` (B,), `action_mask` (B, T) 1 on policy tokens, `action_id`
        (B, T) the action's number from 0 (else from the mask's runs), `old_logps` (B, T) for the ratio, `correct` (B,)
        bool (default rewards > 0.5). Keys start with `lldsim/`; what the batch cannot tell is left out.
        Raises ShapeError when shapes disagree.
        """
        logp, reward, mask = _array(logps), _array(rewards), _array(action_mask) > 0
        if logp.ndim != 2 or mask.shape != logp.shape or reward.shape != logp.shape[:1]:
            raise ShapeError(
                f"logps {logp.shape}, action_mask {mask.shape}, rewards {reward.shape}: give (B, T), (B, T), (B,)"
            )
        right = reward > 0.5 if correct is None else _array(correct) > 0
        before = np.pad(mask[:, :-1], ((0, 0), (1, 0)))
        action = np.cumsum(mask & ~before, axis=1) - 1 if action_id is None else _array(action_id)
        parts = {
            "logp_all": mask,
            "logp_correct": mask & right[:, None],
            "logp_wrong": mask & ~right[:, None],
            "logp_correct_action1": mask & right[:, None] & (action == 0),
            "logp_correct_action2": mask & right[:, None] & (action == 1),
        }
        found = {f"lldsim/{name}": float(logp[part].mean()) for name, part in parts.items() if part.any()}
        found["success_rate"] = float(right.mean()) if len(right) else math.nan
        if old_logps is not None and mask.any():
            found["lldsim/ratio_max"] = float(np.exp(np.minimum((logp - _array(old_logps))[mask], 80.0).max()))
        return found


def _array(values: Any) -> np.ndarray:
    if hasattr(values, "detach"):
        values = values.detach().float().cpu().numpy()
    return np.asarray(values, dtype=float)


def _ignore(*_: Any, **__: Any) -> None:
    """Do nothing, which lets the trainer go on."""
