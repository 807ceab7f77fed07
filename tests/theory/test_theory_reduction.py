"""Locks the small worlds: three tokens in one context, the sharp sampler's fall, the stale sampler's growth.

- the ODE's start is the kernel's G; sampled updates follow it on a grid; balanced masses never displace
- quadrature = the ODE solver = recorded check values; sampled descent agrees, within 2 % when it samples much
- T -> 0 is a lower bound and the limit; T = 1 never falls; the time to x = 0 is infinite for T > 0
- critical line c g tau = 1, growth rates on a grid of (k tau, tau) against the delayed map, gain 1 / (1 - k tau) below
"""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from scipy.integrate import solve_ivp
from scipy.special import logit, softmax

from lldsim.errors import LldsimError
from lldsim.theory import gwhes
from lldsim.theory.reduction import (
    critical_mass_ratio,
    measured_growth_rate,
    sharp_drift,
    sharp_sampled_times,
    sharp_time,
    sharp_time_cold,
    stale_gain,
    stale_growth_rate,
    stale_path,
    three_token_drift,
    three_token_path,
)

STARTS = [(0.1, 0.1, 0.8), (0.3, 0.1, 0.6), (0.05, 0.3, 0.65), (0.4, 0.4, 0.2), (0.8, 0.1, 0.1)]


def test_the_start_of_the_ode_is_the_kernel() -> None:
    """One context, frozen counts: d ln pi_c / ds = -G for a correct and a wrong response with masses a and b."""
    for p in STARTS:
        for a, b in ((1.0, 1.0), (1.0, 3.0), (1.0, 6.0)):
            drift = three_token_drift(np.log(p), [1.0, -1.0, 0.0], counts=[a, b, 0.0])
            slope = drift[0] - float(np.dot(p, drift))
            probs = torch.tensor([[p], [p]], dtype=torch.float64)
            total = gwhes(
                torch.ones(2, 1, 1).double(), probs, torch.tensor([[0], [1]]), torch.ones(2, 1, dtype=torch.bool),
                torch.tensor([a, -b]).double(),
            ).total[0, 0]  # fmt: skip
            assert slope == pytest.approx(-float(total), abs=1e-14)
            assert (slope < 0) == (b / a > critical_mass_ratio(p))


def test_balanced_masses_never_displace(rng: np.random.Generator) -> None:
    for p in rng.dirichlet(np.ones(3), size=500):
        assert critical_mass_ratio(p) > 1.0
        drift = three_token_drift(np.log(p), [1.0, -1.0, 0.0], counts=[1.0, 1.0, 0.0])
        assert drift[0] - p @ drift > 0


@pytest.mark.parametrize("start", STARTS)
@pytest.mark.parametrize("frozen", [True, False])
def test_sampled_updates_follow_the_ode(start: tuple[float, ...], frozen: bool, rng: np.random.Generator) -> None:
    """200 updates of size .02, 256 tokens each, 60 seeds: mean log-probabilities within 3 % of the path's range."""
    lr, updates, tokens, seeds = 0.02, 200, 256, 60
    advantages = np.array([0.5, -1.5, 0.1])
    counts = np.array([0.3, 0.5, 0.2]) if frozen else None
    path = three_token_path(start, advantages, horizon=lr * updates, counts=counts, points=updates + 1)
    x = np.tile(np.log(start), (seeds, 1))
    for _ in range(updates):
        pi = softmax(x, axis=-1)
        share = rng.multinomial(tokens, pi if counts is None else np.tile(counts, (seeds, 1))) / tokens
        mass = share * advantages
        x = x + lr * (mass - pi * mass.sum(-1, keepdims=True))
    end = (x - np.logaddexp.reduce(x, axis=1, keepdims=True)).mean(0)
    reach = np.abs(path.logps[-1] - path.logps[0]).max()
    np.testing.assert_allclose(end, path.logps[-1], atol=0.03 * reach)


