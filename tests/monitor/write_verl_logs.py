# pyright: reportMissingImports=false
"""Write the genuine verl logs that the monitor's tests read: `python tests/monitor/write_verl_logs.py OUT`.

A collapsing toy run (preset `spiral`) is trained by verl 0.9.1's own loss on verl's own batches: `ppo_loss` with the
policy loss `vanilla`, `compute_grpo_outcome_advantage`, `compute_data_metrics` and the other metric functions that
`RayPPOTrainer.fit` calls, and `Tracking` with console, file and tensorboard, inside a Ray actor as verl runs it, so
that the console's lines carry Ray's prefix. `measured_metrics` adds its keys, as it would for a user of verl.
Needs the environment of `make parity`; takes about half a minute. The output lies gzipped in `tests/monitor/data`.
What this file does not do: run verl's workers or a language model.
"""

from __future__ import annotations

import argparse
import gzip
import shutil
import time
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np
import torch

SEED, UPDATES = 3, 110
EVENTS_FROM = 71  # event files are long: like that of a continued run, it holds the later steps only


def batch_of(batch: Any, old_logps: torch.Tensor, ref_logps: torch.Tensor) -> Any:
    """Return a rollout batch of lldsim as verl's DataProto, with verl's GRPO advantages."""
    from verl import DataProto
    from verl.trainer.ppo.core_algos import compute_grpo_outcome_advantage

    mask, width = batch.action_mask.long(), batch.action_mask.shape[1]
    last = (mask * torch.arange(1, width + 1)).amax(1, keepdim=True)  # feedback before it is attended to, padding not
    alive = (torch.arange(width) < last).long()
    scores = torch.zeros(mask.shape).scatter(1, (last - 1).clamp(min=0), batch.rewards[:, None].float())
    uid = np.array([f"query-{g}" for g in batch.group.tolist()], dtype=object)
    advantages, returns = compute_grpo_outcome_advantage(scores, mask, uid)
    tensors = {
        "prompts": torch.ones(len(mask), 4, dtype=torch.long),
        "responses": batch.tokens.clamp(min=0),
        "attention_mask": torch.cat([torch.ones(len(mask), 4, dtype=torch.long), alive], 1),
        "response_mask": mask,
        "token_level_scores": scores,
        "token_level_rewards": scores,
        "advantages": advantages,
        "returns": returns,
        "old_log_probs": old_logps.float(),
        "ref_log_prob": ref_logps.float(),
        "rollout_log_probs": batch.sampler_logps.float(),
    }
    turns = (2 + 2 * batch.valid_searches).numpy().astype(np.int32)
    found = DataProto.from_dict(tensors=tensors, non_tensors={"uid": uid, "__num_turns__": turns})
    found.meta_info["global_token_num"] = found.batch["attention_mask"].sum(-1).tolist()
    return found


def update(policy: Any, optimizer: Any, actor: Any, batch: Any, data: Any, minibatches: Any) -> dict[str, float]:
    """Train on one rollout batch, minibatch by minibatch, by verl's `ppo_loss`; return what verl's worker returns."""
    from verl.utils import tensordict_utils as tu
    from verl.utils.metric.utils import reduce_metrics
    from verl.utils.py_functional import rename_dict
    from verl.workers.utils.losses import ppo_loss

    from lldsim.policy import select, token_entropy

    seen: dict[str, list[float]] = defaultdict(list)
    for members in minibatches:
        logps_all = policy.logps_all(batch.context[members])
        fields = ("response_mask", "old_log_probs", "advantages", "ref_log_prob", "prompts", "responses")
        part = {k: data.batch[k][members] for k in (*fields, "attention_mask")}
        tokens = int(part["response_mask"].sum())
        info = {"dp_size": 1, "batch_num_tokens": tokens, "global_batch_size": len(members)}
        table = tu.get_tensordict(part, info | {"max_response_len": part["responses"].shape[1]})
        width = part["prompts"].shape[1]
        output = {}
        for name, values in (
            ("log_probs", select(logps_all, batch.tokens[members])),
            ("entropy", token_entropy(logps_all)),
        ):
            # verl's model output: all tokens that are attended to, each place holding what belongs to the next token.
            rows = []
            for i, row in enumerate(values):
                length = int(part["attention_mask"][i, width:].sum())
                rows.append(torch.cat([row.new_zeros(width - 1), row[:length], row.new_zeros(1)]))
            offsets = torch.tensor([0, *np.cumsum([len(row) for row in rows])])
            output[name] = torch.nested.nested_tensor_from_jagged(torch.cat(rows), offsets)
        optimizer.zero_grad()
        loss, metrics = ppo_loss(actor, model_output=output, data=table)
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_([policy.weights], 1.0)
        optimizer.step()
        for key, value in (metrics | {"loss": loss.item(), "grad_norm": norm.item(), "lr": 25.0}).items():
            plain = value.aggregate() if hasattr(value, "aggregate") else value
            seen[key].append(float(plain))
    return rename_dict(reduce_metrics(seen), "actor/")


