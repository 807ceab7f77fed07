# pyright: reportMissingImports=false
"""What LLDS costs on top of plain TRL, measured side by side: `python tests/benchmarks/bench_full_scale.py`.

One batch, one model; loss and backward pass of GRPOTrainer and of LLDSGRPOTrainer in turns, CPU seconds of this process
(so that a busy machine counts little), median and quartiles of the pairwise ratio; and the bytes of the tensors that
LLDS adds to the graph beside those that the loss holds anyway. What this file does not do: GPUs.
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("HF_HUB_OFFLINE", "1")


def saved_bytes(call: Any) -> int:
    """Return the bytes that autograd keeps for the backward pass of `call()`, each storage once."""
    import torch

    seen: dict[int, int] = {}

    def keep(tensor: Any) -> Any:
        storage = tensor.untyped_storage()
        seen[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda x: x):
        loss = call()
    del loss
    return sum(seen.values())


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--hidden", type=int, default=256)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--pairs", type=int, default=15)
    args = parser.parse_args()
    import torch

    torch.set_num_threads(1)
    from trl import GRPOTrainer

    from full_scale.config import load_config
    from full_scale.factworld import build_factworld
    from full_scale.tiny import make_model, train_tokenizer
    from full_scale.train import make_trainer

    with tempfile.TemporaryDirectory() as folder:
        tokenizer = train_tokenizer(build_factworld(), vocab_size=2048)
        model = make_model(tokenizer, hidden_size=args.hidden, layers=args.layers)
        model.save_pretrained(folder)
        tokenizer.save_pretrained(folder)
        config = load_config("cpu_tiny", {"model": folder, "llds_coef": 0.2, "prompts_per_rollout": 8, "rollouts": 1})
        trainer = make_trainer(config.replace(micro_batch=10), Path(folder) / "out")
        trainer.train()
        inputs = trainer._buffered_inputs[-1]
        trainer.model.train()
        trainer.current_gradient_accumulation_steps = trainer.args.gradient_accumulation_steps
        calls = {
            "trl": lambda: GRPOTrainer._compute_loss(trainer, trainer.model, inputs),
            "llds": lambda: type(trainer)._compute_loss(trainer, trainer.model, inputs),
        }
        ratios, seconds = [], {"trl": [], "llds": []}
        for k in range(args.pairs + 2):
            spent = {}
            for name in ("trl", "llds") if k % 2 else ("llds", "trl"):
                trainer.model.zero_grad()
                started = time.process_time()
                calls[name]().backward()
                spent[name] = time.process_time() - started
            if k >= 2:  # the first pairs warm up
                ratios.append(spent["llds"] / spent["trl"])
                for name, value in spent.items():
                    seconds[name].append(value)
        memory = {name: saved_bytes(call) for name, call in calls.items()}
    low, middle, high = statistics.quantiles(ratios, n=4)
    tokens = tuple(inputs["completion_ids"].shape)
    n = sum(p.numel() for p in model.parameters())
    print(f"{n} parameters, micro-batch {tokens[0]} x {tokens[1]} completion tokens, {args.pairs} pairs")
    print(f"CPU seconds per loss and backward: TRL {statistics.median(seconds['trl']):.3f}, ", end="")
    print(f"with LLDS {statistics.median(seconds['llds']):.3f}; ratio {middle:.4f} (quartiles {low:.4f}, {high:.4f})")
    print(f"bytes kept for backward: TRL {memory['trl']}, LLDS {memory['llds']} ({memory['llds'] / memory['trl']:.5f})")


if __name__ == "__main__":
    main()
