"""The compiled twin of trainer.py: one rollout batch, and the optimiser steps on it, as plain loops over numbers.

Each function works on a single run and allocates nothing per token, so many runs cost what they cost one by one, and a
run's result cannot depend on its neighbours. The gradient is the closed form of the whole loss (Eq. 6): for a token y
with probabilities p, log-probabilities l, entropy H, and c = dLoss/dl_y, e = entropy_coef * (token's weight),

    dLoss/dlogits_v = c * (1[v = y] - p_v) + e * p_v * (l_v + H),        dLoss/dW = sum over tokens of that (x) h.

Tests compare it with autograd of `lldsim.objectives.total_loss`, and whole trajectories with trainer.py.
What this file does not do: build tables, draw random numbers or name metrics (world.py, draws.py, engine.py).
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numba import njit

from lldsim.k3 import gaps_at
from lldsim.world import BAD, GOOD, INVALID, NONE, SEARCH

# Reassociation and fused multiply-add let sums vectorise; NaN and infinity keep their meaning.
_jit = njit(cache=True, fastmath={"contract", "reassoc", "nsz"}, error_model="numpy")

GRPO, GSPO, CISPO = 0, 1, 2
TOKEN_MEAN, SEQ_MEAN_TOKEN_MEAN, SEQ_MEAN_TOKEN_SUM = 0, 1, 2
CLAMPED, LINEAR, RAW = 0, 1, 2
GATE_TOKEN, GATE_RESPONSE, GATE_ACTION = 0, 1, 2
K3_MAX = 10.0  # value at which the clamped and the linear k3 leave e^d - d - 1 ...
K3_LOW, K3_HIGH = gaps_at(K3_MAX)  # ... and the gaps d at which that happens


class Tables(NamedTuple):
    """A world's arrays in the run's precision (see world.py)."""

    canon: np.ndarray  # (K-1,)
    feature_row: np.ndarray  # (P, turns, K, F)
    base_row: np.ndarray  # (K, F, L)
    base_logps: np.ndarray  # (rows, V)
    plain: np.ndarray  # (rows, D)
    mix: np.ndarray  # (rows, L, 2)
    garbage: np.ndarray  # (D,)


class Dials(NamedTuple):
    """A configuration as numbers; floats in the run's precision where they meet arrays."""

    group_size: int
    n_answers: int
    invalid_threshold: int
    search_noise: float
    invalid_ends_episode: bool
    hops: int
    near_miss: float
    inverse_temperature: float
    top_k: int
    top_p: float
    sampler_noise: float
    updates_per_rollout: int
    adam: bool
    learning_rate: float
    momentum: float
    feature_rate: float  # of U, already times learning_rate; 0 = fixed features
    grad_clip: float
    std_ddof: int
    std_normalize: bool
    advantage_eps: float
    gae: bool
    gae_lambda: float
    critic_states: int
    critic_step: float
    whiten: bool
    surrogate: int
    aggregation: int
    clip_low: float
    clip_high: float
    dual_clip: float  # inf = off
    ratio_to_sampler: bool
    tis_cap: float  # inf with tis off
    tis: bool
    mis: bool
    mis_low: float
    mis_high: float
    cispo_cap: float
    probability_weight: float
    nthr: bool
    nthr_beta: float
    nthr_eta: float
    mask_shared_prefix: bool
    negative_weight: float
    kl_coef: float
    kl_form: int
    entropy_coef: float
    llds_coef: float
    gate: int
    normalize_all: bool
    answer_weight: float
    answer_weight_rule: int  # 0 fixed, 1 paper, 2 released code


class Rollout(NamedTuple):
    """What was sampled; arrays are reused from update to update and valid up to `turns`."""

    tokens: np.ndarray  # (B, turns, K)
    level: np.ndarray  # (B, turns, K) drift level before the token
    feedback: np.ndarray  # (B, turns) what the action follows
    turns: np.ndarray  # (B,)
    reward: np.ndarray  # (B,)
    advantage: np.ndarray  # (B,) of the group
    searches: np.ndarray  # (B,) valid ones
    invalid: np.ndarray  # (B,) actions
    answered: np.ndarray  # (B,) 1 if the last action answers
    old_logps: np.ndarray  # (B, turns, K)
    ref_logps: np.ndarray  # (B, turns, K)
    sampler_logps: np.ndarray  # (B, turns, K)
    entropy: np.ndarray  # (B, turns, K)
    token_advantage: np.ndarray  # (B, turns, K) the group's, or a critic's (arm_kernels.py)
    token_weight: np.ndarray  # (B, turns, K) in the surrogate, 1 by default


