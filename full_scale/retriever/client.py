"""The client side of /retrieve: asynchronous, with timeout, retry and typed errors; works with Search-R1's server too.

A blank query is answered here with no documents and never sent. A server that is slow, broken or speaks HTML ends in
a RetrieverError that says what came back; it never ends as documents. What this file does not do: cache or rank.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any, Protocol

from lldsim.errors import LldsimError


class RetrieverError(LldsimError):
    """The retriever did not answer, or not with documents."""


class Search(Protocol):
    """What the rollout asks of a search tool: documents (title, newline, text) for every query."""

    def __call__(self, queries: Sequence[str]) -> list[list[str]]: ...


class RetrieverClient:
    """Calls one /retrieve URL; an instance is a `Search`.

    `batch_size` queries share a request and `concurrency` requests are under way at a time. A refused connection, a
    timeout and a 5xx answer are tried `retries` times again with doubling pauses; a 4xx answer is final.
    """

    def __init__(
        self,
        url: str,
        *,
        topk: int = 3,
        timeout: float = 30.0,
        retries: int = 3,
        pause: float = 0.5,
        batch_size: int = 64,
        concurrency: int = 32,
        transport: Any = None,
    ) -> None:
        self.url, self.topk, self.timeout, self.retries, self.pause = url, topk, timeout, retries, pause
        self.batch_size, self.concurrency, self._transport = batch_size, concurrency, transport

    def __call__(self, queries: Sequence[str]) -> list[list[str]]:
        """Return the documents of every query, in order; blocks."""
        return asyncio.run(self.retrieve(queries))

    async def retrieve(self, queries: Sequence[str]) -> list[list[str]]:
        """Return the documents of every query, in order; raises RetrieverError."""
        import httpx

        asked = [i for i, query in enumerate(queries) if query.strip()]
        batches = [asked[k : k + self.batch_size] for k in range(0, len(asked), self.batch_size)]
        gate = asyncio.Semaphore(self.concurrency)
        documents: list[list[str]] = [[] for _ in queries]
        async with httpx.AsyncClient(timeout=self.timeout, transport=self._transport) as http:

            async def fetch(batch: list[int]) -> None:
                async with gate:
                    rows = await self._post(http, [queries[i] for i in batch])
                for i, row in zip(batch, rows, strict=True):
                    documents[i] = row

            await asyncio.gather(*(fetch(batch) for batch in batches))
        return documents

    async def _post(self, http: Any, queries: list[str]) -> list[list[str]]:
        import httpx

        body = {"queries": queries, "topk": self.topk, "return_scores": True}
        trouble = "was never asked"
        for attempt in range(self.retries + 1):
            if attempt:
                await asyncio.sleep(self.pause * 2 ** (attempt - 1))
            try:
                answer = await http.post(self.url, json=body)
            except httpx.HTTPError as error:
                trouble = f"failed with {type(error).__name__}: {error}"
                continue
            if answer.status_code < 400:
                return self._read(answer, len(queries))
            trouble = f"answered {answer.status_code}: {answer.text[:200]!r}"
            if answer.status_code < 500:
                break
        raise RetrieverError(
            f"{self.url} {trouble} (after {attempt + 1} tries); is the retriever running? "
            "`python -m full_scale.serve_retriever` starts one"
        )

    def _read(self, answer: Any, expected: int) -> list[list[str]]:
        try:
            rows = [[_contents(entry) for entry in row] for row in answer.json()["result"]]
        except (ValueError, KeyError, TypeError) as error:
            text = answer.text[:200]
            raise RetrieverError(f"{self.url} answered {text!r}, which is no list of documents ({error!r})") from None
        if len(rows) != expected:
            raise RetrieverError(f"{self.url} answered {len(rows)} lists of documents to {expected} queries")
        return rows


def _contents(entry: dict[str, Any]) -> str:
    return str(entry.get("document", entry)["contents"])
