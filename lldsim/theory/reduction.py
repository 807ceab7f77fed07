"""One context, few tokens: the smallest worlds in which the spiral can be solved, and its growth rates.

- `three_token_path`: correct, wrong and a dominant third token as an ODE (what trap 1 says, in motion);
- `sharp_*`: a sampler sharper than the trainer, x' = -c [s(x/T) - s(x)]: slow decline, then a fall in finite time;
- `stale_*`: a sampler tau updates old, x' = c [s(x) - s(x(t - tau))]: growth iff c g tau > 1, g = pi (1 - pi).

x is the logit gap of the preferred token, s the logistic function, c = 2 * lr * |Abar| * <h, h'> the drift coefficient
per update (Abar < 0: the context has a net negative advantage). Each form has a sampled or deterministic twin.
What this file does not do: no claim about the full world or about any training run; no clipping, KL or entropy.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy.integrate import quad, solve_ivp
from scipy.optimize import root_scalar
from scipy.special import expit, softmax

from lldsim.errors import LldsimError

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class ThreeTokenPath:
    """A solved path: times (n,), log-probabilities (n, 3) of (correct, wrong, dominant) in nats."""

    times: Floats
    logps: Floats


def three_token_drift(
    logits: npt.ArrayLike, advantages: npt.ArrayLike, *, temperature: float = 1.0, counts: npt.ArrayLike | None = None
) -> Floats:
    """Return d logits/ds = sum_a m_a (e_a - pi), m_a = A_a * frequency of a, for one context with |h| = 1; (..., 3).

    Frequencies are `counts` (a frozen rollout batch) or the sampler softmax(logits / temperature) when None.

    >>> three_token_drift([0.0, 0.0, 0.0], [3.0, -3.0, 0.0]).tolist()
    [1.0, -1.0, 0.0]
    """
    x = np.asarray(logits, dtype=np.float64)
    frequency = softmax(x / temperature, axis=-1) if counts is None else np.asarray(counts, dtype=np.float64)
    mass = np.asarray(advantages, dtype=np.float64) * frequency
    return mass - softmax(x, axis=-1) * mass.sum(-1, keepdims=True)


def three_token_path(
    probs: npt.ArrayLike,
    advantages: npt.ArrayLike,
    *,
    horizon: float,
    temperature: float = 1.0,
    counts: npt.ArrayLike | None = None,
    points: int = 101,
) -> ThreeTokenPath:
    """Solve `three_token_drift` from `probs` (3,) over flow time [0, horizon] (learning rate x updates).

    Raises LldsimError for a start outside the open simplex. Solver: `solve_ivp`, DOP853, rtol 1e-10.
    """
    start = np.asarray(probs, dtype=np.float64)
    if start.shape != (3,) or np.any(start <= 0.0) or abs(start.sum() - 1.0) > 1e-9:
        raise LldsimError(f"probs = {start.tolist()} is not a point inside the simplex of three tokens")
    times = np.linspace(0.0, horizon, points)
    solved = solve_ivp(
        lambda _, x: three_token_drift(x, advantages, temperature=temperature, counts=counts),
        (0.0, horizon), np.log(start), method="DOP853", t_eval=times, rtol=1e-10, atol=1e-12,
    )  # fmt: skip
    x = solved.y.T
    return ThreeTokenPath(solved.t, x - np.logaddexp.reduce(x, axis=1, keepdims=True))


def critical_mass_ratio(probs: npt.ArrayLike) -> float:
    """Return b/a, wrong over correct mass, above which the correct token falls at once in one context; inf if never.

    d/ds ln pi_c = a |e_c - pi|^2 - b alpha, so displacement needs alpha > 0 (a dominant third token) and
    b/a > |e_c - pi|^2 / alpha. Since |e_c - pi|^2 - alpha = 1 - pi_c + pi_w > 0 the ratio exceeds 1: where the masses
    balance (b = a, sum A = 0 inside the context) nobody falls, and a one-context fall needs a net negative mass.
    probs (3,): correct, wrong, dominant.

    >>> round(critical_mass_ratio([0.1, 0.1, 0.8]), 12)
    3.173913043478
    """
    p = np.asarray(probs, dtype=np.float64)
    alpha = float((p**2).sum() - p[0] - p[1])
    return float((p**2).sum() - 2.0 * p[0] + 1.0) / alpha if alpha > 0.0 else math.inf


def sharp_drift(gap: npt.ArrayLike, *, coefficient: float, temperature: float) -> Floats:
    """Return dx/dt = -c [s(x/T) - s(x)] per update, the two-token form of `conditions.mean_drift`."""
    x = np.asarray(gap, dtype=np.float64)
    return -coefficient * (expit(x / temperature) - expit(x))


def sharp_time(gap: float, *, coefficient: float, temperature: float, gap_end: float = 0.02) -> float:
    """Return the updates for the gap to fall from `gap` to `gap_end`: the integral of dx / (c [s(x/T) - s(x)]).

    Infinite for T >= 1. `gap_end` must be > 0: near x = 0 the integrand is 4 T / (c (1 - T) x), so the time to x = 0 is
    infinite (logarithmically) for every T > 0. Raises LldsimError outside 0 < gap_end <= gap.

    >>> round(sharp_time(math.log(9.0), coefficient=0.02, temperature=0.5))
    1334
    """
    if not 0.0 < gap_end <= gap:
        raise LldsimError(f"gap_end = {gap_end} must lie in (0, gap = {gap}]; the time to reach 0 is infinite")
    if temperature >= 1.0:
        return math.inf
    # In ln x the integrand is bounded where it would otherwise behave like 1/x.
    value, _ = quad(
        lambda u: math.exp(u) / -float(sharp_drift(math.exp(u), coefficient=coefficient, temperature=temperature)),
        math.log(gap_end), math.log(gap), epsabs=0.0, epsrel=1e-10, limit=200,
    )  # fmt: skip
    return float(value)


def sharp_time_cold(gap: float, *, coefficient: float, gap_end: float = 0.0) -> float:
    """Return the T -> 0 law: x' = -c / (1 + e^x), so t = [e^x + x] / c; a lower bound for every T > 0.

    For large x the leading term is e^x / c: 1 - pi grows like (1 - pi_0) / (1 - t c e^-x0), a hyperbola.

    >>> round(sharp_time_cold(math.log(9.0), coefficient=0.02))
    510
    """
    return (math.exp(gap) - math.exp(gap_end) + gap - gap_end) / coefficient


def sharp_sampled_times(
    gap: float,
    *,
    coefficient: float,
    temperature: float,
    tokens_per_update: int,
    seeds: int,
    rng: np.random.Generator,
    gap_end: float = 0.02,
    max_updates: int = 20_000,
) -> Floats:
    """Return the first update at which x <= gap_end, per seed, when each update samples its tokens; inf if never.

    x <- x - c [k/n - s(x)], k ~ Binomial(n, s(x/T)): stochastic gradient descent in the two-token world.
    """
    x = np.full(seeds, gap)
    times = np.full(seeds, np.inf)
    for update in range(1, max_updates + 1):
        share = rng.binomial(tokens_per_update, expit(x / temperature)) / tokens_per_update
        x = x - coefficient * (share - expit(x))
        times[np.isinf(times) & (x <= gap_end)] = update
        if np.isfinite(times).all():
            break
    return times


def stale_growth_rate(strength: float, delay: int, *, discrete: bool = True) -> float:
    """Return the growth rate L per update of a deviation under a sampler `delay` updates old, strength k = c g.

    Discrete: e^L - 1 = k (1 - e^(-L tau)); flow: L = k (1 - e^(-L tau)). L = 0 is always a root (every constant gap is
    an equilibrium); a positive one exists iff k tau > 1, the critical line of both forms. Returns 0 on or below it.
    Raises LldsimError for a negative strength or delay.

    >>> round(stale_growth_rate(0.6, 2), 3), stale_growth_rate(0.4, 2)
    (0.123, 0.0)
    """
    if strength < 0.0 or delay < 0:
        raise LldsimError(f"strength = {strength} and delay = {delay} must not be negative")
    if strength * delay <= 1.0:
        return 0.0

    # Divided by L, which removes the root at 0: the limit there is 1 - k tau < 0, and far out it is positive.
    def excess(rate: float) -> float:
        left = math.expm1(rate) if discrete else rate
        return (left + strength * math.expm1(-rate * delay)) / rate

    high = math.log1p(strength) if discrete else strength
    low = high
    while excess(low) > 0.0 and low > 1e-14:
        low *= 0.5
    return float(root_scalar(excess, bracket=(low, high), method="brentq", xtol=1e-15, rtol=1e-13).root)


def stale_gain(strength: float, delay: int) -> float:
    """Return the factor to which a kick grows and then stays below the critical line, 1 / (1 - k tau); inf above.

    Q_n = d_n - k sum_{j=1..tau} d_{n-j} is conserved by d_{n+1} = d_n + k (d_n - d_{n-tau}); a kick of size d has Q = d
    and a constant end state has Q = d_end (1 - k tau).

    >>> stale_gain(0.25, 2)
    2.0
    """
    return math.inf if strength * delay >= 1.0 else 1.0 / (1.0 - strength * delay)


def stale_path(gap: float, *, coefficient: float, delay: int, updates: int, kick: float = 1e-6) -> Floats:
    """Return the gaps x_0..x_n of the map x <- x + c [s(x_n) - s(x_{n - tau})], kicked once at n = 0.

    The history before the kick is the constant `gap`. Raises LldsimError for a negative delay.
    """
    if delay < 0:
        raise LldsimError(f"delay = {delay} must not be negative")
    x = np.full(delay + updates + 1, gap)
    x[delay] = gap + kick
    for n in range(delay, delay + updates):
        x[n + 1] = x[n] + coefficient * (expit(x[n]) - expit(x[n - delay]))
    return x[delay:]


def measured_growth_rate(path: Floats, gap: float, *, last: int = 10) -> float:
    """Return the mean log-growth per update of |x - gap| over the last updates of a path that has stayed linear."""
    deviation = np.abs(path - gap)
    return float(np.log(deviation[-1] / deviation[-1 - last]) / last)