def test_displacement_needs_the_dominant_third_token_and_feeds_it() -> None:
    """Same masses (b = 4a), two starts: with a dominant third token both fall and it alone gains."""
    form = {"horizon": 0.5, "counts": [1.0, 4.0, 0.0]}
    dominant = three_token_path((0.1, 0.1, 0.8), [1.0, -1.0, 0.0], **form).logps
    without = three_token_path((0.4, 0.4, 0.2), [1.0, -1.0, 0.0], **form).logps
    assert dominant[-1, 0] < dominant[0, 0]
    assert dominant[-1, 1] < dominant[0, 1]
    assert dominant[-1, 2] > dominant[0, 2]
    assert without[-1, 0] > without[0, 0]
    with pytest.raises(LldsimError, match="not a point inside the simplex"):
        three_token_path((0.5, 0.5, 0.0), [1.0, -1.0, 0.0], horizon=1.0)


SHARP = [
    (0.90, 0.5, 1334),
    (0.90, 0.7, 2746),
    (0.95, 0.5, 1919),
    (0.95, 0.9, 12242),
    (0.98, 0.5, 3518),
    (0.98, 0.7, 5583),
]


@pytest.mark.parametrize(("pi", "temperature", "known"), SHARP)
def test_sharp_quadrature_is_the_ode(pi: float, temperature: float, known: int) -> None:
    gap, form = float(logit(pi)), {"coefficient": 0.02, "temperature": temperature}
    time = sharp_time(gap, **form)
    assert abs(time - known) < 1.0
    end = solve_ivp(lambda _, x: sharp_drift(x, **form), (0.0, time), [gap], method="DOP853", rtol=1e-11, atol=1e-13).y[
        0, -1
    ]
    assert end == pytest.approx(0.02, rel=1e-6)
    assert sharp_time_cold(gap, coefficient=0.02, gap_end=0.02) < time


def test_sharp_limits() -> None:
    gap = float(logit(0.95))
    assert sharp_time(gap, coefficient=0.02, temperature=1.0) == math.inf
    assert float(np.abs(sharp_drift(np.linspace(0, 9, 50), coefficient=0.02, temperature=1.0)).max()) == 0.0
    cold = sharp_time_cold(gap, coefficient=0.02, gap_end=0.02)
    near = [sharp_time(gap, coefficient=0.02, temperature=t) / cold for t in (0.5, 0.1, 0.01, 0.003)]
    assert near == sorted(near, reverse=True)
    assert near[-1] == pytest.approx(1.0, abs=2e-3)
    # Logarithmic: each factor 10 nearer to x = 0 costs the same time, ln(10) 4 T / (c (1 - T)).
    ends = [sharp_time(gap, coefficient=0.02, temperature=0.5, gap_end=e) for e in (1e-3, 1e-4, 1e-5)]
    assert np.diff(ends) == pytest.approx(math.log(10) * 4 * 0.5 / (0.02 * 0.5), rel=1e-3)
    with pytest.raises(LldsimError, match=r"gap_end = 0\.0"):
        sharp_time(gap, coefficient=0.02, temperature=0.5, gap_end=0.0)


def test_sharp_fall_is_slow_then_fast() -> None:
    """The hyperbola: the second half of the probability loss takes a small share of the time."""
    half = sharp_time(float(logit(0.98)), coefficient=0.02, temperature=0.5, gap_end=float(logit(0.9)))
    rest = sharp_time(float(logit(0.9)), coefficient=0.02, temperature=0.5, gap_end=float(logit(0.6)))
    assert half > 3 * rest


@pytest.mark.parametrize(("pi", "temperature"), [(0.9, 0.5), (0.9, 0.7), (0.95, 0.5), (0.98, 0.5)])
def test_sharp_sampled_descent_agrees(pi: float, temperature: float, rng: np.random.Generator) -> None:
    """First passage of a sampled path is early by its noise: 0 to 12 % at 64 tokens per update, 2 % at 4,096."""
    gap = float(logit(pi))
    time = sharp_time(gap, coefficient=0.02, temperature=temperature)

    def sampled(n: int) -> float:
        times = sharp_sampled_times(
            gap, coefficient=0.02, temperature=temperature, tokens_per_update=n, seeds=48, rng=rng
        )
        return float(np.median(times)) / time

    medians = [sampled(64), sampled(4096)]
    assert 0.85 < medians[0] < 1.02
    assert medians[1] == pytest.approx(1.0, abs=0.02)


