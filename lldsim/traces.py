"""Traces: single responses token by token, and the rules by which figure 10 picks four of them.

The paper prints traces of its models (figures 10-15): good multi-step runs, a pair that differs only in the final
answer (case 1), and a long unlikely response with an invalid action (case 2). A rule here returns the first trace that
has the property, so nobody chooses by eye.
What this file does not do: run anything (trace_runs.py).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from lldsim.errors import MissingDataError

Feedback = Literal["document", "useless document", "error message", ""]


@dataclass(frozen=True)
class Action:
    """One action of K tokens and the feedback to it; log-probabilities are the trainer's, at temperature 1, in nats."""

    tokens: np.ndarray  # (K,) int64
    canonical: np.ndarray  # (K,) bool: the expected word; for the decision, search or an answer
    logps: np.ndarray  # (K,) before the update
    logps_after: np.ndarray  # (K,) after the update, same context
    decision: str  # "search", "answer 2" or "no decision"
    feedback: Feedback  # "" after the final action
    named: int | None  # the answer that a document names

    @property
    def invalid(self) -> bool:
        """Whether the tool refused the action."""
        return self.feedback == "error message"

    @property
    def logp_change(self) -> float:
        """Change of the action's log-likelihood by the update, sum over its tokens (D_t of Def. 4.1)."""
        return float((self.logps_after - self.logps).sum())


@dataclass(frozen=True)
class Trace:
    """One response: where it comes from, what it earned, and its actions."""

    seed: int
    update: int
    query: int
    member: int  # within the group
    hidden_answer: int
    reward: float
    advantage: float
    actions: tuple[Action, ...]

    @property
    def answer(self) -> str:
        """The final decision, or "no answer" when the turns ran out."""
        last = self.actions[-1].decision
        return last if last.startswith("answer") and not self.actions[-1].invalid else "no answer"

    @property
    def logp_mean(self) -> float:
        """Mean log-probability per action token before the update."""
        return float(np.concatenate([a.logps for a in self.actions]).mean())

    @property
    def where(self) -> str:
        """Seed, update, query and member in words."""
        return f"seed {self.seed}, update {self.update}, query {self.query}, response {self.member}"


def good_runs(traces: Iterable[Trace], *, count: int = 2) -> list[Trace]:
    """Return the first `count` right traces, of different queries and not tied, that read a useless document first.

    Raises MissingDataError when there are fewer.
    """
    found: list[Trace] = []
    for trace in traces:
        decisions = [a.feedback for a in trace.actions]
        searched_again = decisions[:2] == ["useless document", "document"] and not any(a.invalid for a in trace.actions)
        if trace.reward > 0 and trace.advantage > 0 and searched_again and trace.query not in {t.query for t in found}:
            found.append(trace)
            if len(found) == count:
                return found
    raise MissingDataError(f"{len(found)} of {count} good multi-step traces found; look at more updates")


def same_plan_other_answer(traces: Sequence[Trace]) -> tuple[Trace, Trace]:
    """Return (right, wrong) of case 1: same group, same tokens and documents, different final decision.

    The first pair, in the order of groups and members. Raises MissingDataError when no group has one.
    """
    for group in _groups(traces):
        for right in (t for t in group if t.reward > 0):
            for wrong in (t for t in group if t.reward == 0):
                if _differ_in_the_answer_alone(right, wrong):
                    return right, wrong
    raise MissingDataError("no right and wrong trace share plan, query and documents; look at more updates")


def unlikely_then_invalid(traces: Iterable[Trace], *, bound: float) -> Trace:
    """Return case 2: the first wrong trace with an invalid action below `bound` nats per token, then a wrong answer.

    Raises MissingDataError when there is none.
    """
    for trace in traces:
        if _is_case_2(trace, bound):
            return trace
    raise MissingDataError(f"no wrong trace has an invalid action below {bound} nats per token; raise `bound`")


def case_shares(traces: Sequence[Trace], *, bound: float) -> dict[str, float]:
    """Return the shares of wrong traces that are like case 1 (with some right one of their group) and like case 2.

    Raises MissingDataError when no trace is wrong.
    """
    wrong, first, second = 0, 0, 0
    for group in _groups(traces):
        right = [t for t in group if t.reward > 0]
        for trace in (t for t in group if t.reward == 0):
            wrong += 1
            first += any(_differ_in_the_answer_alone(other, trace) for other in right)
            second += _is_case_2(trace, bound)
    if not wrong:
        raise MissingDataError(f"none of {len(traces)} traces is wrong; look at another update")
    return {"wrong": float(wrong), "case 1": first / wrong, "case 2": second / wrong}


def trace_rows(name: str, trace: Trace) -> list[dict[str, str | int | float | bool]]:
    """Return one row per token, for a table: place, token, log-probabilities, what follows the action."""
    rows: list[dict[str, str | int | float | bool]] = []
    about = {"trace": name, "seed": trace.seed, "update": trace.update, "query": trace.query, "member": trace.member}
    for number, action in enumerate(trace.actions):
        for k, token in enumerate(action.tokens):
            rows.append(
                about
                | {"reward": trace.reward, "advantage": trace.advantage, "action": number, "position": k}
                | {"token": int(token), "expected": bool(action.canonical[k])}
                | {"logp_before": float(action.logps[k]), "logp_after": float(action.logps_after[k])}
                | {"decision": action.decision, "feedback": action.feedback}
            )
    return rows


def _groups(traces: Iterable[Trace]) -> list[list[Trace]]:
    groups: dict[tuple[int, int, int], list[Trace]] = {}
    for trace in traces:
        groups.setdefault((trace.seed, trace.update, trace.query), []).append(trace)
    return list(groups.values())


def _is_case_2(trace: Trace, bound: float) -> bool:
    unlikely = any(a.invalid and a.logps.mean() < bound for a in trace.actions[:-1])
    return trace.reward == 0 and unlikely and trace.answer != "no answer"


def _differ_in_the_answer_alone(a: Trace, b: Trace) -> bool:
    if len(a.actions) != len(b.actions) or "no answer" in (a.answer, b.answer):
        return False
    *earlier, (last_a, last_b) = zip(a.actions, b.actions, strict=True)
    documents = all((x.feedback, x.named) == (y.feedback, y.named) for x, y in earlier)
    words = all(np.array_equal(x.tokens, y.tokens) for x, y in earlier)
    same_words = np.array_equal(last_a.tokens[:-1], last_b.tokens[:-1])
    return bool(earlier) and documents and words and same_words and last_a.decision != last_b.decision
