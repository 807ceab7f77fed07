"""How early and how reliably the monitor warns, beside other monitors and plain thresholds, on runs it was not tuned
on.

    python tests/benchmarks/bench_monitor.py                    # ours and plain thresholds; rivals from
    monitor_rivals.json python tests/benchmarks/bench_monitor.py --rivals PYTHON    # ask the rivals again, with a
    Python that has them

Fixed before the report set was looked at: a run collapses if its smoothed reward halves (diagnostics) before
`WATCHED`; the warning is in time if it comes before smoothed reward first lies 10 % below its running peak; a run is
healthy if that does not happen until `HORIZON`; all others are left out of both and counted. Lead is the share of
the time to that fall. Plain thresholds get the same chance as ours: each is set on TUNE and CHECK to 5 % false
alarms. What this file does not do: tune the monitor.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from monitor_worlds import FIRST_SEED, HORIZON, WATCHED, columns_of, configurations
from scipy import stats

from lldsim.diagnostics.collapse import collapse_step, smooth
from lldsim.monitor import diagnose, first_alarm, read_log

HERE = Path(__file__).resolve().parent
BUILD = HERE.parents[1] / "build"
RIVALS = HERE / "monitor_rivals.json"
PER_CAUSE = {"TUNE": 24, "CHECK": 14, "REPORT": 14}
INTERVALS = {"TUNE": (1, 1, 2, 5), "CHECK": (1, 2, 3, 5), "REPORT": (1, 2, 3, 5)}
NOISE = {"TUNE": 0.08, "CHECK": 0.15, "REPORT": 0.15}  # largest relative standard deviation of what is logged
KEYS = {  # as TRL logs them, where it does
    "kl": "kl", "clip_fraction": "clip_ratio/region_mean", "response_length": "completions/mean_length",
    "tied_groups": "frac_reward_zero_std",
}  # fmt: skip
LIKELIHOODS = ("logp_correct", "logp_wrong", "logp_correct_action1", "logp_correct_action2")
Series = dict[str, np.ndarray]


@dataclass(frozen=True)
class Case:
    """One run as it is logged, and what really happened to it."""

    name: str
    cause: str
    outcome: str  # "collapse", "healthy" or "other"
    falls: int | None  # update at which smoothed reward first lies 10 % below its running peak
    logged: Series  # column -> values at the logged updates, `step` among them


def truth(columns: Series, *, watched: int = WATCHED, horizon: int = HORIZON) -> tuple[str, int | None]:
    """Return outcome and the update at which the reward has fallen by 10 %; healthy takes `horizon` updates."""
    reward = smooth(columns["reward"], 9)
    below = np.flatnonzero(reward < 0.9 * np.fmax.accumulate(reward))
    falls = int(below[0]) if len(below) else None
    step = collapse_step(columns["reward"])
    if step is not None and step < watched:
        return "collapse", falls
    whole = len(columns["reward"]) >= horizon
    return ("healthy" if falls is None and whole else "other"), falls


def degrade(
    columns: Series, rng: np.random.Generator, *, intervals: tuple[int, ...], noise: float, averaged: bool
) -> Series:
    """Return what a logger with an interval and measuring noise would have kept of a run, up to WATCHED."""
    every, sigma = int(rng.choice(intervals)), rng.uniform(0, noise)
    mean = averaged and rng.random() < 0.5
    n = min(WATCHED, len(columns["reward"])) // every * every
    logged = {"step": np.arange(n)[every - 1 :: every].astype(float)}
    for name, values in columns.items():
        if name == "update":
            continue
        blocks = values[:n].reshape(-1, every)
        known = np.isfinite(blocks)
        means = np.where(known, blocks, 0).sum(1) / np.maximum(known.sum(1), 1)
        kept = np.where(known.any(1), means, np.nan) if mean else blocks[:, -1]
        logged[name] = kept * np.exp(sigma * rng.normal(size=len(kept)))
    logged["reward"] = np.minimum(logged["reward"], 1.0)
    logged["reward_std"] = np.sqrt(logged["reward"] * (1 - logged["reward"]))
    return logged


def cases(
    which: str, *, per_cause: int | None = None, first: int | None = None, cache: Path = BUILD / "monitor_worlds"
) -> list[Case]:
    """Return the cases of a set, of each cause the `first` ones; the first time, one takes a second or more."""
    options: dict[str, Any] = {"intervals": INTERVALS[which], "noise": NOISE[which], "averaged": which != "TUNE"}
    found, taken = [], Counter[str]()
    for cause, config in configurations(which, per_cause or PER_CAUSE[which]):
        taken[cause] += 1
        if first is not None and taken[cause] > first:
            continue
        columns = columns_of(config, cache)
        outcome, falls = truth(columns)
        rng = np.random.default_rng([FIRST_SEED[which], config.trainer.seed])  # its own: a subset is logged alike
        logged = degrade(columns, rng, **options)
        found.append(Case(f"run_{config.trainer.seed}", cause, outcome, falls, logged))
    return found


def write_log(case: Case, path: Path, *, without: Iterable[str] = ()) -> None:
    """Write a case as the JSON lines of a trainer."""
    with path.open("w") as file:
        for i in range(len(case.logged["step"])):
            row = {
                KEYS.get(k, k): float(v[i]) for k, v in case.logged.items() if k not in without and np.isfinite(v[i])
            }
            file.write(json.dumps(row) + "\n")


# --- alarms: case -> step of the first one --------------------------------------------------------------------------


def monitor(case: Case, folder: Path, *, without: Iterable[str] = ()) -> float | None:
    """Return the first alarm (warning or worse) of the monitor, reading the log from disk as a user would."""
    path = folder / f"{case.name}.jsonl"
    write_log(case, path, without=without)
    alarm = first_alarm(read_log(path))
    return None if alarm is None else alarm.step


def _early(values: np.ndarray, step: np.ndarray) -> float:
    return float(np.nanmean(values[(step >= 2) & (step < 12)]))


def _reward(c: Series) -> np.ndarray:
    trailing = np.array([c["reward"][max(0, i - 8) : i + 1].mean() for i in range(len(c["reward"]))])
    return 1 - trailing / np.maximum.accumulate(trailing)


def _slope10(c: Series) -> np.ndarray:
    out = np.full(len(c["step"]), np.nan)
    for i, step in enumerate(c["step"]):
        rows = (c["step"] > step - 10) & (c["step"] <= step)
        rows[max(0, i - 2) : i + 1] = True  # three rows at least, however sparse the log
        rows &= np.isfinite(c["logp_correct"])
        if rows.sum() >= 3:
            out[i] = -np.polyfit(c["step"][rows] - step, c["logp_correct"][rows], 1)[0]
    return out


# signal that grows with the disease; thresholds are set where ours were
PLAIN: dict[str, Callable[[Series], np.ndarray]] = {
    "reward below its peak": _reward,
    "KL": lambda c: c["kl"],
    "entropy over its early mean": lambda c: c["entropy"] / _early(c["entropy"], c["step"]),
    "gradient norm over its early mean": lambda c: c["grad_norm"] / _early(c["grad_norm"], c["step"]),
    "largest ratio": lambda c: c["ratio_max"],
    "slope of log-prob., 10 updates": _slope10,
}


def _held(case: Case, signal: Callable[[Series], np.ndarray]) -> np.ndarray:
    """Return the signal as far as it holds for two rows, from update 12 on."""
    values = signal(case.logged)
    held = np.append(np.nan, np.fmin(values[1:], values[:-1]))
    return np.where(case.logged["step"] >= 12, held, np.nan)


def plain_thresholds(tuning: Iterable[Case]) -> dict[str, float]:
    """Return for each plain signal the threshold that 5 % of the tuning sets' healthy runs exceed."""
    healthy = [case for case in tuning if case.outcome == "healthy"]
    return {n: float(np.nanquantile([np.nanmax(_held(c, f)) for c in healthy], 0.95)) for n, f in PLAIN.items()}


