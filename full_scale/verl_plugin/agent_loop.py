# pyright: reportMissingImports=false
"""Search-R1's episodes as an agent loop of verl: the protocol, retriever client and masks of the TRL path.

One instance plays one episode. verl makes it from the entry of agent_loop.yaml that launch.py writes (name, `_target_`
and this class's own arguments). Ids are concatenated and never tokenised again; prompts are rendered by verl.
What this file does not do: score (reward.py) or sample (verl's servers, which get stop strings and a turn's room).
"""

from __future__ import annotations

import asyncio
from typing import Any
from uuid import uuid4
from weakref import WeakKeyDictionary

from verl.experimental.agent_loop.agent_loop import AgentLoopBase, AgentLoopMetrics, AgentLoopOutput
from verl.utils.profiler import simple_timer

from full_scale.protocol import INFORMATION, INVALID, STOP_STRINGS, Limits, Trajectory, encode, format_documents
from full_scale.retriever.client import RetrieverClient
from full_scale.rollout import goes_on
from full_scale.verl_plugin import FIELD
from full_scale.verl_plugin.batch import annotation
from lldsim.errors import ConfigError, LldsimError

# Searches under way in one process; verl plays hundreds of episodes at once in each.
_CONCURRENT = 64
_gates: WeakKeyDictionary[Any, asyncio.Semaphore] = WeakKeyDictionary()


class SamplerAbortedError(LldsimError):
    """The server returned no token."""


class SearchR1Loop(AgentLoopBase):
    """Plays one episode; `client` replaces the retriever client in tests."""

    def __init__(
        self,
        *args: Any,
        retriever: str = "http://127.0.0.1:8000/retrieve",
        topk: int = 3,
        max_turns: int = 3,
        turn_tokens: int = 500,
        observation_tokens: int = 500,
        invalid_text: str = INVALID,
        client: Any = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(*args, **kwargs)
        self.limits = Limits(max_turns, turn_tokens, observation_tokens, self.rollout_config.response_length)
        self.invalid_text = invalid_text
        self.client = client if client is not None else RetrieverClient(retriever, topk=topk)
        # verl numbers actions by runs of the mask, so feedback must never be empty.
        tags = sum(len(encode(self.tokenizer, text)) for text in INFORMATION)
        if observation_tokens < max(tags, 1):
            raise ConfigError(
                f"observation_tokens={observation_tokens} leaves no room for the information tags ({tags} tokens), and "
                "feedback of no tokens would merge two actions; raise it (paper: 500)"
            )

    async def run(self, sampling_params: dict[str, Any], **row: Any) -> AgentLoopOutput:
        """Return the finished episode of one row; RetrieverError and SamplerAbortedError end it."""
        prompt_ids = await self._prompt(list(row["raw_prompt"]))
        trajectory = Trajectory(prompt_ids, self.limits, self.tokenizer, self.invalid_text)
        params = {**sampling_params, "stop": list(STOP_STRINGS), "include_stop_str_in_output": True}
        request, seconds = uuid4().hex, dict[str, float]()
        while trajectory.finish is None:
            with simple_timer("generate_sequences", seconds):
                turn = await self._turn(trajectory, params, request)
            query = trajectory.act(*turn)
            if query is not None:
                with simple_timer("tool_calls", seconds):
                    async with _gate():
                        (documents,) = await self.client.retrieve([query])
                trajectory.observe(format_documents(documents))
        return AgentLoopOutput(
            prompt_ids=prompt_ids,
            response_ids=trajectory.completion_ids,
            response_mask=trajectory.action_mask,
            response_logprobs=trajectory.logps if sampling_params.get("logprobs") else None,
            num_turns=len(trajectory.actions) + trajectory.searches + 1,
            metrics=AgentLoopMetrics(**seconds),
            extra_fields={FIELD: annotation(trajectory)},
        )

    async def _prompt(self, messages: list[dict[str, Any]]) -> list[int]:
        """Return the ids of the rendered prompt. verl would cut a long one on the left, and so the question's task."""
        build = self.continuous_token_builder.build_initial_tokens
        ids = await asyncio.get_running_loop().run_in_executor(None, lambda: list(build(messages)))
        longest = self.rollout_config.prompt_length
        if not 0 < len(ids) <= longest:
            raise ConfigError(f"a prompt has {len(ids)} tokens, allowed are 1..{longest}: raise data.max_prompt_length")
        return ids

    async def _turn(
        self, trajectory: Trajectory, params: dict[str, Any], request: str
    ) -> tuple[list[int], list[float]]:
        """Return one policy turn; sample on while the server stopped at a closing tag that completes nothing."""
        ids, logps = list[int](), list[float]()
        while not ids or goes_on(trajectory, ids):
            output = await self.server_manager.generate(
                request_id=request,
                prompt_ids=trajectory.context + ids,
                sampling_params={**params, "max_tokens": trajectory.room - len(ids)},
            )
            part = list(output.token_ids)
            given = list(output.log_probs) if output.log_probs is not None else [0.0] * len(part)
            if not part or len(part) != len(given):
                raise SamplerAbortedError(
                    f"the server returned {len(part)} tokens and {len(given)} log-probabilities "
                    f"({output.stop_reason}); an episode needs at least one token per turn"
                )
            ids += part
            logps += given
        return ids, logps


def _gate() -> asyncio.Semaphore:
    """Return the semaphore of the running event loop."""
    return _gates.setdefault(asyncio.get_running_loop(), asyncio.Semaphore(_CONCURRENT))
