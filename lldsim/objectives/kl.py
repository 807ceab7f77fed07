"""The "low variance" KL estimate k3 in three forms that differ only where the policies are far apart.

What this file does not do: no aggregation, no coefficient, and no correction of k3's gradient, which is not the
gradient of the reverse KL (its derivative by `logps` is 1 - exp(d) per sampled token). Far from the reference that
term explodes by itself; a run with "raw" therefore cannot tell displacement from this estimator's own explosion.
"""

from __future__ import annotations

import math
from typing import Literal

import torch

from lldsim.errors import ConfigError, ShapeError
from lldsim.k3 import gaps_at
from lldsim.objectives._inputs import bool_mask, on_mask, working

KlForm = Literal["clamped", "linear", "raw"]


def kl_k3(
    logps: torch.Tensor,
    ref_logps: torch.Tensor,
    *,
    form: KlForm = "clamped",
    max_value: float = 10.0,
    action_mask: torch.Tensor | None = None,
) -> torch.Tensor:
    r"""Per-token k3 estimate of KL(policy || reference), in nats.

        d = ref_logps - logps,   k3 = exp(d) - d - 1 >= 0

    "clamped"  min(k3, max_value). The gradient is exactly 0 where the clamp is active: above d = 2.61 and below
               d = -11.0 for max_value 10. Equal to the released code wherever that is finite (its exp overflows first,
               which gives NaN gradients from d = 89 in float32); finite here at every gap.
    "linear"   k3 up to those two gaps, then the straight line with the slope reached there: finite for finite gaps and
               with a bounded restoring gradient that never vanishes.
    "raw"      k3 as written; may overflow. A labelled dial for showing the explosion, not a default.

    `action_mask`, if given, cuts masked tokens off before any arithmetic (0 in the result, NaN there is harmless).

    Shapes: logps, ref_logps, action_mask and result (B, T). `ref_logps` is detached.
    Default: max_value 10 (released code). Raises: ShapeError, NonFiniteError (with a mask), ConfigError.

    >>> kl_k3(torch.tensor([[0.0, -1.0, -1000.0]]), torch.zeros(1, 3)).tolist() # doctest: +ELLIPSIS
    [[0.0, 0.7182..., 10.0]]
    """
    if not (max_value > 0 and math.isfinite(max_value)):
        raise ConfigError(f"max_value={max_value} must be a finite number > 0 (released code: 10)")
    if action_mask is None:
        if ref_logps.shape != logps.shape:
            raise ShapeError(
                f"ref_logps has shape {tuple(ref_logps.shape)} but logps has {tuple(logps.shape)}; "
                "score the same tokens with both policies"
            )
        gap = working(ref_logps.detach()) - working(logps)
    else:
        mask = bool_mask(logps, action_mask)
        gap = on_mask("ref_logps", ref_logps.detach(), mask) - on_mask("logps", logps, mask)
    if form == "raw":
        return gap.expm1() - gap
    low, high = gaps_at(float(max_value))
    if form == "clamped":
        # One nat outside the exact gaps the clamp is surely active, so exp stays small and 0 * inf never occurs.
        inside = gap.clamp(low - 1, high + 1)
        return (inside.expm1() - inside).clamp(max=max_value)
    if form == "linear":
        inside = gap.clamp(low, high)
        return inside.expm1() - inside + inside.expm1() * (gap - inside)
    raise ConfigError(f"kl_form is {form!r}; choose 'clamped', 'linear' or 'raw'")
