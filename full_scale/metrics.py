# pyright: reportMissingImports=false
"""What a rollout batch shows, as numbers and as lines of a file: statistics, a health check, the JSON-lines log.

What this file does not do: train, or talk to a tracker.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from full_scale.protocol import Trajectory
from lldsim.errors import ConfigError

REFERENCE_GAP = 0.05  # nats per token; bfloat16 noise is far below, another model's weights far above


def check_reference(batch: dict[str, Any]) -> None:
    """Raise ConfigError if the reference is not the policy before the first step (mean |difference| above 0.05 nats).

    It happens: with FSDP and cpu_ram_efficient_loading only the first process reads the weights, and TRL 1.16 sends
    them to the others for the policy but not for the reference. KL is then a pull to noise, and nothing else shows it.
    """
    old, reference = batch.get("old_per_token_logps"), batch.get("ref_per_token_logps")
    if old is None or reference is None:
        return
    mask = action_mask(batch)
    gap = (old - reference)[mask].abs().mean().item()
    if gap > REFERENCE_GAP:
        raise ConfigError(
            f"before the first step the reference model differs from the policy by {gap:.3f} nats per token; with FSDP "
            "set fsdp_cpu_ram_efficient_loading: false, or load the reference from the same weights"
        )


def rollout_statistics(
    batch: dict[str, Any], trajectories: Sequence[Trajectory], rewards: Sequence[float]
) -> dict[str, tuple[float, float]]:
    """Return name -> (sum, count) over a rollout batch; log-probabilities are the trainer's, per action token.

    Likelihood of correct responses is a mean over their own tokens: the released code divides by all action tokens, so
    that its number falls when reward rises. Per-action values count actions from 1. `reward` comes first.
    """
    n = float(len(trajectories))
    per_response = {
        "reward": [float(r) for r in rewards],
        "response_length": [float(sum(t.action_mask)) for t in trajectories],
        "valid_searches": [float(t.searches) for t in trajectories],
        "invalid_actions": [float(t.invalid_actions) for t in trajectories],
        "valid_action_rate": [1 - t.invalid_actions / len(t.actions) for t in trajectories],
        "truncated_turns": [float(t.truncated_turns) for t in trajectories],
        "answered": [float(t.finish == "answer") for t in trajectories],
    }
    pairs = {name: (sum(values), n) for name, values in per_response.items()}
    wrong = [t for t, r in zip(trajectories, rewards, strict=True) if not r > 0]
    pairs["first_search_wrong"] = (float(sum(t.actions[0].kind == "search" for t in wrong)), float(len(wrong)))
    old = batch.get("old_per_token_logps")
    if old is None:
        return pairs
    mask, action = action_mask(batch), batch["action_id"]
    correct = torch.tensor([r > 0 for r in rewards], device=mask.device)[:, None]
    for name, rows in (("correct", correct), ("wrong", ~correct)):
        for suffix, where in (("", mask), ("_action1", mask & (action == 0)), ("_action2", mask & (action == 1))):
            chosen = old[where & rows].double()
            pairs[f"logp_{name}{suffix}"] = (chosen.sum().item(), float(chosen.numel()))
    sampler = padded([t.logps for t in trajectories], mask.shape[1], 0.0, mask.device)
    gap = (sampler - old)[mask].double()
    pairs["sampler_gap"] = (gap.sum().item(), float(gap.numel()))
    pairs["sampler_gap_abs"] = (gap.abs().sum().item(), float(gap.numel()))
    return pairs


def action_mask(inputs: dict[str, Any]) -> torch.Tensor:
    """Return (B, T) bool: completion tokens that the policy wrote."""
    mask = inputs["completion_mask"].bool()
    return mask & inputs["tool_mask"].bool() if inputs.get("tool_mask") is not None else mask


def padded(rows: Sequence[Sequence[float]], width: int, value: float, device: Any) -> torch.Tensor:
    """Return rows as one (B, width) tensor, filled up with `value` on the right."""
    return torch.tensor([[*row, *[value] * (width - len(row))] for row in rows], device=device)


def jsonl_callback(path: str | Path) -> Any:
    """Return a TrainerCallback that appends one JSON line per logged step; a resume first drops the lines beyond it."""
    from transformers import TrainerCallback

    target = Path(path)

    class JSONLines(TrainerCallback):
        def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            if state.is_world_process_zero:
                target.parent.mkdir(parents=True, exist_ok=True)
                lines = target.read_text().splitlines() if target.exists() else []
                kept = [line for line in lines if json.loads(line)["step"] <= state.global_step]
                target.write_text("".join(f"{line}\n" for line in kept))

        def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **kwargs: Any) -> None:
            if state.is_world_process_zero and logs and "loss" in logs:
                plain = {k: v for k, v in logs.items() if isinstance(v, int | float) or v is None}
                with target.open("a") as file:
                    file.write(json.dumps({"step": state.global_step, **plain}) + "\n")

    return JSONLines()
