"""Multi-turn rollouts: let the policy write, search, append what comes back, until every trajectory has finished.

The same loop for training and evaluation and for every sampler. All searches of a turn go to the retriever together.
What this file does not do: score, or build tensors for the trainer (trl_trainer.py).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from full_scale.protocol import INVALID, Limits, Trajectory, encode, format_documents, parse_action
from full_scale.protocol import decode as text_of
from full_scale.retriever.client import Search
from full_scale.sampling import Sampler, alone
from lldsim.errors import ConfigError


def rollout(
    prompts: Sequence[str],
    *,
    tokenizer: Any,
    sampler: Sampler,
    search: Search,
    limits: Limits,
    streams: Sequence[np.random.Generator],
    prompt_tokens: int = 2048,
    invalid_text: str = INVALID,
    any_process: Callable[[bool], bool] = alone,
) -> list[Trajectory]:
    """Return one finished trajectory per prompt, in order.

    `streams` (one per prompt) are the uniforms. `any_process` is a collective "or" when the sampler's calls are
    collectives, so that every process makes the same number of them. Raises ConfigError for a prompt that is too long:
    cutting it would cut the question.
    """
    trajectories = []
    for prompt in prompts:
        ids = encode(tokenizer, prompt)
        if not 0 < len(ids) <= prompt_tokens:
            raise ConfigError(f"a prompt has {len(ids)} tokens, allowed are 1..{prompt_tokens}: {prompt[:80]!r}...")
        trajectories.append(Trajectory(ids, limits, tokenizer, invalid_text))
    while True:
        live = [i for i, t in enumerate(trajectories) if t.finish is None]
        if not any_process(bool(live)):
            return trajectories
        written = _turns(sampler, [trajectories[i] for i in live], [streams[i] for i in live], any_process)
        asked = []
        for i, turn in zip(live, written, strict=True):
            query = trajectories[i].act(*turn)
            if query is not None:
                asked.append((i, query))
        if asked:
            found = search([query for _, query in asked])
            for (i, _), documents in zip(asked, found, strict=True):
                trajectories[i].observe(format_documents(documents))


def _turns(
    sampler: Sampler,
    live: list[Trajectory],
    streams: list[np.random.Generator],
    any_process: Callable[[bool], bool],
) -> list[tuple[list[int], list[float]]]:
    """Return one turn per trajectory: sample on while a sampler stopped at a closing tag that completes nothing.

    Samplers stop at strings, so that `x </search>` without an opening tag would end a turn that the protocol lets go
    on. The ids so far are put in front and the sampler is asked again, within the same room.
    """
    turns: list[tuple[list[int], list[float]]] = [([], []) for _ in live]
    open_rows = list(range(len(live)))
    while any_process(bool(open_rows)):
        contexts = [live[k].context + turns[k][0] for k in open_rows]
        rooms = [live[k].room - len(turns[k][0]) for k in open_rows]
        parts = sampler(contexts, rooms, [streams[k] for k in open_rows])
        for k, (ids, logps) in zip(open_rows, parts, strict=True):
            turns[k][0].extend(ids)
            turns[k][1].extend(logps)
        open_rows = [k for k in open_rows if goes_on(live[k], turns[k][0])]
    return turns


def goes_on(trajectory: Trajectory, ids: list[int]) -> bool:
    """Tell whether a turn is unfinished although its sampler stopped: at a closing tag that completes nothing."""
    text = text_of(trajectory.tokenizer, ids)
    stray = "</search>" in text or "</answer>" in text
    if not stray or parse_action(text).end > 0 or len(ids) >= trajectory.room:
        return False
    return ids[-1] != getattr(trajectory.tokenizer, "eos_token_id", None)
