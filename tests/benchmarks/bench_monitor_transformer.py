"""The monitor on runs of a real transformer: detection, false alarms, lead, apart for runs its rules have seen.

    python tests/benchmarks/bench_monitor_transformer.py [--out paper_figures/numbers/bench_monitor_transformer.json]

Definitions as in bench_monitor.py: an alarm is in time if it comes before smoothed reward first lies 10 % below its
running peak; a run is healthy if that never happens, as far as it was simulated; a run that falls but does not
collapse while it is watched is left out of both. A monitor may watch `WATCHED` updates of 100, two thirds as in the
toy's worlds, so that a run which falls soon afterwards is not counted as healthy; the same on all 100 updates stands
beside it. The rules were fixed on seeds 0 to 4 of every condition, on `ALSO_SEEN`, and on the toy's tuning sets; the
other runs are held out. They share the three warm starts, and were scored once before, in sum, with another version.
Logged three ways: with the trainer's likelihoods, with the sampler's in their place, and with none. What this file does
not do: tune the monitor.
"""

from __future__ import annotations

import argparse
import json
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
from bench_monitor import BUILD, LIKELIHOODS, Case, monitor, score, truth

from lldsim.record import RunRecord
from lldsim.transformer.study import LONG_SUFFIX, load_study

WATCHED = 67
TUNED = range(5)  # seeds, of every condition
ALSO_SEEN = {"leak": range(5, 10), "llds": range(5, 10), "clean": range(5, 10), "llds 1": (5, 8)}
LOGGED = (
    "reward", "logp_correct", "logp_wrong", "entropy", "grad_norm", "ratio_max", "response_length", "kl",
    "clip_fraction", "tied_groups", "logp_correct_action1", "logp_correct_action2",
)  # fmt: skip


def case_of(name: str, record: RunRecord, *, watched: int = WATCHED) -> Case:
    """Return a run as it is logged at every update while it is watched, and what really happened to it."""
    outcome, falls = truth(record.columns, watched=watched, horizon=0)  # a run that stops early has fallen
    logged = {"step": record["update"]} | {column: record[column] for column in LOGGED}
    logged["reward_std"] = np.sqrt(record["reward"] * (1 - record["reward"]))
    logged = {column: values[:watched] for column, values in logged.items()}
    return Case(f"{name.replace(' ', '_')}_{record.config['seed']}", name, outcome, falls, logged)


def fed_by_the_sampler(case: Case, record: RunRecord) -> Case:
    """Return the case with the sampler's report in the place of the trainer's likelihood, and no other likelihood."""
    kept = {name: values for name, values in case.logged.items() if name not in LIKELIHOODS}
    kept["logp_correct"] = record["sampler_logp_correct"][: len(case.logged["step"])]
    return Case(f"{case.name}_sampler", case.cause, case.outcome, case.falls, kept)


def evaluate(folder: Path) -> dict[str, dict[str, Any]]:
    """Return the scores by set of runs and way to log, how many runs had which outcome, and every run's alarm."""
    folder.mkdir(parents=True, exist_ok=True)
    arms = {name: records for name, records in load_study().arms.items() if not name.endswith(LONG_SUFFIX)}
    pairs = [(case_of(name, record), record) for name, records in arms.items() for record in records]
    seen = {case.name: record.config["seed"] in (*TUNED, *ALSO_SEEN.get(case.cause, ())) for case, record in pairs}
    plain, sampler = [case for case, _ in pairs], [fed_by_the_sampler(*pair) for pair in pairs]
    seen |= {f"{name}_sampler": value for name, value in seen.items()}
    alarms = {c.name: monitor(c, folder) for c in plain}
    whole = [case_of(case.cause, record, watched=len(record)) for case, record in pairs]
    ways = {
        "trainer's likelihoods": (plain, alarms),
        "sampler's likelihoods": (sampler, {c.name: monitor(c, folder) for c in sampler}),
        "no likelihood": (plain, {c.name: monitor(c, folder, without=LIKELIHOODS) for c in plain}),
        "trainer's, all updates": (whole, {c.name: monitor(c, folder) for c in whole}),
    }
    found: dict[str, dict[str, Any]] = {}
    for which, tuned in (("held out", False), ("tuned on", True)):
        for way, (cases, firsts) in ways.items():
            found[f"{which}: {way}"] = score([c for c in cases if seen[c.name] == tuned], firsts)
    found["outcomes"] = dict(sorted(Counter(f"{case.cause}: {case.outcome}" for case in plain).items()))
    found["runs"] = {
        c.name: {"outcome": c.outcome, "falls": c.falls, "alarm": alarms[c.name], "tuned_on": seen[c.name]}
        for c in plain
    }
    return found


def main() -> None:
    """Print the table, and write it with `--out`."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, metavar="FILE.json")
    args = parser.parse_args()
    found = evaluate(BUILD / "monitor_logs_transformer")
    print(f"{'logged':36}{'in time':>22}{'false alarms':>24}{'lead':>7}")
    for name, s in found.items():
        if name not in ("outcomes", "runs"):
            (low, high), (f_low, f_high) = s["in_time_interval"], s["false_interval"]
            lead = "-" if s["median_lead_share"] is None else f"{s['median_lead_share']:.2f}"
            print(
                f"{name:36}{s['in_time']:>6}/{s['collapses']} [{low:.2f}, {high:.2f}]"
                f"{s['false']:>8}/{s['healthy']} [{f_low:.2f}, {f_high:.2f}]{lead:>7}"
            )
    if args.out:
        label = {"label": "simulated", "what": "the monitor on packaged transformer runs"}
        args.out.write_text(json.dumps(label | found, indent=2, sort_keys=True) + "\n")


if __name__ == "__main__":
    main()