def plain(case: Case, name: str, threshold: float) -> float | None:
    hits = np.flatnonzero(_held(case, PLAIN[name]) > threshold)
    return float(case.logged["step"][hits[0]]) if len(hits) else None


# --- scores ---------------------------------------------------------------------------------------------------------


def score(cases_: Iterable[Case], alarms: dict[str, float | None]) -> dict[str, Any]:
    """Return detection in time, false alarms and lead, with 95 % Wilson intervals."""
    known = [case for case in cases_ if case.name in alarms]
    sick = [(c, alarms[c.name]) for c in known if c.outcome == "collapse" and c.falls is not None]
    well = [(c, alarms[c.name]) for c in known if c.outcome == "healthy"]
    leads = [-1.0 if a is None else (c.falls - a) / c.falls for c, a in sick if c.falls]
    in_time, false = sum(lead > 0 for lead in leads), sum(a is not None for _, a in well)
    watched = sum(float(c.logged["step"][-1]) if a is None else a for c, a in well)
    return {
        "collapses": len(sick),
        "in_time": in_time,
        "in_time_interval": _wilson(in_time, len(sick)),
        "ever": sum(a is not None for _, a in sick),
        "healthy": len(well),
        "false": false,
        "false_interval": _wilson(false, len(well)),
        "false_per_1000_steps": 1000 * false / max(watched, 1.0),
        "median_lead_share": float(np.median(leads)) if leads else None,
    }


