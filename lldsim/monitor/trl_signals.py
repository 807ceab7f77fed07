"""The signals that TRL does not log, logged by TRL: `measured(GRPOTrainer)` is a GRPOTrainer that measures them.

    from lldsim.monitor import LLDMonitor, measured
    trainer = measured(GRPOTrainer)(..., callbacks=[LLDMonitor(action="stop")])

Every log gains `lldsim/logp_correct`, `..._wrong`, `..._all`, `..._correct_action1`, `..._action2`, `lldsim/ratio_max`
and `success_rate`: means over the tokens (responses) of all micro-batches and processes since the last log, caught on
their way through TRL, so that no forward pass is added and the loss is TRL's, bit for bit. Written for trl 1.16.
What this file does not do: import TRL (the class is handed in), or see log-probabilities that a fused loss never forms.
"""

from __future__ import annotations

from typing import Any

from lldsim.errors import ConfigError

_PARTS = ("all", "correct", "wrong", "correct_action1", "correct_action2")


def measured(trainer_class: type, *, reward_func: str | None = None, correct_above: float = 0.5) -> type:
    """Return a subclass of `trainer_class` (TRL's GRPOTrainer or one of its subclasses) that logs the signals.

    A response is correct if its reward is above `correct_above`: the weighted sum that TRL trains on, or that of the
    one reward function named. Raises ConfigError at the first batch for a name that the trainer does not know.
    """

    import torch

    class Measured(trainer_class):
        _lld_rewards: Any = None
        _lld_logps: Any = None
        _lld_sums: Any = None
        _lld_ratio: float = 0.0  # the largest since the last log

        def _calculate_rewards(self, inputs: Any, prompts: Any, *args: Any, **kwargs: Any) -> Any:
            found = super()._calculate_rewards(inputs, prompts, *args, **kwargs)
            first = self.accelerator.process_index * len(prompts)
            mine = found[first : first + len(prompts)]
            if reward_func is None:
                self._lld_rewards = (mine * self.reward_weights.to(mine.device)).nansum(dim=1)
            elif reward_func in self.reward_func_names:
                self._lld_rewards = mine[:, self.reward_func_names.index(reward_func)]
            else:
                raise ConfigError(f"reward_func={reward_func!r}: the trainer has {self.reward_func_names}")
            return found

        def _generate_and_score_completions(self, inputs: Any) -> Any:
            batch = super()._generate_and_score_completions(inputs)
            batch["lldsim_rewards"] = self._lld_rewards  # (B,), which TRL shuffles and cuts as it does the rest
            return batch

        def _get_per_token_logps_and_entropies(self, *args: Any, **kwargs: Any) -> Any:
            out = super()._get_per_token_logps_and_entropies(*args, **kwargs)
            self._lld_logps = out[0].detach()
            return out

        def _compute_loss(self, model: Any, inputs: Any) -> Any:
            self._lld_logps = None
            loss = super()._compute_loss(model, inputs)
            if self.model.training and self._lld_logps is not None and "lldsim_rewards" in inputs:
                self._lld_measure(self._lld_logps, inputs)
            return loss

        def _lld_measure(self, logps: Any, inputs: Any) -> None:
            mask = inputs["completion_mask"] > 0
            if inputs.get("tool_mask") is not None:
                mask = mask & (inputs["tool_mask"] > 0)
            right = inputs["lldsim_rewards"] > correct_above
            begins = mask.clone()
            begins[:, 1:] &= ~mask[:, :-1]
            action, correct = begins.cumsum(dim=1), mask & right[:, None]  # actions count from 1
            parts = (mask, correct, mask & ~right[:, None], correct & (action == 1), correct & (action == 2))
            sums = [logps.double().masked_fill(~part, 0.0).sum() for part in parts] + [right.double().sum()]
            counts = [part.double().sum() for part in parts] + [right.double().new_tensor(len(right))]
            found = torch.stack([*sums, *counts])
            self._lld_sums = found if self._lld_sums is None else self._lld_sums + found
            old = inputs.get("old_per_token_logps")
            if old is not None and mask.any():
                change = (logps - old).masked_fill(~mask, 0.0).clamp(max=80.0)
                self._lld_ratio = max(self._lld_ratio, float(change.max().exp()))

        def log(self, logs: Any, *args: Any, **kwargs: Any) -> None:
            """Log as TRL does, with the signals."""
            if self.model.training and self._lld_sums is not None:
                total = self.accelerator.reduce(self._lld_sums, reduction="sum").tolist()
                ratio = self.accelerator.gather(self._lld_sums.new_tensor([self._lld_ratio])).max().item()
                self._lld_sums, self._lld_ratio = None, 0.0
                names = [*(f"lldsim/logp_{part}" for part in _PARTS), "success_rate"]
                for name, part, count in zip(names, total[: len(names)], total[len(names) :], strict=True):
                    if count:
                        logs[name] = part / count
                if ratio > 0:
                    logs["lldsim/ratio_max"] = ratio
            super().log(logs, *args, **kwargs)

    Measured.__name__ = f"Measured{trainer_class.__name__}"
    return Measured
