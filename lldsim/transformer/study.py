"""`python -m lldsim.transformer.study`: run the conditions, keep their records compactly, read them back as arms.

The runs take hours on two cores, so their records are packaged (`study.csv.gz`, four significant digits, with
`study.json` on how they were made) and figures are drawn from them. Running the command again makes the same files on
the same machine, from the cache where it can: under `build/`, or with `--package` where the figures read them.
What this file does not do: draw.
"""

from __future__ import annotations

import argparse
import csv
import gzip
import io
import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from lldsim.diagnostics.collapse import collapse_step, smooth, surge
from lldsim.diagnostics.phases import falls_while_reward_holds, find_phases
from lldsim.diagnostics.statistics import collapse_rate, finite_or_none, median_step
from lldsim.diagnostics.thresholds import DEFAULT
from lldsim.errors import MissingDataError
from lldsim.progress import Progress
from lldsim.record import Arms, RunRecord, versions
from lldsim.transformer.conditions import CONDITIONS, condition_runs
from lldsim.transformer.runs import DEFAULT_CACHE, code_hash, read_cached, run_all

PACKAGED_STUDY = Path(__file__).parent / "study.csv.gz"
BUILT_STUDY = Path("build/transformer_study/study.csv.gz")
HORIZON = 100  # updates of every run in the table
LONGER = 160  # the same runs continued, for leak runs that had not collapsed by then and their LLDS twins
LONG_SUFFIX = ", continued"
LOST = 0.75  # a run lost something if its smoothed reward was ever below this share of its running peak
DIGITS = 4
PACKAGED_PROBES = PACKAGED_STUDY.with_name("probes.json")
PROBED = (("leak", 6), ("leak", 0), ("llds", 6), ("llds", 0), ("leak", 1))  # condition, seed
PROBE_EVERY, PROBE_UNTIL = 5, 56  # LLDS runs are probed for about as long as the others live
KEPT = (
    "update", "reward", "logp_correct", "logp_wrong", "entropy", "grad_norm", "ratio_max", "response_length",
    "valid_actions", "tied_groups", "llds", "sampler_logp_correct", "logp_correct_action1", "logp_correct_action2",
    "logp_correct_action3", "logp_after_none", "logp_after_good", "logp_after_bad", "logp_after_error",
    "length_correct", "length_wrong", "similarity_all", "change_correct", "displaced_sized", "clip_fraction", "kl",
)  # fmt: skip


@dataclass(frozen=True)
class Study:
    """Records by condition, seeds in order, and how they were made."""

    arms: Arms
    about: dict[str, Any]


def pack(arms: Arms, path: Path | str = PACKAGED_STUDY) -> None:
    """Write records (columns `KEPT`) and `study.json` beside them; the same records give the same bytes."""
    path = Path(path)
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(("condition", "seed", *KEPT))
    for name, records in arms.items():
        for record in records:
            for row in zip(*(record[column] for column in KEPT), strict=True):
                writer.writerow((name, record.config["seed"], *map(_short, row)))
    with path.open("wb") as raw, gzip.GzipFile(filename="", mode="wb", fileobj=raw, mtime=0) as file:
        file.write(text.getvalue().encode())
    about = {
        "label": "simulated",
        "digits": DIGITS,
        "code_hash": code_hash(),
        "versions": versions(),
        "updates": {name: sorted({r.config["updates"] for r in records}) for name, records in arms.items()},
        "seeds": {name: [r.config["seed"] for r in records] for name, records in arms.items()},
        "config_hashes": {name: [r.config_hash for r in records] for name, records in arms.items()},
    }
    path.with_name("study.json").write_text(json.dumps(about, indent=1, sort_keys=True) + "\n")


def load_study(path: Path | str = PACKAGED_STUDY) -> Study:
    """Read what `pack` wrote; each record carries its whole configuration. Raises MissingDataError."""
    path = Path(path)
    about_path = path.with_name("study.json")
    if not (path.is_file() and about_path.is_file()):
        raise MissingDataError(
            f"{path} or study.json is missing; `python -m lldsim.transformer.study --package` makes both"
        )
    about = json.loads(about_path.read_text())
    header, *rows = csv.reader(io.StringIO(gzip.decompress(path.read_bytes()).decode()))
    tables: dict[tuple[str, int], list[list[float]]] = {}
    for name, seed, *cells in rows:
        tables.setdefault((name, int(seed)), []).append([float(x) if x else np.nan for x in cells])
    arms: Arms = {}
    for (name, seed), table in tables.items():
        updates = about["updates"][name][0]
        (config,) = condition_runs(name.removesuffix(LONG_SUFFIX), [seed], updates=updates)
        columns = dict(zip(header[2:], np.array(table).T, strict=True))
        record = RunRecord(columns, config.flat(), config.config_hash(), about["versions"], about["label"])
        arms.setdefault(name, []).append(record)
    return Study(arms, about)