def rows() -> Any:
    """Yield (step, metrics) as `RayPPOTrainer.fit` logs them, validation before the first step included."""
    from verl.trainer.ppo import metric_utils
    from verl.trainer.ppo.core_algos import agg_loss
    from verl.utils.debug.metrics import calculate_debug_metrics
    from verl.workers.config import ActorConfig

    from lldsim.config import preset
    from lldsim.draws import draw
    from lldsim.monitor import measured_metrics
    from lldsim.policy import LinearSoftmaxPolicy
    from lldsim.rollout import rollout
    from lldsim.trainer import make_optimizer, old_policy
    from lldsim.world import world_of

    config = preset("spiral").replace(updates=UPDATES, seed=SEED)
    trainer, objective = config.trainer, config.objective
    torch.manual_seed(0)
    policy = LinearSoftmaxPolicy(world_of(config))
    optimizer = make_optimizer(config, [policy.weights.requires_grad_()])
    rows_of_minibatch = config.world.n_queries * config.world.group_size // trainer.updates_per_rollout
    actor = ActorConfig(
        strategy="fsdp",
        rollout_n=config.world.group_size,
        ppo_micro_batch_size_per_gpu=rows_of_minibatch,
        loss_agg_mode="token-mean",
        entropy_coeff=objective.entropy_coef,
        use_kl_loss=True,
        kl_loss_coef=objective.kl_coef,
    )
    past: list[torch.Tensor] = []
    for step in range(1, UPDATES + 1):
        timing, started = {}, time.perf_counter()
        draws = draw(config, step - 1)
        past = [*past, policy.product().detach().clone()][-trainer.staleness - 1 :]
        sampler = LinearSoftmaxPolicy(policy.world, past[0])
        batch = rollout(
            sampler, draws, group_size=config.world.group_size, temperature=trainer.temperature, top_p=trainer.top_p
        )
        timing["gen"] = time.perf_counter() - started
        minibatches = torch.from_numpy(draws.order).chunk(trainer.updates_per_rollout)
        old_logps, entropy = old_policy(policy, batch, minibatches)
        reference = policy.ref_logps(batch.context, batch.tokens)
        data = batch_of(batch, old_logps, reference)
        if step == 1:
            infos = {"reward": batch.rewards.tolist(), "acc": batch.rewards.tolist()}
            source = ["toy"] * len(batch.rewards)
            found = metric_utils.process_validation_metrics(source, data.non_tensor_batch["uid"].tolist(), infos)
            yield 0, {f"val-core/toy/{k}/{m}": v for k, names in found["toy"].items() for m, v in names.items()}
        metrics: dict[str, Any] = {
            "actor/entropy": agg_loss(entropy.float(), data.batch["response_mask"], "token-mean").item()
        }
        metrics.update(calculate_debug_metrics(data))
        metrics.update(update(policy, optimizer, actor, batch, data, minibatches))
        timing["step"] = time.perf_counter() - started
        metrics.update({"training/global_step": step, "training/epoch": 0})
        metrics.update(measured_metrics(metric_utils.compute_data_metrics)(batch=data, use_critic=False))
        metrics.update(metric_utils.compute_timing_metrics(batch=data, timing_raw=timing))
        metrics.update(metric_utils.compute_throughout_metrics(batch=data, timing_raw=timing, n_gpus=1))
        norm = metrics["actor/grad_norm"]
        metrics.update(metric_utils.compute_variance_proxy_metrics(batch=data, gradient_norm=norm))
        yield step, metrics


def main() -> None:
    """Write OUT/verl.jsonl.gz, OUT/verl_console.log.gz and OUT/verl_events.out.tfevents.gz."""
    import os
    import subprocess
    import sys

    parser = argparse.ArgumentParser()
    parser.add_argument("out", type=Path)
    parser.add_argument("--inside", action="store_true", help="the part that Ray's driver prints")
    args = parser.parse_args()
    out = args.out.resolve()
    if not args.inside:
        out.mkdir(parents=True, exist_ok=True)
        command = [sys.executable, __file__, str(out), "--inside"]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            sys.exit(done.stderr[-4000:])
        files = {"verl_console.log": done.stdout.encode(), "verl.jsonl": (out / "toy" / "spiral.jsonl").read_bytes()}
        (events,) = (out / "tensorboard").glob("events.out.tfevents.*")
        files["verl_events.out.tfevents"] = events.read_bytes()
        for name, content in files.items():
            (out / f"{name}.gz").write_bytes(gzip.compress(content, mtime=0))
        shutil.rmtree(out / "toy")
        shutil.rmtree(out / "tensorboard")
        return
    import ray

    ray.init(num_cpus=1, include_dashboard=False, log_to_driver=True)

    class TaskRunner:
        """Named as verl names it, because Ray prints the name before every line."""

        def run(self, out: str) -> None:
            from verl.utils.tracking import Tracking

            os.environ |= {"VERL_FILE_LOGGER_ROOT": out, "TENSORBOARD_DIR": f"{out}/tensorboard"}
            tracking = Tracking("toy", "spiral", ["console", "file", "tensorboard"])
            for step, metrics in rows():
                tracking.log(data=metrics, step=step, backend=None if step >= EVENTS_FROM else ["console", "file"])
            tracking.finish()

    ray.get(ray.remote(num_cpus=1)(TaskRunner).remote().run.remote(str(out)))  # pyright: ignore
    time.sleep(2)  # the last lines travel to the driver
    ray.shutdown()


if __name__ == "__main__":
    main()
