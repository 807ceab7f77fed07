"""The flat parameter vector as transformers' Qwen2: a state dict, and the model where transformers is installed.

What this file does not do: a tokenizer (tokens are ids), or the way back.
"""

from __future__ import annotations

from typing import Any

import torch

from lldsim.transformer.model import NORM_EPS, ROPE_BASE, ModelShape, unpack


def state_dict(flat: torch.Tensor, shape: ModelShape) -> dict[str, torch.Tensor]:
    """Return `flat` (n,) under the names of Qwen2ForCausalLM; views, not copies.

    >>> sorted(state_dict(torch.zeros(ModelShape().size()), ModelShape()))[0]
    'lm_head.weight'
    """
    parameters, d = unpack(flat, shape), shape.hidden
    out = {"model.embed_tokens.weight": parameters.embedding}
    for i, layer in enumerate(parameters.layers):
        at = f"model.layers.{i}."
        for j, name in enumerate("qkv"):
            out[f"{at}self_attn.{name}_proj.weight"] = layer.qkv[j * d : (j + 1) * d]
            out[f"{at}self_attn.{name}_proj.bias"] = layer.qkv_bias[j * d : (j + 1) * d]
        out[f"{at}self_attn.o_proj.weight"] = layer.out
        out[f"{at}mlp.gate_proj.weight"], out[f"{at}mlp.up_proj.weight"] = layer.gate_up.chunk(2)
        out[f"{at}mlp.down_proj.weight"] = layer.down
        out[f"{at}input_layernorm.weight"] = layer.norm1
        out[f"{at}post_attention_layernorm.weight"] = layer.norm2
    return out | {"model.norm.weight": parameters.norm, "lm_head.weight": parameters.head}


def to_qwen2(flat: torch.Tensor, shape: ModelShape) -> Any:
    """Return a `transformers.Qwen2ForCausalLM` with a copy of these weights; needs the extra `train`."""
    from transformers import Qwen2Config, Qwen2ForCausalLM  # pyright: ignore[reportMissingImports]

    config = Qwen2Config(
        vocab_size=shape.vocabulary,
        hidden_size=shape.hidden,
        intermediate_size=shape.mlp,
        num_hidden_layers=shape.layers,
        num_attention_heads=shape.heads,
        num_key_value_heads=shape.heads,
        rms_norm_eps=NORM_EPS,
        rope_parameters={"rope_type": "default", "rope_theta": ROPE_BASE},
        tie_word_embeddings=False,
        attention_dropout=0.0,
        bos_token_id=None,
        eos_token_id=None,
        pad_token_id=None,  # a padding index would cut its row off from the gradient
    )
    model = Qwen2ForCausalLM(config).to(flat.dtype)
    model.load_state_dict({name: value.detach().clone() for name, value in state_dict(flat, shape).items()})
    return model.eval()
