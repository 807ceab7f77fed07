# pyright: reportMissingImports=false
"""A Qwen2 of about 10^5 to 10^6 parameters and a byte-level tokenizer for it, made here: no download, no GPU.

The architecture is transformers' own Qwen2ForCausalLM with small numbers, so every line of the trainer, the rollout and
the probes that runs on it is the line that runs on Qwen2.5. What this file does not do: train (warmstart.py).
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from full_scale.factworld import FactWorld
from full_scale.protocol import INFORMATION, SHORT_INVALID, SHORT_PROMPT
from lldsim.errors import MissingDataError

EOS, PAD = "<|im_end|>", "<|endoftext|>"  # as in Qwen2.5; pad is not eos, so that a sampled eos is never mistaken


def train_tokenizer(world: FactWorld, *, vocab_size: int = 1024) -> Any:
    """Return a byte-level BPE tokenizer trained on the world's documents, questions and protocol texts.

    Deterministic for one version of `tokenizers`. Any text can be encoded and comes back unchanged.
    """
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    core = Tokenizer(models.BPE())
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)  # pyright: ignore[reportAttributeAccessIssue]
    core.decoder = decoders.ByteLevel()  # pyright: ignore[reportAttributeAccessIssue]
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=[PAD, EOS],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    core.train_from_iterator(_texts(world), trainer)
    return PreTrainedTokenizerFast(
        tokenizer_object=core,
        eos_token=EOS,
        pad_token=PAD,
        padding_side="left",
        clean_up_tokenization_spaces=False,
    )


def _texts(world: FactWorld) -> Iterable[str]:
    tags = " ".join(f"<{t}> </{t}>" for t in ("think", "search", "answer"))
    for document in world.documents:
        yield f"Doc 1(Title: {document.title}) {document.text}\n"
    for question in world.questions:
        yield SHORT_PROMPT.format(question=question.question)
    for _ in range(200):
        yield f"{tags} {INFORMATION[0]} {INFORMATION[1]} {SHORT_INVALID} I read: I look for "


def make_model(
    tokenizer: Any, *, hidden_size: int = 128, layers: int = 2, heads: int = 4, max_length: int = 1024, seed: int = 0
) -> Any:
    """Return a randomly initialised Qwen2ForCausalLM in float32 for the tokenizer's vocabulary (tied embeddings)."""
    import torch
    from transformers import Qwen2Config, Qwen2ForCausalLM

    config = Qwen2Config(
        vocab_size=len(tokenizer),
        hidden_size=hidden_size,
        intermediate_size=3 * hidden_size,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=heads,
        max_position_embeddings=max_length,
        tie_word_embeddings=True,
        initializer_range=0.04,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
        bos_token_id=None,
    )
    state = torch.random.get_rng_state()
    torch.manual_seed(seed)
    model = Qwen2ForCausalLM(config)
    torch.random.set_rng_state(state)
    return model


def load(folder: str | Path, *, dtype: str = "float32") -> tuple[Any, Any]:
    """Return (model, tokenizer) from a folder or a hub name, the tokenizer padding on the left."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    if str(folder).startswith((".", "/")) and not (Path(folder) / "config.json").is_file():
        raise MissingDataError(f"{folder} holds no model; `python -m full_scale.warmstart CONFIG` makes the tiny one")
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=dtype)
    tokenizer = AutoTokenizer.from_pretrained(folder, padding_side="left")
    return model, tokenizer
