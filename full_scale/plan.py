"""`python -m full_scale.plan CONFIG --gpus 4 --gpu-gib 80`: will it fit, and how long will it take? An estimate.

Memory per GPU with parameters, gradients and optimiser sharded over all GPUs (FSDP2), vLLM colocated with tensor
parallel size 1, gradient checkpointing as configured. Exit status 1 and a remedy when it cannot fit. Counts of
parameters are exact for Qwen2 shapes; times rest on the assumptions that are printed, none of them measured here.
What this file does not do: look at the machine, or know of other architectures than Qwen2.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from full_scale.config import FullConfig, load_config, parse_overrides
from lldsim.errors import ConfigError, LldsimError

GIB = 2**30


@dataclass(frozen=True)
class Shape:
    """The numbers of a Qwen2 configuration that decide its size."""

    hidden: int
    layers: int
    heads: int
    kv_heads: int
    intermediate: int
    vocab: int
    tied: bool

    @property
    def parameters(self) -> int:
        """Number of parameters, exact: embeddings, attention with q, k, v biases, gated MLP, norms."""
        d = self.hidden
        kv = d // self.heads * self.kv_heads
        attention = 2 * d * d + 2 * d * kv + d + 2 * kv
        layer = attention + 3 * d * self.intermediate + 2 * d
        return self.layers * layer + d + self.vocab * d * (1 if self.tied else 2)


# From the published config.json files (by size in the name; Base and Instruct agree).
QWEN25 = {
    "0.5B": Shape(896, 24, 14, 2, 4864, 151936, True),
    "1.5B": Shape(1536, 28, 12, 2, 8960, 151936, True),
    "3B": Shape(2048, 36, 16, 2, 11008, 151936, True),
    "7B": Shape(3584, 28, 28, 4, 18944, 152064, False),
}


def shape_of(model: str) -> Shape:
    """Return the shape of a Qwen2.5 name or of a folder with a config.json; ConfigError when it is neither."""
    path = Path(model) / "config.json"
    if path.is_file():
        c = json.loads(path.read_text())
        if c.get("model_type") != "qwen2":
            raise ConfigError(f"{path} is a {c.get('model_type')!r}; the planner knows qwen2 only")
        return Shape(
            c["hidden_size"], c["num_hidden_layers"], c["num_attention_heads"], c["num_key_value_heads"],
            c["intermediate_size"], c["vocab_size"], bool(c.get("tie_word_embeddings")),
        )  # fmt: skip
    for size, shape in QWEN25.items():
        if f"Qwen2.5-{size}" in model:
            return shape
    raise ConfigError(f"model {model!r}: give a folder with config.json or one of {', '.join(QWEN25)} of Qwen2.5")


@dataclass(frozen=True)
class Assumptions:
    """What the times rest on; change them by flag."""

    train_tflops: float = 350.0  # reached per GPU in forward and backward, bf16 (about a third of an H100's peak)
    decode_tokens: float = 6000.0  # sampled tokens per second and GPU for 3B in large batches; scales as 1 / parameters
    mean_policy_tokens: int = 300  # written per trajectory
    mean_sequence: int = 2000  # prompt, policy and feedback
    search_seconds: float = 2.0  # per turn of a rollout batch


def memory(config: FullConfig, *, gpus: int, gpu_gib: float) -> dict[str, float]:
    """Return GiB per GPU by part; the sum of training parts must fit beside vLLM's share.

    float32 weights, gradients and two moments (16 bytes per parameter) and a float32 reference when kl_coef > 0, all
    sharded; activations of one micro-batch at full length; one layer gathered at a time.
    """
    shape = shape_of(config.model)
    n, d, length = shape.parameters, shape.hidden, config.prompt_tokens + config.completion_tokens
    tokens = config.micro_batch * length
    layer = (n - shape.vocab * d) / shape.layers
    kept = shape.layers * tokens * d * 2 if config.gradient_checkpointing else 0
    work = tokens * (34 * d + 6 * shape.intermediate) * (1 if config.gradient_checkpointing else shape.layers)
    parts = {
        "parameters": 4 * n / gpus,
        "gradients": 4 * n / gpus,
        "optimizer": 8 * n / gpus,
        "reference": 4 * n / gpus if config.kl_coef > 0 else 0.0,
        "gathered": 4.0 * (2 * layer + shape.vocab * d),
        "activations": kept + work,
        "logits": 3.0 * 4 * min(tokens, 4096) * shape.vocab,  # the head runs in chunks
    }
    found = {name: value / GIB for name, value in parts.items()}
    if config.sampler == "vllm_colocate":
        found["vllm_weights"] = 2 * n / GIB
        found["kv_cache"] = max(config.vllm_memory * gpu_gib - found["vllm_weights"] - 2.0, 0.0)
    return found


def kv_bytes_per_token(shape: Shape) -> int:
    """Return bytes of key-value cache per token in bfloat16."""
    return 2 * 2 * shape.layers * shape.kv_heads * (shape.hidden // shape.heads)


def hours(config: FullConfig, *, gpus: int, assume: Assumptions) -> dict[str, float]:
    """Return hours of the whole run: sampling, log-probabilities (old and reference), updates, searching."""
    n = shape_of(config.model).parameters
    trajectories = config.rollouts * config.trajectories
    tokens = trajectories * assume.mean_sequence
    per_second = assume.train_tflops * 1e12 * gpus
    passes = 1 + (1 if config.kl_coef > 0 else 0)
    recompute = 8 if config.gradient_checkpointing else 6
    rate = assume.decode_tokens * QWEN25["3B"].parameters / n * gpus
    seconds = {
        "sampling": trajectories * assume.mean_policy_tokens / rate,
        "log-probabilities": 2 * n * tokens * passes / per_second,
        "updates": recompute * n * tokens / per_second,
        "searching": config.rollouts * (config.max_turns + 1) * assume.search_seconds,
    }
    return {name: value / 3600 for name, value in seconds.items()}


def check(config: FullConfig, *, gpus: int, gpu_gib: float) -> dict[str, float]:
    """Return memory by part, or raise ConfigError with the shortest remedy if it cannot fit on a GPU.

    vLLM frees its memory while the trainer works (sleep mode), so the larger of the two phases counts.
    """
    parts = memory(config, gpus=gpus, gpu_gib=gpu_gib)
    training = sum(v for k, v in parts.items() if k not in ("vllm_weights", "kv_cache"))
    usable = 0.93 * gpu_gib  # the rest goes to the CUDA context and fragmentation
    if training > usable:
        raise ConfigError(
            f"training needs about {training:.1f} GiB per GPU of {usable:.1f} usable; use more GPUs (now {gpus}), "
            f"micro_batch below {config.micro_batch}, gradient_checkpointing: true or a smaller model"
        )
    if config.sampler == "vllm_colocate":
        resident = parts["parameters"] + parts["optimizer"] + parts["reference"]
        sampling = resident + config.vllm_memory * gpu_gib
        if sampling > usable:
            raise ConfigError(
                f"vLLM's share {config.vllm_memory:g} of {gpu_gib:g} GiB beside {resident:.1f} GiB of sharded weights "
                f"and optimiser makes {sampling:.1f} of {usable:.1f} usable; lower vllm_memory or use more GPUs"
            )
        if parts["vllm_weights"] + 2.0 >= config.vllm_memory * gpu_gib:
            raise ConfigError(f"vllm_memory={config.vllm_memory:g} leaves no room for a key-value cache; raise it")
    return parts


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit status: 1 if the run cannot fit."""
    parser = argparse.ArgumentParser(prog="python -m full_scale.plan", description="Memory and time, estimated.")
    parser.add_argument("config")
    parser.add_argument("--gpus", type=int, default=4)
    parser.add_argument("--gpu-gib", type=float, default=80.0)
    parser.add_argument("--train-tflops", type=float, default=Assumptions.train_tflops)
    parser.add_argument("--decode-tokens", type=float, default=Assumptions.decode_tokens)
    parser.add_argument("--set", nargs="*", default=[], metavar="NAME=VALUE")
    args = parser.parse_args(argv)
    try:
        config = load_config(args.config, parse_overrides(args.set))
        shape = shape_of(config.model)
        print(f"{config.model}: {shape.parameters / 1e9:.3f} billion parameters on {args.gpus} x {args.gpu_gib:g} GiB")
        for name, value in memory(config, gpus=args.gpus, gpu_gib=args.gpu_gib).items():
            print(f"  {name:<18}{value:8.2f} GiB per GPU")
        parts = check(config, gpus=args.gpus, gpu_gib=args.gpu_gib)
    except LldsimError as error:
        print(f"plan: cannot run: {error}", file=sys.stderr)
        return 1
    if "kv_cache" in parts:
        rows = parts["kv_cache"] * GIB / kv_bytes_per_token(shape) / (config.prompt_tokens + config.completion_tokens)
        print(f"  the cache holds {rows:.0f} trajectories of full length at a time")
    assume = Assumptions(train_tflops=args.train_tflops, decode_tokens=args.decode_tokens)
    times = hours(config, gpus=args.gpus, assume=assume)
    print(f"{config.steps} optimiser steps, about {sum(times.values()):.1f} hours, if {assume}:")
    for name, value in times.items():
        print(f"  {name:<18}{value:8.2f} h")
    return 0


if __name__ == "__main__":
    sys.exit(main())
