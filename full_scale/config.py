"""One YAML, one frozen configuration: model, data, protocol, objective and layout of a full-scale run.

A file may say `extends: other.yaml` (a name in its folder) and then only what differs. Unknown keys, layouts in which
the LLDS gate can never fire, and settings that make a number mean something else are refused here, before anything is
loaded. Sources in comments: [P n] arXiv 2512.04220 v2 section or equation, [RC] its released code, [S-R1] Search-R1,
[ours]. What this file does not do: import torch, trl or transformers, or look at the machine.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_type_hints

import yaml

from full_scale.protocol import Limits
from lldsim.config import FieldSpec, describe_type
from lldsim.errors import ConfigError, suggest
from lldsim.names import Gate, Normalizer

CONFIGS = Path(__file__).parent / "configs"

# What the paper writes and what its released code does, where the two differ (lldsim's presets of the same names).
PRESETS: dict[str, dict[str, Any]] = {
    "paper": {
        "aggregation": "seq-mean-token-mean",  # [P 1]
        "normalizer": "preserving",  # [P Eq. 4]
        "entropy_coef": 0.0,  # not in [P 5]
    },
    "released_code": {
        "aggregation": "token-mean",  # [RC]; GSPO is seq-mean-token-mean in both
        "normalizer": "all",  # [RC]
        "entropy_coef": 0.001,  # [RC] default
    },
}


@dataclass(frozen=True)
class FullConfig:
    """Every dial of a full-scale run; defaults are the paper's 3B runs."""

    preset: Literal["paper", "released_code"] = "paper"
    # model
    model: str = "Qwen/Qwen2.5-3B"  # [P 5] hub name or folder
    bf16: bool = True  # [RC] autocast; weights and optimiser stay float32, because 1e-6 is lost in bfloat16 weights
    gradient_checkpointing: bool = True  # [RC]
    # data
    train_data: str = "data/nq_hotpotqa_train/train.parquet"  # [P 5] NQ + HotpotQA in Search-R1's file, or "factworld"
    eval_data: str = "data/nq_hotpotqa_train/test.parquet"  # [S-R1] the seven sets in one file, or "factworld"
    hops: tuple[int, ...] = (1, 2, 3)  # FactWorld only
    match: Literal["em_search_r1", "em_unicode"] = "em_search_r1"  # [P 5]
    # protocol
    prompt: Literal["search_r1", "short"] = "search_r1"  # [S-R1]
    chat_template: bool = True  # [S-R1] for base models too
    max_turns: int = 3  # [P 5]
    eval_max_turns: int = 4  # [P 5]
    turn_tokens: int = 500  # [P 5]
    observation_tokens: int = 500  # [P 5]
    completion_tokens: int = 2048  # [P 5] 4096 in all, 2048 for the start prompt
    prompt_tokens: int = 2048  # [P 5]
    temperature: float = 1.0  # [P 5]
    # retriever
    retriever: str = "http://127.0.0.1:8000/retrieve"  # URL, or "local": BM25 over FactWorld in this process
    topk: int = 3  # [P 5]
    # objective
    surrogate: Literal["grpo", "gspo"] = "grpo"  # [P Eq. 1] [P 6.1]
    aggregation: Literal["token-mean", "seq-mean-token-mean"] = "seq-mean-token-mean"  # see PRESETS
    clip_eps: float = 0.2  # [P 5]
    dual_clip: float | None = None  # [RC] has none; verl's default is 3
    kl_coef: float = 0.001  # [P 5]
    entropy_coef: float = 0.0  # see PRESETS
    llds_coef: float = 0.0  # [P 5] 0.2; 0.3 for 7B-Instruct
    gate: Gate = "action"  # [P Eq. 4]
    normalizer: Normalizer = "preserving"  # see PRESETS
    answer_weight_rule: Literal["fixed", "paper", "released"] = "fixed"  # LLDS-MA: [P Eq. 5] or [RC]
    # layout
    prompts_per_rollout: int = 512  # [P 5]
    group_size: int = 5  # [P 5]
    updates_per_rollout: int = 10  # [RC] mini-batch of 256 trajectories; 2 if 256 counts prompts
    micro_batch: int = 4  # [ours] trajectories per device and forward pass
    even_minibatches: bool = False  # [ours] mini-batches that do not depend on the number of processes
    sampling_batch: int = 128  # [ours] trajectories per device and sampling pass of the transformers sampler
    learning_rate: float = 1e-6  # [P 5]
    warmup_ratio: float = 0.285  # [P 5]
    grad_clip: float = 1.0  # [RC]
    rollouts: int = 100  # rollout batches; [P 5] up to 1005 steps
    save_every: int = 5  # rollout batches between checkpoints, so a resume never starts inside one
    seed: int = 0
    # engine
    sampler: Literal["transformers", "vllm_colocate", "vllm_server"] = "vllm_colocate"  # [RC] vLLM
    vllm_memory: float = 0.6  # [P 5]
    vllm_url: str = "http://127.0.0.1:8001"  # of sampler: vllm_server
    cpu: bool = False
    # the tiny model of cpu_tiny.yaml, made by full_scale.warmstart; unused elsewhere
    tiny_hidden: int = 128
    tiny_layers: int = 2
    tiny_vocab: int = 2048
    warm_steps: int = 400
    warm_batch: int = 32
    warm_learning_rate: float = 4e-3
    warm_right: float = 0.5  # share of scripted traces that pick the fact that was asked for

    def __post_init__(self) -> None:
        for name, hint in _hints().items():
            object.__setattr__(self, name, _coerce(name, hint, getattr(self, name)))
        _validate(self)

    @property
    def trajectories(self) -> int:
        """Responses in one rollout batch."""
        return self.prompts_per_rollout * self.group_size

    @property
    def steps(self) -> int:
        """Optimiser steps of the whole run."""
        return self.rollouts * self.updates_per_rollout

    def limits(self, *, evaluation: bool = False) -> Limits:
        """Return the protocol's limits in training or in evaluation."""
        turns = self.eval_max_turns if evaluation else self.max_turns
        return Limits(turns, self.turn_tokens, self.observation_tokens, self.completion_tokens)

    def replace(self, **changes: Any) -> FullConfig:
        """Return a copy with fields changed; ConfigError for an unknown name."""
        _refuse_unknown(changes, "the call")
        return dataclasses.replace(self, **changes)

    def config_hash(self) -> str:
        """Return twelve hex digits that identify the configuration."""
        return hashlib.sha256(json.dumps(dataclasses.asdict(self), sort_keys=True).encode()).hexdigest()[:12]


