"""A small Qwen2 as one flat parameter vector and a plain forward pass.

Token embedding, then per layer x += attention(norm(x)), x += mlp(norm(x)), then norm and an output matrix of its own:
RMSNorm, rotary positions, biased q, k, v, SwiGLU, as in Qwen2 (arXiv 2407.10671). The last normalised state is the h of
the theorem and the output matrix its unembedding W. Held against transformers' Qwen2ForCausalLM by a test, values and
gradients; export.py converts. What this file does not do: dropout, grouped key-value heads, sliding windows, a cache
(sampler.py keeps that).

One flat vector makes an optimiser step, a norm, a snapshot and a stale copy one operation each.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from typing import NamedTuple

import torch
from torch.nn import functional as F

ROPE_BASE = 1e4
NORM_EPS = 1e-6


@dataclass(frozen=True)
class ModelShape:
    """Sizes of the network; the default has 115,392 parameters."""

    vocabulary: int = 64
    hidden: int = 64
    layers: int = 2
    heads: int = 4
    mlp: int = 192

    @property
    def head_size(self) -> int:
        """Features of one attention head."""
        return self.hidden // self.heads

    def parts(self) -> Iterator[tuple[str, tuple[int, ...]]]:
        """Yield name and shape of every parameter in the order in which the flat vector holds them."""
        d, m = self.hidden, self.mlp
        yield "embedding", (self.vocabulary, d)
        for i in range(self.layers):
            yield f"{i}.norm1", (d,)
            yield f"{i}.qkv", (3 * d, d)
            yield f"{i}.qkv_bias", (3 * d,)
            yield f"{i}.out", (d, d)
            yield f"{i}.norm2", (d,)
            yield f"{i}.gate_up", (2 * m, d)
            yield f"{i}.down", (d, m)
        yield "norm", (d,)
        yield "head", (self.vocabulary, d)

    def size(self) -> int:
        """Return the number of parameters."""
        return sum(math.prod(shape) for _, shape in self.parts())


class Layer(NamedTuple):
    """One layer's parameters."""

    norm1: torch.Tensor
    qkv: torch.Tensor
    qkv_bias: torch.Tensor
    out: torch.Tensor
    norm2: torch.Tensor
    gate_up: torch.Tensor
    down: torch.Tensor


class Parameters(NamedTuple):
    """Views of the flat vector."""

    embedding: torch.Tensor
    layers: tuple[Layer, ...]
    norm: torch.Tensor
    head: torch.Tensor


def unpack(flat: torch.Tensor, shape: ModelShape) -> Parameters:
    """Return views of `flat` (n,) under their names; one split, so that the backward pass is one concatenation."""
    sizes = list(shape.parts())
    pieces = flat.split([math.prod(size) for _, size in sizes])
    views = [piece.view(size) for piece, (_, size) in zip(pieces, sizes, strict=True)]
    n = len(Layer._fields)
    layers = tuple(Layer(*views[1 + i * n : 1 + (i + 1) * n]) for i in range(shape.layers))
    return Parameters(views[0], layers, views[-2], views[-1])


def head_slice(shape: ModelShape) -> slice:
    """Return where the output matrix lies in the flat vector: the unembedding part of a gradient."""
    return slice(shape.size() - shape.vocabulary * shape.hidden, shape.size())


def initial(shape: ModelShape, generator: torch.Generator, *, std: float = 0.04) -> torch.Tensor:
    """Return fresh parameters (n,): norms 1, biases 0, the embedding N(0, 2 std), all other matrices N(0, std)."""
    pieces = []
    for name, size in shape.parts():
        if "norm" in name:
            pieces.append(torch.ones(size))
        elif "bias" in name:
            pieces.append(torch.zeros(size))
        else:
            scale = 2 * std if name == "embedding" else std
            pieces.append(scale * torch.randn(size, generator=generator))
    return torch.cat([piece.flatten() for piece in pieces])


@cache
def rotation(positions: int, size: int, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    """Return cosines and sines (positions, size) of the rotary embedding, the halves' layout of Qwen2."""
    rates = 1.0 / ROPE_BASE ** (torch.arange(0, size, 2, dtype=torch.float64) / size)
    angles = torch.outer(torch.arange(positions, dtype=torch.float64), rates)
    angles = torch.cat([angles, angles], dim=-1)
    return angles.cos().to(dtype), angles.sin().to(dtype)


def rotate(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """Return `x` (..., size) turned by its position's angles."""
    a, b = x.chunk(2, dim=-1)
    return x * cos + torch.cat([-b, a], dim=-1) * sin


def normalise(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """Return RMSNorm of `x` (..., D)."""
    return F.rms_norm(x, (x.shape[-1],), weight, NORM_EPS)


def heads(x: torch.Tensor, layer: Layer, shape: ModelShape) -> torch.Tensor:
    """Return q, k, v of normalised `x` (B, T, D), stacked as (3, B, H, T, size)."""
    both = F.linear(x, layer.qkv, layer.qkv_bias)
    return both.view(*x.shape[:2], 3, shape.heads, shape.head_size).permute(2, 0, 3, 1, 4)


def mlp(x: torch.Tensor, layer: Layer) -> torch.Tensor:
    """Return SwiGLU of `x` (..., D)."""
    gate, up = F.linear(x, layer.gate_up).chunk(2, dim=-1)
    return F.linear(F.silu(gate) * up, layer.down)


def hidden_states(parameters: Parameters, ids: torch.Tensor, shape: ModelShape) -> torch.Tensor:
    """Return the last normalised state h (B, T, D) after each token of `ids` (B, T), which must be right-padded."""
    cos, sin = rotation(ids.shape[1], shape.head_size, parameters.embedding.dtype)
    x = F.embedding(ids, parameters.embedding)
    for layer in parameters.layers:
        q, k, v = heads(normalise(x, layer.norm1), layer, shape)
        mixed = F.scaled_dot_product_attention(rotate(q, cos, sin), rotate(k, cos, sin), v, is_causal=True)
        x = x + F.linear(mixed.transpose(1, 2).reshape(x.shape), layer.out)
        x = x + mlp(normalise(x, layer.norm2), layer)
    return normalise(x, parameters.norm)


def logits(flat: torch.Tensor, ids: torch.Tensor, shape: ModelShape) -> torch.Tensor:
    """Return next-token logits (B, T, V) of right-padded `ids` (B, T)."""
    parameters = unpack(flat, shape)
    return F.linear(hidden_states(parameters, ids, shape), parameters.head)
