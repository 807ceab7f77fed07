"""The network.

Locked here: it is transformers' Qwen2, logits and gradients; causality; the gradient by finite differences in float64;
the parameter vector's layout.
"""

from __future__ import annotations

import os

import pytest
import torch
from transformer_tools import TINY, tiny_start

from lldsim.transformer.export import state_dict, to_qwen2
from lldsim.transformer.model import ModelShape, head_slice, initial, logits, unpack
from lldsim.transformer.warm_start import packaged


def test_default_shape_has_the_stated_size() -> None:
    assert ModelShape().size() == 115_392
    assert sum(x.numel() for x in state_dict(torch.zeros(115_392), ModelShape()).values()) == 115_392


def test_head_slice_is_the_output_matrix() -> None:
    flat = torch.arange(TINY.size(), dtype=torch.float32)
    assert torch.equal(flat[head_slice(TINY)], unpack(flat, TINY).head.flatten())


def test_later_tokens_change_no_earlier_logits(generator: torch.Generator) -> None:
    flat = initial(TINY, generator, std=0.2)
    ids = torch.randint(64, (3, 9), generator=generator)
    changed = ids.clone()
    changed[:, 6:] = (changed[:, 6:] + 1) % 64
    a, b = logits(flat, ids, TINY), logits(flat, changed, TINY)
    assert torch.allclose(a[:, :6], b[:, :6], atol=1e-6)
    assert not torch.allclose(a[:, 6:], b[:, 6:], atol=1e-3)


def test_gradient_agrees_with_finite_differences(generator: torch.Generator) -> None:
    flat = tiny_start(dtype=torch.float64).flat.requires_grad_()
    ids = torch.randint(64, (2, 7), generator=generator)
    target = torch.randint(64, (2, 7), generator=generator)

    def value(at: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.cross_entropy(logits(at, ids, TINY).flatten(0, 1), target.flatten())

    (gradient,) = torch.autograd.grad(value(flat), flat)
    for _ in range(5):
        direction = torch.randn(flat.shape, generator=generator, dtype=torch.float64)
        h = 1e-6
        with torch.no_grad():
            measured = (value(flat + h * direction) - value(flat - h * direction)) / (2 * h)
        assert measured.item() == pytest.approx((gradient @ direction).item(), rel=1e-6, abs=1e-9)


def test_it_is_transformers_qwen2(generator: torch.Generator) -> None:
    if os.environ.get("LLDSIM_STRICT_OPTIONAL") != "1":
        pytest.importorskip("transformers", reason="install the extra `train` to compare with Qwen2ForCausalLM")
    start = packaged(0)
    ids = torch.randint(64, (4, 60), generator=generator)
    target = torch.randint(64, (4, 60), generator=generator)
    flat = start.flat.clone().requires_grad_()
    model = to_qwen2(flat, start.shape)
    ours, theirs = logits(flat, ids, start.shape), model(ids).logits
    assert (ours - theirs).abs().max() < 2e-5

    def loss(values: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.cross_entropy(values.flatten(0, 1), target.flatten())

    (gradient,) = torch.autograd.grad(loss(ours), flat)
    loss(theirs).backward()
    ours_by_name = state_dict(gradient, start.shape)
    named = dict(model.named_parameters())
    assert ours_by_name.keys() == named.keys()
    for name, parameter in named.items():
        assert parameter.grad is not None
        assert torch.allclose(ours_by_name[name], parameter.grad, atol=1e-6, rtol=1e-3), name
