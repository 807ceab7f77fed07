"""The retriever: index, server, client, stub.

Locked here: BM25 finds the document of a FactWorld question and nothing for a blank or unknown query; the server speaks
Search-R1's formats with and without scores; bad requests get a reason; the client retries what may pass, gives up with
a typed error on what may not, never sends a blank query, and loses nothing under 240 concurrent queries on loopback.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

import pytest
from full_tools import needs

from full_scale.retriever.client import RetrieverClient, RetrieverError
from full_scale.retriever.index import BM25Index, build_index, read_corpus
from full_scale.retriever.server import make_app, serving
from full_scale.retriever.stub import LocalSearch, StubSearch
from lldsim.errors import ConfigError, MissingDataError

httpx, *_ = needs("httpx", "fastapi", "uvicorn", "bm25s")
DOCUMENTS = ["Radium\nA metal found in France.", "France\nIts capital is Paris.", "Sweden\nIts capital is Stockholm."]


@pytest.fixture(scope="module")
def index() -> BM25Index:
    return BM25Index(DOCUMENTS)


def client(handler: Callable[..., object], **options: object) -> RetrieverClient:
    transport = httpx.MockTransport(handler)
    return RetrieverClient("http://test/retrieve", pause=0.0, transport=transport, **options)  # pyright: ignore


def test_bm25_ranks_and_leaves_out_what_does_not_match(index: BM25Index) -> None:
    search = LocalSearch(index, topk=2)
    assert search(["capital of France"])[0][0] == DOCUMENTS[1]
    assert search(["", "  ", "zzz", "the"]) == [[], [], [], []]
    assert len(LocalSearch(index, topk=99)(["capital"])[0]) == 2


@pytest.mark.parametrize("topk", [0, -1])
def test_topk_below_one_is_an_error(index: BM25Index, topk: int) -> None:
    with pytest.raises(ConfigError, match="at least 1"):
        index.search(["x"], topk)


def test_unknown_index_and_broken_corpus(tmp_path) -> None:
    with pytest.raises(ConfigError, match="embedding model"):
        build_index("factworld", kind="dense") if _has_facts() else pytest.skip("countryinfo is not installed")
    (tmp_path / "corpus.jsonl").write_text('{"id": "0", "contents": "a\\nb"}\n{"id": "1"}\n')
    with pytest.raises(MissingDataError, match="line 2"):
        read_corpus(tmp_path / "corpus.jsonl")
    with pytest.raises(MissingDataError, match="does not exist"):
        read_corpus(tmp_path / "absent.jsonl")


def _has_facts() -> bool:
    from importlib import util

    return util.find_spec("countryinfo") is not None and util.find_spec("mendeleev") is not None


def ask(index: BM25Index, body: object) -> tuple[int, dict]:
    async def post() -> tuple[int, dict]:
        transport = httpx.ASGITransport(app=make_app(index))
        async with httpx.AsyncClient(transport=transport, base_url="http://test") as http:
            answer = await http.post("/retrieve", json=body)
            return answer.status_code, answer.json()

    return asyncio.run(post())


def test_server_formats(index: BM25Index) -> None:
    status, body = ask(index, {"queries": ["Stockholm", ""], "topk": 1, "return_scores": True})
    assert status == 200
    (entry,), empty = body["result"]
    assert entry["document"]["contents"] == DOCUMENTS[2]
    assert entry["score"] > 0
    assert empty == []
    status, body = ask(index, {"queries": ["Stockholm"], "return_scores": False})
    assert (status, body["result"][0][0]["contents"]) == (200, DOCUMENTS[2])


@pytest.mark.parametrize("body", [{}, {"queries": "x"}, {"queries": [1]}, {"queries": ["x"], "topk": 0}, [1]])
def test_bad_requests_are_refused_with_a_reason(index: BM25Index, body: object) -> None:
    status, answer = ask(index, body)
    assert status in (400, 422)
    assert answer["detail"]


def test_client_sends_no_blank_query_and_keeps_order() -> None:
    seen: list[bytes] = []

    def handler(request):
        seen.append(request.content)
        return httpx.Response(200, json={"result": [[{"document": {"contents": "a"}, "score": 1}], []]})

    assert client(handler)(["x", " ", "y"]) == [["a"], [], []]
    assert len(seen) == 1
    assert b'" "' not in seen[0]
    assert client(handler)([]) == []
    assert len(seen) == 1


def test_client_retries_a_server_error_and_a_lost_connection() -> None:
    calls = []

    def handler(request):
        calls.append(request)
        if len(calls) == 1:
            return httpx.Response(502, text="<html>Bad Gateway</html>")
        if len(calls) == 2:
            raise httpx.ConnectError("refused")
        return httpx.Response(200, json={"result": [[{"contents": "plain"}]]})

    assert client(handler)(["x"]) == [["plain"]]
    assert len(calls) == 3


@pytest.mark.parametrize(
    ("answer", "tries", "message"),
    [
        ({"status_code": 502, "text": "<html>"}, 3, "502"),
        ({"status_code": 400, "text": "no"}, 1, "400"),
        ({"status_code": 200, "text": "<html>"}, 1, "no list of documents"),
        ({"status_code": 200, "json": {"result": []}}, 1, "0 lists of documents to 1 queries"),
        ({"status_code": 200, "json": {"result": [[{"x": 1}]]}}, 1, "no list of documents"),
    ],
)
def test_client_gives_up_with_a_typed_error(answer: dict, tries: int, message: str) -> None:
    calls = []

    def handler(request):
        calls.append(request)
        return httpx.Response(**answer)

    with pytest.raises(RetrieverError, match=message):
        client(handler, retries=2)(["x"])
    assert len(calls) == tries


def test_client_times_out() -> None:
    def handler(request):
        raise httpx.ReadTimeout("slow")

    with pytest.raises(RetrieverError, match="ReadTimeout"):
        client(handler, retries=1)(["x"])


def test_nothing_is_lost_under_concurrent_load(index: BM25Index) -> None:
    names = ["Stockholm", "Paris", "Radium"] * 80
    wanted = {"Stockholm": DOCUMENTS[2], "Paris": DOCUMENTS[1], "Radium": DOCUMENTS[0]}
    started = time.monotonic()
    with serving(index, topk=1) as url:
        found = RetrieverClient(url, topk=1, batch_size=1, concurrency=240)(names)
    assert [row[0] for row in found] == [wanted[name] for name in names]
    assert time.monotonic() - started < 20


def test_stub_remembers() -> None:
    stub = StubSearch({"a": ["d"]})
    assert stub(["a", "b"]) == [["d"], []]
    assert stub.asked == ["a", "b"]
