"""Collect traces from a run of the laboratory: the very responses that an update was made on.

What this file does not do: say what makes a trace fit (traces.py) or draw it.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress

import numpy as np
import torch

from lldsim.config import RunConfig
from lldsim.draws import draw
from lldsim.engine import Run
from lldsim.errors import ConfigError, MissingDataError
from lldsim.policy import LinearSoftmaxPolicy, select
from lldsim.traces import Action, Feedback, Trace, good_runs, same_plan_other_answer, unlikely_then_invalid
from lldsim.world import BAD, GOOD, INVALID, SEARCH


def collect(config: RunConfig, *, first: int, count: int = 1) -> list[Trace]:
    """Return the traces of `count` updates of a run from update `first` on, in order of update, query and member.

    Log-probabilities are the trainer's at temperature 1, before the update and after all its optimiser steps.
    Raises ConfigError when the run has no such updates.
    """
    return [trace for traces in _updates(config, first, count) for trace in traces]


def _updates(config: RunConfig, first: int, count: int) -> Iterator[list[Trace]]:
    last = config.trainer.updates
    if first < 0 or count < 1 or first + count > last:
        raise ConfigError(f"first={first}, count={count}: the run has updates 0 to {last - 1}")
    run = Run(config)
    for _ in range(first):
        run.step()
    for _ in range(count):
        yield list(_one_update(run))


def good_traces(config: RunConfig, *, first: int = 10, count: int = 5) -> tuple[Trace, Trace]:
    """Return two good multi-step runs (figures 11 and 12), the first found from update `first` on.

    Raises MissingDataError when `count` updates hold fewer than two.
    """
    one, two = good_runs(trace for traces in _updates(config, first, count) for trace in traces)
    return one, two


def case_1(config: RunConfig, step: int, *, before: int = 30) -> tuple[Trace, Trace]:
    """Return (right, wrong) of case 1 (figures 13 and 14), looked for from `before` updates before the collapse `step`.

    Raises MissingDataError when there is none.
    """
    for traces in _updates(config, max(step - before, 0), min(before, step)):
        with suppress(MissingDataError):  # not in this update; a pair never spans two
            return same_plan_other_answer(traces)
    raise MissingDataError(f"no pair of case 1 in the {before} updates before update {step}; raise `before`")


def case_2(config: RunConfig, step: int, *, before: int = 12, bound: float = -1.0) -> Trace:
    """Return case 2 (figure 15), looked for from `before` updates before the collapse; `bound` in nats per token.

    Raises MissingDataError when there is none.
    """
    late = (trace for traces in _updates(config, max(step - before, 0), min(before, step)) for trace in traces)
    return unlikely_then_invalid(late, bound=bound)


def _one_update(run: Run) -> Iterator[Trace]:
    update, size = run.update, run.config.world.group_size
    answers = draw(run.config, update).answer
    run.step()  # leaves the batch it was made on in run.roll
    after = LinearSoftmaxPolicy(run.world, torch.from_numpy(np.asarray(run.policy, dtype=np.float64).copy()))
    for b in range(len(run.roll.reward)):
        query = b // size
        yield Trace(
            seed=run.config.trainer.seed,
            update=update,
            query=query,
            member=b % size,
            hidden_answer=int(answers[query]),
            reward=float(run.roll.reward[b]),
            advantage=float(run.roll.advantage[b]),
            actions=tuple(_actions(run, b, after)),
        )


def _actions(run: Run, b: int, after: LinearSoftmaxPolicy) -> Iterator[Action]:
    roll, world = run.roll, run.world
    k, turns = world.config.turn_tokens, int(roll.turns[b])
    query = np.array(b // run.config.world.group_size)
    for t in range(turns):
        context = world.context(query, t, np.arange(k), roll.feedback[b, t], roll.level[b, t])
        tokens = roll.tokens[b, t].copy()
        logps_after = select(after.logps_all(torch.from_numpy(context)), torch.from_numpy(tokens)).numpy()
        feedback, named = _feedback(int(roll.feedback[b, t + 1])) if t < turns - 1 else ("", None)
        decision, decided = int(tokens[-1]), bool(tokens[-1] <= world.config.n_answers)
        text = "search" if decision == SEARCH else f"answer {decision}"
        yield Action(
            tokens=tokens,
            canonical=np.append(tokens[:-1] == world.canon, decided),
            logps=roll.old_logps[b, t].astype(float),
            logps_after=logps_after,
            decision=text if decided else "no decision",
            feedback=feedback,
            named=named,
        )


def _feedback(code: int) -> tuple[Feedback, int | None]:
    """Return the kind of feedback that a code stands for, and the answer that a document names."""
    if code == INVALID:
        return "error message", None
    return ("useless document", None) if code == BAD else ("document", code - GOOD)
