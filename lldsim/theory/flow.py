"""d/ds ln pi of every token under the GRPO gradient flow: closed form, autograd twin, finite-difference twin.

Linear softmax, logits = base + W h. Gradient flow dW/ds = -grad L at ratio 1 (the first optimiser step on a rollout
batch) moves a token's log-likelihood by exactly

    d/ds ln pi(y_t) = -G_t   with the weights   w_i = A_i * n_i   and the aggregation's normaliser n_i (`loss_weights`).

With trainable features, logits = base + W U phi, a second sum over products of W^T r appears (`trainable_flow`).
The twins take any loss of the token log-likelihoods, so KL, clipping or LLDS can be asked the same question.
What this file does not do: write a loss (that is `lldsim.objectives`), and no closed form off ratio 1.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from lldsim.errors import ConfigError, ShapeError
from lldsim.theory.checks import TiedGroups, finite_where, flatten_inputs, same_shape
from lldsim.theory.kernel import Gwhes, Level, action_segments, bilinear_sums, block_rows, gwhes, residual
from lldsim.types import Aggregation

TokenLogps = Callable[..., Tensor]  # parameters -> (B, T) log-likelihoods of the sampled tokens, 0 off the mask
Loss = Callable[[Tensor], Tensor]  # (B, T) log-likelihoods -> scalar
# Eighth-order central difference: the coarse step keeps rounding near 1e-14 while the truncation is step^8 / 630.
STENCIL = ((1, 4.0 / 5.0), (2, -1.0 / 5.0), (3, 4.0 / 105.0), (4, -1.0 / 280.0))


@dataclass(frozen=True)
class TrainableFlow:
    """d/ds ln pi (nats per unit of flow time) under W and U moving together, split by cause."""

    fixed: Tensor  # -G: sum of w <r, r'> <h, h'>, the part that moves W
    unembedding: Tensor  # sum of w <W^T r, W^T r'> <phi, phi'>, the part that moves U

    @property
    def total(self) -> Tensor:
        """The whole derivative, fixed + unembedding."""
        return self.fixed + self.unembedding


def loss_weights(advantages: Tensor, action_mask: Tensor, *, aggregation: Aggregation) -> Tensor:
    """Return w_i = A_i n_i, the weight of every token of response i in the surrogate's gradient at ratio 1.

    n_i = 1 / sum_j L_j ("token-mean"), 1 / (n L_i) ("seq-mean-token-mean", Eq. 1) or 1 / n ("seq-mean-token-sum"), with
    L_i action tokens and n the responses that have any. advantages (..., B), action_mask (..., B, T) -> (..., B).
    Raises ShapeError, ConfigError. Source: paper Eq. 1 and released code, as in `lldsim.objectives.aggregate`.

    >>> mask = torch.tensor([[True, True, True], [True, False, False]])
    >>> loss_weights(torch.tensor([1.0, -1.0]), mask, aggregation="token-mean").tolist()
    [0.25, -0.25]
    """
    same_shape("advantages", advantages, action_mask.shape[:-1], f"action_mask {tuple(action_mask.shape)}")
    lengths = action_mask.bool().sum(-1).to(advantages.dtype)
    responses = (lengths > 0).sum(-1, keepdim=True).clamp(min=1)
    match aggregation:
        case "token-mean":
            return advantages / lengths.sum(-1, keepdim=True).clamp(min=1)
        case "seq-mean-token-mean":
            return advantages / (responses * lengths.clamp(min=1))
        case "seq-mean-token-sum":
            return advantages / responses
    raise ConfigError(f"aggregation = {aggregation!r} is none of token-mean, seq-mean-token-mean, seq-mean-token-sum")


def flow(
    hidden: Tensor,
    probs: Tensor,
    tokens: Tensor,
    action_mask: Tensor,
    advantages: Tensor,
    *,
    aggregation: Aggregation,
    level: Level = "token",
    action_id: Tensor | None = None,
    tied_groups: TiedGroups = "zero",
) -> Tensor:
    """Return d/ds ln pi (nats per unit of flow time) of every token, action or response, closed form, fixed features.

    Shapes as in `gwhes`, `advantages` (..., B). All responses of a run share one gradient, hence are sources. One plain
    gradient step of size lr changes the log-likelihood by lr times this, up to O(lr^2). Raises as `gwhes`.
    """
    weights = loss_weights(advantages, action_mask, aggregation=aggregation)
    parts = gwhes(
        hidden, probs, tokens, action_mask, weights, level=level, action_id=action_id, tied_groups=tied_groups
    )
    return -parts.total


@torch.no_grad()
def unembedding_sums(
    features: Tensor,
    unembedding: Tensor,
    probs: Tensor,
    tokens: Tensor,
    action_mask: Tensor,
    weights: Tensor,
    *,
    level: Level = "token",
    action_id: Tensor | None = None,
    group: Tensor | None = None,
    tied_groups: TiedGroups = "raise",
) -> Gwhes:
    """Return the second sum of trainable features in the signs of G: sum -w <W^T r, W^T r'> <phi, phi'>.

    features phi (..., B, T, F), unembedding W (..., V, D) with the run axes of phi, the rest as in `gwhes`.
    Raises as `gwhes`. Source: Theorem 4.2's remark on trainable h.
    """
    flat = flatten_inputs(features, probs, tokens, action_mask, weights, group=group, tied_groups=tied_groups)
    vocab, size = unembedding.shape[-2:]
    runs = flat.lead[:-1]
    same_shape("unembedding", unembedding, (*runs, flat.probs.shape[-1], size), f"probs {tuple(probs.shape)}")
    per_run = unembedding.double().reshape(-1, vocab, size)
    run_of = torch.arange(len(flat.weights)) // max(flat.lead[-1], 1)
    rows = block_rows(flat.probs.shape[1] * max(vocab, size, features.shape[-1]))

    def block(lo: int, hi: int) -> tuple[Tensor, Tensor]:
        left = torch.bmm(residual(flat.probs[lo:hi], flat.tokens[lo:hi], flat.mask[lo:hi]), per_run[run_of[lo:hi]])
        return left, flat.hidden[lo:hi]

    segments = action_segments(action_id, action_mask) if level == "action" else None
    return bilinear_sums(block, rows, flat.weights, flat.pool, lead=flat.lead, level=level, segments=segments)


def trainable_flow(
    features: Tensor,
    mixing: Tensor,
    unembedding: Tensor,
    probs: Tensor,
    tokens: Tensor,
    action_mask: Tensor,
    advantages: Tensor,
    *,
    aggregation: Aggregation,
    level: Level = "token",
    action_id: Tensor | None = None,
    tied_groups: TiedGroups = "zero",
) -> TrainableFlow:
    """Return d/ds ln pi for h = U phi with W and U both trained, the two sums apart.

    features phi (..., B, T, F), mixing U (..., D, F), unembedding W (..., V, D), the rest as in `flow`.
    Raises ShapeError when U and phi disagree, otherwise as `gwhes`.
    """
    if mixing.shape[-1] != features.shape[-1] or mixing.shape[-2] != unembedding.shape[-1]:
        raise ShapeError(
            f"mixing has shape {tuple(mixing.shape)}, but (..., D, F) = "
            f"(..., {unembedding.shape[-1]}, {features.shape[-1]}) is needed"
        )
    weights = loss_weights(advantages, action_mask, aggregation=aggregation)
    # U takes one new axis so that every response of a run is multiplied by the run's own matrix.
    hidden = finite_where("features", features, action_mask.bool()) @ mixing.mT[..., None, :, :]
    body = (probs, tokens, action_mask, weights)
    first = gwhes(hidden, *body, level=level, action_id=action_id, tied_groups=tied_groups)
    second = unembedding_sums(features, unembedding, *body, level=level, action_id=action_id, tied_groups=tied_groups)
    return TrainableFlow(fixed=-first.total, unembedding=-second.total)


def linear_token_logps(tokens: Tensor, action_mask: Tensor, base: Tensor, hidden: Tensor) -> TokenLogps:
    """Return W -> ln pi(tokens), (B, T), for logits = base + W h; and (W, U) -> ln pi with `hidden` read as phi.

    tokens, action_mask (B, T), base (B, T, V), hidden (B, T, D), W (V, D), U (D, F). 0 off the mask.
    """
    index = torch.where(action_mask, tokens, 0)[..., None]

    def token_logps(weight: Tensor, mixing: Tensor | None = None) -> Tensor:
        states = hidden if mixing is None else hidden @ mixing.mT
        logps_all = torch.log_softmax(base + states @ weight.mT, dim=-1)
        return torch.where(action_mask, logps_all.gather(-1, index)[..., 0], 0.0)

    return token_logps


def descent_direction(token_logps: TokenLogps, params: tuple[Tensor, ...], loss: Loss) -> tuple[Tensor, ...]:
    """Return -grad of `loss(token_logps(*params))`, one tensor per parameter, by autograd."""
    leaves = [p.detach().clone().requires_grad_() for p in params]
    return tuple(-g for g in torch.autograd.grad(loss(token_logps(*leaves)), leaves))


def flow_autograd(token_logps: TokenLogps, params: tuple[Tensor, ...], loss: Loss) -> Tensor:
    """Return d/ds ln pi of every token, (B, T), as autograd's directional derivative along -grad loss.

    Any differentiable policy and loss: a check of the closed form, and the only form for clipped or regularised losses.
    """
    direction = descent_direction(token_logps, params, loss)
    return torch.func.jvp(token_logps, tuple(p.detach() for p in params), direction)[1].detach()


def flow_finite_difference(
    token_logps: TokenLogps, params: tuple[Tensor, ...], loss: Loss, *, step: float = 0.005
) -> Tensor:
    """Return d/ds ln pi of every token, (B, T), as an eighth-order central difference along -grad loss.

    `step` is the length of the parameter move (unit direction), so the error does not depend on the gradient's size.
    """
    direction = descent_direction(token_logps, params, loss)
    norm = torch.sqrt(sum((d.square().sum() for d in direction), torch.zeros((), dtype=params[0].dtype)))
    if norm == 0:
        return torch.zeros_like(token_logps(*params))

    def moved(by: float) -> Tensor:
        return token_logps(*(p + (by / norm) * d for p, d in zip(params, direction, strict=True)))

    slope = sum(c * (moved(k * step) - moved(-k * step)) for k, c in STENCIL)
    return torch.as_tensor(slope) * (norm / step)


def one_step_change(token_logps: TokenLogps, params: tuple[Tensor, ...], loss: Loss, *, lr: float) -> Tensor:
    """Return logp_change (nats), (B, T), measured after one plain gradient step of size `lr`."""
    direction = descent_direction(token_logps, params, loss)
    return token_logps(*(p + lr * d for p, d in zip(params, direction, strict=True))) - token_logps(*params)
