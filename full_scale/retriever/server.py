# pyright: reportMissingImports=false
"""A retrieval server that speaks Search-R1's /retrieve: either side can be swapped for theirs.

    POST /retrieve  {"queries": [...], "topk": 3, "return_scores": true}
    200  {"result": [[{"document": {"contents": "..."}, "score": 1.2}, ...], ...]}      with scores
    200  {"result": [[{"contents": "..."}, ...], ...]}                                 without
    GET  /health    {"documents": n}

Search-R1's server answers `return_scores=false` with an error 500; here it works. A blank query gets an empty list; a
malformed request gets 400 or 422 with the reason. What this file does not do: batch across requests, or authenticate.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from full_scale.retriever.index import Index
from lldsim.errors import ConfigError, MissingDataError


def make_app(index: Index, *, topk: int = 3) -> Any:
    """Return the FastAPI application for an index; `topk` is used when a request names none."""
    from fastapi import Body, FastAPI, HTTPException

    app = FastAPI(title="lldsim retriever")
    lock = threading.Lock()  # encoders and bm25s are not promised to be thread-safe

    @app.get("/health")
    def health() -> dict[str, int]:
        return {"documents": len(index.documents)}

    @app.post("/retrieve")
    def retrieve(request: dict[str, Any] = Body()) -> dict[str, Any]:  # noqa: B008
        try:
            queries, k, scored = _read(request, topk)
            with lock:
                hits = index.search(queries, k)
        except ConfigError as error:
            raise HTTPException(status_code=400, detail=str(error)) from None
        return {"result": [[_entry(index, p, s, scored) for p, s in row] for row in hits]}

    return app


def _read(request: dict[str, Any], topk: int) -> tuple[list[str], int, bool]:
    queries = request.get("queries")
    if not isinstance(queries, list) or not all(isinstance(query, str) for query in queries):
        raise ConfigError("'queries' must be a list of strings")
    given = request.get("topk")
    if given is not None and (isinstance(given, bool) or not isinstance(given, int)):
        raise ConfigError(f"'topk' is {given!r}, expected an integer")
    return queries, topk if given is None else given, bool(request.get("return_scores", False))


def _entry(index: Index, position: int, score: float, scored: bool) -> dict[str, Any]:
    document = {"id": str(position), "contents": index.documents[position]}
    return {"document": document, "score": score} if scored else document


def serve(index: Index, *, host: str = "127.0.0.1", port: int = 8000, topk: int = 3) -> None:
    """Serve until interrupted."""
    import uvicorn

    uvicorn.run(make_app(index, topk=topk), host=host, port=port, log_level="warning")


@contextmanager
def serving(index: Index, *, topk: int = 3, timeout: float = 20.0) -> Iterator[str]:
    """Serve on a free loopback port from a thread for the length of a `with` block; gives the URL of /retrieve."""
    import socket

    import uvicorn

    listener = socket.socket()
    listener.bind(("127.0.0.1", 0))
    listener.listen(1024)
    config = uvicorn.Config(make_app(index, topk=topk), log_level="warning", backlog=1024)
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True)
    thread.start()
    try:
        deadline = time.monotonic() + timeout
        while not server.started:
            if time.monotonic() > deadline or not thread.is_alive():
                raise MissingDataError(f"the retriever did not start within {timeout:g} s; see the log above")
            time.sleep(0.02)
        yield f"http://127.0.0.1:{listener.getsockname()[1]}/retrieve"
    finally:
        server.should_exit = True
        thread.join(timeout)
        listener.close()
