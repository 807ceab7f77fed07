# pyright: reportMissingImports=false
"""Write the genuine TRL logs that the monitor's tests read: `python tests/full_scale/write_trl_logs.py OUT`.

Thirty steps of TRL 1.16's own GRPOTrainer on full scale's tiny Qwen2 with `log_completions=True` and a checkpoint:
OUT/trainer_state.json.gz, OUT/completions_*.parquet (the first and the last) and OUT/trl_console.log.gz (what TRL
prints). Needs the environment of `make full-scale-ci`; takes ten seconds. No collapse is expected: what is locked is
that TRL's files are read. The output lies in `tests/monitor/data`. What this file does not do: teach the model.
"""

from __future__ import annotations

import contextlib
import gzip
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any

STEPS = 30


def trainer_in(
    folder: Path,
    *,
    steps: int = STEPS,
    callbacks: list[Any] | None = None,
    trainer_class: Any = None,
    **options: Any,
) -> Any:
    """Return a GRPOTrainer on the tiny model that rewards the letter e; `options` go to GRPOConfig."""
    import torch
    from datasets import Dataset
    from trl import GRPOConfig, GRPOTrainer

    from full_scale.factworld import build_factworld
    from full_scale.tiny import make_model, train_tokenizer

    def letter_reward(completions: list[str], **_: Any) -> list[float]:
        return [float("e" in text[:4]) for text in completions]

    torch.manual_seed(0)
    tokenizer = train_tokenizer(build_factworld(), vocab_size=300)
    arguments = {
        "output_dir": str(folder), "max_steps": steps, "per_device_train_batch_size": 8, "num_generations": 4,
        "steps_per_generation": 2, "max_completion_length": 8, "logging_steps": 1, "save_steps": steps,
        "learning_rate": 1e-2, "use_cpu": True, "bf16": False, "seed": 0, "report_to": "none",
        "model_init_kwargs": {"dtype": "float32"}, "disable_tqdm": True, "beta": 0.01,
    } | options  # fmt: skip
    make_model(tokenizer, hidden_size=16, layers=1, heads=2).save_pretrained(folder / "start")  # TRL reloads it for KL
    return (trainer_class or GRPOTrainer)(
        model=str(folder / "start"),
        reward_funcs=letter_reward,
        args=GRPOConfig(**arguments),
        train_dataset=Dataset.from_list([{"prompt": text} for text in ("one", "two", "three", "four")]),
        processing_class=tokenizer,
        callbacks=callbacks,
    )


def main(out: Path) -> None:
    """Train and keep the logs."""
    folder = Path(tempfile.mkdtemp())
    trainer = trainer_in(folder, log_completions=True)
    with (folder / "train.log").open("w") as file, contextlib.redirect_stdout(file):
        trainer.train()
    for path, name in (
        (folder / f"checkpoint-{STEPS}" / "trainer_state.json", "trainer_state.json"),
        (folder / "train.log", "trl_console.log"),
    ):
        (out / f"{name}.gz").write_bytes(gzip.compress(path.read_bytes(), mtime=0))
    files = sorted((folder / "completions").glob("completions_*.parquet"))
    for path in (files[0], files[-1]):
        shutil.copy(path, out / path.name)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
