"""Let a policy write a turn, with transformers on any device; vLLM's samplers (sampling_vllm.py) share its interface.

A sampler takes contexts as token ids and returns the new ids with its own log-probabilities, one per id. A turn
ends at </search>, </answer>, an end-of-text token or its room. The transformers sampler draws every trajectory from
its own stream of uniforms, so that its text depends neither on the batch it stands in nor on how many processes share
the work. What this file does not do: know what an action means (protocol.py), or sample at another temperature than
1 or 0.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from full_scale.protocol import STOP_STRINGS, decode

Turn = tuple[list[int], list[float]]


class Sampler(Protocol):
    """What the rollout asks of an engine: one turn for each context, of at most `rooms` tokens."""

    def __call__(
        self, contexts: Sequence[list[int]], rooms: Sequence[int], streams: Sequence[np.random.Generator]
    ) -> list[Turn]: ...


def stream(seed: int, rollout: int, row: int) -> np.random.Generator:
    """Return the uniforms of trajectory `row` (counted over all processes) of a rollout batch."""
    return np.random.Generator(np.random.Philox(np.random.SeedSequence([seed, rollout, row])))


def alone(flag: bool) -> bool:
    """Tell whether any process still works, when there is only this one."""
    return flag


@dataclass
class TransformersSampler:
    """Samples from a transformers model with a key-value cache, all rows of a pass in lockstep.

    `any_process` must be a collective "or" when forward passes are collectives (FSDP): every process then makes the
    same number of passes, idle ones on a dummy row. `temperature` is 1 or 0 (greedy).
    """

    model: Any
    tokenizer: Any
    batch_size: int = 128
    temperature: float = 1.0
    any_process: Callable[[bool], bool] = alone

    def __post_init__(self) -> None:
        self._closing: dict[int, bool] = {}

    def __call__(
        self, contexts: Sequence[list[int]], rooms: Sequence[int], streams: Sequence[np.random.Generator]
    ) -> list[Turn]:
        """Return one turn per context; works in passes of similar length."""
        turns: list[Turn] = [([], []) for _ in contexts]
        order = sorted(range(len(contexts)), key=lambda i: len(contexts[i]))
        passes = [order[k : k + self.batch_size] for k in range(0, len(order), self.batch_size)]
        while self.any_process(bool(passes)):
            rows = passes.pop(0) if passes else []
            self._one_pass(rows, contexts, rooms, streams, turns)
        return turns

    def _one_pass(
        self,
        rows: list[int],
        contexts: Sequence[list[int]],
        rooms: Sequence[int],
        streams: Sequence[np.random.Generator],
        turns: list[Turn],
    ) -> None:
        import torch

        device = next(self.model.parameters()).device
        pad = self.tokenizer.pad_token_id
        width = max((len(contexts[i]) for i in rows), default=1)
        ids = torch.full((max(len(rows), 1), width), pad, device=device)
        mask = torch.zeros_like(ids)
        mask[:, -1] = 1  # a dummy row needs one token to attend to
        for k, i in enumerate(rows):
            ids[k, width - len(contexts[i]) :] = torch.tensor(contexts[i], device=device)
            mask[k, width - len(contexts[i]) :] = 1
        live, cache = list(rows), None
        while self.any_process(bool(live)):
            position = (mask.cumsum(1) - 1).clamp(min=0)[:, -ids.shape[1] :]
            out = self.model(
                input_ids=ids,
                attention_mask=mask,
                position_ids=position,
                past_key_values=cache,
                use_cache=True,
                logits_to_keep=1,
            )
            if not live:
                continue  # the dummy row of an idle process: nothing is read, the cache is not kept
            cache = out.past_key_values
            chosen, logps = self._draw(out.logits[:, -1].float(), [streams[i] for i in live])
            keep = []
            for k, i in enumerate(live):
                turns[i][0].append(chosen[k])
                turns[i][1].append(logps[k])
                if not self._ended(turns[i][0], rooms[i]):
                    keep.append(k)
            ids = torch.tensor(chosen, device=device)[:, None]
            mask = torch.cat([mask, torch.ones_like(ids)], dim=1)
            if len(keep) < len(live):
                if not keep:
                    live, cache, ids, mask = [], None, ids[:1], torch.ones_like(ids[:1])
                    continue
                index = torch.tensor(keep, device=device)
                cache.batch_select_indices(index)
                ids, mask, live = ids[index], mask[index], [live[k] for k in keep]

    def _draw(self, logits: Any, streams: list[np.random.Generator]) -> tuple[list[int], list[float]]:
        """Return a token and its log-probability at temperature 1 for each row, by inversion of its uniform."""
        import torch

        logps = logits.log_softmax(-1)
        if self.temperature == 0:
            chosen = logps.argmax(-1, keepdim=True)
        else:
            total = logps.exp().double().cumsum(-1)
            uniform = torch.tensor([s.random() for s in streams], dtype=torch.float64, device=logits.device)
            chosen = torch.searchsorted(total, (uniform[:, None] * total[:, -1:]), right=True)
            chosen = chosen.clamp(max=logits.shape[-1] - 1)
        return chosen[:, 0].tolist(), logps.gather(1, chosen)[:, 0].tolist()

    def _ended(self, ids: list[int], room: int) -> bool:
        last = ids[-1]
        if len(ids) >= room or last == self.tokenizer.eos_token_id:
            return True
        if last not in self._closing:
            self._closing[last] = ">" in decode(self.tokenizer, [last])
        if not self._closing[last]:
            return False
        tail = decode(self.tokenizer, ids[-12:])  # a closing tag has nine characters
        return any(stop in tail for stop in STOP_STRINGS)
