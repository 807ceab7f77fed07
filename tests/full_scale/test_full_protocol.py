"""The search protocol: actions, masks, lengths.

Locked here: the first complete action counts and nothing after it is kept; a tag that ends inside a token keeps the
token; ids, masks, action numbers and log-probabilities stay equally long whatever the policy writes; policy tokens
never decode to retrieved text; observations are cut without losing their closing tag; empty feedback separates actions;
every length limit holds.
"""

from __future__ import annotations

import pytest
from full_tools import CharTokenizer
from hypothesis import given
from hypothesis import strategies as st

from full_scale.protocol import INFORMATION, INVALID, Limits, Trajectory, decode, format_documents, parse_action
from lldsim.errors import ConfigError, ShapeError

TOKENIZER = CharTokenizer()


def start(**limits: int) -> Trajectory:
    return Trajectory(TOKENIZER.encode("Question: q\n"), Limits(**limits), TOKENIZER)


def say(trajectory: Trajectory, text: str) -> str | None:
    ids = TOKENIZER.encode(text)
    return trajectory.act(ids, [-0.5] * len(ids))


def policy_text(trajectory: Trajectory) -> str:
    pairs = zip(trajectory.completion_ids, trajectory.action_mask, strict=True)
    return decode(TOKENIZER, [i for i, m in pairs if m])


@pytest.mark.parametrize(
    ("text", "kind", "content"),
    [
        ("<think>x</think><search> a b </search>", "search", "a b"),
        ("<search>q</search><information>fake</information><answer>x</answer>", "search", "q"),
        ("<answer>P</answer> <search>q</search> tail", "answer", "P"),
        ("foo </search> <answer>P</answer>", "answer", "P"),
        ("<search>a <answer>b</answer> </search>", "answer", "b"),
        ("<search>a<search>b</search>", "search", "b"),
        ("<search> </search>", "invalid", ""),
        ("<search>never closed", "invalid", ""),
        ("no tag", "invalid", ""),
        ("<answer>two\nlines</answer>", "answer", "two\nlines"),
    ],
)
def test_first_complete_action(text: str, kind: str, content: str) -> None:
    action = parse_action(text)
    assert (action.kind, action.content) == (kind, content)


def test_text_after_the_action_is_neither_kept_nor_trained() -> None:
    trajectory = start()
    assert say(trajectory, "<search>q</search><information>fake</information><answer>x</answer>") == "q"
    assert decode(TOKENIZER, trajectory.completion_ids) == "<search>q</search>"
    assert trajectory.answer is None


def test_tag_that_ends_inside_a_token_keeps_the_whole_token() -> None:
    trajectory = start()
    say(trajectory, "<search>q</search>\nmore")
    assert trajectory.completion_ids[-1] == CharTokenizer.MERGED
    assert decode(TOKENIZER, trajectory.completion_ids) == "<search>q</search>\n"
    assert set(trajectory.action_mask) == {1}


def test_answer_mask_covers_the_answer_and_its_tags() -> None:
    trajectory = start()
    say(trajectory, "<think>t</think><answer> P </answer> tail")
    marked = [i for i, a in zip(trajectory.completion_ids, trajectory.answer_mask, strict=True) if a]
    assert decode(TOKENIZER, marked) == "<answer> P </answer>"
    assert (trajectory.answer, trajectory.finish) == ("P", "answer")


def test_invalid_turn_gets_the_corrective_message_with_mask_zero() -> None:
    trajectory = start()
    assert say(trajectory, "hm") is None
    assert decode(TOKENIZER, trajectory.completion_ids) == "hm" + INVALID
    assert policy_text(trajectory) == "hm"
    assert trajectory.invalid_actions == 1


def test_long_observation_is_cut_but_keeps_its_closing_tag() -> None:
    trajectory = start(observation_tokens=60)
    say(trajectory, "<search>q</search>")
    trajectory.observe("x" * 1000)
    text = decode(TOKENIZER, trajectory.completion_ids)
    assert trajectory.action_mask.count(0) == 60
    assert text.endswith("x" + INFORMATION[1])


@pytest.mark.parametrize("room", [0, 5])
def test_empty_observation_still_separates_two_actions(room: int) -> None:
    trajectory = start(observation_tokens=room)
    say(trajectory, "<search>q</search>")
    trajectory.observe("a document")
    say(trajectory, "<answer>P</answer>")
    assert 0 not in trajectory.action_mask
    assert [trajectory.action_id[0], trajectory.action_id[-1]] == [0, 1]


def test_last_turn_has_no_feedback_and_its_search_does_not_count() -> None:
    trajectory = start(max_turns=1)
    say(trajectory, "<search>a</search>")
    trajectory.observe("d")
    assert say(trajectory, "<search>b</search>") is None
    assert (trajectory.finish, trajectory.searches) == ("turns", 1)
    with pytest.raises(ConfigError, match="finished"):
        say(trajectory, "x")


def test_unequal_or_empty_turns_are_errors() -> None:
    with pytest.raises(ShapeError, match="3 token ids but 1"):
        start().act([1, 2, 3], [-1.0])
    with pytest.raises(ShapeError, match="no token"):
        start().act([], [])


def test_documents_are_written_as_search_r1_writes_them() -> None:
    assert format_documents(["T\nbody", "U\nmore"]) == "Doc 1(Title: T) body\nDoc 2(Title: U) more\n"


PIECES = ["<search>", "</search>", "<answer>", "</answer>", "<think>", "</think>", "who", " ", "\n", "é", "<info"]
TURNS = st.lists(st.lists(st.sampled_from(PIECES), min_size=1, max_size=8).map("".join), min_size=1, max_size=6)


@given(
    turns=TURNS,
    turn_tokens=st.integers(1, 40),
    observation_tokens=st.integers(0, 80),
    completion_tokens=st.integers(1, 200),
    max_turns=st.integers(0, 4),
)
def test_lengths_and_masks_hold_whatever_is_written(turns: list[str], **limits: int) -> None:
    trajectory = start(**limits)
    for text in turns:
        query = say(trajectory, text)
        if query is not None:
            trajectory.observe("RETRIEVED " * 5)
        if trajectory.finish is not None:
            break
    n = len(trajectory.completion_ids)
    parts = (trajectory.action_mask, trajectory.action_id, trajectory.answer_mask, trajectory.logps)
    assert [len(part) for part in parts] == [n] * 4
    assert 1 <= n <= limits["completion_tokens"]
    assert "RETRIEVED" not in policy_text(trajectory)
    ids = [a for a, m in zip(trajectory.action_id, trajectory.action_mask, strict=True) if m]
    assert sorted(set(ids)) == list(range(len(trajectory.actions)))
    assert ids == sorted(ids)
    assert all(a == -1 for a, m in zip(trajectory.action_id, trajectory.action_mask, strict=True) if not m)
    assert all(ids.count(number) <= limits["turn_tokens"] for number in set(ids))
    assert all(m for m, a in zip(trajectory.action_mask, trajectory.answer_mask, strict=True) if a)
    assert len(trajectory.actions) <= limits["max_turns"] + 1
    assert all(logp == (-0.5 if m else 0.0) for logp, m in zip(trajectory.logps, trajectory.action_mask, strict=True))
