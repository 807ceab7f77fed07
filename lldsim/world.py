"""The search world: think, search, read, answer - compiled to integer tables.

A response is a sequence of actions ("turns") of `turn_tokens` tokens: body tokens, one canonical word per position,
then one decision. Decision 0 searches, 1..n_answers answers. An action with too many off-canon words, or whose decision
is neither, is invalid and gets an error message. A search returns a document that names the hidden answer, or a bad
one; with `hops` > 1 the first good documents read as bad ones too, and with `near_miss` a good one may name a wrong
answer. An answer ends the episode with reward 1 if it is the hidden one; running out of turns ends it with reward 0.

A context is (query, turn, position, feedback, drift). Feedback: NONE, BAD document, INVALID message, or GOOD + z for a
document that names answer z. Drift counts recent off-canon words (+1 off, -1 on canon); it survives an invalid action
and is reset by any other: low likelihood breeds low likelihood.

The base policy is a table of log-probabilities per (position, feedback, drift); training adds W h on top.
What this file does not do: sample (rollout.py, kernels.py) or learn (trainer.py, engine.py).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from lldsim.config import RunConfig, WorldConfig
from lldsim.draws import world_generator
from lldsim.features import HiddenTable, build_hidden

SEARCH = 0  # decision token; answers are tokens 1..n_answers, words are all others
NONE, BAD, INVALID, GOOD = 0, 1, 2, 2  # feedback codes; a good document about answer z has code GOOD + z
_SPREAD = 0.05  # probability of a decision that is no decision, shared by all words

Index = np.ndarray | int


@dataclass(frozen=True)
class SearchWorld:
    """One world's tables; `context` below is the row-major index of (query, turn, position, feedback, drift)."""

    config: WorldConfig
    canon: np.ndarray  # (K-1,) int64, canonical word of each body position
    feature_row: np.ndarray  # (P, turns, K, F) int64 -> row of hidden
    base_row: np.ndarray  # (K, F, L) int64 -> row of base_logps
    base_logps: np.ndarray  # (rows, V), normalised
    hidden_table: HiddenTable

    @property
    def context_shape(self) -> tuple[int, int, int, int, int]:
        """(P, turns, K, F, L): queries, turns, tokens per action, feedback codes, drift levels."""
        return (*self.feature_row.shape, self.base_row.shape[2])  # type: ignore[return-value]

    def context(self, q: np.ndarray, t: Index, k: Index, f: Index, level: Index) -> np.ndarray:
        """Return context indices (N,) from their coordinates."""
        return np.ravel_multi_index(np.broadcast_arrays(q, t, k, f, level), self.context_shape)

    def hidden(self, context: np.ndarray) -> np.ndarray:
        """Return hidden states (N, D) of contexts (N,)."""
        q, t, k, f, level = np.unravel_index(context, self.context_shape)
        return self.hidden_table.hidden(self.feature_row[q, t, k, f], level)

    def base(self, context: np.ndarray) -> np.ndarray:
        """Return the base policy's log-probabilities (N, V) in contexts (N,)."""
        _, _, k, f, level = np.unravel_index(context, self.context_shape)
        return self.base_logps[self.base_row[k, f, level]]


def world_of(config: RunConfig) -> SearchWorld:
    """Build the world that a run takes place in: drawn by `world_seed`, or by `seed` where that is None."""
    trainer = config.trainer
    return build_world(config.world, seed=trainer.seed if trainer.world_seed is None else trainer.world_seed)


def build_world(config: WorldConfig, *, seed: int) -> SearchWorld:
    """Draw the world of `seed`: canonical words, hidden states, base policy.

    >>> world = build_world(WorldConfig(), seed=0)
    >>> world.context_shape
    (16, 8, 16, 7, 4)
    """
    rng = world_generator(seed)
    n_body, n_feedback, n_levels = config.turn_tokens - 1, 3 + config.n_answers, len(config.recovery)
    words = np.arange(1 + config.n_answers, config.vocab_size)
    canon = rng.permutation(words)[:n_body]
    hidden_table = build_hidden(config, n_feedback, rng)

    body_shape = (config.n_queries, config.max_turns, n_body, n_feedback)
    body_rows = np.arange(np.prod(body_shape)).reshape(body_shape)
    decision_rows = body_rows.size + np.arange(config.n_queries * n_feedback).reshape(
        config.n_queries, 1, 1, n_feedback
    )
    decision_rows = np.broadcast_to(decision_rows, (config.n_queries, config.max_turns, 1, n_feedback))
    feature_row = np.concatenate([body_rows, decision_rows], axis=2)

    base = np.empty((config.turn_tokens, n_feedback, n_levels, config.vocab_size))
    for f in range(n_feedback):
        for level in range(n_levels):
            for k in range(n_body):
                base[k, f, level] = body_probabilities(config, int(canon[k]), f, level)
            base[n_body, f, level] = decision_probabilities(config, f, level)
    base = base**config.base_power
    base /= base.sum(-1, keepdims=True)
    base_row = np.arange(np.prod(base.shape[:-1])).reshape(base.shape[:-1])
    base_logps = np.log(base).reshape(-1, config.vocab_size)
    return SearchWorld(config, canon, feature_row, base_row, base_logps, hidden_table)


def named_answer(config: WorldConfig, answer: np.ndarray, document: np.ndarray) -> np.ndarray:
    """Return the answer (N,) that a good document names: the hidden one, or a near miss, uniform over the others.

    `document` (N,) is the search's uniform draw, at or above `search_noise`; its upper end decides the near misses.
    """
    cut = 1 - config.near_miss * (1 - config.search_noise)
    wrong = 1 + (document - cut) / max(1 - cut, 1e-300) * (config.n_answers - 1)
    shift = np.where(document >= cut, np.clip(wrong, 1, config.n_answers - 1).astype(np.int64), 0)
    return (answer - 1 + shift) % config.n_answers + 1


def body_probabilities(config: WorldConfig, canon: int, feedback: int, level: int) -> np.ndarray:
    """Return the base probabilities (V,) of a body token: the canonical word, and all others alike."""
    p = config.canon_prob * config.recovery[level] * (config.bad_feedback_factor if feedback in (BAD, INVALID) else 1.0)
    out = np.full(config.vocab_size, (1 - p) / (config.vocab_size - 1))
    out[canon] = p
    return out


def decision_probabilities(config: WorldConfig, feedback: int, level: int) -> np.ndarray:
    """Return the base probabilities (V,) of a decision: search, answers, and a little of everything else."""
    z, v = config.n_answers, config.vocab_size
    out = np.zeros(v)
    if feedback > GOOD:
        out[SEARCH] = config.p_search_again
        out[1 : z + 1] = (1 - _SPREAD - config.p_search_again - config.p_answer) / z
        out[feedback - GOOD] += config.p_answer
    elif feedback == BAD and config.p_search_bad is not None:
        out[SEARCH] = config.p_search_bad
        out[1 : z + 1] = (1 - _SPREAD - config.p_search_bad) / z
    else:
        out[SEARCH] = config.p_search
        out[1 : z + 1] = config.p_guess
    out[z + 1 :] = (1 - out.sum()) / (v - z - 1)
    reliable = config.recovery[level]
    return reliable * out + (1 - reliable) / v