class Memo(NamedTuple):
    """Distributions of the contexts that one query's group has visited: its members share many."""

    slot: np.ndarray  # (turns, K, F, L) -> slot, valid where owner is the query
    owner: np.ndarray  # (turns, K, F, L)
    cdf: np.ndarray  # (slots, V) of the sampler
    sampler_logps: np.ndarray  # (slots, V)
    logps: np.ndarray  # (slots, V) of the trainer
    entropy: np.ndarray  # (slots,)
    hidden: np.ndarray  # (D,) scratch


class Scratch(NamedTuple):
    """Per-token work arrays of one minibatch, and the optimiser's moments."""

    response: np.ndarray  # (N,)
    turn: np.ndarray  # (N,)
    position: np.ndarray  # (N,)
    hidden: np.ndarray  # (N, D)
    logps_all: np.ndarray  # (N, V)
    probs: np.ndarray  # (N, V)
    logps: np.ndarray  # (N,) of the sampled token
    entropy: np.ndarray  # (N,)
    coefficient: np.ndarray  # (N,) dLoss/dlogp
    weight: np.ndarray  # (N,) aggregation weight
    gradient: np.ndarray  # (V, D)
    first: np.ndarray  # (V, D) momentum, or Adam's first moment
    second: np.ndarray  # (V, D) Adam's second moment
    steps: np.ndarray  # (1,) optimiser steps taken
    features: np.ndarray  # (D, D) U of trainable features, the identity otherwise
    product: np.ndarray  # (V, D) W U
    feature_gradient: np.ndarray  # (D, D)
    feature_first: np.ndarray  # (D, D) moments of U
    feature_second: np.ndarray  # (D, D)


@_jit
def hidden_state(out, tables, row, level):
    """Write h = a * plain + b * garbage."""
    a, b = tables.mix[row, level, 0], tables.mix[row, level, 1]
    for d in range(out.shape[0]):
        out[d] = a * tables.plain[row, d] + b * tables.garbage[d]


@_jit
def logits(out, base, weights, hidden):
    """Write base + W h."""
    for v in range(out.shape[0]):
        total = base[v]
        for d in range(hidden.shape[0]):
            total += weights[v, d] * hidden[d]
        out[v] = total


@_jit
def logits_of_two(out, other_out, base, weights, other_weights, hidden):
    """Write base + W h for two weight matrices, which share each load of h."""
    for v in range(out.shape[0]):
        total, other = base[v], base[v]
        for d in range(hidden.shape[0]):
            total += weights[v, d] * hidden[d]
            other += other_weights[v, d] * hidden[d]
        out[v], other_out[v] = total, other


@_jit
def add_logits(out, weights, hidden, n):
    """Add W h to the first `n` rows of `out`, four rows at a time, which share each load of W."""
    n_vocab, n_features = weights.shape
    whole = n - n % 4
    for i in range(0, whole, 4):
        for v in range(n_vocab):
            a, b, c, e = out[i, v], out[i + 1, v], out[i + 2, v], out[i + 3, v]
            for d in range(n_features):
                w = weights[v, d]
                a += w * hidden[i, d]
                b += w * hidden[i + 1, d]
                c += w * hidden[i + 2, d]
                e += w * hidden[i + 3, d]
            out[i, v], out[i + 1, v], out[i + 2, v], out[i + 3, v] = a, b, c, e
    for i in range(whole, n):
        for v in range(n_vocab):
            for d in range(n_features):
                out[i, v] += weights[v, d] * hidden[i, d]


