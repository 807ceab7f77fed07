"""`python -m full_scale.verl_plugin.launch CONFIG --out DIR --nodes N --gpus G [--run]`: a full_scale run on verl.

Writes DIR/verl.yaml (verl's own configuration with our values; read it, edit it), DIR/agent_loop.yaml and the questions
in verl's columns, checks all three (check.py) and prints the command; --run starts it. Several nodes: see
full_scale/launch/verl_nodes.sh. The same YAML names as for the TRL path, so a run moves between engines by its command.
What this file does not do: start a retriever or a Ray cluster. **No run of it on GPUs has been made by us.**
"""

from __future__ import annotations

import argparse
import shlex
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml

from full_scale.config import FullConfig, load_config, parse_overrides
from full_scale.data import load_rows, render
from full_scale.protocol import INVALID, SHORT_INVALID
from full_scale.verl_plugin import AGENT, EVAL_AGENT, LOSS
from lldsim.errors import ConfigError

PACKAGE = "full_scale.verl_plugin"
NO_DUAL_CLIP = 1.0e9  # verl has no switch for it; its ratio is at most e^20 = 4.9e8, so this never clips


def verl_settings(config: FullConfig, out: Path, *, nodes: int = 1, gpus: int = 8) -> dict[str, Any]:
    """Return the keys of verl's configuration that differ from its defaults, dotted.

    A mini-batch of verl is a number of whole groups and its learning rate moves once per rollout batch, where TRL's
    moves every step; everything else means the same in both engines. Raises ConfigError for what verl cannot do.
    """
    prompts, rest = divmod(config.prompts_per_rollout, config.updates_per_rollout)
    if rest:
        fit = [n for n in range(2, config.prompts_per_rollout + 1) if config.prompts_per_rollout % n == 0]
        near = sorted(fit, key=lambda n: abs(n - config.updates_per_rollout))[:2]
        raise ConfigError(
            f"{config.prompts_per_rollout} prompts cannot be split into updates_per_rollout="
            f"{config.updates_per_rollout} mini-batches: verl's hold whole groups; use "
            f"--set updates_per_rollout={near[0]} (or {near[-1]})"
        )
    per_gpu, odd = divmod(prompts * config.group_size, nodes * gpus)
    if odd or per_gpu % config.micro_batch:
        raise ConfigError(
            f"a mini-batch of {prompts * config.group_size} trajectories does not split over {nodes * gpus} GPUs into "
            f"micro-batches of {config.micro_batch}; change micro_batch, updates_per_rollout or the number of GPUs"
        )
    if not config.chat_template:
        raise ConfigError("chat_template=false: verl renders every prompt with the model's chat template")
    if config.sampler != "vllm_colocate":
        raise ConfigError(f"sampler={config.sampler!r}: stop strings need verl's vLLM servers; use vllm_colocate")
    return {
        "data.train_files": str(out / "data" / "train.parquet"),
        "data.val_files": str(out / "data" / "test.parquet"),
        "data.train_batch_size": config.prompts_per_rollout,
        "data.max_prompt_length": config.prompt_tokens,
        "data.max_response_length": config.completion_tokens,
        "data.truncation": "error",
        "data.seed": config.seed,
        "algorithm.adv_estimator": "grpo",
        "algorithm.norm_adv_by_std_in_grpo": True,
        "algorithm.use_kl_in_reward": False,
        # Old log-probabilities are the actor's own recomputation, never the sampler's: LLDS compares with them.
        "algorithm.rollout_correction.bypass_mode": False,
        "reward.custom_reward_function.path": f"pkg://{PACKAGE}.reward",
        "reward.custom_reward_function.name": "compute_score",
        "reward.custom_reward_function.reward_kwargs": {"match": config.match},
        "trainer.nnodes": nodes,
        "trainer.n_gpus_per_node": gpus,
        "trainer.total_training_steps": config.rollouts,  # verl's step is a rollout batch
        "trainer.total_epochs": 1_000_000,
        "trainer.save_freq": config.save_every,
        "trainer.test_freq": config.save_every,
        "trainer.logger": ["console", "file"],
        "trainer.project_name": "lldsim",
        "trainer.experiment_name": out.name,
        "trainer.default_local_dir": str(out / "checkpoints"),
        **{f"actor_rollout_ref.{name}": value for name, value in _workers(config, prompts, out).items()},
    }


