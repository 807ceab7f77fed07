"""A whole log judged: verdict, phases with intervals, the conditions of Def. A.3, alarms, and what the log cannot tell.

Alarms are causal (rules.py replays the log row by row); verdict, phases and conditions look at the whole of it.
Verdicts: collapsed > accelerating > decaying > stagnating > healthy, or undecidable.
What this file does not do: read files or print (readers.py, command.py).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from lldsim.diagnostics.collapse import collapse_step, smooth
from lldsim.diagnostics.thresholds import DEFAULT
from lldsim.monitor.aliases import missing_signals
from lldsim.monitor.changepoints import Bend, bends
from lldsim.monitor.conditions import MIN_ROWS, conditions_of
from lldsim.monitor.readers import Log
from lldsim.monitor.rules import DEFAULT_RULES, Alarm, Rules, Watch

Verdict = Literal["healthy", "stagnating", "decaying", "accelerating", "collapsed", "undecidable"]
ORDER: tuple[Verdict, ...] = ("undecidable", "healthy", "stagnating", "decaying", "accelerating", "collapsed")
LLD_RULES = (
    "likelihood-entropy", "likelihood-unrest", "likelihood-slope", "likelihood-fast", "likelihood-drop",
    "likelihood-acceleration",
)  # fmt: skip


@dataclass(frozen=True)
class Diagnosis:
    """What is known about one run."""

    path: str
    verdict: Verdict
    why: str
    alarms: list[Alarm]
    phases: list[dict[str, Any]]
    conditions: dict[str, dict[str, Any]]
    missing: dict[str, str]
    trap: str  # the released likelihood metric: "no", "corrected", "suspected", "unknown"
    log: Log

    def as_dict(self) -> dict[str, Any]:
        """Return a JSON-ready mapping."""
        log = self.log
        return {
            "path": self.path, "verdict": self.verdict, "why": self.why, "alarms": [a.as_dict() for a in self.alarms],
            "phases": self.phases, "conditions": self.conditions, "missing": self.missing, "released_metric": self.trap,
            "format": log.format, "label": log.record.label, "config_hash": log.record.config_hash,
            "versions": log.record.versions, "rows": len(log.record), "signals": log.sources, "notes": log.notes,
            "unknown_keys": log.unknown_keys,
            "steps": [float(log.steps[0]), float(log.steps[-1])] if len(log.steps) else [],
        }  # fmt: skip

    @property
    def decays(self) -> bool:
        """Return whether the run decays, accelerates or has collapsed."""
        return ORDER.index(self.verdict) >= ORDER.index("decaying")


def diagnose(log: Log, *, rules: Rules = DEFAULT_RULES, steps_per_update: float = 1.0) -> Diagnosis:
    """Return the diagnosis of a log; raises ConfigError for a step ratio that is not positive."""
    alarms = replay(log, rules=rules, steps_per_update=steps_per_update)
    likelihood, trap = likelihood_of(log)
    fallen = collapse_row(log.record["reward"]) if log.has("reward") else None
    end = len(log.record) if fallen is None else fallen
    verdict, why = _verdict(log, alarms, likelihood, fallen)
    return Diagnosis(
        log.path, verdict, why, alarms, phases_of(log, likelihood, end, fallen),
        conditions_of(log, likelihood, end, steps_per_update=steps_per_update), missing_signals(log.sources), trap, log,
    )  # fmt: skip


def collapse_row(reward: np.ndarray) -> int | None:
    """Return the row of `diagnostics.collapse_step`, unless the fall is within the noise of a few small batches.

    Noise: sigma from the mean jump between rows (1.13 sigma); the highest and the lowest of a run's means of nine rows
    must differ by more than 4 sigma sqrt(2/9).
    """
    known = np.flatnonzero(np.isfinite(reward))
    window, half = DEFAULT.reward_window, DEFAULT.reward_window // 2
    if len(known) < max(MIN_ROWS, window):
        return None
    values = reward[known]
    row = collapse_step(values) if values.max() > 0 else None
    if row is None:
        return None
    means = np.convolve(values, np.ones(window) / window, "valid")  # full windows only: short ones are noisier
    at = min(max(row - half, 0), len(means) - 1)
    noise = float(np.abs(np.diff(values)).mean()) / 1.13 * math.sqrt(2 / window)
    return int(known[row]) if means[: at + 1].max() - means[at:].min() > 4 * noise else None


def replay(log: Log, *, rules: Rules = DEFAULT_RULES, steps_per_update: float = 1.0) -> list[Alarm]:
    """Return the alarms of a log, row by row; each uses only rows up to its own step."""
    watch = Watch(rules, steps_per_update=steps_per_update, trusted=log.trusted)
    columns = {name: values for name, values in log.record.columns.items() if name != "update"}
    odd = {(step, name): math.nan for name, steps in log.nonfinite.items() for step in steps}
    alarms: list[Alarm] = []
    for i, step in enumerate(log.steps):
        row = {name: float(values[i]) for name, values in columns.items() if math.isfinite(values[i])}
        row |= {name: math.nan for (at, name) in odd if at == step and name not in row}
        if row:
            alarms += watch.add(float(step), row)
    return alarms


def first_alarm(log: Log, *, rules: Rules = DEFAULT_RULES) -> Alarm | None:
    """Return the first alarm that is a warning or worse, or None; what `fig20` counts."""
    return next((alarm for alarm in replay(log, rules=rules) if alarm.severity != "info"), None)


def likelihood_of(log: Log) -> tuple[np.ndarray | None, str]:
    """Return the best reading (N,) of correct responses' likelihood, and what is known about the released metric's
    trap.

    The released code divides the sum over correct responses' tokens by the number of ALL tokens: with success rate s
    the metric is about s times the mean, and falls while s rises although nothing was displaced. It is taken for
    that metric when ln(-metric) follows ln(s) with a slope near 1 and dividing by s flattens it.
    """
    success = None
    if log.has("success_rate"):
        success = log.record["success_rate"]
    elif log.has("reward") and np.nanmin(log.record["reward"]) >= 0 and np.nanmax(log.record["reward"]) <= 1:
        success = log.record["reward"]
    safe = None if success is None else np.where(success >= DEFAULT_RULES.released_floor, success, np.nan)
    if log.has("logp_correct_over_all") and not log.has("logp_correct"):
        value = log.record["logp_correct_over_all"]
        return (value, "suspected") if safe is None else (value / safe, "corrected")
    if not log.has("logp_correct"):
        return (log.record["logp_all"] if log.has("logp_all") else None), "no"
    value = log.record["logp_correct"]
    if log.trusted:
        return value, "no"
    if safe is None:
        return value, "unknown"
    level, share = smooth(np.log(np.where(value < 0, -value, np.nan)), 5), smooth(np.log(safe), 5)
    known = np.isfinite(level) & np.isfinite(share)
    if known.sum() < MIN_ROWS or np.ptp(share[known]) < math.log(1.3):
        return value, "unknown"
    slope, _ = np.polyfit(share[known], level[known], 1)
    fit = np.corrcoef(share[known], level[known])[0, 1] if np.ptp(level[known]) > 0 else 0.0
    if 0.6 < slope < 1.4 and fit > 0.8 and np.std((level - share)[known]) < 0.6 * np.std(level[known]):
        return value / safe, "corrected"
    return value, "no"


def _verdict(log: Log, alarms: list[Alarm], likelihood: np.ndarray | None, fallen: int | None) -> tuple[Verdict, str]:
    rows = len(log.record)
    if fallen is not None:
        return "collapsed", f"smoothed reward fell below half its peak at step {log.steps[fallen]:g}"
    readable = 0 if likelihood is None else int(np.isfinite(likelihood).sum())
    rewarded = int(np.isfinite(log.record["reward"]).sum()) if log.has("reward") else 0
    if max(readable, rewarded) < MIN_ROWS:
        have = f"{max(readable, rewarded)} of {rows} row(s) have a reward or a likelihood"
        return "undecidable", f"{have}; at least {MIN_ROWS} are needed"
    warned = [a for a in alarms if a.severity != "info"]
    if readable >= MIN_ROWS and likelihood is not None:
        level = smooth(-likelihood, DEFAULT.signal_window)
        level = level[np.isfinite(level)]
        lowest, last = float(level.min()), float(level[-1])
        named = [a for a in alarms if a.rule in LLD_RULES]  # also those that were too mild to warn
        if named and last > DEFAULT.decay_ratio * lowest and last - lowest > 0.05:
            worse = last > DEFAULT.acceleration_ratio * lowest and lowest > 0
            fall = f"likelihood fell from {-lowest:.2f} to {-last:.2f} nats per token"
            what = f"{fall}; first alarm at step {named[0].step:g}"
            return ("accelerating" if worse else "decaying"), what
    elif warned:
        first = warned[0]
        return "decaying", f"no likelihood in the log, but {first.rule} from step {first.step:g}: {first.message}"
    if likelihood is None and not log.has("entropy"):
        return (
            "undecidable",
            "neither likelihood nor entropy is logged: a decay could not be seen before the reward falls",
        )
    if _stagnates(log, likelihood):
        return "stagnating", "reward rose while the likelihood of correct responses did not"
    if warned:
        return "healthy", f"{warned[0].rule} spoke at step {warned[0].step:g} and passed"
    return "healthy", "no rule speaks" + ("" if readable else "; without a likelihood only its symptoms are watched")


def _stagnates(log: Log, likelihood: np.ndarray | None) -> bool:
    """Return whether the reward rose by a fifth of its peak while the likelihood ended no higher than it began."""
    if likelihood is None or not log.has("reward") or log.trusted is None:
        return False
    reward, logp = smooth(log.record["reward"], 9), smooth(likelihood, 9)
    known = np.flatnonzero(np.isfinite(reward) & np.isfinite(logp))
    if len(known) < MIN_ROWS:
        return False
    first, last = known[0], known[-1]
    return bool(reward[last] - reward[first] > 0.2 * np.nanmax(reward) and logp[last] <= logp[first])


def phases_of(log: Log, likelihood: np.ndarray | None, end: int, fallen: int | None) -> list[dict[str, Any]]:
    """Return phases as mappings: phase, from, to, and the 95 % interval [low, high] of where it begins.

    The boundaries are the bends of ln(-log-probability) before the collapse. A segment over which that rises by more
    than ln 1.25 (`thresholds.decay_ratio`) is DECAY; a later one at least twice as steep is ACCELERATION; RECOVERY
    comes after.
    """
    if len(log.steps) == 0:
        return []
    phases: list[dict[str, Any]] = []

    def begin(name: str, at: float, low: float, high: float) -> None:
        if phases:
            if phases[-1]["phase"] == name:
                return
            phases[-1]["to"] = at
        phases.append({"phase": name, "from": at, "to": float(log.steps[-1]), "low": low, "high": high})

    if likelihood is not None:
        level = np.log(np.where(likelihood < 0, -likelihood, np.nan))[:end]
        steepest = math.nan
        for place, slope, length in _segments(log.steps[:end], level):
            if slope * length <= math.log(DEFAULT.decay_ratio):
                begin("STAGNATION" if math.isnan(steepest) else "RECOVERY", *place)
            elif math.isnan(steepest) or slope < 2 * steepest:
                steepest = slope
                begin("DECAY", *place)
            else:
                begin("ACCELERATION", *place)
    if fallen is not None:
        half = DEFAULT.reward_window // 2
        low, high = log.steps[max(0, fallen - half)], log.steps[min(len(log.steps) - 1, fallen + half)]
        begin("COLLAPSED", float(log.steps[fallen]), float(low), float(high))
    return phases


def _segments(steps: np.ndarray, level: np.ndarray) -> list[tuple[tuple[float, float, float], float, float]]:
    """Return ((from, low, high), slope, length) of the straight pieces of a curve; empty when it is too short."""
    known = np.isfinite(level)
    if known.sum() < MIN_ROWS:
        return []
    start, last = float(steps[known][0]), float(steps[known][-1])
    found: list[Bend] = bends(steps, level)
    places = [(start, start, start), *((b.at, b.low, b.high) for b in found)]
    if found:
        slopes = [found[0].before, *(b.after for b in found)]
    else:
        slopes = [float(np.polyfit(steps[known] - start, level[known], 1)[0])]
    ends = [*(place[0] for place in places[1:]), last]
    return [(p, s, e - p[0]) for p, s, e in zip(places, slopes, ends, strict=True)]