def _wilson(k: int, n: int) -> list[float]:
    if n == 0:
        return [0.0, 1.0]
    interval = stats.binomtest(k, n).proportion_ci(0.95, method="wilson")
    return [round(float(interval.low), 3), round(float(interval.high), 3)]


def first_alarms(report: list[Case], tuning: list[Case], folder: Path) -> dict[str, dict[str, float | None]]:
    """Return the first alarm of every method on every case: ours, ours without likelihood, and plain thresholds."""
    found = {
        "lldsim": {c.name: monitor(c, folder) for c in report},
        "lldsim, no likelihood logged": {c.name: monitor(c, folder, without=LIKELIHOODS) for c in report},
    }
    for name, threshold in plain_thresholds(tuning).items():
        found[f"plain: {name}"] = {c.name: plain(c, name, threshold) for c in report}
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--rivals", metavar="PYTHON", help="a Python that has rldoctor, rlprobe, rlwatch and trainpulse"
    )
    parser.add_argument(
        "--set", choices=("TUNE", "CHECK", "REPORT"), default="REPORT", help="the first two are in sample"
    )
    args = parser.parse_args()
    folder = BUILD / "monitor_logs"
    folder.mkdir(parents=True, exist_ok=True)
    tune = cases("TUNE")
    report = tune if args.set == "TUNE" else cases(args.set)
    outcomes = [c.outcome for c in report]
    print({name: outcomes.count(name) for name in ("collapse", "healthy", "other")})
    found = first_alarms(report, [*tune, *cases("CHECK")], folder)
    if args.rivals and args.set == "REPORT":
        for case in report:
            write_log(case, folder / f"{case.name}.jsonl")
        subprocess.run([args.rivals, str(HERE / "monitor_rivals.py"), str(folder), str(RIVALS)], check=True)
        demos(folder)
    if RIVALS.exists() and args.set == "REPORT":
        found |= json.loads(RIVALS.read_text())
    print(f"{'':34}{'in time':>22}{'false alarms':>24}{'/1000':>8}{'lead':>7}")
    for name, alarms in found.items():
        s = score(report, alarms)
        low, high = s["in_time_interval"]
        false_low, false_high = s["false_interval"]
        print(
            f"{name:34}{s['in_time']:>4}/{s['collapses']} [{low:.2f}, {high:.2f}]"
            f"{s['false']:>6}/{s['healthy']} [{false_low:.2f}, {false_high:.2f}]{s['false_per_1000_steps']:8.2f}"
            f"{s['median_lead_share']:7.2f}"
        )


def demos(folder: Path) -> None:
    """Print what the monitor says about the rivals' own demo runs, none of which is lazy likelihood displacement."""
    for path in sorted(folder.glob("demo_*.jsonl")):
        found = diagnose(read_log(path))
        alarms = [f"{a.rule}@{a.step:g}" for a in found.alarms if a.severity != "info"]
        print(f"{path.stem:45}{found.verdict:14}{', '.join(alarms) or 'quiet'}")


if __name__ == "__main__":
    sys.exit(main())