@njit(fastmath={"contract", "reassoc", "nsz"}, inline="always")
def exp_non_positive(x):
    """Return e^x for x <= 0 to two ulp, in a form that compilers vectorise (the library's is 5 times slower here).

    2^n e^r with n = round(x / ln 2), e^r by its Taylor series, 2^n written into the exponent bits. Below -60 the
    result stays at e^-60: no draw or gradient can tell, and numbers too small to be normal are slow.
    """
    x = max(x, -60.0)
    n = np.floor(x * 1.4426950408889634 + 0.5)
    r = (x - n * 0.6931471803691238) - n * 1.9082149292705877e-10
    p = 1 / 6227020800
    for c in (1 / 479001600, 1 / 39916800, 1 / 3628800, 1 / 362880, 1 / 40320, 1 / 5040, 1 / 720):
        p = p * r + c
    for c in (1 / 120, 1 / 24, 1 / 6, 1 / 2, 1.0, 1.0):
        p = p * r + c
    bits = np.float64(n + 6755399441055744.0).view(np.int64) << 52  # 1.5 * 2^52 puts n into the lowest bits
    return p * np.int64(bits + (1023 << 52)).view(np.float64)


@_jit
def log_softmax(x, probs):
    """Turn logits `x` into log-probabilities in place, write probabilities, return the entropy."""
    top = x[0]
    for v in range(1, x.shape[0]):
        top = max(top, x[v])
    for v in range(x.shape[0]):
        probs[v] = exp_non_positive(x[v] - top)
    total = probs[0]
    for v in range(1, x.shape[0]):
        total += probs[v]
    shift = top + np.log(total)
    inverse = 1 / total
    entropy = shift - shift
    for v in range(x.shape[0]):
        x[v] -= shift
        probs[v] *= inverse
        entropy -= probs[v] * x[v]
    return entropy


@_jit
def keep_top(logps, probs, top_k, top_p):
    """Restrict a distribution to its top_k tokens, and those to their smallest set with mass >= top_p, in place."""
    order = np.argsort(-probs, kind="mergesort")  # stable: ties go to the lower token
    most = min(top_k, order.shape[0])
    limit = top_p if top_p < 1 else np.inf
    if most < order.shape[0]:
        limit *= probs[order[:most]].sum()
    mass, kept = 0.0, 0
    while kept < most and mass < limit:
        mass += probs[order[kept]]
        kept += 1
    for i in range(order.shape[0]):
        v = order[i]
        if i < kept:
            logps[v] -= np.log(mass)
            probs[v] /= mass
        else:
            logps[v] = -np.inf
            probs[v] = 0.0


@_jit
def visit(memo, tables, dials, weights, sampler_weights, noise, q, t, k, f, level, n_slots):
    """Compute both policies in one context and store them in the next free slot of the memo."""
    hidden_state(memo.hidden, tables, tables.feature_row[q, t, k, f], level)
    base = tables.base_logps[tables.base_row[k, f, level]]
    logps, cdf, sampler_logps = memo.logps[n_slots], memo.cdf[n_slots], memo.sampler_logps[n_slots]
    logits_of_two(logps, sampler_logps, base, weights, sampler_weights, memo.hidden)
    memo.entropy[n_slots] = log_softmax(logps, cdf)
    if dials.sampler_noise > 0:
        for v in range(sampler_logps.shape[0]):
            sampler_logps[v] += dials.sampler_noise * noise[q, t, k, v]
    for v in range(sampler_logps.shape[0]):
        sampler_logps[v] *= dials.inverse_temperature
    log_softmax(sampler_logps, cdf)
    if dials.top_p < 1 or dials.top_k < cdf.shape[0]:
        keep_top(sampler_logps, cdf, dials.top_k, dials.top_p)
    for v in range(1, cdf.shape[0]):
        cdf[v] += cdf[v - 1]
    memo.owner[t, k, f, level] = q
    memo.slot[t, k, f, level] = n_slots


@_jit
def inverse_cdf(cdf, u):
    """Return the first index whose cumulative probability exceeds u times the total."""
    last = cdf.shape[0] - 1
    target = u * cdf[last]
    for v in range(last):
        if cdf[v] > target:
            return v
    while last > 0 and cdf[last - 1] == cdf[last]:  # never a token of probability 0
        last -= 1
    return last


@_jit
def named_answer(dials, answer, document):
    """Return the answer that a good document names; see world.named_answer."""
    cut = 1 - dials.near_miss * (1 - dials.search_noise)
    if document < cut:
        return answer
    wrong = int(1 + (document - cut) / max(1 - cut, 1e-300) * (dials.n_answers - 1))
    return (answer - 1 + min(max(wrong, 1), dials.n_answers - 1)) % dials.n_answers + 1


