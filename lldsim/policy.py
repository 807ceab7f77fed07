"""The linear softmax policy: logits(context) = base(context) + W U h(context), with W trained and U = 1 by default.

U (D, D) is the map of trainable features (`feature_rate`). Without it Theorem 4.2 is an identity in this policy
(lldsim/theory). What this file does not do: train, or make features.
"""

from __future__ import annotations

import numpy as np
import torch

from lldsim.world import SearchWorld


class LinearSoftmaxPolicy:
    """A policy over one world's contexts; `weights` (V, D) start at 0, where the policy is the base policy.

    `features` (D, D) maps hidden states; None leaves them as they are.

    >>> from lldsim.config import WorldConfig
    >>> from lldsim.world import build_world
    >>> policy = LinearSoftmaxPolicy(build_world(WorldConfig(), seed=0))
    >>> policy.logps_all(torch.tensor([[0, 1]])).exp().sum(-1).round(decimals=6).tolist()
    [[1.0, 1.0]]
    """

    def __init__(
        self, world: SearchWorld, weights: torch.Tensor | None = None, features: torch.Tensor | None = None
    ) -> None:
        self.world = world
        config = world.config
        if weights is None:
            weights = torch.zeros(config.vocab_size, config.n_features, dtype=torch.float64)
        self.weights = weights
        self.features = features

    def product(self) -> torch.Tensor:
        """Return W U (V, D), the matrix that meets the hidden states."""
        return self.weights if self.features is None else self.weights @ self.features

    def logps_all(self, context: torch.Tensor) -> torch.Tensor:
        """Return log-probabilities (..., V) of every token in contexts (...); -1 (no action token) reads context 0."""
        flat = context.clamp(min=0).reshape(-1).numpy()
        kept, inverse = np.unique(flat, return_inverse=True)  # members of a group share most of their contexts
        hidden = torch.from_numpy(self.world.hidden(kept)).to(self.weights.dtype)
        base = torch.from_numpy(self.world.base(kept)).to(self.weights.dtype)
        logps = torch.log_softmax(base + hidden @ self.product().T, dim=-1)
        return logps[torch.from_numpy(inverse)].reshape(*context.shape, -1)

    def ref_logps(self, context: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
        """Return the base policy's log-probabilities (...) of `tokens` (...): the reference of the KL term."""
        base = torch.from_numpy(self.world.base(context.clamp(min=0).reshape(-1).numpy()))
        return select(base.reshape(*context.shape, -1), tokens)


def select(logps_all: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
    """Return the log-probability (...) of each token (...) from the table (..., V); -1 reads token 0."""
    return logps_all.gather(-1, tokens.clamp(min=0).unsqueeze(-1)).squeeze(-1)


def token_entropy(logps_all: torch.Tensor) -> torch.Tensor:
    """Return the entropy (...), in nats, of distributions given as log-probabilities (..., V)."""
    return -(logps_all.exp() * logps_all).sum(-1)


def sharpen(
    logps_all: torch.Tensor, *, temperature: float, top_p: float = 1.0, top_k: int | None = None
) -> torch.Tensor:
    """Return the sampler's log-probabilities: at `temperature`, of the `top_k` likeliest tokens, and of those the
    smallest set with mass >= top_p."""
    logps = torch.log_softmax(logps_all / temperature, dim=-1)
    if top_k is not None and top_k < logps.shape[-1]:
        kept = logps.sort(dim=-1, descending=True, stable=True).indices[..., :top_k]
        out = torch.ones_like(logps, dtype=torch.bool).scatter(-1, kept, False)
        logps = torch.log_softmax(logps.masked_fill(out, -torch.inf), dim=-1)
    if top_p < 1:
        ordered, order = logps.exp().sort(dim=-1, descending=True, stable=True)
        before = ordered.cumsum(-1) - ordered
        kept = torch.zeros_like(logps, dtype=torch.bool).scatter(-1, order, before < top_p)
        logps = torch.log_softmax(logps.masked_fill(~kept, -torch.inf), dim=-1)
    return logps
