"""Traces and the rules that pick them.

Locked here: collected traces are the batch that the update was made on (reward, length, likelihoods as recorded); the
change is that of the update, context by context; each rule finds its case and no near miss of it; what is not there is
an error; every token becomes one table row; a search that stops early finds the same; a picture has a cell per token.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from matplotlib.patches import Rectangle

from lldsim import trace_runs
from lldsim.config import RunConfig, preset
from lldsim.diagnostics.collapse import collapse_step
from lldsim.engine import simulate
from lldsim.errors import ConfigError, MissingDataError
from lldsim.plots.single_trace import single_trace_figure
from lldsim.plots.trace_figures import feedback_text
from lldsim.trace_runs import case_1, case_2, collect, good_traces
from lldsim.traces import (
    Action,
    Trace,
    case_shares,
    good_runs,
    same_plan_other_answer,
    trace_rows,
    unlikely_then_invalid,
)

WORDS = np.arange(4)


@pytest.fixture(scope="module")
def config() -> RunConfig:
    return preset("spiral").replace(updates=12, n_queries=8, updates_per_rollout=8, seed=3)


def action(decision: str, feedback: str = "", *, logp: float = -0.1, words: np.ndarray = WORDS) -> Action:
    logps = np.full(4, logp)
    named = 2 if feedback == "document" else None
    return Action(words, np.ones(4, bool), logps, logps - 0.01, decision, feedback, named)  # type: ignore[arg-type]


def trace(*actions: Action, reward: float, member: int = 0, query: int = 0) -> Trace:
    return Trace(0, 5, query, member, 2, reward, 1.0 if reward else -1.0, actions)


def test_traces_are_the_batch_of_the_update(config: RunConfig) -> None:
    record = simulate(config)
    traces = collect(config, first=9, count=2)
    for update in (9, 10):
        batch = [t for t in traces if t.update == update]
        assert len(batch) == 40
        assert np.mean([t.reward for t in batch]) == record["reward"][update]
        assert np.mean([16 * len(t.actions) for t in batch]) == record["response_length"][update]
        right = np.concatenate([a.logps for t in batch if t.reward > 0 for a in t.actions])
        assert right.mean() == pytest.approx(record["logp_correct"][update], abs=1e-12)
        invalid = sum(a.invalid for t in batch for a in t.actions)
        # A refused last action has no context after it, so the count of messages is at most that of refusals.
        assert invalid <= record["invalid_actions"][update] * 40


def test_advantages_and_answers_fit_the_rewards(config: RunConfig) -> None:
    traces = collect(config, first=4)
    assert any(t.reward > 0 for t in traces)
    for t in traces:
        assert (t.reward > 0) == (t.answer == f"answer {t.hidden_answer}")
        assert t.advantage == 0 or (t.advantage > 0) == (t.reward > 0)
    for query in range(8):
        assert sum(t.advantage for t in traces if t.query == query) == pytest.approx(0, abs=1e-9)


def test_likelihood_after_one_update_is_that_before_the_next(config: RunConfig) -> None:
    first, second = collect(config, first=6), collect(config, first=7)

    def by_context(traces: list[Trace], column: str) -> dict[tuple[int, int, int], float]:
        # The first token of the first action: query and token name the context.
        return {(t.query, 0, int(t.actions[0].tokens[0])): getattr(t.actions[0], column)[0] for t in traces}

    after, before = by_context(first, "logps_after"), by_context(second, "logps")
    shared = after.keys() & before.keys()
    assert len(shared) >= 4
    for key in shared:
        assert after[key] == pytest.approx(before[key], abs=1e-12)


def test_updates_that_the_run_lacks_are_refused(config: RunConfig) -> None:
    for first, count in ((12, 1), (-1, 1), (11, 2), (3, 0)):
        with pytest.raises(ConfigError, match="the run has updates 0 to 11"):
            collect(config, first=first, count=count)


def test_good_runs_read_a_useless_document_and_go_on() -> None:
    again = (action("search", "useless document"), action("search", "document"), action("answer 2"))
    good = trace(*again, reward=1)
    elsewhere = trace(*again, reward=1, query=1)
    wrong, short = trace(*again, reward=0), trace(action("search", "document"), action("answer 2"), reward=1)
    tied = replace(good, advantage=0.0)
    same_query = replace(good, member=4)
    assert good_runs([wrong, short, tied, good, same_query, elsewhere]) == [good, elsewhere]
    with pytest.raises(MissingDataError, match="1 of 2"):
        good_runs([good, same_query])


def test_case_1_differs_in_the_answer_alone() -> None:
    plan = action("search", "document")
    right = trace(plan, action("answer 2"), reward=1)
    wrong = trace(plan, action("answer 3"), reward=0, member=1)
    other_words = trace(plan, action("answer 3", words=WORDS + 1), reward=0, member=2)
    other_plan = trace(action("search", "document", words=WORDS[::-1]), action("answer 3"), reward=0, member=3)
    other_document = trace(action("search", "useless document"), action("answer 3"), reward=0, member=4)
    other_group = replace(wrong, query=1)
    misses = [right, other_words, other_plan, other_document, other_group]
    assert same_plan_other_answer([*misses, wrong]) == (right, wrong)
    with pytest.raises(MissingDataError, match="no right and wrong trace"):
        same_plan_other_answer(misses)
    assert case_shares([*misses, wrong], bound=-1)["case 1"] == pytest.approx(1 / 5)


def test_case_2_is_unlikely_invalid_and_wrong() -> None:
    lost = trace(action("search", "error message", logp=-2.0), action("answer 3"), reward=0)
    likely = trace(action("search", "error message", logp=-0.5), action("answer 3"), reward=0)
    right = trace(action("search", "error message", logp=-2.0), action("answer 2"), reward=1, query=1)
    endless = trace(action("search", "error message", logp=-2.0), action("search"), reward=0)
    assert unlikely_then_invalid([likely, right, endless, lost], bound=-1) is lost
    with pytest.raises(MissingDataError, match="below -3 nats"):
        unlikely_then_invalid([lost], bound=-3)
    assert case_shares([likely, right, endless, lost], bound=-1) == {
        "wrong": 3.0, "case 1": 0.0, "case 2": pytest.approx(1 / 3),
    }  # fmt: skip
    with pytest.raises(MissingDataError, match="none of 1 traces is wrong"):
        case_shares([right], bound=-1)


def test_every_token_is_one_row() -> None:
    t = trace(action("search", "document"), action("answer 2"), reward=1)
    rows = trace_rows("good", t)
    assert len(rows) == 8
    assert {row["action"] for row in rows} == {0, 1}
    assert sum(float(r["logp_after"]) - float(r["logp_before"]) for r in rows) == pytest.approx(-0.08)
    assert t.actions[0].logp_change == pytest.approx(-0.04)


def test_the_cases_are_found_where_the_whole_search_finds_them(monkeypatch: pytest.MonkeyPatch) -> None:
    spiral = preset("spiral")
    step = collapse_step(simulate(spiral)["reward"])
    assert step is not None
    late = collect(spiral, first=step - 12, count=12)
    for found, wanted in (
        (case_1(spiral, step, before=12), same_plan_other_answer(late)),
        ((case_2(spiral, step),), (unlikely_then_invalid(late, bound=-1.0),)),
        (good_traces(spiral, count=3), tuple(good_runs(collect(spiral, first=10, count=3)))),
    ):
        assert [t.where for t in found] == [t.where for t in wanted]

    def none(_: object) -> tuple[Trace, Trace]:
        raise MissingDataError("none here")

    monkeypatch.setattr(trace_runs, "same_plan_other_answer", none)
    with pytest.raises(MissingDataError, match="in the 2 updates before update 5; raise `before`"):
        case_1(spiral, 5, before=2)


def test_a_single_trace_is_drawn_token_by_token() -> None:
    lost = trace(action("search", "error message", logp=-2.0), action("answer 3"), reward=0)
    ax = single_trace_figure(lost, "case").axes[0]
    cells = [patch for patch in ax.patches if isinstance(patch, Rectangle)]
    assert len(cells) == 2 * (4 + 4 + 1) + 1  # words, changes and the loss strip of two actions, one feedback
    assert sum(patch.get_hatch() is not None for patch in cells) == 1
    texts = [text.get_text() for text in ax.texts]
    assert texts.count("in the loss, each token with A = -1.00") == 2
    assert texts.count("not in the loss") == 1
    assert {"-8.0", "-0.4", "-0.04"} <= set(texts)
    with pytest.raises(MissingDataError, match="no feedback"):
        feedback_text(lost.actions[-1])