def _workers(config: FullConfig, prompts: int, out: Path) -> dict[str, Any]:
    gspo = config.surrogate == "gspo"
    return {
        "model.path": config.model,
        "model.external_lib": f"{PACKAGE}.worker",
        "model.enable_gradient_checkpointing": config.gradient_checkpointing,
        "actor.ppo_mini_batch_size": prompts,
        "actor.ppo_micro_batch_size_per_gpu": config.micro_batch,
        "actor.ppo_epochs": 1,
        "actor.optim.lr": config.learning_rate,
        "actor.optim.lr_warmup_steps_ratio": config.warmup_ratio,
        "actor.grad_clip": config.grad_clip,
        "actor.clip_ratio": config.clip_eps,
        "actor.clip_ratio_low": config.clip_eps,
        "actor.clip_ratio_high": config.clip_eps,
        "actor.clip_ratio_c": config.dual_clip or NO_DUAL_CLIP,
        "actor.loss_agg_mode": "seq-mean-token-mean" if gspo else config.aggregation,
        "actor.entropy_coeff": config.entropy_coef,
        "actor.use_kl_loss": config.kl_coef > 0,
        "actor.kl_loss_coef": config.kl_coef,
        "actor.kl_loss_type": "low_var_kl",
        "actor.policy_loss._target_": f"{PACKAGE}.config.LLDSPolicyLossConfig",
        "actor.policy_loss.loss_mode": LOSS,
        "actor.policy_loss.llds_base": config.surrogate,
        "actor.policy_loss.llds_coef": config.llds_coef,
        "actor.policy_loss.llds_gate": config.gate,
        "actor.policy_loss.llds_normalizer": config.normalizer,
        "actor.policy_loss.llds_answer_weight_rule": config.answer_weight_rule,
        "ref.log_prob_micro_batch_size_per_gpu": config.micro_batch,
        "rollout.name": "vllm",
        "rollout.mode": "async",
        "rollout.n": config.group_size,
        "rollout.temperature": config.temperature,
        "rollout.top_p": 1.0,
        "rollout.val_kwargs.temperature": 0.0,
        "rollout.val_kwargs.do_sample": False,
        "rollout.calculate_log_probs": True,  # only to log the gap between sampler and trainer
        "rollout.tensor_model_parallel_size": 1,
        "rollout.gpu_memory_utilization": config.vllm_memory,
        "rollout.max_model_len": config.prompt_tokens + config.completion_tokens,
        "rollout.log_prob_micro_batch_size_per_gpu": config.micro_batch,
        "rollout.agent.default_agent_loop": AGENT,
        "rollout.agent.agent_loop_config_path": str(out / "agent_loop.yaml"),
    }


def agent_loops(config: FullConfig) -> list[dict[str, Any]]:
    """Return the content of agent_loop.yaml: training and evaluation differ in the number of turns."""
    common = {
        "_target_": f"{PACKAGE}.agent_loop.SearchR1Loop",
        "retriever": config.retriever,
        "topk": config.topk,
        "turn_tokens": config.turn_tokens,
        "observation_tokens": config.observation_tokens,
        "invalid_text": SHORT_INVALID if config.prompt == "short" else INVALID,
    }
    turns = {AGENT: config.max_turns, EVAL_AGENT: config.eval_max_turns}
    return [{"name": name, "max_turns": turns[name], **common} for name in turns]


def write_data(config: FullConfig, folder: Path) -> dict[str, int]:
    """Write train.parquet and test.parquet in verl's columns and return their numbers of questions."""
    import pyarrow as pa  # pyright: ignore[reportMissingImports]
    import pyarrow.parquet as parquet  # pyright: ignore[reportMissingImports]

    folder.mkdir(parents=True, exist_ok=True)
    counts = {}
    for split, data, agent in (("train", config.train_data, AGENT), ("test", config.eval_data, EVAL_AGENT)):
        rows = [
            {
                "data_source": row.source,
                "prompt": [{"role": "user", "content": render(row, style=config.prompt)}],
                "reward_model": {"style": "rule", "ground_truth": {"target": list(row.golds)}},
                "extra_info": {"split": split, "index": f"{row.source}:{row.index}"},
                "agent_name": agent,
            }
            for row in load_rows(data, split=split, hops=config.hops)
        ]
        parquet.write_table(pa.Table.from_pylist(rows), folder / f"{split}.parquet")
        counts[split] = len(rows)
    return counts


def nested(settings: dict[str, Any]) -> dict[str, Any]:
    """Return dotted keys as nested sections, on top of verl's ppo_trainer.

    >>> nested({"a.b": 1, "a.c": 2})["a"]
    {'b': 1, 'c': 2}
    """
    tree: dict[str, Any] = {
        "hydra": {"searchpath": ["pkg://verl.trainer.config"]},
        "defaults": ["ppo_trainer", "_self_"],
    }
    for dotted, value in settings.items():
        *path, last = dotted.split(".")
        section = tree
        for name in path:
            section = section.setdefault(name, {})
        section[last] = value
    return tree


def write_run(config: FullConfig, out: Path, *, nodes: int = 1, gpus: int = 8) -> list[str]:
    """Write everything verl needs to `out` and return its command."""
    out = out.resolve()  # workers on other nodes start elsewhere: `out` must lie on a file system that all see
    settings = nested(verl_settings(config, out, nodes=nodes, gpus=gpus))
    write_data(config, out / "data")
    (out / "verl.yaml").write_text(yaml.safe_dump(settings, sort_keys=False))
    (out / "agent_loop.yaml").write_text(yaml.safe_dump(agent_loops(config), sort_keys=False))
    return [sys.executable, "-m", "verl.trainer.main_ppo", "--config-path", str(out), "--config-name", "verl"]


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit status."""
    parser = argparse.ArgumentParser(prog=f"python -m {PACKAGE}.launch", description="Run a configuration on verl.")
    parser.add_argument("config", help="a YAML file or a name in full_scale/configs")
    parser.add_argument("--out", required=True, help="folder of the run, seen by all nodes under the same path")
    parser.add_argument("--nodes", type=int, default=1)
    parser.add_argument("--gpus", type=int, default=8, help="GPUs per node")
    parser.add_argument("--set", nargs="*", default=[], metavar="NAME=VALUE", help="override keys of the file")
    parser.add_argument("--run", action="store_true", help="start verl instead of printing its command")
    args = parser.parse_args(argv)
    config = load_config(args.config, parse_overrides(args.set))
    command = write_run(config, Path(args.out), nodes=args.nodes, gpus=args.gpus)
    from full_scale.verl_plugin.check import check_run

    for line in check_run(Path(args.out)):
        print("ok   ", line)
    print(shlex.join(command))
    return subprocess.run(command, check=False).returncode if args.run else 0


if __name__ == "__main__":
    raise SystemExit(main())