def load_config(path: str | Path, overrides: Mapping[str, Any] | None = None) -> FullConfig:
    """Return the configuration of a YAML file, or of a name in full_scale/configs such as "cpu_tiny".

    Order: defaults, then the preset's, then the file it extends, then the file, then `overrides`.
    Raises ConfigError for an unknown key, a key given twice or a value that cannot work.
    """
    path = _find(Path(path))
    values = _read(path, ()) | dict(overrides or {})
    _refuse_unknown(values, str(path))
    preset = values.get("preset", "paper")
    if preset not in PRESETS:
        raise ConfigError(f"preset={preset!r}; choose one of {sorted(PRESETS)}")
    return FullConfig(**(PRESETS[preset] | values))


def parse_overrides(pairs: list[str]) -> dict[str, Any]:
    """Return {"name": value} from "name=value" words of a command line, values read as YAML.

    >>> parse_overrides(["llds_coef=0.2", "cpu=true"])
    {'llds_coef': 0.2, 'cpu': True}
    """
    found = {}
    for pair in pairs:
        name, sign, value = pair.partition("=")
        if not sign:
            raise ConfigError(f"--set {pair!r}: write NAME=VALUE")
        found[name] = yaml.safe_load(value)
    return found


def trl_arguments(config: FullConfig, *, output_dir: str, processes: int = 1) -> dict[str, Any]:
    """Return the keyword arguments of trl.GRPOConfig that mean this configuration on so many processes.

    TRL's defaults that differ from the paper are all set: linear decay, KL times ratio, importance correction, dropping
    of truncated completions. Raises ConfigError if the batch cannot be split evenly.
    """
    per_process = _exact(config.trajectories, processes, "prompts_per_rollout * group_size", "processes")
    per_update = _exact(per_process, config.updates_per_rollout, "trajectories per process", "updates_per_rollout")
    accumulation = _exact(per_update, config.micro_batch, "trajectories per process and update", "micro_batch")
    gspo = config.surrogate == "gspo"
    vllm = config.sampler != "transformers"
    arguments: dict[str, Any] = {
        "output_dir": output_dir,
        "per_device_train_batch_size": config.micro_batch,
        "gradient_accumulation_steps": accumulation,
        "steps_per_generation": accumulation * config.updates_per_rollout,
        "num_generations": config.group_size,
        "num_iterations": 1,
        "max_steps": config.steps,
        "max_completion_length": config.completion_tokens,
        "learning_rate": config.learning_rate,
        "lr_scheduler_type": "constant_with_warmup",
        "warmup_steps": math.ceil(config.warmup_ratio * config.steps),
        "weight_decay": 0.01 if not config.cpu else 0.0,
        "max_grad_norm": config.grad_clip,
        "temperature": config.temperature,
        "beta": config.kl_coef,
        "use_bias_correction_kl": False,
        "epsilon": config.clip_eps,
        "delta": config.dual_clip,
        "entropy_coef": config.entropy_coef,
        "scale_rewards": "group",
        "importance_sampling_level": "sequence" if gspo else "token",
        "loss_type": "grpo" if gspo or config.aggregation == "seq-mean-token-mean" else "dapo",
        "mask_truncated_completions": False,
        "bf16": config.bf16,
        "gradient_checkpointing": config.gradient_checkpointing,
        "use_cpu": config.cpu,
        "save_strategy": "steps",
        "save_steps": config.save_every * config.updates_per_rollout,
        "logging_steps": 1,
        "report_to": "none",
        "seed": config.seed,
        "use_vllm": vllm,
        "vllm_importance_sampling_correction": False,
        "disable_tqdm": True,
    }
    if vllm:
        arguments["vllm_mode"] = "colocate" if config.sampler == "vllm_colocate" else "server"
        arguments["vllm_gpu_memory_utilization"] = config.vllm_memory
    return arguments


