# pyright: reportMissingImports=false
"""`python -m full_scale.train CONFIG [--out DIR] [--resume] [--set NAME=VALUE ...]`: train and log.

Writes DIR/log.jsonl (one line per optimiser step), DIR/config.json and checkpoints; no account with any tracker is
needed. On several devices: `accelerate launch -m full_scale.train CONFIG`.
What this file does not do: evaluate, probe or draw (evaluate.py, probe.py, export.py).
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from full_scale.config import FullConfig, load_config, parse_overrides, trl_arguments
from full_scale.data import load_rows, render
from full_scale.protocol import INVALID, SHORT_INVALID
from full_scale.retriever.client import RetrieverClient, Search
from full_scale.rewards import exact_match
from full_scale.rollout import rollout
from full_scale.sampling import Sampler, TransformersSampler, stream
from full_scale.sampling_vllm import VLLMColocateSampler, VLLMServerSampler
from full_scale.tiny import load


def make_search(config: FullConfig) -> Search:
    """Return the search tool: a client for a URL, or BM25 over FactWorld in this process for "local"."""
    if config.retriever != "local":
        return RetrieverClient(config.retriever, topk=config.topk)
    from full_scale.retriever.index import build_index
    from full_scale.retriever.stub import LocalSearch

    return LocalSearch(build_index("factworld"), topk=config.topk)


def invalid_text(config: FullConfig) -> str:
    """Return the corrective message that goes with the prompt style."""
    return SHORT_INVALID if config.prompt == "short" else INVALID


def rollout_function(
    config: FullConfig, search: Search, make_sampler: Callable[..., Sampler] = TransformersSampler
) -> Callable[[list[str], Any], dict[str, Any]]:
    """Return TRL's rollout_func(prompts, trainer); `prompts` already holds every prompt group_size times.

    `make_sampler` is called once per rollout batch in place of TransformersSampler, with its arguments.
    """

    def run(prompts: list[str], trainer: Any) -> dict[str, Any]:
        accelerator = trainer.accelerator
        a = trainer.args
        updates = a.steps_per_generation * a.num_iterations // a.gradient_accumulation_steps
        number = trainer.state.global_step // updates
        first = accelerator.process_index * len(prompts)
        streams = [stream(config.seed, number, first + k) for k in range(len(prompts))]
        any_process = _any_process(accelerator)

        def sample(sampler: Sampler) -> list[Any]:
            return rollout(
                prompts,
                tokenizer=trainer.processing_class,
                sampler=sampler,
                search=search,
                limits=config.limits(),
                streams=streams,
                prompt_tokens=config.prompt_tokens,
                invalid_text=invalid_text(config),
                any_process=any_process,
            )

        if config.sampler == "vllm_colocate":
            trajectories = sample(VLLMColocateSampler(trainer.vllm_generation.llm))
        elif config.sampler == "vllm_server":
            trajectories = sample(VLLMServerSampler(config.vllm_url, config.model))
        else:
            import torch
            from trl.models.utils import unwrap_model_for_generation

            with (
                unwrap_model_for_generation(trainer.model_wrapped, accelerator) as model,
                torch.no_grad(),
                accelerator.autocast(),
            ):
                sampler = make_sampler(
                    model, trainer.processing_class, batch_size=config.sampling_batch, any_process=any_process
                )
                trajectories = sample(sampler)
        trainer.trajectories = trajectories
        return {
            "prompt_ids": [t.prompt_ids for t in trajectories],
            "completion_ids": [t.completion_ids for t in trajectories],
            "logprobs": None,  # TRL would take the sampler's for old ones; ours stay on the trajectory
            "env_mask": [t.action_mask for t in trajectories],
            "answer": [t.answer for t in trajectories],
        }

    return run


def _any_process(accelerator: Any) -> Callable[[bool], bool]:
    """Return a collective "or" where a forward pass is a collective (FSDP), else a plain one."""
    if accelerator.num_processes == 1 or str(accelerator.distributed_type).rsplit(".", 1)[-1] != "FSDP":
        return lambda flag: flag
    import torch

    def any_process(flag: bool) -> bool:
        mine = torch.tensor([float(flag)], device=accelerator.device)
        return accelerator.reduce(mine, reduction="sum").item() > 0

    return any_process


def reward_function(config: FullConfig) -> Callable[..., list[float]]:
    """Return TRL's reward function: exact match of the policy's own last action."""

    def exact_match_reward(answer: list[str | None], golds: list[list[str]], **rest: Any) -> list[float]:
        return [exact_match(a, g, rule=config.match) for a, g in zip(answer, golds, strict=True)]

    return exact_match_reward


def make_trainer(
    config: FullConfig,
    out: str | Path,
    *,
    search: Search | None = None,
    processes: int = 1,
    make_sampler: Callable[..., Sampler] = TransformersSampler,
) -> Any:
    """Return an LLDSGRPOTrainer for a configuration, writing to `out`.

    `processes` is the number that accelerate launched (WORLD_SIZE). Raises ConfigError, MissingDataError.
    """
    arguments = trl_arguments(config, output_dir=str(out), processes=processes)
    os.environ.setdefault("TRL_EXPERIMENTAL_SILENCE", "1")
    from datasets import Dataset
    from trl import GRPOConfig

    from full_scale.metrics import jsonl_callback
    from full_scale.trl_trainer import LLDS, LLDSGRPOTrainer

    model, tokenizer = load(config.model)
    rows = load_rows(config.train_data, split="train", hops=config.hops)
    template = tokenizer if config.chat_template else None
    records = [
        {
            "prompt": render(row, style=config.prompt, tokenizer=template),
            "golds": list(row.golds),
            "key": f"{row.source}:{row.index}",
        }
        for row in rows
    ]
    trainer = LLDSGRPOTrainer(
        model=model,
        reward_funcs=reward_function(config),
        args=GRPOConfig(**arguments),
        train_dataset=Dataset.from_list(records),
        processing_class=tokenizer,
        rollout_func=rollout_function(config, search or make_search(config), make_sampler),
        callbacks=[jsonl_callback(Path(out) / "log.jsonl")],
        llds=LLDS(
            coef=config.llds_coef,
            gate=config.gate,
            normalizer=config.normalizer,
            answer_weight_rule=config.answer_weight_rule,
            even_minibatches=config.even_minibatches,
        ),
    )
    from transformers.trainer_callback import PrinterCallback

    trainer.remove_callback(PrinterCallback)  # every step is in log.jsonl
    return trainer


def train(
    config: FullConfig,
    out: str | Path,
    *,
    search: Search | None = None,
    resume: bool = False,
    make_sampler: Callable[..., Sampler] = TransformersSampler,
) -> Any:
    """Train, write log, configuration and the last model to `out`, and return the trainer."""
    out = Path(out)
    processes = int(os.environ.get("WORLD_SIZE", "1"))
    trainer = make_trainer(config, out, search=search, processes=processes, make_sampler=make_sampler)
    if trainer.accelerator.is_main_process:
        out.mkdir(parents=True, exist_ok=True)
        (out / "config.json").write_text(json.dumps(dataclasses.asdict(config), indent=1, sort_keys=True) + "\n")
    trainer.train(resume_from_checkpoint=True if resume else None)
    trainer.save_model(str(out / "final"))
    return trainer


def main(argv: Sequence[str] | None = None) -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(prog="python -m full_scale.train", description="Train with GRPO and LLDS.")
    parser.add_argument("config", help="a YAML file or a name in full_scale/configs")
    parser.add_argument("--out", help="folder to write to (default: runs/full_scale/NAME)")
    parser.add_argument("--resume", action="store_true", help="go on from the newest checkpoint in the folder")
    parser.add_argument("--set", nargs="*", default=[], metavar="NAME=VALUE", help="override keys of the file")
    args = parser.parse_args(argv)
    config = load_config(args.config, parse_overrides(args.set))
    out = Path(args.out or f"runs/full_scale/{Path(args.config).stem}")
    print(f"{config.steps} optimiser steps on {config.rollouts} rollout batches of {config.trajectories} -> {out}")
    trainer = train(config, out, resume=args.resume)
    rewards = [row["reward"] for row in trainer.state.log_history if "reward" in row]
    print(f"reward of the first and the last rollout batch: {rewards[0]:.3f}, {rewards[-1]:.3f}")


if __name__ == "__main__":
    main()
