"""The three ways to turn per-token values (B, T) into one number; the choice decides what a long response weighs.

What this file does not do: no gradient accumulation. Two micro-batches averaged are not one batch under "token-mean"
(rows of 5 and 1 tokens with values 2 and 10: 3.3333 together, 6.0 apart), so a trainer that accumulates must scale.
"""

from __future__ import annotations

import torch

from lldsim.errors import ConfigError
from lldsim.names import Aggregation
from lldsim.objectives._inputs import bool_mask, working


def aggregate(values: torch.Tensor, mask: torch.Tensor, mode: Aggregation) -> torch.Tensor:
    r"""Aggregate per-token values over the unmasked tokens.

    With m the mask, L_i the unmasked tokens of response i and n the number of responses with L_i > 0:

        "token-mean"           sum_it m v / sum_it m            (released code, DAPO)
        "seq-mean-token-mean"  1/n sum_i (1/L_i) sum_t m v      (Eq. 1 of arXiv 2512.04220, GSPO)
        "seq-mean-token-sum"   1/n sum_i sum_t m v              (Dr.GRPO up to a constant length)

    A fully masked response has no mean, so the two seq modes do not count it in n (ours; a plain mean over B would let
    an empty row shrink the loss of the others). If everything is masked the result is 0 with zero gradient, still
    connected to `values`. What stands on a masked place, NaN included, reaches neither the value nor the gradient.

    Shapes: values (B, T), mask (B, T) of 0/1, result scalar, in the units of `values`.
    Raises: ShapeError if shapes differ, ConfigError for an unknown mode.

    >>> v, m = torch.tensor([[2.0] * 5, [10.0] + [0.0] * 4]), torch.tensor([[1] * 5, [1, 0, 0, 0, 0]])
    >>> [round(aggregate(v, m, mode).item(), 4) for mode in ("token-mean", "seq-mean-token-mean", "seq-mean-token-sum")]
    [3.3333, 6.0, 10.0]
    """
    keep = bool_mask(values, mask, "mask")
    kept = torch.where(keep, working(values), 0.0)
    if mode == "token-mean":
        return kept.sum() / keep.sum().clamp(min=1)
    lengths = keep.sum(dim=1)
    responses = (lengths > 0).sum().clamp(min=1)
    if mode == "seq-mean-token-mean":
        return (kept.sum(dim=1) / lengths.clamp(min=1)).sum() / responses
    if mode == "seq-mean-token-sum":
        return kept.sum() / responses
    raise ConfigError(f"aggregation is {mode!r}; choose 'token-mean', 'seq-mean-token-mean' or 'seq-mean-token-sum'")
