# pyright: reportMissingImports=false
"""LLDSGRPOTrainer: TRL's GRPOTrainer with lldsim's LLDS penalty added, and the measurements that show the disease.

The log-probabilities of the loss are caught on their way through TRL, so there is no second forward pass. With
coefficient 0 the loss is TRL's, bit for bit, and everything is still measured. Old log-probabilities are the trainer's
own recomputation at the start of the rollout batch, never the sampler's.
What this file does not do: sample (rollout.py), or write any part of a loss (lldsim.objectives).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from full_scale.metrics import action_mask, check_reference, padded, rollout_statistics
from full_scale.protocol import Trajectory
from lldsim.errors import ConfigError
from lldsim.names import Gate, Normalizer
from lldsim.objectives import answer_weight, llds_penalty
from lldsim.objectives.answer_weight import AnswerWeightRule

# A tied group's advantage is 0 up to rounding divided by TRL's 1e-4; below this it is taken as exactly 0, so that no
# gate of the preserving set A >= 0 hangs on the sign of a rounding error. Graded groups are far above it.
TIE = 1e-3


@dataclass(frozen=True)
class LLDS:
    """The LLDS part of the objective (Eqs. 4, 5, 6); coefficient 0 measures and adds nothing."""

    coef: float = 0.0
    gate: Gate = "action"
    normalizer: Normalizer = "preserving"
    answer_weight_rule: AnswerWeightRule = "fixed"
    # Which trajectories form a mini-batch: as TRL shuffles them, or so that it does not depend on the process count.
    even_minibatches: bool = False


class LLDSMixin:
    """The methods of LLDSGRPOTrainer; a mixin, because importing TRL must wait until it is used."""

    if TYPE_CHECKING:  # what GRPOTrainer brings
        args: Any
        state: Any
        model: Any
        accelerator: Any
        num_iterations: int
        current_gradient_accumulation_steps: int
        _metrics: dict[str, Any]
        _buffered_inputs: list[dict[str, Any]] | None
        _step: int

    def __init__(self, *args: Any, llds: LLDS | None = None, **kwargs: Any) -> None:
        self.llds = llds or LLDS()
        self.trajectories: list[Trajectory] | None = None  # set by the rollout function, read once per rollout batch
        self._logps: torch.Tensor | None = None
        self._window_tokens: dict[int, torch.Tensor] = {}
        self._mean_searches: float | None = None
        self._rewards: list[float] = []
        super().__init__(*args, **kwargs)
        self._check_layout()

    @property
    def updates_per_rollout(self) -> int:
        """Optimiser steps on one rollout batch."""
        return self.args.steps_per_generation * self.num_iterations // self.args.gradient_accumulation_steps

    def _check_layout(self) -> None:
        a = self.args
        whole = a.steps_per_generation * self.num_iterations
        if self.llds.coef > 0 and whole <= a.gradient_accumulation_steps:
            raise ConfigError(
                f"LLDS with steps_per_generation={a.steps_per_generation} and gradient_accumulation_steps="
                f"{a.gradient_accumulation_steps}: old and current policy are equal at every step, so the gate can "
                "never fire; make steps_per_generation at least twice gradient_accumulation_steps"
            )
        if whole % a.gradient_accumulation_steps:
            raise ConfigError(
                f"steps_per_generation * num_iterations = {whole} is no multiple of gradient_accumulation_steps="
                f"{a.gradient_accumulation_steps}, so an optimiser step would mix two rollout batches"
            )
        if a.save_strategy == "steps" and a.save_steps % self.updates_per_rollout:
            raise ConfigError(
                f"save_steps={a.save_steps} is no multiple of the {self.updates_per_rollout} steps on a rollout batch; "
                "a resume inside one samples anew and loses what LLDS compares"
            )

    # --- what TRL calls ---------------------------------------------------------------------------------------------

    def _get_per_token_logps_and_entropies(self, *args: Any, **kwargs: Any) -> Any:
        out = super()._get_per_token_logps_and_entropies(*args, **kwargs)  # pyright: ignore[reportAttributeAccessIssue]
        self._logps = out[0]
        return out

    def _calculate_rewards(self, inputs: Any, prompts: Any, *args: Any) -> torch.Tensor:
        rewards = super()._calculate_rewards(inputs, prompts, *args)  # pyright: ignore[reportAttributeAccessIssue]
        first = self.accelerator.process_index * len(prompts)
        self._rewards = rewards[first : first + len(prompts)].nansum(1).tolist()
        return rewards

    def _generate_and_score_completions(self, inputs: list[dict[str, Any]]) -> dict[str, Any]:
        batch = super()._generate_and_score_completions(inputs)  # pyright: ignore[reportAttributeAccessIssue]
        self._window_tokens.clear()
        trajectories, self.trajectories = self.trajectories, None
        if trajectories is not None:
            width, device = batch["completion_ids"].shape[1], batch["completion_ids"].device
            batch["action_id"] = padded([t.action_id for t in trajectories], width, -1, device)
            batch["answer_mask"] = padded([t.answer_mask for t in trajectories], width, 0, device)
            self._measure_rollout(batch, trajectories)
        if self.state.global_step == 0 and self.model.training:
            check_reference(batch)
        return batch

    def _prepare_inputs(self, generation_batch: Any) -> Any:
        if not (self.llds.even_minibatches and self.model.training):
            return super()._prepare_inputs(generation_batch)  # pyright: ignore[reportAttributeAccessIssue]
        parts = self.args.steps_per_generation
        if self._step % (parts * self.num_iterations) == 0 or self._buffered_inputs is None:
            whole = self._generate_and_score_completions(generation_batch)
            self._buffered_inputs = _deal(whole, self.updates_per_rollout // self.num_iterations, parts)
        return self._buffered_inputs[self._step % parts]

    def _compute_loss(self, model: Any, inputs: dict[str, Any]) -> torch.Tensor:
        loss = super()._compute_loss(model, inputs)  # pyright: ignore[reportAttributeAccessIssue]
        logps, self._logps = self._logps, None
        old = inputs.get("old_per_token_logps")
        if logps is None or old is None or not self.model.training:
            return loss
        mask, advantages = action_mask(inputs), _advantages(inputs)
        penalty, metrics = llds_penalty(
            logps if self.llds.coef > 0 else logps.detach(),
            old,
            advantages,
            mask,
            gate=self.llds.gate,
            normalizer=self.llds.normalizer,
            answer_mask=inputs.get("answer_mask"),
            answer_weight=self._answer_weight(),
            action_id=inputs.get("action_id"),
        )
        # llds_penalty divides by the tokens of what it is given; the paper's N counts the whole mini-batch, which lies
        # in several micro-batches and on several processes (whose gradients are averaged).
        here = _counted(mask, advantages, self.llds.normalizer).clamp(min=1).to(penalty.dtype)
        share = here / (self._minibatch_tokens() / self.accelerator.num_processes)
        self._measure_step(logps, old, mask, metrics | {"penalty": penalty.detach() * share})
        return loss + self.llds.coef * penalty * share if self.llds.coef > 0 else loss

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        """Log as TRL does, but a name that ends in _max is the largest value of the step and a penalty its sum."""
        for name, values in self._metrics["train"].items():
            if name.endswith("_max") and values and name.startswith("llds/"):
                self._metrics["train"][name] = [max(values)]
            elif name == "llds/penalty" and values:
                self._metrics["train"][name] = [sum(values)]
        super().log(logs, start_time)  # pyright: ignore[reportAttributeAccessIssue]

    # --- parts ------------------------------------------------------------------------------------------------------

    def _answer_weight(self) -> float:
        if self.llds.coef == 0:
            return 1.0
        return answer_weight(self._mean_searches, rule=self.llds.answer_weight_rule, llds_coef=self.llds.coef)

    def _minibatch_tokens(self) -> torch.Tensor:
        """Return N of the optimiser step under way, over its micro-batches and all processes, at least 1."""
        assert self._buffered_inputs is not None
        accumulation = self.current_gradient_accumulation_steps
        update = (self._step % self.args.steps_per_generation) // accumulation
        if update not in self._window_tokens:
            members = self._buffered_inputs[update * accumulation : (update + 1) * accumulation]
            counts = [_counted(action_mask(m), _advantages(m), self.llds.normalizer) for m in members]
            total = self.accelerator.reduce(torch.stack(counts).sum().float(), reduction="sum")
            self._window_tokens = {update: total.clamp(min=1)}
        return self._window_tokens[update]

    def _measure_step(
        self, logps: torch.Tensor, old: torch.Tensor, mask: torch.Tensor, metrics: dict[str, torch.Tensor]
    ) -> None:
        ratio = torch.where(mask, (logps.detach() - old).exp(), 1.0)
        names = ("gate_fraction", "drop_mean", "drop_max", "ratio_max", "penalty")
        values = torch.stack([metrics[n].float() if n in metrics else ratio.max().float() for n in names])
        gathered = self.accelerator.gather(values[None]).float()
        for k, name in enumerate(names):
            value = gathered[:, k].max() if name.endswith("_max") else gathered[:, k].mean()
            self._metrics["train"][f"llds/{name}"].append(value.item())

    def _measure_rollout(self, batch: dict[str, Any], trajectories: Sequence[Trajectory]) -> None:
        """Log what a rollout batch shows: one pair (sum, count) per name, added over the processes."""
        pairs = rollout_statistics(batch, trajectories, self._rewards)
        table = torch.tensor(list(pairs.values()), dtype=torch.float64, device=batch["completion_ids"].device)
        table = self.accelerator.reduce(table, reduction="sum")
        mode = "train" if self.model.training else "eval"
        for name, (total, count) in zip(pairs, table.tolist(), strict=True):
            if count > 0:
                self._metrics[mode][f"rollout/{name}"].append(total / count)
        self._mean_searches = (table[list(pairs).index("valid_searches")][0] / table[0][1]).item()


def _advantages(inputs: dict[str, Any]) -> torch.Tensor:
    advantages = inputs["advantages"]
    return torch.where(advantages.abs() < TIE, 0.0, advantages)


def _counted(mask: torch.Tensor, advantages: torch.Tensor, normalizer: Normalizer) -> torch.Tensor:
    return (mask & (advantages >= 0)[:, None]).sum() if normalizer == "preserving" else mask.sum()


def _deal(batch: dict[str, Any], updates: int, parts: int) -> list[dict[str, Any]]:
    """Split rows into `parts` micro-batches; row i goes to update i mod `updates`, on however many processes."""
    rows = batch["completion_ids"].shape[0]
    order = torch.arange(rows).view(-1, updates).T.reshape(-1)
    size = rows // parts
    return [
        {
            k: v[order[p * size : (p + 1) * size]] if isinstance(v, torch.Tensor) and v.ndim else v
            for k, v in batch.items()
        }
        for p in range(parts)
    ]


def __getattr__(name: str) -> Any:
    """Make LLDSGRPOTrainer when it is first asked for: TRL takes seconds to import."""
    if name != "LLDSGRPOTrainer":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    import os

    os.environ.setdefault("TRL_EXPERIMENTAL_SILENCE", "1")
    from trl import GRPOTrainer

    class LLDSGRPOTrainer(LLDSMixin, GRPOTrainer):
        """GRPOTrainer with LLDS; takes `llds=LLDS(...)` besides GRPOTrainer's arguments."""

    globals()[name] = LLDSGRPOTrainer
    return LLDSGRPOTrainer