@_jit
def rollout(tables, dials, weights, sampler_weights, draws, out, memo):
    """Sample one rollout batch: every query's group, action by action, token by token."""
    n_queries, max_turns, n_positions, _ = tables.feature_row.shape
    n_levels = tables.base_row.shape[2]
    memo.owner[:] = -1
    for q in range(n_queries):
        n_slots = 0
        for b in range(q * dials.group_size, (q + 1) * dials.group_size):
            f, level, t, done, found = NONE, 0, 0, False, 0
            out.reward[b], out.searches[b], out.invalid[b], out.answered[b] = 0, 0, 0, 0
            while t < max_turns and not done:
                out.feedback[b, t] = f
                off = 0
                decision = 0
                for k in range(n_positions):
                    if memo.owner[t, k, f, level] != q:
                        visit(memo, tables, dials, weights, sampler_weights, draws.noise, q, t, k, f, level, n_slots)
                        n_slots += 1
                    slot = memo.slot[t, k, f, level]
                    y = inverse_cdf(memo.cdf[slot], draws.token[b, t, k])
                    out.tokens[b, t, k] = y
                    out.level[b, t, k] = level
                    out.old_logps[b, t, k] = memo.logps[slot, y]
                    out.ref_logps[b, t, k] = tables.base_logps[tables.base_row[k, f, level], y]
                    out.sampler_logps[b, t, k] = memo.sampler_logps[slot, y]
                    out.entropy[b, t, k] = memo.entropy[slot]
                    if k == n_positions - 1:
                        decision = y
                    elif y == tables.canon[k]:
                        level = max(level - 1, 0)
                    else:
                        level = min(level + 1, n_levels - 1)
                        off += 1
                if off >= dials.invalid_threshold or decision > dials.n_answers:
                    out.invalid[b] += 1
                    f, done = INVALID, dials.invalid_ends_episode
                elif decision == SEARCH:
                    out.searches[b] += 1
                    found += draws.document[b, t] >= dials.search_noise
                    if draws.document[b, t] < dials.search_noise or found < dials.hops:
                        f = BAD
                    else:
                        f = GOOD + named_answer(dials, draws.answer[q], draws.document[b, t])
                    level = 0
                else:
                    out.answered[b] = 1
                    out.reward[b] = 1.0 if decision == draws.answer[q] else 0.0
                    done = True
                t += 1
            out.turns[b] = t


@_jit
def advantages(dials, out):
    """Write each response's group advantage (see advantages.py); a tied group gives exactly 0."""
    g = dials.group_size
    for start in range(0, out.reward.shape[0], g):
        rewards = out.reward[start : start + g]
        if rewards.min() == rewards.max():
            out.advantage[start : start + g] = 0
            continue
        mean = rewards.mean()
        scale = 1.0
        if dials.std_normalize:
            scale = np.sqrt(((rewards - mean) ** 2).sum() / (g - dials.std_ddof)) + dials.advantage_eps
        for b in range(start, start + g):
            out.advantage[b] = (out.reward[b] - mean) / scale


@_jit
def spread_advantages(out):
    """Give every token its response's group advantage and weight 1."""
    for b in range(out.turns.shape[0]):
        out.token_advantage[b] = out.advantage[b]
        out.token_weight[b] = 1.0


@_jit
def gather(tables, weights, roll, members, s):
    """Lay the action tokens of the responses `members` end to end and run the policy on them; return their number."""
    n = 0
    for b in members:
        q = b // (roll.turns.shape[0] // tables.feature_row.shape[0])
        for t in range(roll.turns[b]):
            f = roll.feedback[b, t]
            for k in range(roll.tokens.shape[2]):
                level = roll.level[b, t, k]
                s.response[n], s.turn[n], s.position[n] = b, t, k
                hidden_state(s.hidden[n], tables, tables.feature_row[q, t, k, f], level)
                base = tables.base_row[k, f, level]
                for v in range(weights.shape[0]):
                    s.logps_all[n, v] = tables.base_logps[base, v]
                n += 1
    add_logits(s.logps_all, weights, s.hidden, n)
    for i in range(n):
        s.entropy[i] = log_softmax(s.logps_all[i], s.probs[i])
        s.logps[i] = s.logps_all[i, roll.tokens[s.response[i], s.turn[i], s.position[i]]]
    return n


