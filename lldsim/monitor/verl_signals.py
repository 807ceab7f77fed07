"""The signals that verl does not log, added to its batch metrics.

    import verl.trainer.ppo.ray_trainer as ray_trainer       # in the process that runs `fit` (verl's TaskRunner)
    from lldsim.monitor import measured_metrics
    ray_trainer.compute_data_metrics = measured_metrics(ray_trainer.compute_data_metrics)

Every log then gains `lldsim/logp_correct` and the other keys of `LLDMonitor.measure`, from the log-probabilities at the
start of the rollout batch. Written for verl 0.9.1.
What this file does not do: import verl, or see the ratio, which differs from 1 only within a rollout batch's updates.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from lldsim.monitor.callback import LLDMonitor


def measured_metrics(
    compute_data_metrics: Callable[..., dict[str, Any]], *, correct_above: float = 0.5
) -> Callable[..., dict[str, Any]]:
    """Return verl's `compute_data_metrics` with the signals added; a response is correct if its score is above."""

    def compute(batch: Any, *args: Any, **kwargs: Any) -> dict[str, Any]:
        found, table = compute_data_metrics(batch, *args, **kwargs), batch.batch
        if "old_log_probs" not in table:
            return found
        scores = table["token_level_scores"].sum(-1)
        return found | LLDMonitor.measure(
            table["old_log_probs"], scores, table["response_mask"], correct=scores > correct_above
        )

    return compute
