"""The paper's signatures as numbers and rules: does a world have one, have it partly, or lack it?

Each signature is one number over the GRPO runs of a world that collapse (and their cured partners, where it compares),
and two bounds: at least as good as `has` -> "has", as `partly` -> "partly", else "lacks". The bounds stand in
SIGNATURES, were written before this table was first run, and serve all worlds. A number that cannot be
measured (no run collapses, nothing was probed) lacks. Medians are over runs; "k before" is a 3-update mean, k updates
before the collapse.
What this file does not do: run worlds (signatures.py at the top level does), or speak of language models: a world that
has all signatures would still be a toy.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np

from lldsim.diagnostics.collapse import collapse_step, smooth, surge
from lldsim.diagnostics.displacement import displaced_shares
from lldsim.diagnostics.phases import Phase, falls_while_reward_holds, find_phases
from lldsim.diagnostics.thresholds import DEFAULT
from lldsim.record import RunRecord

Level = Literal["has", "partly", "lacks"]
Records = Sequence[RunRecord]
NEAR, FAR, AFTER, LAST = 5, 20, 10, 20  # updates: near and far before the collapse, after it, and the end of a run


@dataclass(frozen=True)
class WorldRuns:
    """What the signatures are read from: records of one world, paired by seed, and probes."""

    grpo: Records
    small: Records  # LLDS at lambda .01, which only delays in figure 8
    llds: Records  # LLDS at the lambda that prevents
    llds_ma: Records  # the same, answer-weighted
    probed: Records = ()  # GRPO again, with the columns of probe.py
    eq3: np.ndarray = field(default_factory=lambda: np.array([]))  # D(x) of the queries, NEAR updates before collapses


@dataclass(frozen=True)
class Signature:
    """One signature: figure of the paper, what is measured in which unit, the two bounds, and the measurement."""

    name: str
    figure: str
    what: str
    unit: str
    has: float
    partly: float
    measure: Callable[[WorldRuns], float]

    def level(self, value: float) -> Level:
        """Return the verdict on `value`; bounds are inclusive, and the better side is that of `has`.

        >>> SIGNATURES[0].level(0.95), SIGNATURES[0].level(0.6), SIGNATURES[0].level(float("nan"))
        ('has', 'partly', 'lacks')
        """
        sign = 1.0 if self.has > self.partly else -1.0
        if not np.isfinite(value):
            return "lacks"
        return "has" if sign * value >= sign * self.has else "partly" if sign * value >= sign * self.partly else "lacks"


def _steps(records: Records) -> list[int | None]:
    return [collapse_step(r["reward"]) for r in records]


def _rate(records: Records) -> float:
    steps = _steps(records)
    return sum(s is not None for s in steps) / len(steps) if steps else float("nan")


def _fallen(records: Records) -> list[tuple[RunRecord, int]]:
    return [(r, s) for r, s in zip(records, _steps(records), strict=True) if s is not None]


def _median(values: Sequence[Any]) -> float:
    known = np.asarray(values, dtype=float)
    known = known[np.isfinite(known)]
    return float(np.median(known)) if known.size else float("nan")


def _early(record: RunRecord, column: str) -> float:
    values = record[column][slice(*DEFAULT.early)]
    return float(np.nanmean(values)) if np.isfinite(values).any() else float("nan")


def _before(record: RunRecord, column: str, step: int, lead: int) -> float:
    """Return the 3-look mean `lead` updates before `step` (after it where negative); NaN off the record."""
    looks = np.flatnonzero(np.isfinite(record[column]))  # probed columns are not there at every update
    wanted = step - lead
    if not len(looks) or not 0 <= wanted < len(record):
        return float("nan")
    nearest = int(np.argmin(np.abs(looks - wanted)))
    return float(smooth(record[column][looks], 3)[nearest])


def _over_early(column: str, lead: int) -> Callable[[WorldRuns], float]:
    def measure(runs: WorldRuns) -> float:
        return _median([_before(r, column, s, lead) / _early(r, column) for r, s in _fallen(runs.grpo)])

    return measure


def _stagnation_gain(runs: WorldRuns) -> float:
    gains = []
    for r, _ in _fallen(runs.grpo):
        spans = {phase: (start, stop) for phase, start, stop in find_phases(r).spans()}
        start, stop = spans.get(Phase.STAGNATION, (0, 0))
        reward = smooth(r["reward"], DEFAULT.reward_window)
        gains.append(reward[stop - 1] - reward[start] if stop > start else np.nan)
    return _median(gains)


def _decay_share(runs: WorldRuns) -> float:
    return _median([falls_while_reward_holds(r) / s for r, s in _fallen(runs.grpo) if s])


def _decay_gradient(runs: WorldRuns) -> float:
    ratios = []
    for r, _ in _fallen(runs.grpo):
        spans = {phase: r["grad_norm"][start:stop] for phase, start, stop in find_phases(r).spans()}
        if Phase.DECAY in spans and Phase.STAGNATION in spans:
            ratios.append(float(np.mean(spans[Phase.DECAY]) / np.mean(spans[Phase.STAGNATION])))
    return _median(ratios)


def _final_share(runs: WorldRuns) -> float:
    reward = [smooth(r["reward"], DEFAULT.reward_window) for r, _ in _fallen(runs.grpo)]
    return _median([x[-1] / x.max() for x in reward])


def _entropy_at_the_end(runs: WorldRuns) -> float:
    late = [(r, s) for r, s in _fallen(runs.grpo) if s + AFTER + LAST <= len(r)]  # the end must not be the fall itself
    return _median([float(np.mean(r["entropy"][-LAST:])) / _early(r, "entropy") for r, _ in late])


def _form_change(lead: int) -> Callable[[WorldRuns], float]:
    def measure(runs: WorldRuns) -> float:
        return max(abs(_over_early(c, lead)(runs) - 1) for c in ("response_length", "valid_searches"))

    return measure


def _similarity_rise(runs: WorldRuns) -> float:
    return _median([_before(r, "similarity", s, NEAR) / _early(r, "similarity") for r, s in _fallen(runs.probed)])


def _wrong_first_rise(runs: WorldRuns) -> float:
    column = "first_search_wrong"
    return _median([_before(r, column, s, NEAR) - _early(r, column) for r, s in _fallen(runs.grpo)])


def _wrong_order(runs: WorldRuns) -> float:
    return _median(
        [
            _before(r, "logp_wrong_action1", s, NEAR) - _before(r, "logp_wrong_action2", s, NEAR)
            for r, s in _fallen(runs.grpo)
        ]
    )


def _later_with_small_lambda(runs: WorldRuns) -> float:
    pairs = [(a, b) for a, b in zip(_steps(runs.small), _steps(runs.grpo), strict=True) if b is not None]
    return float(np.mean([1.0 if a is None or a > b else 0.5 * (a == b) for a, b in pairs])) if pairs else float("nan")


def _early_gap(runs: WorldRuns) -> float:
    """Return the early right-wrong gap as a share of the gap shortly before the collapse."""

    def gap(value: Callable[[str], float]) -> float:
        return value("logp_correct") - value("logp_wrong")

    return _median(
        [
            gap(lambda c, r=r: _early(r, c)) / gap(lambda c, r=r, s=s: _before(r, c, s, NEAR))
            for r, s in _fallen(runs.grpo)
        ]
    )


def _final_searches(records: Records) -> float:
    return _median([smooth(r["valid_searches"], DEFAULT.reward_window)[-1] for r in records])


def _most_searches(runs: WorldRuns) -> float:  # not the final ones: a collapsed policy searches no more
    return _median([np.max(smooth(r["valid_searches"], DEFAULT.reward_window)) for r in runs.grpo])


SIGNATURES: tuple[Signature, ...] = (
    Signature("GRPO collapses", "2, 7", "share of seeds", "", 0.9, 0.5, lambda w: _rate(w.grpo)),
    Signature("I: reward up, likelihood flat", "2", "reward gained in stagnation", "", 0.1, 0.03, _stagnation_gain),
    Signature("II: likelihood falls, reward holds", "2", "share of the time", "", 0.2, 0.05, _decay_share),
    Signature("II: gradient norm flat", "2", "decay over stagnation", "x", 1.5, 3.0, _decay_gradient),
    Signature(
        "III: gradient norm explodes", "2", "highest over early", "x", 10.0, 2.0,
        lambda w: _median([surge(r["grad_norm"]) for r, _ in _fallen(w.grpo)]),
    ),
    Signature("III: reward to 0 for good", "2", "final over peak reward", "", 0.1, 0.5, _final_share),
    Signature(
        "queries displaced before the fall", "3a", f"share, {NEAR} before, by size", "", 0.5, 0.25,
        lambda w: displaced_shares(w.eq3).sized,
    ),
    Signature("right-wrong similarity rises", "3b", f"{NEAR} before over early", "x", 1.2, 1.05, _similarity_rise),
    Signature(
        "entropy rises slowly first", "4", f"{FAR} before over early", "x", 1.2, 1.05, _over_early("entropy", FAR)
    ),
    Signature(
        "entropy surges", "4", "highest up to the fall over early", "x", 2.0, 1.3,
        lambda w: _median([surge(r["entropy"], s) for r, s in _fallen(w.grpo)]),
    ),
    Signature("entropy stays high", "4", f"last {LAST} over early", "x", 1.5, 1.0, _entropy_at_the_end),
    Signature("length, searches flat before", "4", f"larger change, {FAR} before", "", 0.15, 0.3, _form_change(FAR)),
    Signature("length, searches flat after", "4", f"larger change, {AFTER} after", "", 0.15, 0.3, _form_change(-AFTER)),
    Signature("wrong begin ever more rightly", "5", f"rise of share, {NEAR} before", "", 0.3, 0.1, _wrong_first_rise),
    Signature("first action below the second", "5", f"nats, wrong, {NEAR} before", "", 0.0, 0.25, _wrong_order),
    Signature("lambda .01 delays", "8", "share of seeds later", "", 0.8, 0.6, _later_with_small_lambda),
    Signature("LLDS prevents", "7, 8", "share of seeds that collapse", "", 0.1, 0.5, lambda w: _rate(w.llds)),
    Signature("wrong become less likely", "9a", f"early gap over gap {NEAR} before", "", 0.1, 0.5, _early_gap),
    Signature("GRPO stays at one search", "9b", "most searches of the run", "", 1.2, 1.5, _most_searches),
    Signature(
        "LLDS-MA searches more than LLDS", "9b", "difference of final searches", "", 1.0, 0.3,
        lambda w: _final_searches(w.llds_ma) - _final_searches(w.llds),
    ),
)  # fmt: skip


def signature_rows(world: str, runs: WorldRuns) -> list[dict[str, object]]:
    """Return one row per signature: world, figure, what is measured, the value, both bounds and the verdict."""
    rows = []
    for s in SIGNATURES:
        value = s.measure(runs)
        rows.append(
            {
                "world": world,
                "signature": s.name,
                "figure": s.figure,
                "measured": s.what,
                "value": value,
                "has": s.has,
                "partly": s.partly,
                "level": s.level(value),
            }
        )
    return rows