def _exact(whole: int, parts: int, what: str, by: str) -> int:
    if parts < 1 or whole % parts:
        raise ConfigError(f"{what} = {whole} cannot be split evenly by {by} = {parts}; change one of the two")
    return whole // parts


def _hints() -> dict[str, Any]:
    return get_type_hints(FullConfig)


def _coerce(name: str, hint: Any, value: Any) -> Any:
    if hint is str:
        if not isinstance(value, str) or not value:
            raise ConfigError(f"{name}={value!r}: expected text")
        return value
    if name == "hops":
        items = value if isinstance(value, list | tuple) else (value,)
        if not items or not set(items) <= {1, 2, 3}:
            raise ConfigError(f"hops={value!r}: expected a list drawn from 1, 2, 3")
        return tuple(items)
    return FieldSpec(name, "full_scale", hint, None).check(value)


_POSITIVE = (
    "turn_tokens", "completion_tokens", "prompt_tokens", "topk", "prompts_per_rollout", "updates_per_rollout",
    "micro_batch", "sampling_batch", "rollouts", "save_every", "warm_steps", "warm_batch",
)  # fmt: skip


def _validate(config: FullConfig) -> None:
    for name in _POSITIVE:
        if getattr(config, name) < 1:
            raise ConfigError(f"{name}={getattr(config, name)}: must be at least 1")
    for name in ("llds_coef", "kl_coef", "entropy_coef", "learning_rate", "max_turns", "eval_max_turns"):
        if getattr(config, name) < 0:
            raise ConfigError(f"{name}={getattr(config, name)}: must be >= 0")
    if config.group_size < 2:
        raise ConfigError(f"group_size={config.group_size}: a group of one has no baseline; use at least 2 (paper: 5)")
    if config.llds_coef > 0 and config.updates_per_rollout < 2:
        raise ConfigError(
            "llds_coef > 0 with updates_per_rollout=1: old and current policy are equal at every step, so the gate can "
            "never fire; set updates_per_rollout to 2 or more (released code: 10) or llds_coef to 0"
        )
    if config.temperature != 1:
        raise ConfigError(
            f"temperature={config.temperature}: the trainer's log-probabilities are at 1, so another sampler would put "
            "a gap into every ratio; the paper trains at 1"
        )
    if config.answer_weight_rule != "fixed" and config.llds_coef == 0:
        raise ConfigError(f"answer_weight_rule={config.answer_weight_rule!r} has no effect with llds_coef=0")
    if config.cpu and (config.sampler != "transformers" or config.bf16):
        raise ConfigError("cpu=true needs sampler: transformers and bf16: false (vLLM's weight transfer needs CUDA)")
    if not 0 <= config.warmup_ratio <= 1 or not 0 < config.vllm_memory < 1 or not 0 <= config.warm_right <= 1:
        raise ConfigError("warmup_ratio, vllm_memory and warm_right are shares between 0 and 1")


def _refuse_unknown(values: Mapping[str, Any], where: str) -> None:
    known = _hints()
    for name in values:
        if name not in known:
            raise ConfigError(f"unknown key {name!r} in {where}{suggest(str(name), known)}")


def _find(path: Path) -> Path:
    named = CONFIGS / f"{path.name}.yaml"
    if path.is_file() or path.suffix:
        return path
    if named.is_file():
        return named
    names = sorted(p.stem for p in CONFIGS.glob("*.yaml"))
    raise ConfigError(f"no configuration {str(path)!r}; give a YAML file or one of {', '.join(names)}")


def _read(path: Path, seen: tuple[Path, ...]) -> dict[str, Any]:
    if path in seen:
        raise ConfigError(f"{path} extends itself by way of {', '.join(p.name for p in seen)}")
    if not path.is_file():
        raise ConfigError(f"configuration {path} does not exist")
    try:
        values = yaml.load(path.read_text(encoding="utf-8"), Loader=_OnceLoader)
    except yaml.YAMLError as error:
        raise ConfigError(f"{path} is no YAML: {error}") from None
    if not isinstance(values, dict):
        raise ConfigError(f"{path} must be a list of 'key: value' lines")
    parent = values.pop("extends", None)
    return (_read(path.parent / parent, (*seen, path)) if parent else {}) | values


class _OnceLoader(yaml.SafeLoader):
    """A safe loader that refuses a key given twice, of which YAML would silently keep the last."""


def _mapping(loader: yaml.SafeLoader, node: yaml.MappingNode) -> dict[str, Any]:
    keys = [loader.construct_object(key) for key, _ in node.value]
    for key in keys:
        if keys.count(key) > 1:
            raise ConfigError(f"key {key!r} is given twice{node.start_mark}")
    return dict(loader.construct_pairs(node))


_OnceLoader.add_constructor(yaml.resolver.BaseResolver.DEFAULT_MAPPING_TAG, _mapping)

__all__ = ["CONFIGS", "PRESETS", "FullConfig", "describe_type", "load_config", "parse_overrides", "trl_arguments"]