def run_probes() -> list[dict[str, Any]]:
    """Return the probe's rows (probe.probe_along) of `PROBED`, each with its `arm`; minutes per run."""
    from lldsim.transformer.probe import probe_along

    rows = []
    for arm, seed in PROBED:
        (config,) = condition_runs(arm, [seed], updates=HORIZON if arm == "leak" else PROBE_UNTIL)
        rows += [{"arm": arm} | row for row in probe_along(config, every=PROBE_EVERY)]
    return rows


def pack_probes(rows: Sequence[Mapping[str, Any]], path: Path | str = PACKAGED_PROBES) -> None:
    """Write the rows of `run_probes` as JSON, `DIGITS` significant digits, null where a number is missing."""

    def short(value: Any) -> Any:
        if not isinstance(value, float):
            return value
        return float(f"{value:.{DIGITS}g}") if np.isfinite(value) else None

    text = ",\n".join(json.dumps({name: short(value) for name, value in row.items()}) for row in rows)
    Path(path).write_text(f"[\n{text}\n]\n")


def load_probes(path: Path | str = PACKAGED_PROBES) -> list[dict[str, Any]]:
    """Read the rows that `pack_probes` wrote, NaN where a number is missing. Raises MissingDataError."""
    if not Path(path).is_file():
        raise MissingDataError(
            f"{path} does not exist; `python -m lldsim.transformer.study --probes --package` makes it"
        )
    rows = json.loads(Path(path).read_text())
    return [{name: np.nan if value is None else value for name, value in row.items()} for row in rows]


def condition_rows(arms: Arms) -> list[dict[str, Any]]:
    """Return the table: one row per condition, outcomes by update `HORIZON`, intervals 95 %.

    A run that did not collapse is censored at its last update. `lost` counts runs whose smoothed reward was ever below
    `LOST` of its running peak, a fall that need not be a collapse; `kept` is the lowest such share.
    """
    return [condition_row(name, records) for name, records in arms.items()]


def condition_row(name: str, records: Sequence[RunRecord]) -> dict[str, Any]:
    """Return one row of `condition_rows`."""
    steps = [collapse_step(r["reward"]) for r in records]
    rate = collapse_rate(steps)
    median, low, high = median_step(steps)
    kept = [lowest_share(r) for r in records]
    reward = [smooth(r["reward"], DEFAULT.reward_window) for r in records]
    logp = [smooth(r["logp_correct"], DEFAULT.signal_window) for r in records]
    short = name.removesuffix(LONG_SUFFIX)
    return {
        "condition": name,
        "setting": CONDITIONS[short].words,
        "runs": rate.n,
        "warm_starts": len({r.config["warm_start"] for r in records}),
        "updates": records[0].config["updates"],
        "collapsed": rate.k,
        "low": rate.low,
        "high": rate.high,
        "step_median": finite_or_none(median),
        "step_low": finite_or_none(low),
        "step_high": finite_or_none(high),
        "steps": " ".join("-" if s is None else str(s) for s in steps),
        "lost": sum(k < LOST for k in kept),
        "lost_by_warm_start": _by_warm_start(records, [k < LOST for k in kept]),
        "kept_min": min(kept),
        "kept_median": float(np.median(kept)),
        "peak_reward": float(np.median([np.nanmax(r) for r in reward])),
        "end_reward": float(np.median([r[-1] for r in reward])),
        "in_decay": sum(find_phases(r).decay is not None for r in records),
        "falling_on_plateau": float(np.median([falls_while_reward_holds(r) for r in records])),
        "logp_start": float(np.median([np.nanmean(x[2:10]) for x in logp])),
        "logp_best": float(np.median([np.nanmax(x) for x in logp])),
        "logp_lowest_after": float(np.median([np.nanmin(x[int(np.nanargmax(x)) :]) for x in logp])),
        "entropy_surge": float(np.median([surge(r["entropy"]) for r in records])),
        "grad_norm_surge": float(np.median([surge(r["grad_norm"]) for r in records])),
        "ratio_max": float(np.median([np.nanmax(r["ratio_max"]) for r in records])),
    }


def _by_warm_start(records: Sequence[RunRecord], hit: Sequence[bool]) -> str:
    """Return hits and runs per warm start as text, `1/4 0/3 0/3`."""
    starts = [r.config["warm_start"] for r in records]
    counts = [
        (sum(h for h, s in zip(hit, starts, strict=True) if s == w), starts.count(w)) for w in sorted(set(starts))
    ]
    return " ".join(f"{k}/{n}" for k, n in counts)


