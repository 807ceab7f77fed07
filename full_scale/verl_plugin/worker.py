# pyright: reportMissingImports=false
"""verl's training worker, plus the counts that the LLDS loss needs of its mini-batch.

`actor_rollout_ref.model.external_lib` names this module, so verl imports it in every worker before it builds the actor,
and lets an import error through: here the run stops if the loss is not in the registry (a plug-in that fails to load is
otherwise only a debug message). The worker is exchanged by the class attribute that verl keeps for that.
What this file does not do: change the loss, the optimiser or the data.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from verl.trainer.ppo.core_algos import POLICY_LOSS_REGISTRY
from verl.workers.engine_workers import ActorRolloutRefWorker, TrainingWorker

from full_scale.verl_plugin import LOSS, VERL
from full_scale.verl_plugin.batch import MiniBatch, current, dense, notes, under_way, zero_ties
from lldsim.errors import ConfigError


class LLDSTrainingWorker(TrainingWorker):
    """TrainingWorker whose loss knows its mini-batch."""

    mean_searches: float | None = None

    def set_loss_fn(self, loss_fn: Any) -> None:
        """Set the loss, with the answers of every micro-batch around it."""
        super().set_loss_fn(with_answers(loss_fn))

    def train_mini_batch(self, data: Any) -> Any:
        """Train on a rollout batch, of which the mean number of searches decides the answer weight."""
        self.mean_searches = mean_searches(data, self._sum)
        return super().train_mini_batch(data)

    def train_batch(self, data: Any) -> Any:
        """Train on one mini-batch."""
        with under_way(MiniBatch(preserving_tokens(data, self._sum), self.mean_searches)):
            return super().train_batch(data)

    def _sum(self, values: list[float]) -> list[float]:
        """Return the values added over the data-parallel processes."""
        group = self.engine.get_data_parallel_group()
        if group is None:
            return values
        total = torch.tensor(values, dtype=torch.float64 if self.device_name == "cpu" else torch.float32)
        total = total.to(self.device_name)
        torch.distributed.all_reduce(total, group=group)
        return total.tolist()


def preserving_tokens(data: Any, add: Any = list) -> float:
    """Return the number of policy tokens with advantage >= 0 in a mini-batch; `add` sums over processes."""
    mask, advantages = dense(data["response_mask"]).bool(), dense(data["advantages"])
    return add([float((mask & (zero_ties(advantages) >= 0)).sum())])[0]


def mean_searches(data: Any, add: Any = list) -> float | None:
    """Return the mean number of searches per response of a rollout batch, or None if the rows carry none.

    Rows without a policy token are verl's padding and do not count.
    """
    rows = notes(data)
    if rows is None:
        return None
    mask = data["response_mask"]
    alive = [bool(row.any()) for row in (mask.unbind() if mask.is_nested else mask)]
    counts = [float(row["searches"]) for row, lives in zip(rows, alive, strict=True) if lives]
    total, number = add([sum(counts), float(len(counts))])
    return total / number if number else 0.0


def with_answers(loss_fn: Any) -> Any:
    """Return `loss_fn` with the answers of its micro-batch added to the mini-batch under way."""

    def loss(model_output: Any, data: Any, dp_group: Any = None) -> Any:
        batch, rows = current(), notes(data)
        if batch is None or rows is None:
            return loss_fn(model_output=model_output, data=data, dp_group=dp_group)
        answers = tuple(tuple(int(place) for place in row["answer_tokens"]) for row in rows)
        with under_way(replace(batch, answers=answers)):
            return loss_fn(model_output=model_output, data=data, dp_group=dp_group)

    return loss


def check_registered() -> None:
    """Raise ConfigError unless verl is the version that is used here and its registry holds our loss."""
    import verl

    if verl.__version__ != VERL:
        raise ConfigError(f"verl is {verl.__version__}, and the hooks used here are those of {VERL}; install that one")
    found = POLICY_LOSS_REGISTRY.get(LOSS)
    if found is None or not found.__module__.startswith("full_scale."):
        raise ConfigError(
            f"policy loss {LOSS!r} of full_scale is not in verl's registry ({sorted(POLICY_LOSS_REGISTRY)}): its "
            "plug-in was not loaded. Install this repository as a package (`pip install -e .`) in the environment of "
            "every node, leave VERL_USE_EXTERNAL_PLUGINS unset, or set VERL_USE_EXTERNAL_MODULES="
            "full_scale.verl_plugin.loss"
        )


check_registered()
ActorRolloutRefWorker.actor_worker_cls = LLDSTrainingWorker
