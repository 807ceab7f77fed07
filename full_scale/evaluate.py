"""`python -m full_scale.evaluate CONFIG --model FOLDER [--out FILE.csv]`: exact match per data set, greedy.

One CSV line in the columns of the paper's tables (arXiv 2512.04220, Tables 1-4) for Search-R1's seven sets; FactWorld
has columns of its own and never stands under NQ or HotpotQA. Beside it a JSON with counts, intervals and versions.
What this file does not do: mix the two rules of exact match, or fill a set that was not run.
"""

from __future__ import annotations

import argparse
import csv
import json
import math
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from full_scale.config import FullConfig, load_config, parse_overrides
from full_scale.data import Row, load_rows, render
from full_scale.export import versions_full
from full_scale.protocol import Trajectory
from full_scale.retriever.client import Search
from full_scale.rewards import exact_match
from full_scale.rollout import rollout
from full_scale.sampling import Sampler, TransformersSampler, stream
from full_scale.sampling_vllm import VLLMServerSampler
from full_scale.tiny import load
from full_scale.train import invalid_text, make_search

GENERAL = ("nq", "triviaqa", "popqa")
MULTI_HOP = ("hotpotqa", "2wiki", "musique", "bamboogle")
COLUMNS = (
    "table", "model", "train_set", "method", "mark", *GENERAL, "gen_avg", *MULTI_HOP, "mh_avg", "avg",
)  # fmt: skip
_SOURCE_NAMES = {"2wikimultihopqa": "2wiki"}  # Search-R1's name -> the column


def evaluate(
    config: FullConfig, rows: Sequence[Row], *, sampler: Sampler, tokenizer: Any, search: Search
) -> tuple[dict[str, tuple[int, int]], list[Trajectory]]:
    """Return source -> (hits, questions) under the configuration's rule, and the trajectories in the order of rows."""
    template = tokenizer if config.chat_template else None
    trajectories = rollout(
        [render(row, style=config.prompt, tokenizer=template) for row in rows],
        tokenizer=tokenizer,
        sampler=sampler,
        search=search,
        limits=config.limits(evaluation=True),
        streams=[stream(config.seed, 2**31, k) for k in range(len(rows))],
        prompt_tokens=config.prompt_tokens,
        invalid_text=invalid_text(config),
    )
    counts: dict[str, tuple[int, int]] = defaultdict(lambda: (0, 0))
    for row, trajectory in zip(rows, trajectories, strict=True):
        hits, n = counts[row.source]
        counts[row.source] = (hits + int(exact_match(trajectory.answer, row.golds, rule=config.match)), n + 1)
    return dict(counts), trajectories


def table_row(config: FullConfig, counts: dict[str, tuple[int, int]]) -> dict[str, str]:
    """Return one CSV line: shares to three digits, averages only over complete sets of columns, else empty.

    Averages are means of the printed columns' unrounded values, as in the paper's tables.
    """
    share = {_SOURCE_NAMES.get(name, name): hits / n for name, (hits, n) in counts.items()}
    method = f"{config.surrogate}{'+llds' if config.llds_coef else ''}" + (
        "-ma" if config.answer_weight_rule != "fixed" else ""
    )
    line: dict[str, str] = dict.fromkeys(COLUMNS, "") | {
        "table": "measured",
        "model": Path(config.model).name,
        "train_set": Path(config.train_data).stem,
        "method": method,
        "mark": config.match,
    }
    groups = {"gen_avg": GENERAL, "mh_avg": MULTI_HOP, "avg": GENERAL + MULTI_HOP}
    for name, members in groups.items():
        if all(member in share for member in members):
            share[name] = sum(share[member] for member in members) / len(members)
    return line | {name: f"{value:.3f}" for name, value in share.items()}


def wilson(hits: int, n: int) -> tuple[float, float]:
    """Return the 95 % Wilson interval of a share.

    >>> tuple(round(x, 3) for x in wilson(5, 10))
    (0.237, 0.763)
    """
    z, p = 1.959963984540054, hits / n
    centre, spread = p + z * z / (2 * n), z * math.sqrt(p * (1 - p) / n + z * z / (4 * n * n))
    return (centre - spread) / (1 + z * z / n), (centre + spread) / (1 + z * z / n)


def write(out: Path, config: FullConfig, counts: dict[str, tuple[int, int]], trajectories: list[Trajectory]) -> None:
    """Write the CSV line and, beside it, a JSON with counts, intervals and provenance."""
    line = table_row(config, counts)
    out.parent.mkdir(parents=True, exist_ok=True)
    with out.open("w", newline="") as file:
        writer = csv.DictWriter(file, list(line), lineterminator="\n")
        writer.writeheader()
        writer.writerow(line)
    actions = [action for t in trajectories for action in t.actions]
    about = {
        "label": "measured",
        "rule": config.match,
        "config_hash": config.config_hash(),
        "seed": config.seed,
        "versions": versions_full(),
        "sets": {k: {"hits": h, "n": n, "interval": wilson(h, n)} for k, (h, n) in counts.items()},
        "valid_action_rate": 1 - sum(a.kind == "invalid" for a in actions) / len(actions),
        "valid_searches": sum(t.searches for t in trajectories) / len(trajectories),
    }
    out.with_suffix(".json").write_text(json.dumps(about, indent=1, sort_keys=True) + "\n")


def main(argv: Sequence[str] | None = None) -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(prog="python -m full_scale.evaluate", description="Exact match per data set.")
    parser.add_argument("config")
    parser.add_argument("--model", help="folder of a trained model (default: the configuration's)")
    parser.add_argument("--split", default="test", choices=["train", "test"], help="FactWorld's split")
    parser.add_argument("--limit", type=int, help="only the first N questions of every set")
    parser.add_argument("--out", default="runs/full_scale/evaluation.csv")
    parser.add_argument("--set", nargs="*", default=[], metavar="NAME=VALUE")
    args = parser.parse_args(argv)
    config = load_config(args.config, parse_overrides(args.set))
    rows = load_rows(config.eval_data, split=args.split, hops=config.hops)
    if args.limit:
        rows = first_of_each(rows, args.limit)
    model, tokenizer = load(args.model or config.model)
    if config.sampler == "vllm_server":
        sampler: Sampler = VLLMServerSampler(config.vllm_url, args.model or config.model, temperature=0.0)
    else:
        model = model if config.cpu else model.cuda()
        sampler = TransformersSampler(model, tokenizer, batch_size=config.sampling_batch, temperature=0.0)
    import torch

    with torch.no_grad():
        counts, trajectories = evaluate(config, rows, sampler=sampler, tokenizer=tokenizer, search=make_search(config))
    write(Path(args.out), config, counts, trajectories)
    for name, (hits, n) in counts.items():
        low, high = wilson(hits, n)
        print(f"{name}: {hits}/{n} = {hits / n:.3f} [{low:.3f}, {high:.3f}] ({config.match})")


def first_of_each(rows: Sequence[Row], limit: int) -> list[Row]:
    """Return the first `limit` rows of every source, in order."""
    seen: dict[str, int] = defaultdict(int)
    kept = []
    for row in rows:
        seen[row.source] += 1
        if seen[row.source] <= limit:
            kept.append(row)
    return kept


if __name__ == "__main__":
    main()
