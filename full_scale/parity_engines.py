# pyright: reportMissingImports=false
"""One batch through three engines: lldsim's own loss, TRL's `_compute_loss` and verl's `ppo_loss` with its registry.

Each engine gets the same log-probabilities as a leaf and returns value and gradient after all micro-batches; nothing of
an engine's arithmetic is replaced, only its forward pass of a model. float64 throughout.
What this file does not do: compare (parity.py), or run a model.
"""

from __future__ import annotations

import functools
import os
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from lldsim.config import ObjectiveConfig
from lldsim.errors import ConfigError
from lldsim.objectives import total_loss


@dataclass(frozen=True)
class Case:
    """One batch (B, T) in float64, advantages (B,), and the objective it is scored with."""

    name: str
    logps: torch.Tensor
    old_logps: torch.Tensor
    advantages: torch.Tensor
    action_mask: torch.Tensor
    objective: ObjectiveConfig
    ref_logps: torch.Tensor | None = None
    answer_mask: torch.Tensor | None = None
    searches: float | None = None
    options: dict[str, Any] = field(default_factory=dict)

    def with_objective(self, **changes: Any) -> Case:
        """Return the case with fields of its objective changed."""
        return replace(self, objective=replace(self.objective, **changes))


Result = tuple[float, torch.Tensor]
Engine = Callable[[Case, int], Result]


def ours(case: Case, micro_batches: int = 1) -> Result:
    """Return value and gradient of lldsim's total loss; the whole batch is its only micro-batch."""
    logps = case.logps.clone().requires_grad_()
    loss, _ = total_loss(
        logps,
        case.old_logps,
        case.advantages,
        case.action_mask,
        config=case.objective,
        ref_logps=case.ref_logps,
        answer_mask=case.answer_mask,
        mean_valid_searches=case.searches,
    )
    loss.backward()
    return loss.item(), _gradient(logps)


def _gradient(leaf: torch.Tensor) -> torch.Tensor:
    return torch.zeros_like(leaf) if leaf.grad is None else leaf.grad


def _split(case: Case, micro_batches: int) -> int:
    rows, rest = divmod(len(case.logps), micro_batches)
    if rest:
        raise ConfigError(f"{len(case.logps)} rows do not split into {micro_batches} micro-batches")
    return rows


# --- TRL ------------------------------------------------------------------------------------------------------------


def trl(case: Case, micro_batches: int = 1) -> Result:
    """Return value and gradient of LLDSGRPOTrainer._compute_loss, added over the micro-batches of one step."""
    rows = _split(case, micro_batches)
    trainer = _trl_trainer(rows, micro_batches)
    o = case.objective
    seq = o.surrogate == "gspo" or o.aggregation == "seq-mean-token-mean"
    trainer.loss_type = "grpo" if seq else "dapo"
    trainer.importance_sampling_level = "sequence" if o.surrogate == "gspo" else "token"
    trainer.epsilon_low = trainer.epsilon_high = o.clip_eps
    trainer.args.delta, trainer.beta = o.dual_clip, o.kl_coef
    from full_scale.trl_trainer import LLDS

    trainer.llds = LLDS(o.llds_coef, o.gate, o.normalizer, o.answer_weight_rule)
    trainer._mean_searches = case.searches
    leaf = case.logps.clone().requires_grad_()
    parts = [slice(k * rows, (k + 1) * rows) for k in range(micro_batches)]
    batches = [_trl_inputs(case, part) for part in parts]
    trainer._buffered_inputs, trainer._window_tokens = batches * 2, {}
    trainer.current_gradient_accumulation_steps = micro_batches
    value = 0.0
    for trainer._step, part in enumerate(parts):
        trainer.given = leaf[part]
        loss = trainer._compute_loss(trainer.model, batches[trainer._step])
        loss.backward()
        value += loss.item()
    return value, _gradient(leaf)


def _trl_inputs(case: Case, part: slice) -> dict[str, Any]:
    mask = case.action_mask.long()
    rows = {
        "prompt_ids": torch.ones(len(mask), 1, dtype=torch.long),
        "prompt_mask": torch.ones(len(mask), 1, dtype=torch.long),
        "completion_ids": torch.ones_like(mask),
        "completion_mask": torch.ones_like(mask),
        "tool_mask": mask,
        "advantages": case.advantages,
        "old_per_token_logps": case.old_logps,
        "ref_per_token_logps": case.old_logps if case.ref_logps is None else case.ref_logps,
    }
    if case.answer_mask is not None:
        rows["answer_mask"] = case.answer_mask.long()
    # TRL's token mean divides by the rollout batch, rescaled to one step: two steps with equal tokens here.
    return {k: v[part] for k, v in rows.items()} | {"num_items_in_batch": 2.0 * mask.sum().double()}


