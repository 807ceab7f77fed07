"""What the policy loss must know of the whole mini-batch and verl does not tell it.

verl calls a policy loss once per micro-batch, with log-probabilities, advantages and a mask. Missing are the number of
preserving tokens of the mini-batch (the paper's N), the mean number of searches and where the final answers stand. The
worker counts them, and this context carries them to the loss of the same process.
What this file does not do: import verl, or know how tensors are sharded.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

import torch

from full_scale.protocol import Trajectory
from full_scale.verl_plugin import FIELD
from lldsim.errors import ShapeError

# As in trl_trainer.py: a tied group's advantage is 0 up to rounding, and no gate may hang on the sign of that.
TIE = 1e-3


@dataclass(frozen=True)
class MiniBatch:
    """Counts over one optimiser step on all processes, and the answers of the micro-batch under way.

    `answers` holds the positions of the answer's tokens per response; None while no micro-batch is under way or when
    trajectories carry no note of it.
    """

    preserving_tokens: float
    mean_searches: float | None = None
    answers: tuple[tuple[int, ...], ...] | None = None


_CURRENT: ContextVar[MiniBatch | None] = ContextVar("lldsim_mini_batch", default=None)


def current() -> MiniBatch | None:
    """Return the mini-batch under way in this process, or None outside one."""
    return _CURRENT.get()


@contextmanager
def under_way(batch: MiniBatch) -> Iterator[None]:
    """Make `batch` the mini-batch under way."""
    token = _CURRENT.set(batch)
    try:
        yield
    finally:
        _CURRENT.reset(token)


def annotation(trajectory: Trajectory) -> dict[str, Any]:
    """Return what a trajectory carries to the loss and the reward, as plain numbers and text."""
    return {
        "answer": trajectory.answer,
        "answer_tokens": [place for place, flag in enumerate(trajectory.answer_mask) if flag],
        "searches": trajectory.searches,
        "invalid_actions": trajectory.invalid_actions,
        "truncated_turns": trajectory.truncated_turns,
        "finish": trajectory.finish,
    }


def notes(data: Any) -> list[dict[str, Any]] | None:
    """Return the notes of the rows from verl's batch (`data.get`), or None if it carries none.

    The present trainer keeps extra fields in one dictionary per row, the older one spreads them over the batch.
    """
    for key in (FIELD, "extra_fields"):
        if key not in data.keys():  # noqa: SIM118 - a TensorDict
            continue
        stack = data.get(key)
        rows = stack.tolist() if hasattr(stack, "tolist") else getattr(stack, "data", stack)
        found = [row.get(FIELD) if key == "extra_fields" else row for row in rows]
        if all(row is not None for row in found):
            return found
    return None


def zero_ties(advantages: torch.Tensor) -> torch.Tensor:
    """Return advantages with those of tied groups exactly 0."""
    return torch.where(advantages.abs() < TIE, 0.0, advantages)


def answer_mask(answers: Sequence[Sequence[int]], like: torch.Tensor) -> torch.Tensor:
    """Return (B, T) bool, true on answer tokens. Raises ShapeError if rows differ from those of `like`."""
    if len(answers) != like.shape[0]:
        raise ShapeError(f"{len(answers)} answers for a micro-batch of {like.shape[0]} responses; one each is needed")
    mask = torch.zeros(like.shape, dtype=torch.bool, device=like.device)
    for row, places in enumerate(answers):
        mask[row, list(places)] = True
    return mask


def dense(values: torch.Tensor) -> torch.Tensor:
    """Return the values of a nested (jagged) tensor as one row, and any other tensor as it is."""
    return values.values() if values.is_nested else values
