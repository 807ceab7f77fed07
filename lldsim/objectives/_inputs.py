"""Checks and masking that every objective does before its first arithmetic, so the errors read the same everywhere.

What this file does not do: no loss, no default, no repair. A NaN on a masked position is replaced by 0 *before* any
arithmetic, because 0 * NaN in the backward pass is NaN even where the forward value was masked away; a NaN on an
action token is an error, never patched.
"""

from __future__ import annotations

import torch

from lldsim.errors import ConfigError, NonFiniteError, ShapeError


def working(values: torch.Tensor) -> torch.Tensor:
    """Return `values` in the dtype of the sums: float32 for bfloat16 and float16, else unchanged."""
    return values.float() if values.dtype in (torch.bfloat16, torch.float16) else values


def bool_mask(logps: torch.Tensor, action_mask: torch.Tensor, name: str = "action_mask") -> torch.Tensor:
    """Return a 0/1 mask of shape (B, T) as bool.

    Raises: ShapeError if `logps` is not (B, T) or the mask's shape differs; ConfigError if an entry is not 0 or 1.
    """
    if logps.ndim != 2:
        raise ShapeError(f"logps has shape {tuple(logps.shape)}, expected (B, T); flatten leading axes into B")
    if action_mask.shape != logps.shape:
        raise ShapeError(
            f"{name} has shape {tuple(action_mask.shape)} but logps has {tuple(logps.shape)}; "
            "pad and cut both to the same (B, T)"
        )
    if action_mask.dtype == torch.bool:
        return action_mask
    mask = action_mask == 1
    odd = ~mask & (action_mask != 0)
    if odd.any():
        index = odd.nonzero()[0].tolist()
        raise ConfigError(f"{name} is {action_mask[tuple(index)].item()} at {index}, expected 0 or 1; pass a bool mask")
    return mask


def on_mask(name: str, values: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """Return `values` (B, T) with 0 where `mask` is False, cut off from whatever stood there.

    Raises: ShapeError if shapes differ; NonFiniteError naming the first bad index if an unmasked entry is not finite.
    """
    if values.shape != mask.shape:
        raise ShapeError(
            f"{name} has shape {tuple(values.shape)} but action_mask has {tuple(mask.shape)}; "
            f"gather {name} for the same tokens and pad it to the same (B, T)"
        )
    bad = mask & ~torch.isfinite(values)
    if bad.any():
        index = bad.nonzero()[0].tolist()
        raise NonFiniteError(
            f"{name} is {values[tuple(index)].item()} at {index}, an action token ({int(bad.sum())} such tokens); "
            "mask the token or find where its log-probability was lost"
        )
    return torch.where(mask, working(values), 0.0)


def token_advantages(advantages: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """Return detached advantages of shape (B, T), 0 off the mask, from shape (B,) or (B, T).

    Raises: ShapeError for any other shape; NonFiniteError for a NaN that an action token would use.
    """
    if advantages.shape == mask.shape[:1]:
        advantages = advantages[:, None].expand(mask.shape)
    elif advantages.shape != mask.shape:
        raise ShapeError(
            f"advantages has shape {tuple(advantages.shape)} but action_mask has {tuple(mask.shape)}; "
            f"pass one value per response, shape ({mask.shape[0]},), or one per token, shape {tuple(mask.shape)}"
        )
    return on_mask("advantages", advantages.detach(), mask)


def masked_max(values: torch.Tensor, mask: torch.Tensor, empty: float) -> torch.Tensor:
    """Return the largest unmasked value as a detached scalar, or `empty` when nothing is unmasked."""
    kept = values.detach()[mask]
    return kept.max() if kept.numel() else values.new_tensor(empty)