STALE = [(1.2, 2, 0.123), (1.2, 4, 0.074), (1.2, 8, 0.042), (2.0, 2, 0.481), (2.0, 4, 0.299), (2.0, 8, 0.171)]


@pytest.mark.parametrize("gap", [0.0, 2.0])
@pytest.mark.parametrize(("product", "delay", "known"), STALE)
def test_stale_growth_on_a_grid(product: float, delay: int, known: float, gap: float) -> None:
    """The delayed map grows at the root of e^L - 1 = k (1 - e^(-L tau)); a small kick keeps it linear at any gap."""
    strength = product / delay
    rate = stale_growth_rate(strength, delay)
    assert rate == pytest.approx(known, abs=6e-4)
    pi = 1 / (1 + math.exp(-gap))
    updates = int(10 / rate)
    path = stale_path(gap, coefficient=strength / (pi * (1 - pi)), delay=delay, updates=updates, kick=1e-9)
    assert measured_growth_rate(path, gap) == pytest.approx(rate, rel=2e-3)


def test_critical_line_on_a_grid() -> None:
    """Below c g tau = 1 a kick settles at 1 / (1 - k tau) times its size; above it grows; at 1 the rate is 0."""
    for delay in (1, 2, 4, 8):
        for product in (0.2, 0.5, 0.8, 0.95):
            assert stale_growth_rate(product / delay, delay) == 0.0
            path = stale_path(0.0, coefficient=4 * product / delay, delay=delay, updates=1500, kick=1e-7)
            assert path[-1] / 1e-7 == pytest.approx(stale_gain(product / delay, delay), rel=1e-6)
        assert stale_growth_rate(1.0 / delay, delay) == 0.0
        rates = [stale_growth_rate(product / delay, delay) for product in (1.001, 1.05, 1.2, 2.0)]
        assert rates[0] > 0
        assert rates == sorted(rates)
        path = stale_path(0.0, coefficient=4 * 1.05 / delay, delay=delay, updates=1500, kick=1e-9)
        assert abs(path[-1]) > 0.1  # a hundred million kicks; the gain below the line was at most 20
        assert stale_gain(1.0 / delay, delay) == math.inf


def test_growth_rate_solves_its_equation_and_the_flow_is_its_small_step_limit(rng: np.random.Generator) -> None:
    for strength, delay in zip(rng.uniform(0.3, 3, 40), rng.integers(4, 12, 40), strict=True):
        k, tau = float(strength), int(delay)
        rate = stale_growth_rate(k, tau)
        assert math.expm1(rate) == pytest.approx(-k * math.expm1(-rate * tau), rel=1e-9)
        smooth = stale_growth_rate(k, tau, discrete=False)
        assert smooth == pytest.approx(-k * math.expm1(-smooth * tau), rel=1e-9)
        assert rate < smooth
    ratio = [
        stale_growth_rate(1.5 / tau, tau) / stale_growth_rate(1.5 / tau, tau, discrete=False) for tau in (10, 100, 1000)
    ]
    assert ratio == sorted(ratio)
    assert ratio[-1] == pytest.approx(1.0, abs=2e-3)


def test_delay_zero_is_the_null_twin() -> None:
    """A fresh sampler at T = 1: the kicked path stays where it is, for any coefficient."""
    path = stale_path(1.0, coefficient=50.0, delay=0, updates=100, kick=1e-3)
    assert float(np.ptp(path)) == 0.0
    assert stale_growth_rate(50.0, 0) == 0.0
    with pytest.raises(LldsimError, match="delay = -1"):
        stale_growth_rate(1.0, -1)