@functools.cache
def _trl_trainer(rows: int, micro_batches: int) -> Any:
    """Return a trainer whose forward pass hands out `given`; all else of it is TRL's."""
    os.environ.setdefault("TRL_EXPERIMENTAL_SILENCE", "1")
    from datasets import Dataset
    from tokenizers import Tokenizer, models
    from transformers import PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM
    from trl import GRPOConfig, GRPOTrainer

    from full_scale.trl_trainer import LLDSMixin

    class Given:
        given: torch.Tensor

        def _get_per_token_logps_and_entropies(self, *args: Any, **kwargs: Any) -> Any:
            return self.given, torch.zeros_like(self.given), None

    class GivenTrainer(LLDSMixin, Given, GRPOTrainer):
        """LLDSGRPOTrainer that is handed log-probabilities."""

    vocab = {"<pad>": 0, "<eos>": 1, "a": 2}
    core = Tokenizer(models.WordLevel(vocab, unk_token="a"))
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=core, eos_token="<eos>", pad_token="<pad>")
    sizes = {"hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 1, "num_attention_heads": 1}
    model = Qwen2ForCausalLM(Qwen2Config(vocab_size=3, num_key_value_heads=1, **sizes))
    whole = rows * micro_batches * 2
    arguments = GRPOConfig(
        output_dir=tempfile.mkdtemp(),  # nothing is written: nothing is trained
        per_device_train_batch_size=rows,
        gradient_accumulation_steps=micro_batches,
        steps_per_generation=2 * micro_batches,
        num_generations=next(n for n in range(2, whole + 1) if whole % n == 0),
        beta=0.0,
        use_bias_correction_kl=False,
        vllm_importance_sampling_correction=False,
        use_cpu=True,
        bf16=False,
        gradient_checkpointing=False,
        save_strategy="no",
        report_to="none",
    )
    trainer = GivenTrainer(
        model=model,
        reward_funcs=lambda completions, **rest: [0.0] * len(completions),
        args=arguments,
        train_dataset=Dataset.from_list([{"prompt": "a"}]),
        processing_class=tokenizer,
    )
    trainer.model.train()
    return trainer


# --- verl -----------------------------------------------------------------------------------------------------------


def verl(case: Case, micro_batches: int = 1, processes: int = 1) -> Result:
    """Return value and gradient of verl's ppo_loss, which takes our loss from its registry.

    Micro-batches are cut and counted by verl's and our worker's functions. With `processes` 2 the rows are shared out
    and losses averaged, as FSDP averages gradients; only the all-reduce of the counts is done by hand.
    """
    from tensordict.tensorclass import NonTensorData, NonTensorStack
    from verl.utils import tensordict_utils as tu
    from verl.workers.utils.losses import ppo_loss

    from full_scale.verl_plugin import FIELD
    from full_scale.verl_plugin.batch import MiniBatch, under_way
    from full_scale.verl_plugin.worker import mean_searches, preserving_tokens, with_answers

    rows = _split(case, micro_batches * processes)
    leaf = case.logps.clone().requires_grad_()
    width = case.logps.shape[1]
    mask = case.action_mask.long()
    tensors: dict[str, Any] = {
        "index": torch.arange(len(mask)),
        "prompts": torch.ones(len(mask), 1, dtype=torch.long),
        "responses": torch.ones_like(mask),
        "attention_mask": torch.ones(len(mask), 1 + width, dtype=torch.long),
        "response_mask": mask,
        "old_log_probs": case.old_logps,
        "advantages": case.advantages[:, None] * mask,
        "ref_log_prob": case.old_logps if case.ref_logps is None else case.ref_logps,
    }
    if case.searches is not None:
        where = torch.zeros_like(case.action_mask) if case.answer_mask is None else case.answer_mask
        places = [row.nonzero()[:, 0].tolist() for row in where]
        notes = [{FIELD: {"answer_tokens": row, "searches": case.searches}} for row in places]
        tensors["extra_fields"] = NonTensorStack.from_list([NonTensorData(note) for note in notes])
    data = tu.get_tensordict(
        tensors,
        {
            "dp_size": processes,
            "batch_num_tokens": int(mask.sum()),
            "global_batch_size": len(mask),
            "max_response_len": width,
        },
    )
    loss_fn = with_answers(functools.partial(ppo_loss, _verl_actor(case.objective, rows)))
    value = torch.zeros((), dtype=torch.float64)
    with under_way(MiniBatch(preserving_tokens(data), mean_searches(data))):
        for part in tu.chunk_tensordict(data, micro_batches * processes):
            # verl's model output: all tokens in one row, each place holding the log-probability of the next token.
            flat = torch.cat([torch.cat([leaf[i], leaf.new_zeros(1)]) for i in part["index"].tolist()])
            offsets = torch.arange(0, flat.numel() + 1, width + 1)
            nested = torch.nested.nested_tensor_from_jagged(flat, offsets)
            value = value + loss_fn(model_output={"log_probs": nested}, data=part)[0] / processes
    value.backward()
    return value.item(), _gradient(leaf)


def _verl_actor(o: ObjectiveConfig, rows: int) -> Any:
    from verl.workers.config import ActorConfig

    from full_scale.verl_plugin.config import LLDSPolicyLossConfig
    from full_scale.verl_plugin.launch import NO_DUAL_CLIP

    policy = LLDSPolicyLossConfig(
        llds_base=o.surrogate,
        llds_coef=o.llds_coef,
        llds_gate=o.gate,
        llds_normalizer=o.normalizer,
        llds_answer_weight_rule=o.answer_weight_rule,
    )
    return ActorConfig(
        strategy="fsdp",
        rollout_n=2,
        ppo_micro_batch_size_per_gpu=rows,
        policy_loss=policy,
        clip_ratio=o.clip_eps,
        clip_ratio_low=o.clip_eps,
        clip_ratio_high=o.clip_eps,
        clip_ratio_c=o.dual_clip or NO_DUAL_CLIP,
        loss_agg_mode="seq-mean-token-mean" if o.surrogate == "gspo" else o.aggregation,
        use_kl_loss=o.kl_coef > 0,
        kl_loss_coef=o.kl_coef,
    )


ENGINES: dict[str, Engine] = {"ours": ours, "TRL": trl, "verl": verl}
PACKAGES = {"ours": (), "TRL": ("trl", "transformers", "datasets"), "verl": ("verl",)}