@_jit
def aggregation_weights(dials, roll, members, n, s):
    """Write each token's weight in the loss: mean over tokens, or over responses of their mean or sum."""
    for i in range(n):
        if dials.aggregation == TOKEN_MEAN:
            s.weight[i] = 1.0 / n
        elif dials.aggregation == SEQ_MEAN_TOKEN_MEAN:
            tokens = roll.turns[s.response[i]] * roll.tokens.shape[2]
            s.weight[i] = 1.0 / (members.shape[0] * tokens)
        else:
            s.weight[i] = 1.0 / members.shape[0]


@_jit
def surrogate_gradient(dials, roll, n, s, metrics):
    """Write dLoss/dlogp of the surrogate: ratio per token (Eq. 1), per response (GSPO), or a capped weight (CISPO)."""
    i, units, n_clipped = 0, 0, 0
    while i < n:
        b, stop = s.response[i], i + 1
        if dials.surrogate == GSPO:
            while stop < n and s.response[stop] == b:
                stop += 1
        gap = 0.0
        for j in range(i, stop):
            t, k = s.turn[j], s.position[j]
            denominator = roll.sampler_logps[b, t, k] if dials.ratio_to_sampler else roll.old_logps[b, t, k]
            gap += s.logps[j] - denominator
        ratio = np.exp(gap / (stop - i))
        metrics[RATIO_MAX] = max(metrics[RATIO_MAX], ratio)
        clipped = False
        for j in range(i, stop):
            t, k = s.turn[j], s.position[j]
            a = roll.token_advantage[b, t, k]
            if a < 0:
                a *= dials.negative_weight
            used = ratio
            if dials.surrogate == CISPO:
                outside = ratio > dials.cispo_cap
                stopped, used = False, min(ratio, dials.cispo_cap)
            else:
                outside = (a > 0 and ratio > 1 + dials.clip_high) or (a < 0 and ratio < 1 - dials.clip_low)
                stopped = outside or (a < 0 and ratio > dials.dual_clip)
            clipped = clipped or outside
            s.coefficient[j] = 0.0 if stopped else -a * used * s.weight[j] * roll.token_weight[b, t, k]
        units += 1
        n_clipped += clipped
        i = stop
    metrics[CLIP_FRACTION] += n_clipped / units


@_jit
def kl_gradient(dials, roll, n, s, metrics):
    """Add kl_coef * d k3/dlogp with k3 = e^d - d - 1, d = ref - logp, clamped, continued linearly, or raw."""
    for i in range(n):
        d = roll.ref_logps[s.response[i], s.turn[i], s.position[i]] - s.logps[i]
        inside = d if dials.kl_form == RAW else min(max(d, K3_LOW), K3_HIGH)
        value = np.expm1(inside) - inside
        slope = -np.expm1(inside)
        if inside != d:
            if dials.kl_form == LINEAR:
                value -= slope * (d - inside)
            else:
                slope = 0.0
        metrics[KL] += value * s.weight[i]
        s.coefficient[i] += dials.kl_coef * s.weight[i] * slope


@_jit
def llds_gradient(dials, weight_of_answer, roll, n, s, metrics):
    """Add llds_coef * d LLDS/dlogp (Eqs. 4, 5, 9, 10): -w/N on each fallen token of an open unit with A >= 0."""
    preserved = 0
    for i in range(n):
        preserved += roll.token_advantage[s.response[i], s.turn[i], s.position[i]] >= 0
    normalizer = n if dials.normalize_all else preserved
    i, units, n_open = 0, 0, 0
    while i < n:
        b, t, stop = s.response[i], s.turn[i], i + 1
        if dials.gate != GATE_TOKEN:
            while stop < n and s.response[stop] == b and (s.turn[stop] == t or dials.gate == GATE_RESPONSE):
                stop += 1
        total, members = 0.0, 0
        for j in range(i, stop):
            if roll.token_advantage[b, s.turn[j], s.position[j]] >= 0:
                total += roll.old_logps[b, s.turn[j], s.position[j]] - s.logps[j]
                members += 1
        if members > 0:
            units += 1
            n_open += total > 0
            for j in range(i, stop):
                drop = roll.old_logps[b, s.turn[j], s.position[j]] - s.logps[j]
                if total > 0 and drop > 0 and roll.token_advantage[b, s.turn[j], s.position[j]] >= 0:
                    is_answer = roll.answered[b] == 1 and s.turn[j] == roll.turns[b] - 1
                    w = weight_of_answer if is_answer else 1.0
                    metrics[LLDS] += w * drop / normalizer
                    s.coefficient[j] -= dials.llds_coef * w / normalizer
        i = stop
    metrics[GATE_FRACTION] += n_open / max(units, 1)


