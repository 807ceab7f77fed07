"""Exact match under its two names.

Locked here: Search-R1's normalisation on its own examples, where the Unicode-aware rule differs from it, no reward for
an answer that is not the policy's last action, and errors for a missing gold answer.
"""

from __future__ import annotations

import pytest
from full_tools import CharTokenizer
from hypothesis import given
from hypothesis import strategies as st

from full_scale.protocol import Limits, Trajectory
from full_scale.rewards import NORMALIZERS, exact_match
from lldsim.errors import ConfigError


@pytest.mark.parametrize(
    ("answer", "gold", "released", "unicode"),
    [
        ("The Beatles!", "beatles", 1, 1),
        ("U.S.A.", "USA", 1, 1),
        ("a  b", "b", 1, 1),
        ("Paris, France", "Paris", 0, 0),
        ("“Hamlet”", "Hamlet", 0, 1),  # typographic quotes are no ASCII punctuation
        ("STRASSE", "straße", 0, 1),
        ("Sa\u0303o Tome", "S\u00e3o Tome", 0, 1),
        ("twenty–one", "twenty one", 0, 1),
        ("twenty-one", "twentyone", 1, 0),
        ("Sao", "São", 0, 0),
    ],
)
def test_the_two_rules(answer: str, gold: str, released: int, unicode: int) -> None:
    assert exact_match(answer, [gold], rule="em_search_r1") == released
    assert exact_match(answer, [gold], rule="em_unicode") == unicode


@pytest.mark.parametrize("rule", sorted(NORMALIZERS))
def test_an_answer_of_nothing_never_matches(rule: str) -> None:
    assert exact_match("the", ["a"], rule=rule) == 0  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize("rule", sorted(NORMALIZERS))
@given(text=st.text())
def test_normalising_twice_changes_nothing_under_unicode(rule: str, text: str) -> None:
    once = NORMALIZERS[rule](text)
    if rule == "em_unicode":
        assert NORMALIZERS[rule](once) == once
    assert exact_match(text, [text], rule=rule) == float(bool(once))  # pyright: ignore[reportArgumentType]


def test_answer_in_a_document_or_before_the_last_action_scores_nothing() -> None:
    tokenizer = CharTokenizer()
    trajectory = Trajectory(tokenizer.encode("<answer>Paris</answer>"), Limits(max_turns=1), tokenizer)
    ids = tokenizer.encode("<search>q</search>")
    trajectory.act(ids, [0.0] * len(ids))
    trajectory.observe("<answer>Paris</answer>")
    ids = tokenizer.encode("no action")
    trajectory.act(ids, [0.0] * len(ids))
    assert exact_match(trajectory.answer, ["Paris"]) == 0.0


def test_missing_gold_and_unknown_rule_are_errors() -> None:
    with pytest.raises(ConfigError, match="gold answers"):
        exact_match("x", [])
    with pytest.raises(ConfigError, match="gold answers"):
        exact_match("x", "Paris")
    with pytest.raises(ConfigError, match="match rule"):
        exact_match("x", ["x"], rule="f1")  # pyright: ignore[reportArgumentType]
