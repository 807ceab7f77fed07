"""Two ways to let a vLLM engine write a turn: in this process, or on a server over HTTP.

Both follow sampling.Sampler. A real vLLM on a CPU was asked by both (vllm_contract.py); one on a GPU never. Ids are
read, not text: vLLM cuts its text at a stop string, but the last id may reach beyond it.
What this file does not do: send weights to the engine (TRL does, before it asks for a rollout).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from full_scale.protocol import STOP_STRINGS
from full_scale.sampling import Turn
from lldsim.errors import LldsimError


class SamplerError(LldsimError):
    """The sampler did not return what was asked of it."""


@dataclass
class VLLMColocateSampler:
    """Samples from a vLLM engine in this process (`trainer.vllm_generation.llm`), tensor parallel size 1.

    `parameters` builds vLLM's SamplingParams; a test passes a stand-in.
    """

    llm: Any
    parameters: Callable[..., Any] | None = None
    temperature: float = 1.0

    def __call__(
        self, contexts: Sequence[list[int]], rooms: Sequence[int], streams: Sequence[np.random.Generator]
    ) -> list[Turn]:
        """Return one turn per context; vLLM's seeds are drawn from the streams."""
        if not contexts:
            return []
        build = self.parameters
        if build is None:
            from vllm import SamplingParams as build  # pyright: ignore[reportMissingImports]
        asked = [
            build(
                temperature=self.temperature,
                top_p=1.0,
                max_tokens=room,
                stop=list(STOP_STRINGS),
                include_stop_str_in_output=True,
                logprobs=0,
                seed=int(s.integers(2**31)),
            )
            for room, s in zip(rooms, streams, strict=True)
        ]
        prompts = [{"prompt_token_ids": context} for context in contexts]
        outputs = self.llm.generate(prompts, asked, use_tqdm=False)
        turns = []
        for output in outputs:
            best = output.outputs[0]
            ids = list(best.token_ids)
            logps: list[float] = [step[i].logprob for step, i in zip(best.logprobs or (), ids, strict=False)]
            turns.append(_whole(ids, logps, "vLLM"))
        return _as_many(turns, len(contexts), "vLLM")


@dataclass
class VLLMServerSampler:
    """Samples over /v1/completions of a `vllm serve` process: token ids in, token ids out, one request per context.

    Connection errors and 5xx answers are tried `retries` times again.
    """

    url: str
    model: str
    temperature: float = 1.0
    timeout: float = 600.0
    concurrency: int = 64
    retries: int = 2
    transport: Any = None

    def __call__(
        self, contexts: Sequence[list[int]], rooms: Sequence[int], streams: Sequence[np.random.Generator]
    ) -> list[Turn]:
        """Return one turn per context, in order."""
        from concurrent.futures import ThreadPoolExecutor

        import httpx

        seeds = [int(s.integers(2**31)) for s in streams]
        with (
            httpx.Client(timeout=self.timeout, transport=self.transport) as http,
            ThreadPoolExecutor(self.concurrency) as pool,
        ):
            return list(pool.map(lambda job: self._ask(http, *job), zip(contexts, rooms, seeds, strict=True)))

    def _ask(self, http: Any, context: list[int], room: int, seed: int) -> Turn:
        import httpx

        body = {
            "model": self.model,
            "prompt": context,
            "max_tokens": room,
            "temperature": self.temperature,
            "top_p": 1.0,
            "stop": list(STOP_STRINGS),
            "include_stop_str_in_output": True,
            "logprobs": 0,
            "return_token_ids": True,
            "seed": seed,
        }
        trouble = ""
        for attempt in range(self.retries + 1):
            if attempt:
                time.sleep(0.5 * 2 ** (attempt - 1))
            try:
                answer = http.post(f"{self.url}/v1/completions", json=body)
            except httpx.HTTPError as error:
                trouble = f"failed with {type(error).__name__}: {error}"
                continue
            if answer.status_code == 200:
                choice = answer.json()["choices"][0]
                logps = (choice.get("logprobs") or {}).get("token_logprobs") or list[float]()
                return _whole(list(choice.get("token_ids") or []), list(logps), self.url)
            trouble = f"answered {answer.status_code}: {answer.text[:200]!r}"
            if answer.status_code < 500:
                break
        raise SamplerError(f"{self.url} {trouble}; is `vllm serve {self.model}` running?")


def _whole(ids: list[int], logps: list[float], who: str) -> Turn:
    if not ids or len(ids) != len(logps):
        raise SamplerError(
            f"{who} returned {len(ids)} token ids and {len(logps)} log-probabilities; both are needed, one per token "
            "(a server must be new enough for return_token_ids)"
        )
    return ids, logps


def _as_many(turns: list[Turn], expected: int, who: str) -> list[Turn]:
    if len(turns) != expected:
        raise SamplerError(f"{who} returned {len(turns)} turns for {expected} contexts")
    return turns
