"""Search tools without a server: an index called in the same process, and a dictionary for tests.

What this file does not do: anything over a network.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from full_scale.retriever.index import Index


class LocalSearch:
    """A `Search` over an index in this process."""

    def __init__(self, index: Index, *, topk: int = 3) -> None:
        self.index, self.topk = index, topk

    def __call__(self, queries: Sequence[str]) -> list[list[str]]:
        """Return the documents of every query, in order."""
        return [[self.index.documents[p] for p, _ in row] for row in self.index.search(queries, self.topk)]


class StubSearch:
    """A `Search` that looks queries up in a dictionary and remembers what it was asked."""

    def __init__(self, answers: Mapping[str, Sequence[str]]) -> None:
        self.answers, self.asked = dict(answers), list[str]()

    def __call__(self, queries: Sequence[str]) -> list[list[str]]:
        """Return the listed documents, none for an unknown query."""
        self.asked += queries
        return [list(self.answers.get(query, ())) for query in queries]
