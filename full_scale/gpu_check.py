# pyright: reportMissingImports=false
"""`python -m full_scale.gpu_check [--smoke]`: what LLDS costs on a GPU, without internet, in less than eight minutes.

A Qwen2.5-3B with random weights (no download), trajectories by transformers, and GRPO updates with and without LLDS on
one model and the same trajectories, alternating. Measures tokens per second of sampling and training, step time and
peak memory with and without LLDS, and how far bfloat16 moves the gate from float32. Writes one JSON.
**Not run on a GPU by us yet**: `--smoke` runs every line on a CPU with a tiny model, and that is what is tested.
What this file does not do: train anything useful, use several GPUs, vLLM or FSDP, or judge the objective.
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from full_scale.sampling import stream
from lldsim.objectives import clipped_surrogate, llds_penalty
from lldsim.record import versions

# Qwen2.5-3B's architecture (36 layers; 3.09e9 parameters with tied embeddings).
QWEN_3B = {
    "vocab_size": 151936,
    "hidden_size": 2048,
    "intermediate_size": 11008,
    "num_hidden_layers": 36,
    "num_attention_heads": 16,
    "num_key_value_heads": 2,
    "max_position_embeddings": 4096,
    "tie_word_embeddings": True,
}
TINY = QWEN_3B | {"vocab_size": 256, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2}
TINY |= {"num_attention_heads": 2}
PAD = 0


@dataclass(frozen=True)
class Sizes:
    """How much is run; all lengths in tokens."""

    prompt: int = 256
    response: int = 256
    trajectories: int = 40
    micro_batch: int = 4
    rounds: int = 4  # of: one update without and one with LLDS on one half of the trajectories, after a discarded round
    learning_rate: float = 1e-6
    drift_rows: int = 8


SMOKE = Sizes(prompt=8, response=12, trajectories=20, micro_batch=5, rounds=3, learning_rate=1e-2, drift_rows=2)


class _NoTags:
    """A tokenizer of the sampler for random weights: no id is a tag, so that every turn has its full length."""

    pad_token_id = PAD
    eos_token_id = -1

    def decode(self, token_ids: list[int], *, skip_special_tokens: bool = False) -> str:
        return ""


def make_model(shape: dict[str, Any], device: str, seed: int = 0) -> Any:
    """Return a Qwen2ForCausalLM with random float32 weights."""
    from transformers import Qwen2Config, Qwen2ForCausalLM

    torch.manual_seed(seed)
    with torch.device(device):
        model = Qwen2ForCausalLM(Qwen2Config(**shape, pad_token_id=PAD, eos_token_id=None, bos_token_id=None))
    if device != "cpu":
        model.gradient_checkpointing_enable()
    return model


def autocast(device: str, enabled: bool = True) -> Any:
    """Return bfloat16 autocast, as in training; weights stay float32."""
    return torch.autocast(device, dtype=torch.bfloat16, enabled=enabled)


def sample(model: Any, sizes: Sizes, device: str) -> torch.Tensor:
    """Return prompt and response ids (B, prompt + response) of trajectories sampled by the transformers sampler."""
    from full_scale.sampling import TransformersSampler

    sampler = TransformersSampler(model, _NoTags(), batch_size=sizes.trajectories)
    generator = torch.Generator().manual_seed(0)
    vocabulary = model.config.vocab_size
    prompts = torch.randint(1, vocabulary, (sizes.trajectories, sizes.prompt), generator=generator).tolist()
    streams = [stream(0, 0, k) for k in range(sizes.trajectories)]
    model.eval()
    with torch.no_grad(), autocast(device):
        turns = sampler(prompts, [sizes.response] * sizes.trajectories, streams)
    model.train()
    return torch.tensor([p + ids for p, (ids, _) in zip(prompts, turns, strict=True)], device=device)


def logps(model: Any, ids: torch.Tensor, sizes: Sizes, device: str, *, bf16: bool = True) -> torch.Tensor:
    """Return (B, response) log-probabilities in float32."""
    with autocast(device, bf16):
        logits = model(input_ids=ids, logits_to_keep=sizes.response + 1).logits[:, :-1]
    return torch.log_softmax(logits.float(), -1).gather(-1, ids[:, -sizes.response :, None])[..., 0]


def update(
    model: Any, optimizer: Any, ids: torch.Tensor, old: torch.Tensor, advantages: torch.Tensor, sizes: Sizes,
    device: str, *, llds_coef: float,
) -> dict[str, float]:  # fmt: skip
    """Take one optimiser step over all micro-batches; return its loss and penalty."""
    optimizer.zero_grad(set_to_none=True)
    loss_sum = penalty_sum = torch.zeros((), device=ids.device)
    parts = range(0, len(ids), sizes.micro_batch)
    for first in parts:
        rows = slice(first, first + sizes.micro_batch)
        new = logps(model, ids[rows], sizes, device)
        mask = torch.ones_like(new, dtype=torch.bool)
        loss, _ = clipped_surrogate(new, old[rows], advantages[rows], mask)
        if llds_coef > 0:
            penalty, _ = llds_penalty(new, old[rows], advantages[rows], mask, normalizer="all")
            loss = loss + llds_coef * penalty
            penalty_sum = penalty_sum + penalty.detach() / len(parts)
        (loss / len(parts)).backward()
        loss_sum = loss_sum + loss.detach() / len(parts)
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    return {"loss": loss_sum.item(), "penalty": penalty_sum.item()}


def measured(action: Callable[[], Any], device: str) -> tuple[Any, float, float | None]:
    """Return the result of `action`, its seconds, and its peak of allocated GPU memory in GiB (None on a CPU)."""
    if device != "cpu":
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
    started = time.perf_counter()
    result = action()
    if device != "cpu":
        torch.cuda.synchronize()
    seconds = time.perf_counter() - started
    return result, seconds, torch.cuda.max_memory_allocated() / 2**30 if device != "cpu" else None


def gate_drift(model: Any, ids: torch.Tensor, old: torch.Tensor, sizes: Sizes, device: str) -> dict[str, float]:
    """Return how far bfloat16 moves drops and gates from float32, on the same weights and tokens.

    `old` are the log-probabilities before the updates, in bfloat16 autocast as in training; the float32 twin of the
    comparison keeps them, so that only the current policy's precision differs. Units: nats per token; gates are per
    response here, because random weights take no actions.
    """
    rows = ids[: sizes.drift_rows]
    with torch.no_grad():
        short = logps(model, rows, sizes, device)
        full = logps(model, rows, sizes, device, bf16=False)
        again = logps(model, rows, sizes, device)
    drops = [(old[: len(rows)] - x).sum(1) for x in (short, full)]
    return {
        "logp_gap_mean": (short - full).abs().mean().item(),
        "logp_gap_max": (short - full).abs().max().item(),
        "repeat_gap_max": (short - again).abs().max().item(),  # not 0: the gate opens on noise at the first step
        "drop_per_token_mean": (drops[1].abs() / sizes.response).mean().item(),
        "gates_that_differ": ((drops[0] > 0) != (drops[1] > 0)).float().mean().item(),
    }


def run_check(shape: dict[str, Any], sizes: Sizes, device: str, *, llds_coef: float = 0.2) -> dict[str, Any]:
    """Run everything and return what is written."""
    model, build, _ = measured(lambda: make_model(shape, device), device)
    ids, sampling, sampling_memory = measured(lambda: sample(model, sizes, device), device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=sizes.learning_rate, weight_decay=0.0)
    advantages = torch.where(torch.arange(len(ids), device=device) % 5 == 0, 1.6, -0.4)
    with torch.no_grad():
        chunks = ids.split(sizes.micro_batch)
        old = torch.cat([logps(model, part, sizes, device) for part in chunks])
    seconds: dict[str, list[float]] = {"grpo": [], "llds": []}
    memory: dict[str, float | None] = {}
    penalties = []
    for number in range(sizes.rounds + 1):
        # Which arm goes first alternates, so that a clock that slows down with heat favours neither.
        rows = slice(number % 2, None, 2)  # two mini-batches: a response can only fall while another one is trained
        for arm in ("grpo", "llds") if number % 4 > 1 else ("llds", "grpo"):
            coef = llds_coef if arm == "llds" else 0.0

            def step(coef: float = coef, rows: slice = rows) -> dict[str, float]:
                return update(model, optimizer, ids[rows], old[rows], advantages[rows], sizes, device, llds_coef=coef)

            totals, took, peak = measured(step, device)
            if number:
                seconds[arm].append(took)
                memory[arm] = peak if memory.get(arm) is None or peak is None else max(memory[arm] or 0.0, peak)
            if arm == "llds":
                penalties.append(totals["penalty"])
    median = {arm: statistics.median(values) for arm, values in seconds.items()}
    tokens = sizes.trajectories // 2 * (sizes.prompt + sizes.response)
    name = torch.cuda.get_device_name() if device != "cpu" else platform.processor() or "cpu"
    return {
        "label": "measured",
        "device": name,
        "versions": versions(),
        "parameters": sum(p.numel() for p in model.parameters()),
        "sizes": asdict(sizes),
        "llds_coef": llds_coef,
        "seconds": {"build": build, "sampling": sampling, "step": seconds, "step_median": median},
        "sampling_tokens_per_second": sizes.trajectories * sizes.response / sampling,
        "training_tokens_per_second": {arm: tokens / value for arm, value in median.items()},
        "peak_gib": {"sampling": sampling_memory, **memory},
        "llds_time_overhead": median["llds"] / median["grpo"] - 1,
        "llds_memory_overhead": _ratio(memory.get("llds"), memory.get("grpo")),
        "penalties": penalties,
        "bf16_against_fp32": gate_drift(model, ids, old, sizes, device),
    }


def _ratio(with_llds: float | None, without: float | None) -> float | None:
    return None if with_llds is None or not without else with_llds / without - 1


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit status."""
    parser = argparse.ArgumentParser(prog="python -m full_scale.gpu_check", description="Measure LLDS on a GPU.")
    parser.add_argument("--out", default="build/gpu_check.json")
    parser.add_argument("--smoke", action="store_true", help="a tiny model on the CPU: does every line run?")
    args = parser.parse_args(argv)
    if not args.smoke and not torch.cuda.is_available():
        print("no CUDA device is visible; --smoke runs the same lines on the CPU with a tiny model")
        return 1
    device, shape, sizes = ("cpu", TINY, SMOKE) if args.smoke else ("cuda", QWEN_3B, Sizes())
    started = time.perf_counter()
    found = run_check(shape, sizes, device) | {"smoke": args.smoke}
    found["seconds"]["total"] = time.perf_counter() - started
    out = Path(args.out)
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(json.dumps(found, indent=1) + "\n")
    print(f"{found['device']}: {found['parameters']:.3g} parameters, {found['seconds']['total']:.0f} s in all")
    print(f"sampling {found['sampling_tokens_per_second']:.0f} tokens/s, training", end=" ")
    print(", ".join(f"{arm} {speed:.0f}" for arm, speed in found["training_tokens_per_second"].items()), "tokens/s")
    for arm in ("grpo", "llds"):
        peak = found["peak_gib"][arm]
        print(f"{arm}: step {found['seconds']['step_median'][arm]:.3f} s", f"peak {peak:.1f} GiB" if peak else "")
    drift = found["bf16_against_fp32"]
    print(f"bf16 against fp32: {drift['logp_gap_mean']:.1e} nats per token, gates that differ", end=" ")
    print(f"{drift['gates_that_differ']:.2f}; LLDS costs {found['llds_time_overhead']:+.1%} of a step's time")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
