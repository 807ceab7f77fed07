"""The transformer's search world: look a fact up, copy what the document says - as plain token ids.

    <q> e r   then turns:   w1 ... wK  <search> e r </search>   or   w1 ... wK  <answer> v </answer>

A turn is K free body tokens (one canonical word per position), then a search or an answer. It ends at the first closing
tag or after K + 6 tokens. It is valid iff fewer than `invalid_threshold` of its first K tokens are off-canon and what
follows them parses exactly. A search for the question's own (e, r) returns `<info> e r v noise </info>`, or, with
probability `search_noise`, four noise ids; any other search returns noise; an invalid turn gets
`<err> noise noise </err>`. The value v is hidden and redrawn per query and batch, so it must be searched and copied.
An answer ends the episode with reward 1 if it is v; so does running out of turns, with reward 0.

Nothing is masked for grammar: the policy can write any of the 64 ids anywhere. What this file does not do: sample.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from lldsim.transformer.config import TokenWorldConfig, TransformerConfig

PAD, QUERY, SEARCH, SEARCH_END, ANSWER, ANSWER_END, INFO, INFO_END, ERR, ERR_END = range(10)
ENTITIES = range(10, 18)
RELATIONS = range(18, 22)
VALUES = range(22, 30)
WORDS = range(30, 46)
NOISE = range(46, 64)
VOCABULARY = 64
PROMPT_TOKENS = 3
TAIL_TOKENS = 6  # a turn may be this much longer than its body
FEEDBACK_TOKENS = 6  # the longest feedback
NOISE_DRAWS = 4  # noise ids that one feedback can need
NONE, BAD, INVALID, GOOD = range(4)  # kinds of feedback, as in the toy: what an action was written after

_TOKEN_STREAM = 11  # of the random numbers of transformer runs; draws.py uses 1 to 4
PROBE_STREAM = 12


class Reply(NamedTuple):
    """What the world does about one action."""

    kind: int  # NONE after an answer, else the kind of the feedback
    feedback: list[int]  # forced tokens; empty when the episode ends here
    done: bool
    reward: float
    valid_search: bool
    invalid: bool


class TokenDraws(NamedTuple):
    """Everything random in one rollout batch and the updates on it, whatever the policy does with it."""

    entity: np.ndarray  # (P,) token ids
    relation: np.ndarray  # (P,)
    value: np.ndarray  # (P,) hidden
    token: np.ndarray  # (B, T) uniform, chooses tokens by inverse CDF
    document: np.ndarray  # (B, turns) uniform, below search_noise = useless
    noise: np.ndarray  # (B, turns, NOISE_DRAWS) token ids
    order: np.ndarray  # (B,) permutation that deals responses to minibatches


def longest(config: TokenWorldConfig) -> int:
    """Return the largest number of tokens of an episode, prompt included."""
    return PROMPT_TOKENS + config.max_turns * (config.body_tokens + TAIL_TOKENS + FEEDBACK_TOKENS)


def draw_tokens(config: TransformerConfig, update: int, *, stream: int = _TOKEN_STREAM) -> TokenDraws:
    """Return the random numbers of rollout batch `update`; runs of one seed share their luck, and resuming needs none.

    A counter-based generator is keyed by (seed, stream) and its counter by the update, as in draws.py.
    """
    world = config.world
    rng = np.random.Generator(np.random.Philox(key=[config.trainer.seed, stream], counter=[0, 0, 0, update]))
    p, b = world.n_queries, world.n_queries * world.group_size
    return TokenDraws(
        entity=rng.integers(ENTITIES.start, ENTITIES.stop, p),
        relation=rng.integers(RELATIONS.start, RELATIONS.stop, p),
        value=rng.integers(VALUES.start, VALUES.stop, p),
        token=rng.random((b, longest(world))),
        document=rng.random((b, world.max_turns)),
        noise=rng.integers(NOISE.start, NOISE.stop, (b, world.max_turns, NOISE_DRAWS)),
        order=rng.permutation(b),
    )


@dataclass(frozen=True)
class TokenWorld:
    """The rules; `canon` (K,) holds the canonical word of each body position."""

    config: TokenWorldConfig
    canon: tuple[int, ...]

    @property
    def turn_tokens(self) -> int:
        """The longest turn."""
        return self.config.body_tokens + TAIL_TOKENS

    def ends(self, token: int, position: int) -> bool:
        """Return whether a turn ends with `token` written at `position` (from 0)."""
        return token in (SEARCH_END, ANSWER_END) or position + 1 >= self.turn_tokens

    def off_canon(self, action: list[int]) -> int:
        """Return how many of the body tokens are not the canonical word of their place; a missing one counts."""
        body = action[: len(self.canon)]
        return sum(a != b for a, b in zip(body, self.canon, strict=False)) + len(self.canon) - len(body)

    def reply(
        self, action: list[int], *, query: tuple[int, int, int], document: float, noise: np.ndarray, last: bool
    ) -> Reply:
        """Return the world's answer to a whole action.

        `query` is (entity, relation, hidden value), `document` the uniform draw of this turn's search, `noise` its
        NOISE_DRAWS noise ids, `last` whether no turn is left after this one.

        >>> world = TokenWorld(TokenWorldConfig(body_tokens=2, invalid_threshold=1), (30, 31))
        >>> noise = np.array([46, 47, 48, 49])
        >>> search = [30, 31, SEARCH, 10, 18, SEARCH_END]
        >>> world.reply(search, query=(10, 18, 22), document=0.9, noise=noise, last=False).feedback
        [6, 10, 18, 22, 46, 7]
        """
        entity, relation, value = query
        tail = action[len(self.canon) :]
        fine = self.off_canon(action) < self.config.invalid_threshold
        a, b, c, d = (int(x) for x in noise)
        match tail:
            case [t, v, e] if fine and t == ANSWER and e == ANSWER_END and v in VALUES:
                return Reply(NONE, [], True, float(v == value), False, False)
            case [t, e, r, z] if fine and (t, z) == (SEARCH, SEARCH_END) and e in ENTITIES and r in RELATIONS:
                good = (e, r) == (entity, relation) and document >= self.config.search_noise
                feedback = [INFO, e, r, value, a, INFO_END] if good else [INFO, a, b, c, d, INFO_END]
                return Reply(GOOD if good else BAD, [] if last else feedback, last, 0.0, True, False)
            case _:
                return Reply(INVALID, [] if last else [ERR, a, b, ERR_END], last, 0.0, False, True)
