"""FactWorld: template text over real facts about countries and chemical elements, with 1-, 2- and 3-hop questions.

Facts come from the packages countryinfo and mendeleev (read as files; neither is imported). Every question names the
documents that answer it, in the order in which a searcher needs them, and belongs to the train or the test split by a
hash of its text. It is a small stand-in for a question-answering corpus: never call it NQ or HotpotQA.
What this file does not do: natural prose, temporal facts, or questions with several right answers.
"""

from __future__ import annotations

import hashlib
import json
import sqlite3
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib import util
from pathlib import Path

from lldsim.errors import ConfigError, MissingDataError

TEST_SHARE = 0.2
# Places of discovery that are not a country of the atlas under that name.
_COUNTRY_OF_PLACE = {"England": "United Kingdom", "Scotland": "United Kingdom", "Great Britain": "United Kingdom"}


@dataclass(frozen=True)
class Document:
    """One document of the corpus; `contents` is title, newline, text, as in Search-R1's corpus."""

    title: str
    text: str

    @property
    def contents(self) -> str:
        """Title and text as one string, the unit that a retriever indexes."""
        return f"{self.title}\n{self.text}"


@dataclass(frozen=True)
class Question:
    """One question: `gold_titles` and `steps` give the documents and the sentence of each that lead to the answer."""

    id: str
    question: str
    answers: tuple[str, ...]
    hops: int
    gold_titles: tuple[str, ...]
    steps: tuple[str, ...]
    split: str


@dataclass(frozen=True)
class FactWorld:
    """Documents and questions."""

    documents: tuple[Document, ...]
    questions: tuple[Question, ...]

    def select(self, split: str, hops: Sequence[int] = (1, 2, 3)) -> list[Question]:
        """Return the questions of a split ("train" or "test") with one of the given numbers of hops."""
        if split not in ("train", "test"):
            raise ConfigError(f"split is {split!r}; choose 'train' or 'test'")
        return [q for q in self.questions if q.split == split and q.hops in hops]


@dataclass(frozen=True)
class Fact:
    """One sentence of a document: `subject`'s `relation` is `value`."""

    subject: str
    relation: str  # as it stands in a question: "the capital"
    value: str

    @property
    def sentence(self) -> str:
        """The fact as it stands in the document."""
        return f"{self.relation[0].upper()}{self.relation[1:]} of {self.subject} is {self.value}."


def build_factworld() -> FactWorld:
    """Return the world; MissingDataError names the package that is absent.

    Order and split depend only on the facts, never on a seed.
    """
    countries, elements = country_facts(), element_facts()
    known = {facts[0].subject: facts for facts in countries}
    capital_of = {facts[0].value: facts[0].subject for facts in countries}
    documents = [Document(facts[0].subject, " ".join(fact.sentence for fact in facts)) for facts in countries]
    documents += [Document(city, _city(city, country)) for city, country in capital_of.items() if city not in known]
    questions = [_question((fact.subject,), (fact,)) for facts in countries for fact in facts]
    for city, country in capital_of.items():
        if city not in known:
            bridge = Fact(city, "the country", country)
            for fact in known[country][1:]:
                text = f"What is {fact.relation} of the country whose capital is {city}?"
                questions.append(_question((city, country), (bridge, fact), text))
    for number, facts in elements:
        name, place = facts[0].subject, facts[-1].value
        title = f"Element {number}"
        pointer = Fact(f"element {number}", "the name", name)
        documents += [Document(name, " ".join(f.sentence for f in facts)), Document(title, pointer.sentence)]
        questions += [_question((name,), (fact,)) for fact in facts]
        for fact in known.get(place, ()):
            of = f"What is {fact.relation} of the country where"
            questions.append(_question((name, place), (facts[-1], fact), f"{of} {name} was discovered?"))
            text = f"{of} the element with atomic number {number} was discovered?"
            questions.append(_question((title, name, place), (pointer, facts[-1], fact), text))
    return FactWorld(tuple(documents), tuple(questions))


def _city(city: str, country: str) -> str:
    return f"{Fact(city, 'the country', country).sentence} {city} is its capital."


def _question(titles: tuple[str, ...], facts: tuple[Fact, ...], text: str | None = None) -> Question:
    last = facts[-1]
    text = text or f"What is {last.relation} of {last.subject}?"
    digest = hashlib.sha256(text.encode()).digest()
    split = "test" if digest[0] < 256 * TEST_SHARE else "train"
    steps = tuple(fact.sentence for fact in facts)
    return Question(f"fw-{digest.hex()[:10]}", text, (last.value,), len(facts), titles, steps, split)


def country_facts() -> list[list[Fact]]:
    """Return the facts of every country that has them all; the first is always its capital."""
    found = []
    for path in sorted((_package("countryinfo") / "data").glob("*.json")):
        data = json.loads(path.read_text(encoding="utf-8"))
        name, capital = data.get("name"), data.get("capital")
        if not name or not capital or not isinstance(capital, str):
            continue
        fields = {
            "the capital": capital,
            "the currency": _only(data.get("currencies")),
            "the region": data.get("subregion"),
            "the demonym": data.get("demonym"),
            "the calling code": _only(data.get("callingCodes")),
        }
        if all(fields.values()):
            found.append([Fact(name, relation, str(value).strip()) for relation, value in fields.items()])
    cities = Counter(facts[0].value for facts in found)
    names = Counter(facts[0].subject for facts in found)
    return [facts for facts in found if cities[facts[0].value] == names[facts[0].subject] == 1]


def element_facts() -> list[tuple[int, list[Fact]]]:
    """Return (atomic number, facts) of every element with one known country of discovery; that fact is the last."""
    connection = sqlite3.connect(f"file:{_package('mendeleev') / 'elements.db'}?mode=ro&immutable=1", uri=True)
    try:
        rows = connection.execute(
            "select atomic_number, name, symbol, discovery_year, discovery_location from elements order by 1"
        ).fetchall()
    finally:
        connection.close()
    return [(number, list(_element(*rest))) for number, *rest in rows if rest[2] and rest[3] and "/" not in rest[3]]


def _element(name: str, symbol: str, year: int, place: str) -> Iterator[Fact]:
    yield Fact(name, "the symbol", symbol)
    yield Fact(name, "the discovery year", str(int(year)))
    yield Fact(name, "the discovery country", _COUNTRY_OF_PLACE.get(place, place))


def _only(values: object) -> str | None:
    """Return the single entry of a list, None when there are none or several (such a question has no one answer)."""
    return str(values[0]) if isinstance(values, list) and len(values) == 1 else None


def _package(name: str) -> Path:
    spec = util.find_spec(name)
    if spec is None or spec.origin is None:
        raise MissingDataError(f"FactWorld reads its facts from the package {name}: pip install 'lldsim[assets]'")
    return Path(spec.origin).parent
