"""Random rollout groups for the theory tests: every shape that Theorem 4.2 has to survive.

Not a world: tokens, hidden states and weights are drawn without any structure, so that no test leans on one.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from lldsim.advantages import group_advantages


@dataclass(frozen=True)
class Group:
    """One query's rollouts with the policy that scores them: logits = base + W U phi, hidden = U phi."""

    base: Tensor  # (B, T, V)
    features: Tensor  # (B, T, F)
    mixing: Tensor  # (D, F)
    weight: Tensor  # (V, D)
    tokens: Tensor  # (B, T), -1 off the mask
    mask: Tensor  # (B, T)
    action_id: Tensor  # (B, T), -1 off the mask
    advantages: Tensor  # (B,)

    @property
    def hidden(self) -> Tensor:
        return self.features @ self.mixing.mT

    @property
    def probs(self) -> Tensor:
        return torch.softmax(self.base + self.hidden @ self.weight.mT, -1)

    @property
    def inputs(self) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """The leading arguments of `gwhes` and `flow`."""
        return self.hidden, self.probs, self.tokens, self.mask


def pick(low: int, high: int, generator: torch.Generator) -> int:
    """Draw an integer in low..high, both included."""
    return int(torch.randint(low, high + 1, (), generator=generator))


def layout(lengths: list[list[tuple[int, int]]]) -> tuple[Tensor, Tensor]:
    """Turn per-response lists of (action length, feedback length) into (mask, action_id), right-padded."""
    width = max(sum(a + f for a, f in row) for row in lengths)
    action_id = torch.full((len(lengths), width), -1)
    for i, row in enumerate(lengths):
        at = 0
        for k, (action, feedback) in enumerate(row):
            action_id[i, at : at + action] = k
            at += action + feedback
    return action_id >= 0, action_id


def random_group(
    generator: torch.Generator,
    *,
    size: int | None = None,
    vocab: int | None = None,
    dim: int | None = None,
    max_action: int = 4,
    max_feedback: int = 3,
    correct: int | None = None,
    std_ddof: int = 1,
) -> Group:
    """Draw a group; None draws the shape too. `max_action=1` gives one-token actions, `max_feedback=0` none between."""
    size = pick(2, 6, generator) if size is None else size
    vocab = pick(2, 7, generator) if vocab is None else vocab
    dim = pick(1, 6, generator) if dim is None else dim
    correct = pick(1, size - 1, generator) if correct is None else correct
    lengths = [
        [(pick(1, max_action, generator), pick(0, max_feedback, generator)) for _ in range(pick(1, 3, generator))]
        for _ in range(size)
    ]
    mask, action_id = layout(lengths)
    fan = pick(1, 5, generator)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    rewards = torch.zeros(size, dtype=torch.float64)
    rewards[torch.randperm(size, generator=generator)[:correct]] = 1.0
    drawn = torch.randint(vocab, mask.shape, generator=generator)
    return Group(
        base=normal(*mask.shape, vocab),
        features=normal(*mask.shape, fan),
        mixing=normal(dim, fan) / fan**0.5,
        weight=normal(vocab, dim) / dim**0.5,
        tokens=torch.where(mask, drawn, -1),
        mask=mask,
        action_id=action_id,
        advantages=group_advantages(rewards, torch.zeros(size, dtype=torch.int64), std_ddof=std_ddof),
    )
