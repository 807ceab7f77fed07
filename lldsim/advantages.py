"""Group-relative advantages: how much better a response did than the others of its own query.

What this file does not do: no resampling of tied groups and no baseline for a group of one. The released code returns
the raw reward for a single response, which is no baseline at all; here it is refused. Its group key, a row index that
restarts in each source data set, is not reproduced either: the key is the query.
"""

from __future__ import annotations

import torch

from lldsim.errors import ConfigError, GroupError, NonFiniteError, ShapeError


def group_advantages(
    rewards: torch.Tensor,
    group: torch.Tensor,
    *,
    std_ddof: int = 1,
    eps: float = 1e-6,
    std_normalize: bool = True,
) -> torch.Tensor:
    r"""Group-relative advantages (the advantage of Eq. 1 of arXiv 2512.04220).

        A_i = (r_i - mean r) / (std r + eps)      over the responses that share i's group

    `std_ddof` 1 is the released code's unbiased std, 0 the population std that the theory of arXiv 2505.18830 uses: for
    rewards (1, 0, 0, 0, 0) the winner gets 1.789 or 2.0. eps 1e-6 is the released code's. `std_normalize=False` gives
    r - mean (Dr.GRPO). A tied group gets exactly 0, not the rounding of its mean divided by eps.

    Shapes: rewards (B,) or (R, B), group integers (B,) (shared by all runs) or of the shape of `rewards`; result like
    rewards, dimensionless, float64 for integer or bool rewards, float32 for half precision.
    Raises: GroupError (no rewards, a group of one, non-integer keys), ShapeError, NonFiniteError, ConfigError.

    >>> group_advantages(torch.tensor([1, 0, 0, 0, 0]), torch.zeros(5, dtype=torch.int64)).round(decimals=4).tolist()
    [1.7889, -0.4472, -0.4472, -0.4472, -0.4472]
    """
    if std_ddof not in (0, 1):
        raise ConfigError(f"std_ddof={std_ddof!r}; choose 1 (unbiased, released code) or 0 (population)")
    if not eps >= 0:
        raise ConfigError(f"eps={eps} must be >= 0 (released code: 1e-6)")
    values = _floating(rewards)
    index, keys = _group_index(values, group)

    zeros = values.new_zeros(*values.shape[:-1], len(keys))
    count = zeros.scatter_add(-1, index, torch.ones_like(values))
    _refuse_singletons(count, keys)
    mean = zeros.scatter_add(-1, index, values) / count.clamp(min=1)
    centred = values - mean.gather(-1, index)
    if std_normalize:
        variance = zeros.scatter_add(-1, index, centred.square()) / (count - std_ddof).clamp(min=1)
        scale = variance.sqrt().gather(-1, index) + eps
    else:
        scale = torch.ones_like(values)
    lowest = zeros.scatter_reduce(-1, index, values, "amin", include_self=False)
    highest = zeros.scatter_reduce(-1, index, values, "amax", include_self=False)
    tied = (lowest == highest).gather(-1, index)
    return torch.where(tied, 0.0, centred / scale)


def _floating(rewards: torch.Tensor) -> torch.Tensor:
    """Return the rewards, checked for being there and finite, in a floating dtype, detached."""
    if rewards.numel() == 0:
        raise GroupError("rewards is empty; a batch needs at least one group of two responses")
    if rewards.ndim not in (1, 2):
        raise ShapeError(f"rewards has shape {tuple(rewards.shape)}, expected (B,) or (R, B); one reward per response")
    bad = ~torch.isfinite(rewards)
    if bad.any():
        where = bad.nonzero()[0].tolist()
        raise NonFiniteError(
            f"rewards is {rewards[tuple(where)].item()} at {where}; score the response or drop its group"
        )
    if not rewards.is_floating_point():
        return rewards.double()
    half = rewards.dtype in (torch.bfloat16, torch.float16)
    return (rewards.float() if half else rewards).detach()


def _group_index(values: torch.Tensor, group: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return each response's position in the sorted keys, shaped like `values`, and those keys."""
    if group.is_floating_point() or group.is_complex() or group.dtype == torch.bool:
        raise GroupError(f"group has dtype {group.dtype}, expected integers; number the queries of the batch")
    if group.shape not in (values.shape, values.shape[-1:]):
        raise ShapeError(
            f"group has shape {tuple(group.shape)} but rewards has {tuple(values.shape)}; "
            "pass one group number per reward"
        )
    keys, index = torch.unique(group, return_inverse=True)
    return index.expand(values.shape), keys


def _refuse_singletons(count: torch.Tensor, keys: torch.Tensor) -> None:
    lonely = (count == 1).nonzero()
    if len(lonely):
        *run, column = lonely[0].tolist()
        place = f" of run {run[0]}" if run else ""
        raise GroupError(
            f"group {int(keys[column])}{place} has one response ({len(lonely)} such groups), so it has no baseline; "
            "sample at least 2 rollouts per query or drop the group"
        )
