"""Scripted episodes that the warm start imitates: mostly canonical words, a search, then an answer - often a wrong one.

The script stands for a base model that knows the protocol and reads documents half-heartedly: it strays, the more so
after bad feedback and after words that already strayed (drift), garbles a decision now and then, and after a good
document gives the right value only with `Habits.right`. What this file does not do: train (warm_start.py).
"""

from __future__ import annotations

import random
from dataclasses import dataclass

import numpy as np

from lldsim.transformer.world import (
    ANSWER,
    ANSWER_END,
    BAD,
    ENTITIES,
    GOOD,
    INVALID,
    NOISE,
    NOISE_DRAWS,
    NONE,
    QUERY,
    RELATIONS,
    SEARCH,
    SEARCH_END,
    VALUES,
    WORDS,
    TokenWorld,
)


@dataclass(frozen=True)
class Habits:
    """How the script behaves; probabilities."""

    right: float  # after a good document: the right value
    again: float  # after a good document: search once more; the rest answers a random value
    search: float  # without a document: search; the rest guesses a value
    canon: float = 0.95  # a body token is canonical, without drift
    recovery: tuple[float, ...] = (1.0, 0.85, 0.6, 0.3)  # factor on it by drift level
    bad_feedback: float = 0.93  # factor on it after a useless document or an error
    garbled: float = 0.03  # a decision has a wrong token, plus `garbled_by_drift` per drift level
    garbled_by_drift: float = 0.1


COPYING = Habits(right=0.7, again=0.1, search=0.85)  # often enough right that the network learns to copy
WEAK = Habits(right=0.35, again=0.2, search=0.65)  # what reinforcement then starts from


def script_episode(world: TokenWorld, habits: Habits, rng: random.Random) -> tuple[list[int], list[bool]]:
    """Return one episode as token ids, prompt included, and whether each was written by the script."""
    query = (rng.choice(ENTITIES), rng.choice(RELATIONS), rng.choice(VALUES))
    ids, written = [QUERY, query[0], query[1]], [False] * 3
    kind, drift = NONE, 0
    for turn in range(world.config.max_turns):
        action, drift = _body(world, habits, kind, drift, rng)
        action = _decide(world, habits, action, kind, drift, query, rng)
        noise = np.array([rng.choice(NOISE) for _ in range(NOISE_DRAWS)])
        last = turn + 1 == world.config.max_turns
        reply = world.reply(action, query=query, document=rng.random(), noise=noise, last=last)
        ids += action + reply.feedback
        written += [True] * len(action) + [False] * len(reply.feedback)
        if reply.done:
            break
        kind = reply.kind
        drift = drift if reply.invalid else 0
    return ids, written


def _body(world: TokenWorld, habits: Habits, kind: int, drift: int, rng: random.Random) -> tuple[list[int], int]:
    """Return the body of an action and the drift level after it."""
    trust = habits.canon * (habits.bad_feedback if kind in (BAD, INVALID) else 1.0)
    body = []
    for word in world.canon:
        if rng.random() < trust * habits.recovery[drift]:
            body.append(word)
            drift = max(drift - 1, 0)
        else:
            body.append(_stray(word, rng))
            drift = min(drift + 1, len(habits.recovery) - 1)
    return body, drift


def _stray(word: int, rng: random.Random) -> int:
    while True:
        other = rng.choice(range(WORDS.start, NOISE.stop))
        if other != word:
            return other


def _decide(
    world: TokenWorld,
    habits: Habits,
    body: list[int],
    kind: int,
    drift: int,
    query: tuple[int, int, int],
    rng: random.Random,
) -> list[int]:
    """Return the whole action: the body with a search or an answer, which may be garbled."""
    u = rng.random()
    if kind == GOOD:
        searching, right = u < habits.again, u < habits.again + habits.right
    else:
        searching, right = u < habits.search, False
    value = query[2] if right else rng.choice(VALUES)
    tail = [SEARCH, query[0], query[1], SEARCH_END] if searching else [ANSWER, value, ANSWER_END]
    if rng.random() < habits.garbled + habits.garbled_by_drift * drift:
        tail[rng.randrange(len(tail))] = rng.choice(range(ENTITIES.start, NOISE.stop))
    action = body + tail
    if action[-1] not in (SEARCH_END, ANSWER_END):  # nothing closed the turn, so it runs to its longest
        action += [rng.choice(NOISE) for _ in range(world.turn_tokens - len(action))]
    return action
