"""The monitor on runs of a real transformer, which its rules have never seen: detection, false alarms, lead.

    python tests/benchmarks/bench_monitor_transformer.py [--out paper_figures/numbers/bench_monitor_transformer.json]

Same definitions as bench_monitor.py: an alarm is in time if it comes before smoothed reward first lies 10 % below its
running peak; a run is healthy if that never happens; a run that falls but does not collapse is left out of both. The
rules are as they were. Logged three ways: with the trainer's likelihoods, with the sampler's in their place, and with
none. What this file does not do: tune the monitor.
"""

from __future__ import annotations

import argparse
import json
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
from bench_monitor import BUILD, LIKELIHOODS, Case, monitor, score

from lldsim.diagnostics.collapse import collapse_step, smooth
from lldsim.record import RunRecord
from lldsim.transformer.study import LONG_SUFFIX, load_study

LOGGED = (
    "reward", "logp_correct", "logp_wrong", "entropy", "grad_norm", "ratio_max", "response_length", "kl",
    "clip_fraction", "tied_groups", "logp_correct_action1", "logp_correct_action2",
)  # fmt: skip


def case_of(name: str, record: RunRecord) -> Case:
    """Return a run as it is logged at every update, and what really happened to it."""
    reward = smooth(record["reward"], 9)
    below = np.flatnonzero(reward < 0.9 * np.fmax.accumulate(reward))
    falls = int(below[0]) if len(below) else None
    collapsed = collapse_step(record["reward"]) is not None
    outcome = "collapse" if collapsed else "healthy" if falls is None else "other"
    logged = {"step": record["update"]} | {column: record[column] for column in LOGGED}
    logged["reward_std"] = np.sqrt(record["reward"] * (1 - record["reward"]))
    return Case(f"{name.replace(' ', '_')}_{record.config['seed']}", name, outcome, falls, logged)


def fed_by_the_sampler(case: Case, record: RunRecord) -> Case:
    """Return the case with the sampler's report in the place of the trainer's likelihood, and no other likelihood."""
    kept = {name: values for name, values in case.logged.items() if name not in LIKELIHOODS}
    kept["logp_correct"] = record["sampler_logp_correct"]
    return Case(f"{case.name}_sampler", case.cause, case.outcome, case.falls, kept)


def evaluate(folder: Path) -> dict[str, dict[str, Any]]:
    """Return the scores of the three ways to log, and how many runs of each condition had which outcome."""
    arms = load_study().arms
    pairs = []
    for name, records in arms.items():
        if name.endswith(LONG_SUFFIX):
            continue
        longer = {r.config["seed"]: r for r in arms.get(name + LONG_SUFFIX, [])}  # what became of it is known better
        runs = [longer.get(record.config["seed"], record) for record in records]
        pairs += [(case_of(name, record), record) for record in runs]
    folder.mkdir(parents=True, exist_ok=True)
    plain = [case for case, _ in pairs]
    sampler = [fed_by_the_sampler(case, record) for case, record in pairs]
    outcomes = Counter(f"{case.cause}: {case.outcome}" for case in plain)
    alarms = {c.name: monitor(c, folder) for c in plain}
    return {
        "trainer's likelihoods": score(plain, alarms),
        "sampler's likelihoods": score(sampler, {c.name: monitor(c, folder) for c in sampler}),
        "no likelihood": score(plain, {c.name: monitor(c, folder, without=LIKELIHOODS) for c in plain}),
        "outcomes": dict(sorted(outcomes.items())),
        "runs": {c.name: {"outcome": c.outcome, "falls": c.falls, "alarm": alarms[c.name]} for c in plain},
    }


def main() -> None:
    """Print the table, and write it with `--out`."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, metavar="FILE.json")
    args = parser.parse_args()
    found = evaluate(BUILD / "monitor_logs_transformer")
    print(f"{'logged':26}{'in time':>22}{'false alarms':>24}{'lead':>7}")
    for name, s in found.items():
        if name not in ("outcomes", "runs"):
            (low, high), (f_low, f_high) = s["in_time_interval"], s["false_interval"]
            lead = "-" if s["median_lead_share"] is None else f"{s['median_lead_share']:.2f}"
            print(
                f"{name:26}{s['in_time']:>6}/{s['collapses']} [{low:.2f}, {high:.2f}]"
                f"{s['false']:>8}/{s['healthy']} [{f_low:.2f}, {f_high:.2f}]{lead:>7}"
            )
    if args.out:
        label = {"label": "simulated", "what": "the monitor on packaged transformer runs; its rules as they were"}
        args.out.write_text(json.dumps(label | found, indent=2, sort_keys=True) + "\n")


if __name__ == "__main__":
    main()
