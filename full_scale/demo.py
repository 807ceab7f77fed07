"""`python -m full_scale.demo --out DIR`: the whole path on a CPU, with its checks; `make full-scale-cpu` runs it.

FactWorld, tokenizer and a warm-started tiny Qwen2; a retriever over HTTP; GRPO and GRPO + LLDS from the same weights,
one process each, several updates per rollout batch; evaluation, the single-update probe, and export to run records.
Prints a table and ends with status 1 if a check fails. `--short` is the form for CI: every line, too few steps to
learn. What it shows is that the machinery works: a model of 7e5 parameters that was just taught to look facts up says
nothing about Qwen2.5, and no collapse is expected in so few steps.
What this file does not do: draw (the records are drawn by the laboratory's panels), or train anything large.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from full_scale.config import FullConfig, load_config, parse_overrides
from full_scale.data import load_rows
from full_scale.retriever.client import RetrieverClient
from full_scale.retriever.index import build_index
from full_scale.retriever.server import serving

ARMS = {"grpo": 0.0, "llds": 0.2}
SHORT = {"warm_steps": 200, "rollouts": 2, "save_every": 1}


def run_demo(config: FullConfig, out: Path, *, short: bool = False) -> dict[str, Any]:
    """Run every part and return the summary: seconds, exact match before and after, LLDS by step, checks."""
    questions, probe_queries = (20, 2) if short else (100, 10)
    seconds: dict[str, float] = {}
    summary: dict[str, Any] = {"label": "measured", "seconds": seconds, "config_hash": config.config_hash()}
    with _timed(seconds, "warm start"):
        summary["parameters"] = _warm(config, out / "warm")
    config = config.replace(model=str(out / "warm"))
    with serving(build_index("factworld"), topk=config.topk) as url:
        search = RetrieverClient(url, topk=config.topk)
        with _timed(seconds, "evaluate"):
            summary["warm"] = greedy(config, out / "warm", out / "evaluation_warm.csv", search, questions)
        # One process with one thread for each arm: two threads in one process would be slower, not faster.
        pool = ProcessPoolExecutor(len(ARMS), mp_context=get_context("spawn"), initializer=one_thread)
        with _timed(seconds, "both arms"), pool:
            running = {
                name: pool.submit(_arm, config.replace(llds_coef=coef), out, name, url, questions, probe_queries)
                for name, coef in ARMS.items()
            }
            for name, future in running.items():
                summary[name], spent = future.result()
                seconds |= {f"{name}: {part}": value for part, value in spent.items()}
    summary["checks"] = checks(summary, config.updates_per_rollout, short=short)
    (out / "summary.json").write_text(json.dumps(summary, indent=1, sort_keys=True) + "\n")
    return summary


def _arm(
    config: FullConfig, out: Path, name: str, url: str, questions: int, probe_queries: int
) -> tuple[dict[str, Any], dict[str, float]]:
    """Train, evaluate and probe one arm; return its part of the summary and its seconds."""
    seconds: dict[str, float] = {}
    search = RetrieverClient(url, topk=config.topk)
    with _timed(seconds, "train"):
        found = _train(config, out / name, search)
    model = out / name / "final"
    with _timed(seconds, "evaluate"):
        found |= greedy(config, model, out / f"evaluation_{name}.csv", search, questions)
    with _timed(seconds, "probe"):
        found["probe"] = _probe(config, model, out / f"probe_{name}.csv", search, probe_queries)
    return found, seconds


def one_thread() -> None:
    """Give this process one thread and no progress bars."""
    import torch
    from transformers.utils import logging  # pyright: ignore[reportMissingImports]

    torch.set_num_threads(1)
    logging.disable_progress_bar()


def checks(summary: dict[str, Any], updates: int, *, short: bool = False) -> dict[str, bool]:
    """Return what must hold for the path to count as working; a short run is not asked to have learned."""
    penalty = summary["llds"]["penalty"]
    first = [x for k, x in enumerate(penalty) if k % updates == 0]
    later = [x for k, x in enumerate(penalty) if k % updates]
    learned = {
        "more than 90 % valid actions after the warm start": summary["warm"]["valid_action_rate"] > 0.9,
        "training reward rises under GRPO": _rises(summary["grpo"]["reward"]),
        "training reward rises under GRPO + LLDS": _rises(summary["llds"]["reward"]),
        "exact match rises beyond its interval under GRPO": _separates(summary["warm"], summary["grpo"]),
        "exact match rises beyond its interval under GRPO + LLDS": _separates(summary["warm"], summary["llds"]),
    }
    return ({} if short else learned) | {
        "LLDS is 0 on the first step of every rollout batch": all(x == 0 for x in first),
        "LLDS is positive on later steps": sum(x > 0 for x in later) > 0.5 * len(later),
        "both arms start alike": summary["grpo"]["reward"][0] == summary["llds"]["reward"][0],
    }


def _separates(before: dict[str, Any], after: dict[str, Any]) -> bool:
    """Tell whether greedy exact match on training questions rose so far that the 95 % intervals do not touch."""
    return after["em_train_interval"][0] > before["em_train_interval"][1]


def _rises(reward: list[float]) -> bool:
    third = max(len(reward) // 3, 1)
    return sum(reward[-third:]) > sum(reward[:third])


def _warm(config: FullConfig, folder: Path) -> int:
    from full_scale.warmstart import warm_start

    model, tokenizer, _ = warm_start(config)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return sum(p.numel() for p in model.parameters())


def _train(config: FullConfig, out: Path, search: Any) -> dict[str, Any]:
    from full_scale.export import export
    from full_scale.train import train

    train(config, out, search=search)
    record = export(out)
    record.save(out / "record")
    log = [json.loads(line) for line in (out / "log.jsonl").read_text().splitlines()]
    return {
        "reward": record["reward"].tolist(),
        "logp_correct": [x if x == x else None for x in record["logp_correct"].tolist()],
        "gate_fraction": [line["llds/gate_fraction"] for line in log],
        "penalty": [line["llds/penalty"] for line in log],
    }


def greedy(config: FullConfig, model: Path, out: Path, search: Any, questions: int) -> dict[str, Any]:
    """Return greedy exact match on training and test questions with 95 % intervals, and the share of valid actions."""
    import torch

    from full_scale.evaluate import evaluate, first_of_each, wilson, write
    from full_scale.sampling import TransformersSampler
    from full_scale.tiny import load

    network, tokenizer = load(model)
    found: dict[str, Any] = {}
    for split in ("train", "test"):
        rows = first_of_each(load_rows(config.eval_data, split=split, hops=config.hops), questions)
        sampler = TransformersSampler(network, tokenizer, batch_size=config.sampling_batch, temperature=0.0)
        with torch.no_grad():
            counts, trajectories = evaluate(config, rows, sampler=sampler, tokenizer=tokenizer, search=search)
        path = out.with_name(f"{out.stem}_{split}.csv")
        write(path, config, counts, trajectories)
        hits = sum(h for h, _ in counts.values())
        found[f"em_{split}"] = hits / len(rows)
        found[f"em_{split}_interval"] = wilson(hits, len(rows))
        found["valid_action_rate"] = json.loads(path.with_suffix(".json").read_text())["valid_action_rate"]
    return found


def _probe(config: FullConfig, model: Path, out: Path, search: Any, queries: int) -> dict[str, Any]:
    from full_scale.probe import probe, write
    from full_scale.tiny import load

    network, tokenizer = load(model)
    rows, skipped = probe(config, network, tokenizer, search, queries=queries)
    return write(out, rows, skipped, config)["summary"]


@contextmanager
def _timed(seconds: dict[str, float], name: str) -> Iterator[None]:
    started = time.perf_counter()
    yield
    seconds[name] = round(seconds.get(name, 0.0) + time.perf_counter() - started, 1)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit status: 1 if a check fails."""
    parser = argparse.ArgumentParser(prog="python -m full_scale.demo", description="The whole path on a CPU.")
    parser.add_argument("--out", default="build/full_scale")
    parser.add_argument("--short", action="store_true", help="few steps and questions: does every line run?")
    parser.add_argument("--set", nargs="*", default=[], metavar="NAME=VALUE")
    args = parser.parse_args(argv)
    os.environ.setdefault("HF_HUB_OFFLINE", "1")  # nothing here comes from a hub
    one_thread()
    out = Path(args.out)
    out.mkdir(parents=True, exist_ok=True)
    changes = (SHORT if args.short else {}) | parse_overrides(args.set)
    summary = run_demo(load_config("cpu_tiny", changes), out, short=args.short)
    for name in ("warm", *ARMS):
        part = summary[name]
        reward = f"training reward {part['reward'][0]:.2f} -> {part['reward'][-1]:.2f}, " if "reward" in part else ""
        valid = f"valid actions {part['valid_action_rate']:.2f}"
        print(f"{name:<6}{reward}exact match train {part['em_train']:.2f} test {part['em_test']:.2f}, {valid}")
    print("seconds:", ", ".join(f"{name} {value:g}" for name, value in summary["seconds"].items()))
    for name, held in summary["checks"].items():
        print(f"{'ok    ' if held else 'FAILED'} {name}")
    return 0 if all(summary["checks"].values()) else 1


if __name__ == "__main__":
    raise SystemExit(main())
