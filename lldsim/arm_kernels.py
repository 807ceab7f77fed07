"""Compiled twins of the arms that look at a whole rollout batch: GAE, NTHR, shared prefixes, token weights.

They run once per rollout batch, before the optimiser steps, and fill `roll.token_advantage` and `roll.token_weight`
that the surrogate reads. The forms to read are lldsim/critic.py and lldsim/objectives/reweight.py.
What this file does not do: sample, or take a step (kernels.py).
"""

from __future__ import annotations

import numpy as np
from numba import njit

from lldsim.kernels import hidden_state, log_softmax, logits

_jit = njit(cache=True, fastmath={"contract", "reassoc", "nsz"}, error_model="numpy")

CONSTANT, SHARED, QUERY = 0, 1, 2


@_jit
def gae_advantages(dials, critic, roll):
    """Write token advantages from the critic (P or 1, turns or 1, F, L, 2) and move its values to their targets."""
    total, count = np.zeros(critic.shape), np.zeros(critic.shape)
    n_positions = roll.tokens.shape[2]
    n_tokens, mean = 0, 0.0
    for b in range(roll.turns.shape[0]):
        later, next_value = 0.0, 0.0
        for t in range(roll.turns[b] - 1, -1, -1):
            for k in range(n_positions - 1, -1, -1):
                i, j, f, level, d = 0, 0, 0, 0, 0
                if dials.critic_states != CONSTANT:
                    j, f, level = t, roll.feedback[b, t], roll.level[b, t, k]
                    d = 1 if k == n_positions - 1 else 0
                if dials.critic_states == QUERY:
                    i = b // dials.group_size
                value = critic[i, j, f, level, d]
                delta = next_value - value
                if t == roll.turns[b] - 1 and k == n_positions - 1:
                    delta += roll.reward[b]
                later = delta + dials.gae_lambda * later
                next_value = value
                roll.token_advantage[b, t, k] = later
                total[i, j, f, level, d] += later + value
                count[i, j, f, level, d] += 1
                mean += later
                n_tokens += 1
    sums, counts, values = total.ravel(), count.ravel(), critic.ravel()
    for i in range(values.shape[0]):
        if counts[i] > 0:
            values[i] += dials.critic_step * (sums[i] / counts[i] - values[i])
    if not dials.whiten:
        return
    mean /= n_tokens
    square = 0.0
    for b in range(roll.turns.shape[0]):
        for t in range(roll.turns[b]):
            for k in range(n_positions):
                square += (roll.token_advantage[b, t, k] - mean) ** 2
    scale = np.sqrt(square / (n_tokens - 1) + 1e-8)
    for b in range(roll.turns.shape[0]):
        for t in range(roll.turns[b]):
            for k in range(n_positions):
                roll.token_advantage[b, t, k] = (roll.token_advantage[b, t, k] - mean) / scale


@_jit
def token_weights(dials, tables, weights, roll):
    """Write the product of all token weights of the configuration (1 where none applies)."""
    n_positions = roll.tokens.shape[2]
    for b in range(roll.turns.shape[0]):
        for t in range(roll.turns[b]):
            for k in range(n_positions):
                w = 1.0
                if dials.tis or dials.mis:
                    w = np.exp(roll.old_logps[b, t, k] - roll.sampler_logps[b, t, k])
                    if dials.tis:
                        w = min(w, dials.tis_cap)
                    elif w < dials.mis_low or w > dials.mis_high:
                        w = 0.0
                if dials.probability_weight > 0:
                    w *= dials.probability_weight * np.exp(roll.old_logps[b, t, k]) + 1 - dials.probability_weight
                roll.token_weight[b, t, k] = w
    if dials.mask_shared_prefix:
        mask_shared_prefixes(dials, roll)
    if dials.nthr:
        nthr(dials, tables, weights, roll)


@_jit
def mask_shared_prefixes(dials, roll):
    """Give weight 0 to the tokens of wrong responses that open a right response of their group."""
    g, n_positions = dials.group_size, roll.tokens.shape[2]
    for j in range(roll.turns.shape[0]):
        if roll.advantage[j] >= 0:
            continue
        longest = 0
        for i in range(j // g * g, (j // g + 1) * g):
            if roll.advantage[i] <= 0:
                continue
            shared, same = 0, True
            for t in range(min(roll.turns[i], roll.turns[j])):
                same = same and roll.feedback[i, t] == roll.feedback[j, t]
                for k in range(n_positions):
                    same = same and roll.tokens[i, t, k] == roll.tokens[j, t, k]
                    shared += same
            longest = max(longest, shared)
        for n in range(longest):
            roll.token_weight[j, n // n_positions, n % n_positions] = 0.0


@_jit
def _residual(tables, weights, roll, q, b, t, k, hidden, x, residual):
    """Write the hidden state and e_y - pi of one token under the policy before the update."""
    row, level = tables.feature_row[q, t, k, roll.feedback[b, t]], roll.level[b, t, k]
    hidden_state(hidden, tables, row, level)
    logits(x, tables.base_logps[tables.base_row[k, roll.feedback[b, t], level]], weights, hidden)
    log_softmax(x, residual)
    for v in range(residual.shape[0]):
        residual[v] = -residual[v]
    residual[roll.tokens[b, t, k]] += 1


@_jit
def nthr(dials, tables, weights, roll):
    """Multiply by nthr_eta the weight of wrong tokens whose score exceeds nthr_beta * the lowest right mean."""
    g, n_positions = dials.group_size, roll.tokens.shape[2]
    n_vocab, n_features = weights.shape
    hidden, x, residual = np.zeros_like(weights[0]), np.zeros_like(weights[:, 0]), np.zeros_like(weights[:, 0])
    pull = np.zeros_like(weights)
    score = np.zeros((g, roll.tokens.shape[1], n_positions))
    for start in range(0, roll.turns.shape[0], g):
        pull[:] = 0
        for b in range(start, start + g):
            if roll.advantage[b] <= 0:
                continue
            for t in range(roll.turns[b]):
                for k in range(n_positions):
                    _residual(tables, weights, roll, b // g, b, t, k, hidden, x, residual)
                    for v in range(n_vocab):
                        for d in range(n_features):
                            pull[v, d] += residual[v] * hidden[d]
        lowest = np.inf
        for b in range(start, start + g):
            total = 0.0
            for t in range(roll.turns[b]):
                for k in range(n_positions):
                    if roll.advantage[b] == 0:
                        continue
                    _residual(tables, weights, roll, b // g, b, t, k, hidden, x, residual)
                    s = 0.0
                    for v in range(n_vocab):
                        for d in range(n_features):
                            s += residual[v] * pull[v, d] * hidden[d]
                    score[b - start, t, k] = s
                    total += s
            if roll.advantage[b] > 0:
                lowest = min(lowest, total / (roll.turns[b] * n_positions))
        for b in range(start, start + g):
            if roll.advantage[b] >= 0:
                continue
            for t in range(roll.turns[b]):
                for k in range(n_positions):
                    if score[b - start, t, k] > dials.nthr_beta * lowest:
                        roll.token_weight[b, t, k] *= dials.nthr_eta
