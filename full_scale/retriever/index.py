"""Indices over a corpus: BM25 (bm25s) as the embedded default, and a dense one (sentence-transformers and faiss).

An index answers a list of queries with a list of (document position, score) lists. Corpus files are Search-R1's:
one JSON object a line with `id` and `contents` (title, newline, text).
What this file does not do: serve, cache, or download a corpus or a model.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from importlib import util
from pathlib import Path
from typing import Any, Literal, Protocol

from lldsim.errors import ConfigError, MissingDataError

Hits = list[list[tuple[int, float]]]


class Index(Protocol):
    """What the server asks of an index."""

    documents: list[str]

    def search(self, queries: Sequence[str], topk: int) -> Hits: ...


def read_corpus(path: str | Path) -> list[str]:
    """Return the `contents` of a JSON-lines corpus; MissingDataError names the line that is none."""
    path = Path(path)
    if not path.is_file():
        raise MissingDataError(f"corpus {path} does not exist; give Search-R1's wiki-18.jsonl or 'factworld'")
    documents = []
    with path.open(encoding="utf-8") as file:
        for number, line in enumerate(file, start=1):
            try:
                documents.append(str(json.loads(line)["contents"]))
            except (ValueError, KeyError, TypeError) as error:
                raise MissingDataError(f"{path} line {number} is no document with 'contents': {error!r}") from None
    return documents


def checked(queries: Sequence[str], topk: int, n_documents: int) -> int:
    """Return the number of hits to ask for; topk beyond the corpus is cut, topk below 1 is an error."""
    if topk < 1:
        raise ConfigError(f"topk={topk} must be at least 1 (a default in its place would hide the mistake)")
    if isinstance(queries, str):
        raise ConfigError(f"queries is the string {queries!r}; send a list of strings")
    return min(topk, n_documents)


class BM25Index:
    """BM25 over words (Lucene's variant); a query without a known word gets no document."""

    def __init__(self, documents: Sequence[str]) -> None:
        if not documents:
            raise ConfigError("the corpus has no documents; an index needs at least one")
        bm25s = _needed("bm25s", "search")
        self.documents = list(documents)
        self._module = bm25s
        self._retriever = bm25s.BM25()
        self._retriever.index(bm25s.tokenize(self.documents, show_progress=False), show_progress=False)

    def search(self, queries: Sequence[str], topk: int) -> Hits:
        """Return up to topk (position, score) per query, best first, only documents with a score above 0."""
        k = checked(queries, topk, len(self.documents))
        hits: Hits = [[] for _ in queries]
        asked = [i for i, query in enumerate(queries) if query.strip()]
        if not asked:
            return hits
        tokens = self._module.tokenize([queries[i] for i in asked], show_progress=False, return_ids=False)
        for i, words in zip(asked, tokens, strict=True):
            if words:
                found, scores = self._retriever.retrieve([words], k=k, show_progress=False)
                pairs = zip(found[0].tolist(), scores[0].tolist(), strict=True)
                hits[i] = [(int(position), float(score)) for position, score in pairs if score > 0]
        return hits


class DenseIndex:
    """Inner-product search over normalised sentence embeddings; E5 models get their query and passage prefixes."""

    def __init__(self, documents: Sequence[str], *, model: str, index_file: str | Path | None = None) -> None:
        faiss, transformers = _needed("faiss", "dense"), _needed("sentence_transformers", "dense")
        self.documents = list(documents)
        self._encoder: Any = transformers.SentenceTransformer(model)
        self._e5 = "e5" in Path(model).name.lower()
        if index_file is not None:  # Search-R1's prebuilt wiki-18 index
            self._index: Any = faiss.read_index(str(index_file))
            if self._index.ntotal != len(self.documents):
                raise MissingDataError(
                    f"{index_file} holds {self._index.ntotal} vectors but the corpus {len(self.documents)} documents; "
                    "take index and corpus of the same release"
                )
            return
        vectors = self._encode(self.documents, "passage: ")
        self._index = faiss.IndexFlatIP(vectors.shape[1])
        self._index.add(vectors)

    def _encode(self, texts: Sequence[str], prefix: str) -> Any:
        texts = [prefix + text for text in texts] if self._e5 else list(texts)
        return self._encoder.encode(texts, normalize_embeddings=True, convert_to_numpy=True, show_progress_bar=False)

    def search(self, queries: Sequence[str], topk: int) -> Hits:
        """Return topk (position, score) per query, best first; none for a blank query."""
        k = checked(queries, topk, len(self.documents))
        hits: Hits = [[] for _ in queries]
        asked = [i for i, query in enumerate(queries) if query.strip()]
        if asked:
            scores, found = self._index.search(self._encode([queries[i] for i in asked], "query: "), k)
            for row, i in enumerate(asked):
                hits[i] = [(int(p), float(s)) for p, s in zip(found[row], scores[row], strict=True) if p >= 0]
        return hits


def build_index(
    corpus: str, *, kind: Literal["bm25", "dense"] = "bm25", model: str | None = None, index_file: str | None = None
) -> Index:
    """Return an index over "factworld" or over a corpus file."""
    if corpus == "factworld":
        from full_scale.factworld import build_factworld

        documents = [document.contents for document in build_factworld().documents]
    else:
        documents = read_corpus(corpus)
    if kind == "bm25":
        return BM25Index(documents)
    if kind != "dense":
        raise ConfigError(f"index kind is {kind!r}; choose 'bm25' or 'dense'")
    if model is None:
        raise ConfigError("a dense index needs an embedding model: the paper's is intfloat/e5-base-v2")
    return DenseIndex(documents, model=model, index_file=index_file)


def _needed(module: str, extra: str) -> Any:
    if util.find_spec(module) is None:
        raise MissingDataError(f"this index needs the package {module}: pip install 'lldsim[{extra}]'")
    return __import__(module)
