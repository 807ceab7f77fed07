"""Configurations: every file in configs/ loads and means what it says; what cannot work is refused.

Locked here: unknown keys (with the nearest known one), keys given twice, inert LLDS, CPU with vLLM, uneven splits; the
numbers of the paper in TRL's arguments, on 1, 4 and 8 processes; presets give way to the file; every default that a
configuration file sets has a source in a comment.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from full_scale.config import CONFIGS, FullConfig, load_config, parse_overrides, trl_arguments
from lldsim.errors import ConfigError

NAMES = sorted(path.stem for path in CONFIGS.glob("*.yaml"))
SIZES = [f"{size}_{kind}_{arm}" for size in ("3b", "7b") for kind in ("base", "instruct") for arm in ("grpo", "llds")]


def test_the_promised_files_are_there() -> None:
    rest = ["3b_base_llds_ma", "3b_instruct_gspo", "3b_instruct_gspo_llds", "0p5b_smoke", "cpu_tiny", "smollm2"]
    assert sorted([*SIZES, *rest]) == NAMES


@pytest.mark.parametrize("name", NAMES)
def test_files_load_and_split_evenly(name: str) -> None:
    config = load_config(name)
    for processes in (1,) if config.cpu else (1, 4, 8):
        arguments = trl_arguments(config, output_dir="x", processes=processes)
        per_rollout = arguments["per_device_train_batch_size"] * arguments["steps_per_generation"] * processes
        assert per_rollout == config.trajectories
        assert (
            arguments["steps_per_generation"] == arguments["gradient_accumulation_steps"] * config.updates_per_rollout
        )
        assert arguments["save_steps"] % config.updates_per_rollout == 0
    assert (config.llds_coef > 0) == ("llds" in name or name == "0p5b_smoke")
    assert (config.surrogate == "gspo") == ("gspo" in name)
    text = (CONFIGS / f"{name}.yaml").read_text()
    assert text.startswith("#")
    for line in text.splitlines():
        if re.match(r"(model|llds_coef|answer_weight_rule|kl_coef|learning_rate): ", line) and not config.cpu:
            assert "#" in line or name == "0p5b_smoke", f"{name}: {line!r} names no source"


def test_paper_numbers_reach_trl() -> None:
    arguments = trl_arguments(load_config("3b_base_llds"), output_dir="x", processes=4)
    wanted = {
        "learning_rate": 1e-6, "num_generations": 5, "beta": 0.001, "epsilon": 0.2, "temperature": 1.0,
        "max_steps": 1000, "warmup_steps": 285, "use_bias_correction_kl": False,
        "vllm_importance_sampling_correction": False,
        "mask_truncated_completions": False, "loss_type": "grpo", "entropy_coef": 0.0,
        "vllm_gpu_memory_utilization": 0.6,
    }  # fmt: skip
    assert {name: arguments[name] for name in wanted} == wanted
    gspo = trl_arguments(load_config("3b_instruct_gspo"), output_dir="x")
    assert (gspo["importance_sampling_level"], gspo["loss_type"]) == ("sequence", "grpo")
    assert load_config("7b_instruct_llds").llds_coef == 0.3


def test_presets_give_way_to_what_is_said() -> None:
    released = load_config("3b_base_llds", {"preset": "released_code"})
    assert (released.aggregation, released.normalizer, released.entropy_coef) == ("token-mean", "all", 0.001)
    mixed = load_config("3b_base_llds", {"preset": "released_code", "entropy_coef": 0.0})
    assert (mixed.normalizer, mixed.entropy_coef) == ("all", 0.0)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"llds_coeff": 0.2}, r"unknown key 'llds_coeff' .*did you mean 'llds_coef'"),
        ({"llds_coef": 0.2, "updates_per_rollout": 1}, "never fire"),
        ({"group_size": 1}, "no baseline"),
        ({"temperature": 0.7}, "temperature=0.7"),
        ({"cpu": True}, "sampler: transformers"),
        ({"gate": "sequence"}, "gate='sequence'"),
        ({"rollouts": 1.5}, "rollouts=1.5"),
        ({"hops": [4]}, "hops"),
        ({"model": 3}, "model=3"),
        ({"answer_weight_rule": "paper"}, "no effect"),
        ({"preset": "papers"}, "preset='papers'"),
        ({"micro_batch": 0}, "at least 1"),
    ],
)
def test_what_cannot_work_is_refused(changes: dict, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        load_config("3b_base_grpo", changes)


def test_uneven_splits_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"cannot be split evenly by processes = 3"):
        trl_arguments(FullConfig(), output_dir="x", processes=3)
    with pytest.raises(ConfigError, match="updates_per_rollout = 7"):
        trl_arguments(FullConfig(updates_per_rollout=7), output_dir="x")


def test_broken_files_are_refused(tmp_path: Path) -> None:
    def write(text: str) -> Path:
        path = tmp_path / "run.yaml"
        path.write_text(text)
        return path

    with pytest.raises(ConfigError, match="given twice"):
        load_config(write("llds_coef: 0.2\nllds_coef: 0.1\n"))
    with pytest.raises(ConfigError, match="extends itself"):
        load_config(write("extends: run.yaml\n"))
    with pytest.raises(ConfigError, match="key: value"):
        load_config(write("- a\n"))
    with pytest.raises(ConfigError, match="no YAML"):
        load_config(write("a: [\n"))
    with pytest.raises(ConfigError, match="does not exist"):
        load_config(tmp_path / "absent.yaml")
    with pytest.raises(ConfigError, match="no configuration"):
        load_config("absent")
    with pytest.raises(ConfigError, match="NAME=VALUE"):
        parse_overrides(["llds_coef"])


def test_hash_tells_configurations_apart() -> None:
    assert FullConfig().config_hash() == FullConfig().config_hash()
    assert FullConfig().config_hash() != FullConfig(seed=1).config_hash()
