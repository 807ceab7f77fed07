"""Hidden states of the linear-feature policy: how alike two contexts look to it.

Every hidden state has unit norm and is fixed for the whole run (a linearised network). Five dials set how much of it is
shared, and with whom; at 0 all contexts have independent random directions, the null twin.

    body      h = nz( sqrt(1-o) * nz( sqrt(rho) c_k + sqrt(1-rho) s_qtkf ) + sqrt(o) * f_f )
    c_k       = nz( sqrt(aniso) u + sqrt(1-aniso) r_k )
    decision  h = nz( sqrt(rho_d) d_f + sqrt(1-rho_d) s_qf )
    drift     h <- nz( sqrt(1-g_l) h + sqrt(g_l) garbage )       at drift level l

    s         = nz( sqrt(kappa) v_q + sqrt(1-kappa) s )          where kappa > 0

with q query, t turn, k position, f feedback; rho `position_similarity`, o `feedback_similarity` (0 before any
feedback), rho_d `decision_similarity`, g `garbage_similarity`, kappa `question_similarity`; s, r, u, f, d, v, garbage
random unit vectors, and nz normalises.
What this file does not do: train features (they are inputs here; `feature_rate` puts a trained map U before them), or
know what a token means.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from lldsim.config import WorldConfig


@dataclass(frozen=True)
class HiddenTable:
    """All hidden states of a world, stored without drift; drift is a mixture with one direction.

    h(row, level) = mix[row, level, 0] * plain[row] + mix[row, level, 1] * garbage.
    """

    plain: np.ndarray  # (rows, D), unit norm
    mix: np.ndarray  # (rows, L, 2)
    garbage: np.ndarray  # (D,), unit norm

    def hidden(self, row: np.ndarray, level: np.ndarray) -> np.ndarray:
        """Return the hidden states (N, D) of table rows `row` (N,) at drift levels `level` (N,)."""
        a, b = self.mix[row, level, 0], self.mix[row, level, 1]
        return a[:, None] * self.plain[row] + b[:, None] * self.garbage


def build_hidden(config: WorldConfig, n_feedback: int, rng: np.random.Generator) -> HiddenTable:
    """Draw the hidden states of one world.

    Rows: body (P, turns, body positions, feedback), then decisions (P, feedback). Unused rows (feedback before the
    first action) are drawn too, so that the layout is a plain reshape.
    """
    n_body, d = config.turn_tokens - 1, config.n_features
    rho, aniso, ood = config.position_similarity, config.anisotropy, config.feedback_similarity

    def unit(*shape: int) -> np.ndarray:
        return normalize(rng.standard_normal((*shape, d)))

    common, garbage = unit(), unit()
    position = normalize(np.sqrt(aniso) * common + np.sqrt(1 - aniso) * unit(n_body))
    feedback, decision = unit(n_feedback), unit(n_feedback)
    body = unit(config.n_queries, config.max_turns, n_body, n_feedback)
    own_decision = unit(config.n_queries, n_feedback)
    if config.question_similarity > 0:  # drawn last, so that the other directions stay what they are without it
        kappa, query = config.question_similarity, unit(config.n_queries)
        body = normalize(np.sqrt(kappa) * query[:, None, None, None] + np.sqrt(1 - kappa) * body)
        own_decision = normalize(np.sqrt(kappa) * query[:, None] + np.sqrt(1 - kappa) * own_decision)
    body = normalize(np.sqrt(rho) * position[:, None] + np.sqrt(1 - rho) * body)
    shift = np.where(np.arange(n_feedback) > 0, ood, 0.0)[:, None]
    body = normalize(np.sqrt(1 - shift) * body + np.sqrt(shift) * feedback)
    rho_d = config.decision_similarity
    decide = normalize(np.sqrt(rho_d) * decision + np.sqrt(1 - rho_d) * own_decision)
    plain = np.concatenate([body.reshape(-1, d), decide.reshape(-1, d)])

    g = np.asarray(config.garbage_similarity)
    overlap = plain @ garbage
    norm = np.sqrt(1 + 2 * np.sqrt(g * (1 - g)) * overlap[:, None])  # |sqrt(1-g) h + sqrt(g) garbage|, both unit
    mix = np.stack([np.sqrt(1 - g) / norm, np.sqrt(g) / norm], axis=-1)
    return HiddenTable(plain, mix, garbage)


def normalize(x: np.ndarray) -> np.ndarray:
    """Return `x` scaled to unit Euclidean norm along its last axis."""
    return x / np.linalg.norm(x, axis=-1, keepdims=True)
