"""FactWorld: real facts, questions that its documents answer, a split without leaks.

Locked here: known facts; each question's steps stand in its gold documents and end in its answer; the gold documents
are the ones that BM25 finds by title; both splits have every number of hops; ids are unique; two builds are equal.
"""

from __future__ import annotations

import pytest
from full_tools import needs

from full_scale.factworld import FactWorld, build_factworld
from full_scale.retriever.index import BM25Index
from full_scale.retriever.stub import LocalSearch
from lldsim.errors import ConfigError

needs("countryinfo", "mendeleev", "bm25s")


@pytest.fixture(scope="module")
def world() -> FactWorld:
    return build_factworld()


@pytest.mark.parametrize(
    ("question", "answer", "hops"),
    [
        ("What is the capital of France?", "Paris", 1),
        ("What is the symbol of Radium?", "Ra", 1),
        ("What is the capital of the country where Radium was discovered?", "Paris", 2),
        ("What is the currency of the country whose capital is Hanoi?", "VND", 2),
        ("What is the capital of the country where the element with atomic number 88 was discovered?", "Paris", 3),
    ],
)
def test_known_facts(world: FactWorld, question: str, answer: str, hops: int) -> None:
    (found,) = [q for q in world.questions if q.question == question]
    assert (found.answers, found.hops) == ((answer,), hops)


def test_gold_documents_hold_the_steps_and_the_last_one_the_answer(world: FactWorld) -> None:
    texts = {document.title: document.text for document in world.documents}
    for question in world.questions:
        assert len(question.gold_titles) == len(question.steps) == question.hops
        for title, step in zip(question.gold_titles, question.steps, strict=True):
            assert step in texts[title]
        assert question.steps[-1].endswith(f" is {question.answers[0]}.")


def test_ids_and_titles_are_unique_and_builds_are_equal(world: FactWorld) -> None:
    assert len({q.id for q in world.questions}) == len(world.questions) > 2000
    assert len({d.title for d in world.documents}) == len(world.documents) > 500
    assert build_factworld() == world


def test_splits_do_not_overlap_and_have_all_hops(world: FactWorld) -> None:
    train, test = ({q.question for q in world.select(split)} for split in ("train", "test"))
    assert not train & test
    assert all(len(world.select(split, [hops])) > 50 for split in ("train", "test") for hops in (1, 2, 3))
    with pytest.raises(ConfigError, match="split"):
        world.select("dev")


def test_bm25_finds_a_document_by_its_title(world: FactWorld) -> None:
    titles = [document.title for document in world.documents]
    found = LocalSearch(BM25Index([d.contents for d in world.documents]), topk=3)(titles)
    hits = [any(d.startswith(t + "\n") for d in row) for t, row in zip(titles, found, strict=True)]
    assert sum(hits) / len(hits) > 0.97
