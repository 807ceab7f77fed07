"""Where the k3 estimate e^d - d - 1 of the KL divergence reaches a given value.

Apart from the loss, so that the compiled engine can use it without importing torch.
"""

from __future__ import annotations

import math
from functools import cache


@cache
def gaps_at(value: float) -> tuple[float, float]:
    """Return the negative and the positive gap d at which e^d - d - 1 = value, by Newton's method.

    >>> [round(d, 4) for d in gaps_at(10.0)]
    [-11.0, 2.6108]
    """
    gaps = []
    for gap in (-value - 1.0, math.log1p(value) + 1.0):
        for _ in range(100):
            step = (math.expm1(gap) - gap - value) / math.expm1(gap)
            gap -= step
            if abs(step) <= 1e-15 * abs(gap):
                break
        gaps.append(gap)
    return gaps[0], gaps[1]