@_jit
def backward(dials, roll, n, s):
    """Sum dLoss/dW over the minibatch's tokens and return its Euclidean norm."""
    n_vocab, n_features = s.gradient.shape
    for i in range(n):
        c = s.coefficient[i]
        e = s.weight[i] * s.weight.dtype.type(dials.entropy_coef)
        shift = e * s.entropy[i] - c
        for v in range(n_vocab):
            s.probs[i, v] *= shift + e * s.logps_all[i, v]
        s.probs[i, roll.tokens[s.response[i], s.turn[i], s.position[i]]] += c
    g = s.gradient
    g[:] = 0
    whole = n - n % 4
    for i in range(0, whole, 4):
        for v in range(n_vocab):
            r0, r1, r2, r3 = s.probs[i, v], s.probs[i + 1, v], s.probs[i + 2, v], s.probs[i + 3, v]
            for d in range(n_features):
                g[v, d] += (r0 * s.hidden[i, d] + r1 * s.hidden[i + 1, d]) + (
                    r2 * s.hidden[i + 2, d] + r3 * s.hidden[i + 3, d]
                )
    for i in range(whole, n):
        for v in range(n_vocab):
            for d in range(n_features):
                g[v, d] += s.probs[i, v] * s.hidden[i, d]
    square = 0.0
    for v in range(n_vocab):
        for d in range(n_features):
            square += g[v, d] * g[v, d]
    return np.sqrt(square)


@_jit
def chain(weights, s):
    """Turn dLoss/d(W U) in `s.gradient` into dLoss/dW there and dLoss/dU beside it, and return their joint norm."""
    n_vocab, n_features = weights.shape
    s.feature_gradient[:] = 0
    for v in range(n_vocab):
        for c in range(n_features):
            for d in range(n_features):
                s.feature_gradient[c, d] += weights[v, c] * s.gradient[v, d]
    square = 0.0
    for v in range(n_vocab):
        row = s.gradient[v].copy()
        for c in range(n_features):
            total = row[0] * s.features[c, 0]
            for d in range(1, n_features):
                total += row[d] * s.features[c, d]
            s.gradient[v, c] = total
            square += total * total
    for c in range(n_features):
        for d in range(n_features):
            square += s.feature_gradient[c, d] ** 2
    return np.sqrt(square)


@_jit
def multiply(weights, s):
    """Write the product W U, the matrix that meets the hidden states."""
    s.product[:] = 0
    for v in range(weights.shape[0]):
        for c in range(weights.shape[1]):
            for d in range(weights.shape[1]):
                s.product[v, d] += weights[v, c] * s.features[c, d]


@_jit
def step_matrix(dials, rate, values, gradient, first, second, scale, steps):
    """Take one SGD (with momentum) or Adam step on one matrix in place."""
    correct1, correct2 = 1 - 0.9**steps, 1 - 0.999**steps
    for v in range(values.shape[0]):
        for d in range(values.shape[1]):
            g = gradient[v, d] * scale
            if dials.adam:
                first[v, d] = 0.9 * first[v, d] + 0.1 * g
                second[v, d] = 0.999 * second[v, d] + 0.001 * g * g
                values[v, d] -= rate * (first[v, d] / correct1) / (np.sqrt(second[v, d] / correct2) + 1e-8)
            else:
                first[v, d] = dials.momentum * first[v, d] + g
                values[v, d] -= rate * first[v, d]


@_jit
def optimizer_step(dials, weights, norm, s):
    """Clip the gradient to norm grad_clip and take one step on W, and on U where features are trained."""
    s.steps[0] += 1
    scale = min(1.0, dials.grad_clip / (norm + 1e-6))
    step_matrix(dials, dials.learning_rate, weights, s.gradient, s.first, s.second, scale, s.steps[0])
    if dials.feature_rate > 0:
        step_matrix(
            dials, dials.feature_rate, s.features, s.feature_gradient, s.feature_first, s.feature_second, scale,
            s.steps[0],
        )  # fmt: skip
        multiply(weights, s)


# Slots of the metrics vector: sums over the update's optimiser steps, and the largest ratio.
GRAD_NORM, RATIO_MAX, CLIP_FRACTION, KL, LLDS, GATE_FRACTION, N_METRICS = range(7)


