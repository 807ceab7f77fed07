"""The Search-R1 protocol: what an action is, what the tool says back, and which token was written by whom.

A trajectory is a list of segments of token ids, policy and tool in turn. Ids are concatenated and never tokenised
again, so the ids that are trained are the ids that were sampled. Texts (prompt, information block, corrective message)
are those of Search-R1 (arXiv 2503.09516); where its code loses something we do not, and each place says so.
What this file does not do: generate, retrieve or score.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal, Protocol

from lldsim.errors import ConfigError, ShapeError

PROMPT = (
    "Answer the given question. You must conduct reasoning inside <think> and </think> first every time you get new "
    "information. After reasoning, if you find you lack some knowledge, you can call a search engine by <search> query "
    "</search> and it will return the top searched results between <information> and </information>. You can search "
    "as many times as your want. If you find no further external knowledge needed, you can directly provide the answer "
    "inside <answer> and </answer>, without detailed illustrations. For example, <answer> Beijing </answer>. "
    "Question: {question}\n"
)
SHORT_PROMPT = "Question: {question}\n"  # ours: the long prompt would only slow a model of 10^5 parameters down
INVALID = (
    "\nMy previous action is invalid. If I want to search, I should put the query between <search> and </search>. "
    "If I want to give the final answer, I should put the answer between <answer> and </answer>. Let me try again.\n"
)
SHORT_INVALID = "\nThat was no valid action.\n"  # ours, as SHORT_PROMPT
STOP_STRINGS = ("</search>", "</answer>")
INFORMATION = ("\n\n<information>", "</information>\n\n")

_CLOSE = re.compile(r"</(search|answer)>")

Kind = Literal["search", "answer", "invalid"]
Finish = Literal["answer", "turns", "length"]


class Tokenizer(Protocol):
    """The two calls that the protocol needs of a tokenizer."""

    def encode(self, text: str, *, add_special_tokens: bool = ...) -> list[int]: ...
    def decode(self, token_ids: list[int], *, skip_special_tokens: bool = ...) -> str: ...


@dataclass(frozen=True)
class Action:
    """What one policy turn amounts to; `start` and `end` are its characters, opening tag to closing tag."""

    kind: Kind
    content: str = ""
    start: int = 0
    end: int = 0


def parse_action(text: str) -> Action:
    """Return the first complete action: the earliest closing tag that has its own opening tag before it.

    What follows it is not the policy's to say: an <information> block that it invents is dropped with all after it. A
    closing tag without an opening one completes nothing. A search or answer with blank content is invalid.

    >>> parse_action("<search> who </search><information>me</information><answer>me</answer>").content
    'who'
    >>> parse_action("a </search> b <answer>Paris</answer>").kind
    'answer'
    """
    for close in _CLOSE.finditer(text):
        name = close.group(1)
        start = text.rfind(f"<{name}>", 0, close.start())
        if start >= 0:
            content = text[start + len(name) + 2 : close.start()].strip()
            kind: Kind = ("search" if name == "search" else "answer") if content else "invalid"
            return Action(kind, content, start, close.end())
    return Action("invalid")


def tokens_covering(ids: Sequence[int], characters: int, tokenizer: Tokenizer) -> int:
    """Return the smallest n such that the first n tokens decode to at least `characters` characters.

    A tag may end inside a token (`>` and a newline are often one); the whole token is kept, because half of it was
    never sampled. Found by bisection on decoded prefixes; result n in 0..len(ids).
    """
    low, high = 0, len(ids)
    while low < high:
        middle = (low + high) // 2
        if len(decode(tokenizer, ids[:middle])) >= characters:
            high = middle
        else:
            low = middle + 1
    return low


def decode(tokenizer: Tokenizer, ids: Sequence[int]) -> str:
    """Return the text of the ids with special tokens left in."""
    return tokenizer.decode(list(ids), skip_special_tokens=False)


def encode(tokenizer: Tokenizer, text: str) -> list[int]:
    """Return the ids of a text, nothing added."""
    return list(tokenizer.encode(text, add_special_tokens=False))


@dataclass(frozen=True)
class Limits:
    """Lengths in tokens and counts of one trajectory."""

    max_turns: int = 3  # actions that get feedback; one further action may answer [P 5], as in Search-R1's loop
    turn_tokens: int = 500  # [P 5] per policy turn
    observation_tokens: int = 500  # [P 5] per feedback
    completion_tokens: int = 2048  # [P 5] 4096 in all, less 2048 for the start prompt

    def __post_init__(self) -> None:
        for name in ("turn_tokens", "completion_tokens"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name}={getattr(self, name)}: a policy turn needs at least one token")
        for name in ("max_turns", "observation_tokens"):
            if getattr(self, name) < 0:
                raise ConfigError(f"{name}={getattr(self, name)} must be >= 0")


@dataclass
class Trajectory:
    """One episode as it grows: ids of the prompt, then per completion token its origin, action, answer flag and logp.

    `action_mask` 1 = written by the policy. `action_id` numbers the policy turns from 0 and is -1 on feedback: feedback
    of no tokens still separates two actions. `answer_mask` marks <answer> to </answer> of the final action.
    `logps` are the sampler's own, 0 on feedback. All four have the length of `completion_ids`.
    """

    prompt_ids: list[int]
    limits: Limits
    tokenizer: Tokenizer
    invalid_text: str = INVALID
    completion_ids: list[int] = field(default_factory=list)
    action_mask: list[int] = field(default_factory=list)
    action_id: list[int] = field(default_factory=list)
    answer_mask: list[int] = field(default_factory=list)
    logps: list[float] = field(default_factory=list)
    actions: list[Action] = field(default_factory=list)
    finish: Finish | None = None
    searches: int = 0  # searches that were run: a search in the last, feedback-free turn is not counted
    truncated_turns: int = 0

    @property
    def context(self) -> list[int]:
        """Everything the policy has before it."""
        return self.prompt_ids + self.completion_ids

    @property
    def room(self) -> int:
        """Tokens that the next policy turn may have."""
        return min(self.limits.turn_tokens, self.limits.completion_tokens - len(self.completion_ids))

    @property
    def answer(self) -> str | None:
        """Content of the policy's own last action if that is an answer, else None."""
        last = self.actions[-1] if self.actions else None
        return last.content if last is not None and last.kind == "answer" else None

    @property
    def invalid_actions(self) -> int:
        """Turns that were neither a search nor an answer."""
        return sum(action.kind == "invalid" for action in self.actions)

    def act(self, ids: Sequence[int], logps: Sequence[float]) -> str | None:
        """Append a policy turn and return the query that is to be searched, or None.

        Tokens after the first complete action are dropped, ids and log-probabilities together. A turn without one
        keeps all its tokens (they were sampled), is invalid and gets the corrective message. An empty turn is an error.
        """
        if len(ids) != len(logps):
            raise ShapeError(f"{len(ids)} token ids but {len(logps)} log-probabilities; cut both at the same place")
        if not ids:
            raise ShapeError("a policy turn has no token; a sampler must return at least one")
        if self.finish is not None:
            raise ConfigError(f"the trajectory has finished ({self.finish}); start a new one")
        ids, logps = list(ids)[: self.room], list(logps)[: self.room]
        action = parse_action(decode(self.tokenizer, ids))
        complete = action.end > 0
        kept = tokens_covering(ids, action.end, self.tokenizer) if complete else len(ids)
        self.truncated_turns += int(not complete and len(ids) == self.room)
        number = len(self.actions)
        flags = [0] * kept
        if action.kind == "answer":
            first = max(tokens_covering(ids, action.start + 1, self.tokenizer) - 1, 0)
            flags[first:] = [1] * (kept - first)
        self._append(ids[:kept], mask=1, action=number, answer=flags, logps=logps[:kept])
        self.actions.append(action)
        return self._next(action)

    def _next(self, action: Action) -> str | None:
        if action.kind == "answer":
            self.finish = "answer"
        elif len(self.actions) > self.limits.max_turns:
            self.finish = "turns"
        elif self.room < 1:
            self.finish = "length"
        elif action.kind == "search":
            return action.content
        else:
            self._feedback(encode(self.tokenizer, self.invalid_text)[: self.limits.observation_tokens])
        return None

    def observe(self, documents: str) -> None:
        """Append the information block of a search that was run; only the documents are cut, the closing tag stays.

        Search-R1 cuts the whole block, so that long results lose their closing tag. Head, documents and tail are
        tokenised apart. With observation_tokens too small for the two tags nothing is appended.
        """
        head, tail = (encode(self.tokenizer, text) for text in INFORMATION)
        room = self.limits.observation_tokens - len(head) - len(tail)
        self.searches += 1
        body = encode(self.tokenizer, documents.strip())
        self._feedback(head + body[: max(room, 0)] + tail if room >= 0 else [])

    def _feedback(self, ids: list[int]) -> None:
        left = self.limits.completion_tokens - len(self.completion_ids)
        if len(ids) >= left:  # no room for a further turn: feedback that nothing follows would train nothing
            self.finish = "length"
            return
        self._append(ids, mask=0, action=-1, answer=[0] * len(ids), logps=[0.0] * len(ids))

    def _append(self, ids: list[int], *, mask: int, action: int, answer: list[int], logps: list[float]) -> None:
        self.completion_ids += ids
        self.action_mask += [mask] * len(ids)
        self.action_id += [action] * len(ids)
        self.answer_mask += answer
        self.logps += logps


def format_documents(documents: Sequence[str]) -> str:
    """Return retrieved documents as Search-R1 writes them: first line of a document is its title.

    >>> format_documents(["Radium\\nA metal."])
    'Doc 1(Title: Radium) A metal.\\n'
    """
    lines = []
    for number, document in enumerate(documents, start=1):
        title, _, text = document.partition("\n")
        lines.append(f"Doc {number}(Title: {title}) {text}\n")
    return "".join(lines)