def lowest_share(record: RunRecord) -> float:
    """Return the lowest smoothed reward as a share of its running peak, so that a run that recovers shows its fall."""
    reward = smooth(record["reward"], DEFAULT.reward_window)
    return float(np.nanmin(reward / np.fmax.accumulate(reward)))


def padded(records: Sequence[RunRecord], updates: int = HORIZON) -> list[RunRecord]:
    """Return records of one length, NaN after a run stopped and nothing after `updates`: panels draw equal lengths."""
    out = []
    for record in records:
        columns = {}
        for name, values in record.columns.items():
            columns[name] = np.pad(values[:updates], (0, max(0, updates - len(values))), constant_values=np.nan)
        columns["update"] = np.arange(updates, dtype=float)
        out.append(RunRecord(columns, record.config, record.config_hash, record.versions, record.label))
    return out


def study_provenance(study: Study) -> dict[str, Any]:
    """Return what a figure of the packaged records says about them."""
    return {
        "label": study.about["label"],
        "seeds": sorted({seed for seeds in study.about["seeds"].values() for seed in seeds}),
        "config_hash": study.about["code_hash"],
        "study_versions": study.about["versions"],
    }


def _short(x: float) -> str:
    if np.isnan(x):
        return ""
    return str(int(x)) if float(x).is_integer() and abs(x) < 1e6 else f"{x:.{DIGITS}g}"


def planned(seeds: Mapping[str, Sequence[int]]) -> dict[str, list[Any]]:
    """Return the configurations of a study from the seeds per condition; a name ending in `LONG_SUFFIX` runs longer."""
    return {
        name: condition_runs(
            name.removesuffix(LONG_SUFFIX), chosen, updates=LONGER if name.endswith(LONG_SUFFIX) else HORIZON
        )
        for name, chosen in seeds.items()
    }


def main(argv: Sequence[str] | None = None) -> int:
    """Run the conditions, or with `--cached-only` collect those that are done, and pack their records."""
    parser = argparse.ArgumentParser(prog="python -m lldsim.transformer.study", description=__doc__)
    parser.add_argument("--conditions", nargs="+", choices=sorted(CONDITIONS), metavar="NAME", default=list(CONDITIONS))
    parser.add_argument("--seeds", type=int, default=10, help="seeds 0 to N - 1 (default 10)")
    parser.add_argument("--workers", type=int, default=1, help="single-thread processes (default 1)")
    parser.add_argument("--cache", type=Path, default=DEFAULT_CACHE, metavar="DIR")
    parser.add_argument("--package", action="store_true", help=f"write into the package instead of {BUILT_STUDY}")
    parser.add_argument("--cached-only", action="store_true", help="run nothing, pack what is in the cache")
    parser.add_argument("--probes", action="store_true", help="probe single runs instead, and write probes.json")
    args = parser.parse_args(argv)
    out = PACKAGED_STUDY if args.package else BUILT_STUDY
    out.parent.mkdir(parents=True, exist_ok=True)
    if args.probes:
        pack_probes(run_probes(), out.with_name("probes.json"))
        return 0
    plan = planned({name: range(args.seeds) for name in args.conditions})
    plan |= planned({name + LONG_SUFFIX: range(args.seeds) for name in ("leak", "llds") if name in plan})
    if not args.cached_only:
        flat = [config for configs in plan.values() for config in configs if config.trainer.updates == HORIZON]
        flat.sort(key=lambda config: config.trainer.seed)  # an interrupted study has every condition equally often
        with Progress("transformer study", say=print) as on_done:
            records = run_all(flat, cache_dir=args.cache, workers=args.workers, on_done=on_done)
        slow = {
            r.config["seed"] for r in records if r.config_hash in _hashes(plan, "leak") and not _collapsed(r)
        }  # continued, and their twins
        longer = [c for c in _longer(plan) if c.trainer.seed in slow]
        run_all(longer, cache_dir=args.cache, workers=args.workers)
    found = {name: [r for c in configs if (r := read_cached(c, args.cache))] for name, configs in plan.items()}
    arms = {name: records for name, records in found.items() if records}
    pack(arms, out)
    for row in condition_rows(arms):
        print(
            f"{row['condition']:18} {row['collapsed']:2}/{row['runs']:<2} [{row['low']:.2f}, {row['high']:.2f}]"
            f"  steps {row['steps']}  lost {row['lost_by_warm_start']}  end {row['end_reward']:.2f}"
        )
    return 0


def _hashes(plan: dict[str, list[Any]], name: str) -> set[str]:
    return {config.config_hash() for config in plan.get(name, [])}


def _longer(plan: dict[str, list[Any]]) -> list[Any]:
    return [config for name, configs in plan.items() if name.endswith(LONG_SUFFIX) for config in configs]


def _collapsed(record: RunRecord) -> bool:
    return collapse_step(record["reward"]) is not None


if __name__ == "__main__":
    sys.exit(main())
