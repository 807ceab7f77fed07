"""A tiny network and world, untrained: enough for whatever must hold for any weights."""

from __future__ import annotations

from typing import Any

import torch

from lldsim.transformer.config import TransformerConfig
from lldsim.transformer.model import ModelShape, initial
from lldsim.transformer.warm_start import WarmStart

TINY = ModelShape(hidden=16, layers=2, heads=2, mlp=24)
CANON = (30, 31, 32, 33)


def tiny_start(*, seed: int = 0, dtype: torch.dtype = torch.float32, std: float = 0.15) -> WarmStart:
    """Random weights that know nothing."""
    flat = initial(TINY, torch.Generator().manual_seed(seed), std=std).to(dtype)
    return WarmStart(flat, CANON, TINY, {})


def tiny_config(**changes: Any) -> TransformerConfig:
    """Four queries of three responses, three turns."""
    small = {
        "n_queries": 4, "group_size": 3, "max_turns": 3, "body_tokens": 4, "invalid_threshold": 3,
        "updates": 4, "updates_per_rollout": 3, "staleness": 2, "stop_after_fall": False,
    }  # fmt: skip
    return TransformerConfig().replace(**small | changes)