@_jit
def loss_gradient(tables, dials, policy, weights, roll, members, s, metrics):
    """Write the total loss's gradient over the responses `members` to s.gradient (and U's) and return its norm.

    `policy` is the matrix that meets the hidden states: `weights` itself, or W U where features are trained.
    """
    n = gather(tables, policy, roll, members, s)
    aggregation_weights(dials, roll, members, n, s)
    surrogate_gradient(dials, roll, n, s, metrics)
    kl_gradient(dials, roll, n, s, metrics)
    llds_gradient(dials, answer_weight(dials, roll), roll, n, s, metrics)
    norm = backward(dials, roll, n, s)
    return chain(weights, s) if dials.feature_rate > 0 else norm


@_jit
def answer_weight(dials, roll):
    """Return the weight of answer tokens in LLDS (Eq. 5): fixed, the paper's, or the released code's."""
    v = roll.searches.mean()
    if dials.answer_weight_rule == 1:
        return min(v / 2, 1.0)
    if dials.answer_weight_rule == 2:  # mask weight = lambda
        return min(max(v - 1, 0.0), 1.0)
    return dials.answer_weight


@_jit
def update(tables, dials, weights, roll, order, s, metrics):
    """Take `updates_per_rollout` optimiser steps on one rollout batch; sums of the metrics are added up."""
    size = order.shape[0] // dials.updates_per_rollout
    policy = weights
    if dials.feature_rate > 0:
        policy = s.product
        multiply(weights, s)
    for m in range(dials.updates_per_rollout):
        members = order[m * size : (m + 1) * size]
        norm = loss_gradient(tables, dials, policy, weights, roll, members, s, metrics)
        if not np.isfinite(norm):
            return False
        optimizer_step(dials, weights, norm, s)
        metrics[GRAD_NORM] += norm
    return True


# Columns that a rollout batch alone determines, in the order `describe` writes them.
REWARD, LOGP_CORRECT, LOGP_WRONG, ENTROPY, LENGTH, SEARCHES, INVALIDS, TIED, SAMPLER_GAP = range(9)
CORRECT_1, CORRECT_2, WRONG_1, WRONG_2, FIRST_SEARCH_WRONG, N_DESCRIBED = range(9, 15)


@_jit
def describe(roll, group_size, out):
    """Write means over the rollout batch; a mean over nothing (no wrong response, no second action) is NaN.

    Log-probabilities are the trainer's at temperature 1, per action token of the responses meant.
    """
    n, n_positions = roll.turns.shape[0], roll.tokens.shape[2]
    total, count = np.zeros(6), np.zeros(6)  # correct, wrong; first and second action of each
    entropy, gap, first_search = 0.0, 0.0, 0.0
    for b in range(n):
        wrong = 0 if roll.reward[b] > 0 else 1
        for t in range(roll.turns[b]):
            action_sum = 0.0
            for k in range(n_positions):
                action_sum += roll.old_logps[b, t, k]
                entropy += roll.entropy[b, t, k]
                gap += roll.sampler_logps[b, t, k] - roll.old_logps[b, t, k]
            total[wrong] += action_sum
            count[wrong] += n_positions
            if t < 2:
                total[2 + 2 * wrong + t] += action_sum
                count[2 + 2 * wrong + t] += n_positions
        if wrong and roll.turns[b] > 1 and roll.feedback[b, 1] != INVALID:
            first_search += 1
    tokens = count[0] + count[1]
    out[REWARD] = roll.reward.mean()
    out[ENTROPY], out[LENGTH], out[SAMPLER_GAP] = entropy / tokens, tokens / n, gap / tokens
    out[SEARCHES], out[INVALIDS] = roll.searches.mean(), roll.invalid.mean()
    tied = 0
    for start in range(0, n, group_size):
        rewards = roll.reward[start : start + group_size]
        tied += rewards.min() == rewards.max()
    out[TIED] = tied / (n // group_size)
    means = total / count  # 0/0 = NaN: missing, not zero
    out[LOGP_CORRECT], out[LOGP_WRONG] = means[0], means[1]
    out[CORRECT_1], out[CORRECT_2], out[WRONG_1], out[WRONG_2] = means[2], means[3], means[4], means[5]
    out[FIRST_SEARCH_WRONG] = first_search / (n - roll.reward.sum())
