"""What other monitors say on the benchmark's logs; run by the Python of an environment that has them, not by ours.

    python tests/benchmarks/monitor_rivals.py LOGS OUT.json

Needs `pip install rldoctor==0.2.0 rlprobe==0.1.0 rlwatch==0.5.1 trainpulse==0.4.0` there. Each is fed row by row, so
its first alarm is causal, with its own default thresholds; batch tools are asked every `EVERY` rows, which is more
often than they ask themselves. An alarm is a finding of severity warning or worse. It also writes the demo runs of
rl-doctor and rlprobe as logs (`demo_*.jsonl`), for the other direction of the comparison. What this file does not
do: import lldsim.
"""

from __future__ import annotations

import importlib
import json
import logging
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

EVERY = 5
Rows = list[dict[str, float]]


def load(name: str) -> Any:
    """Import by name: these packages are not in the environment that checks types."""
    return importlib.import_module(name)


def rl_doctor(rows: Rows, min_steps: int = 60) -> float | None:
    monitor = load("rl_doctor.live").LiveMonitor(
        check_every=EVERY, min_steps=min_steps, on_finding=lambda finding: None
    )
    return next((row["step"] for row in rows if monitor.log(row, step=int(row["step"]))), None)


def rl_doctor_eager(rows: Rows) -> float | None:
    return rl_doctor(rows, min_steps=20)


def rlprobe(rows: Rows) -> float | None:
    schemas, engine, view = load("rlprobe.schemas"), load("rlprobe.doctor.engine"), load("rlprobe.doctor.runview")
    names = {
        "reward": "reward_mean", "reward_std": "reward_std", "entropy": "entropy_mean", "kl": "kl_mean",
        "grad_norm": "grad_norm", "clip_ratio/region_mean": "clip_fraction",
        "completions/mean_length": "completion_len_mean",
        "frac_reward_zero_std": "zero_variance_group_frac", "logp_all": "logprob_mean",
    }  # fmt: skip
    manifest = schemas.RunManifest(run_id="x", created_at="2026-01-01T00:00:00", algorithm="grpo")
    records = [
        schemas.StepRecord(step=int(r["step"]), **{names[k]: v for k, v in r.items() if k in names}) for r in rows
    ]
    for end in range(EVERY, len(records) + 1, EVERY):
        found = engine.diagnose_view(view.RunView(manifest, records[:end]))
        if any(f.severity in ("warn", "critical") for f in found):
            return rows[end - 1]["step"]
    return None


def rlwatch(rows: Rows) -> float | None:
    suite = load("rlwatch.detectors").DetectorSuite(load("rlwatch.config").RLWatchConfig())
    for row in rows:
        given = {"entropy": "entropy", "kl": "kl_divergence", "reward": "reward_mean", "reward_std": "reward_std"}
        values = {new: row[old] for old, new in given.items() if old in row}
        if suite.check_step(int(row["step"]), grad_norm=row.get("grad_norm"), **values):
            return row["step"]
    return None


def trainpulse(rows: Rows) -> float | None:
    monitor = load("trainpulse").Monitor()
    for row in rows:
        alerts = [a for k, v in row.items() if k != "step" for a in monitor.log(k, int(row["step"]), v)]
        if any(str(getattr(a.severity, "value", a.severity)).lower() != "info" for a in alerts):
            return row["step"]
    return None


TOOLS: dict[str, Callable[[Rows], float | None]] = {
    "rl-doctor 0.2": rl_doctor,
    "rl-doctor 0.2, from 20 rows": rl_doctor_eager,
    "rlprobe 0.1": rlprobe,
    "rlwatch 0.5": rlwatch,
    "trainpulse 0.4": trainpulse,
}


def write_demos(folder: Path) -> None:
    """Write the demo scenarios of rl-doctor and rlprobe as JSON lines under keys that a trainer would use."""
    simulate = load("rl_doctor.simulate")
    for scenario in simulate.SCENARIOS:
        run = simulate.simulate_run(scenario, n_steps=400, seed=0)
        lines = [
            {"step": float(run.steps[i]), **{k: float(v[i]) for k, v in run.series.items() if v[i] == v[i]}}
            for i in range(len(run.steps))
        ]
        _write(folder / f"demo_rl-doctor_{scenario}.jsonl", lines)
    synth, view = load("rlprobe.testing.synth"), load("rlprobe.doctor.runview")
    for pathology in [None, *synth.PATHOLOGIES]:
        target = folder / f"rlprobe_{pathology or 'healthy'}"
        synth.generate_run(target, pathology=pathology, seed=0)
        run = view.RunView.load(target)
        names = {"reward_mean": "reward", "entropy_mean": "entropy", "kl_mean": "kl", "grad_norm": "grad_norm",
                 "clip_fraction": "clip_ratio", "completion_len_mean": "completions/mean_length",
                 "zero_variance_group_frac": "frac_reward_zero_std", "logprob_mean": "logp_mean"}  # fmt: skip
        series = {new: run.series(old) for old, new in names.items()}
        lines = [
            {"step": float(run.step_ids[i]), **{k: float(v[i]) for k, v in series.items() if v[i] == v[i]}}
            for i in range(run.n)
        ]
        _write(folder / f"demo_{target.name}.jsonl", lines)


def _write(path: Path, lines: Rows) -> None:
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))


def main() -> None:
    folder, out = Path(sys.argv[1]), Path(sys.argv[2])
    logging.disable(logging.CRITICAL)
    warnings.simplefilter("ignore")
    found: dict[str, dict[str, float | None]] = {name: {} for name in TOOLS}
    for path in sorted(folder.glob("run_*.jsonl")):
        rows = [json.loads(line) for line in path.read_text().splitlines()]
        for name, tool in TOOLS.items():
            found[name][path.stem] = tool(rows)
    write_demos(folder)
    out.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
