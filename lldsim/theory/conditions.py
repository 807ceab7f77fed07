"""When a wrong token does NOT hurt: the closed forms of traps 1-3 and the sign rules of Theorem 4.2's two levers.

Every function is a few lines with its derivation in the docstring; tests hold it against the sums of `kernel.py` and
against full enumeration. r = e_y - pi is a residual, alpha = <r, r'>.
What this file does not do: no dynamics (`reduction.py`), no similarity-likelihood map (`maps.py`).

Where the levers do not act (a plain statement, each line tested):
- different tokens with kappa < 0 (`lever_coefficient`): a less likely or more similar wrong token HELPS the right one;
- one shared context: there pi and pi' are one vector, so alpha turns at `one_context_turning_point`;
- similarity 0, or a wrong token of probability 1: the source does nothing;
- a correct token of probability 1 cannot be displaced: alpha = 0 whatever the source does;
- a negative inner product <h, h'> flips every sign.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from lldsim.errors import LldsimError
from lldsim.theory.checks import same_shape
from lldsim.theory.flow import loss_weights
from lldsim.theory.kernel import residual
from lldsim.types import Aggregation


def one_context_alpha(probs: Tensor, correct: int, wrong: int) -> Tensor:
    """Return alpha = |pi|^2 - pi(y+) - pi(y-) for two different tokens of one context (trap 1), (..., V) -> (...).

    From <e_a - pi, e_b - pi> = 0 - pi_b - pi_a + |pi|^2. With two tokens alpha = -2 pi_a pi_b < 0: a wrong token can
    hurt only under a dominant third one. Raises LldsimError when the tokens are equal.

    >>> round(float(one_context_alpha(torch.tensor([0.3, 0.7], dtype=torch.float64), 0, 1)), 12)
    -0.42
    """
    if correct == wrong:
        raise LldsimError(f"correct and wrong are both token {correct}; one_context_alpha is for different tokens")
    return probs.square().sum(-1) - probs[..., correct] - probs[..., wrong]


def dominant_boundary(p_wrong: float) -> float:
    """Return the probability of the correct token at which alpha = 0 in a one-context world of three tokens.

    With a + b + c = 1, a^2 + b^2 + c^2 = a + b is 2 a^2 - (3 - 2b) a + (2 b^2 - 3b + 1) = 0, whose root inside the
    simplex is a = (3 - 2b - sqrt(1 + 12 b - 12 b^2)) / 4. Below it (c dominant, always > 1/2) a wrong token hurts;
    for b >= 1/2 the value is <= 0 and a wrong token never hurts. Raises LldsimError outside [0, 1].

    >>> dominant_boundary(0.0), dominant_boundary(0.5)
    (0.5, 0.0)
    """
    if not 0.0 <= p_wrong <= 1.0:
        raise LldsimError(f"p_wrong = {p_wrong} is no probability")
    return (3.0 - 2.0 * p_wrong - math.sqrt(1.0 + 12.0 * p_wrong - 12.0 * p_wrong**2)) / 4.0


def with_likelihood(probs: Tensor, token: int, likelihood: float) -> Tensor:
    """Return probs (..., V) with `token` set to `likelihood` and the other tokens rescaled in proportion.

    This is what moving one logit does. Raises LldsimError when the token has all the mass, so no proportion is left.
    """
    rest = 1.0 - probs[..., token : token + 1]
    if bool((rest <= 0).any()):
        raise LldsimError(f"token {token} has probability 1, so the other tokens have no proportions to keep")
    moved = probs * ((1.0 - likelihood) / rest)
    moved[..., token] = likelihood
    return moved


def lever_coefficient(probs: Tensor, correct: int, other_probs: Tensor, wrong: int) -> Tensor:
    """Return kappa with alpha = kappa * (1 - q), q = pi'(wrong): its sign decides both levers of Theorem 4.2.

    Let rho be pi' conditioned on not being the wrong token b; then e_b - pi' = (1 - q)(e_b - rho), so
    alpha = (1 - q) <e_a - pi, e_b - rho> and rho does not change when only b's logit moves. A source adds
    p_neg * kappa * (1 - q) * <h, h'> to G: it rises as q falls and as <h, h'> rises iff kappa > 0 (and <h, h'> > 0).
    Same token: kappa = 1 - pi_a + sum_{v != a} pi_v rho_v >= 0, always. Different tokens:
    kappa = sum_{v != b} pi_v rho_v - rho_a - pi_b, of either sign. Contexts must differ: pi does not follow q.
    probs, other_probs (..., V) -> (...).
    """
    same_shape("other_probs", other_probs, probs.shape, f"probs {tuple(probs.shape)}")
    rho = with_likelihood(other_probs, wrong, 0.0)
    tokens = torch.full(probs.shape[:-1], correct), torch.full(probs.shape[:-1], wrong)
    return (residual(probs, tokens[0]) * residual(rho, tokens[1])).sum(-1)


def one_context_turning_point(rho_correct: float, rho_sum_squares: float) -> float:
    """Return the wrong token's probability b* at which alpha of one context is smallest.

    With pi = (b at the wrong token, (1 - b) rho elsewhere), alpha(b) = b^2 - b + (1 - b)^2 |rho|^2 - (1 - b) rho_a and
    d alpha / db = 2b - 1 - 2 (1 - b) |rho|^2 + rho_a vanishes at b* = (1 + 2 |rho|^2 - rho_a) / (2 (1 + |rho|^2)).
    Below b* a falling wrong token raises G (the theorem's lever), above b* it lowers G.

    >>> one_context_turning_point(1.0, 1.0)  # two tokens: alpha = -2 b (1 - b)
    0.5
    """
    return (1.0 + 2.0 * rho_sum_squares - rho_correct) / (2.0 * (1.0 + rho_sum_squares))


def shared_prefix_weight(advantages: Tensor, lengths: Tensor, *, aggregation: Aggregation) -> Tensor:
    """Return the total weight sum_i w_i of one token that every response of the group shares (trap 2).

    The shared token has one residual and one h, so its gradient is (sum_i w_i) r (x) h and it cancels iff the sum is 0.
    With sum A = 0: "token-mean" and "seq-mean-token-sum" give exactly 0; "seq-mean-token-mean" gives the covariance of
    A and 1/L, > 0 (the prefix is pushed UP) when wrong responses are longer, < 0 when they are shorter.
    advantages (..., B), lengths (..., B) action tokens, >= 1 -> (...). Raises LldsimError for a length below 1.

    >>> float(shared_prefix_weight(torch.tensor([1.0, -1.0]), torch.tensor([2, 4]), aggregation="seq-mean-token-mean"))
    0.125
    """
    if bool((lengths < 1).any()):
        raise LldsimError(f"lengths has the value {int(lengths.min())}; a response with the prefix has a token")
    mask = torch.arange(int(lengths.max())) < lengths[..., None]
    return loss_weights(advantages, mask, aggregation=aggregation).sum(-1)


def mean_drift(
    probs: Tensor, sampler_probs: Tensor, mean_advantage: float, *, importance_cap: float | None = None
) -> Tensor:
    """Return the mean drift of the logits of a context whose token is independent of the advantage (trap 3), (..., V).

    E_{a ~ mu}[A (e_a - pi)] = Abar (mu - pi), since A leaves the mean as Abar and E e_a = mu. On-policy (mu = pi) it is
    exactly 0, and through any <h, h'> a sum of zeros stays 0: no coupling makes on-policy sampling drift. With the
    importance weight min(pi/mu, cap): E = Abar (m - pi sum m), m = min(pi, cap mu), which is 0 for cap = infinity.
    probs pi, sampler_probs mu (..., V); `mean_advantage` = E[sum of A over the visits of the context].

    >>> mean_drift(torch.tensor([0.5, 0.5]), torch.tensor([0.75, 0.25]), -2.0).tolist()
    [-0.5, 0.5]
    """
    same_shape("sampler_probs", sampler_probs, probs.shape, f"probs {tuple(probs.shape)}")
    mass = sampler_probs if importance_cap is None else torch.minimum(probs, importance_cap * sampler_probs)
    return mean_advantage * (mass - probs * mass.sum(-1, keepdim=True))
