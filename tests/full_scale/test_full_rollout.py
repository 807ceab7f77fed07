"""Rollouts and samplers, with scripted policies and with stand-ins that have vLLM's fields.

Locked here: the loop searches, appends and stops; a turn goes on over a stray closing tag; both vLLM samplers send what
they must and keep ids and log-probabilities together; errors are typed; the transformers sampler's log-probabilities
are the model's, its text does not depend on the batch, and it stops at a closing tag or its room.
"""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from full_tools import CharTokenizer, needs

from full_scale.protocol import Limits, decode
from full_scale.retriever.stub import StubSearch
from full_scale.rollout import rollout
from full_scale.sampling import TransformersSampler, stream
from full_scale.sampling_vllm import SamplerError, VLLMColocateSampler, VLLMServerSampler
from lldsim.errors import ConfigError

TOKENIZER = CharTokenizer()


class Script:
    """A sampler that says the next listed text for each context it has not seen, in order of arrival."""

    def __init__(self, *texts: str) -> None:
        self.texts, self.contexts = list(texts), list[str]()

    def __call__(self, contexts: Any, rooms: Any, streams: Any) -> list[tuple[list[int], list[float]]]:
        turns = []
        for context, room in zip(contexts, rooms, strict=True):
            self.contexts.append(decode(TOKENIZER, context))
            ids = TOKENIZER.encode(self.texts.pop(0))[:room]
            turns.append((ids, [-1.0] * len(ids)))
        return turns


def play(script: Script, search: StubSearch, prompts: int = 1, **limits: int) -> Any:
    return rollout(
        ["Question: q\n"] * prompts,
        tokenizer=TOKENIZER,
        sampler=script,
        search=search,
        limits=Limits(**limits),
        streams=[stream(0, 0, k) for k in range(prompts)],
    )


def test_search_then_answer() -> None:
    search = StubSearch({"who": ["T\nbody"]})
    (trajectory,) = play(Script("<search>who</search>", "<answer>x</answer>"), search)
    text = decode(TOKENIZER, trajectory.completion_ids)
    assert "<information>Doc 1(Title: T) body</information>" in text
    assert (trajectory.answer, trajectory.searches, search.asked) == ("x", 1, ["who"])


def test_trajectories_finish_at_their_own_time_and_keep_their_order() -> None:
    script = Script("<answer>a</answer>", "nothing", "<answer>b</answer>")
    first, second = play(script, StubSearch({}), prompts=2)
    assert (first.answer, second.answer, second.invalid_actions) == ("a", "b", 1)


def test_a_stray_closing_tag_does_not_end_the_turn() -> None:
    script = Script("foo </search>", " <answer>P</answer>")
    (trajectory,) = play(script, StubSearch({}))
    assert (trajectory.answer, len(trajectory.actions)) == ("P", 1)
    assert script.contexts[1] == "Question: q\nfoo </search>"


def test_too_long_a_prompt_is_an_error() -> None:
    with pytest.raises(ConfigError, match=r"allowed are 1\.\.2"):
        rollout(
            ["long"], tokenizer=TOKENIZER, sampler=Script(), search=StubSearch({}), limits=Limits(), streams=[],
            prompt_tokens=2,
        )  # fmt: skip


def test_colocated_sampler_asks_and_reads_as_vllm_does() -> None:
    asked: list[Any] = []

    class Engine:
        def generate(self, prompts: Any, parameters: Any, use_tqdm: bool) -> list[Any]:
            asked.append((prompts, parameters))
            step = [{7: SimpleNamespace(logprob=-0.5)}, {8: SimpleNamespace(logprob=-0.25)}]
            return [SimpleNamespace(outputs=[SimpleNamespace(token_ids=(7, 8), logprobs=step)]) for _ in prompts]

    sampler = VLLMColocateSampler(Engine(), parameters=lambda **given: given)
    turns = sampler([[1], [2, 3]], [5, 6], [stream(0, 0, k) for k in range(2)])
    assert turns == [([7, 8], [-0.5, -0.25])] * 2
    ((prompts, parameters),) = asked
    assert prompts == [{"prompt_token_ids": [1]}, {"prompt_token_ids": [2, 3]}]
    assert [p["max_tokens"] for p in parameters] == [5, 6]
    assert parameters[0]["stop"] == ["</search>", "</answer>"]
    assert parameters[0]["include_stop_str_in_output"] is True
    assert parameters[0]["seed"] != parameters[1]["seed"]
    assert sampler([], [], []) == []


def server(reply: Any, **options: Any) -> VLLMServerSampler:
    (httpx,) = needs("httpx")
    return VLLMServerSampler("http://test", "m", retries=1, transport=httpx.MockTransport(reply), **options)


def test_server_sampler_sends_ids_and_keeps_order(monkeypatch: pytest.MonkeyPatch) -> None:
    (httpx,) = needs("httpx")

    def reply(request: Any) -> Any:
        body = json.loads(request.content)
        assert body["return_token_ids"] is True
        assert body["include_stop_str_in_output"] is True
        ids = [body["prompt"][0] + 100, 9]
        return httpx.Response(200, json={"choices": [{"token_ids": ids, "logprobs": {"token_logprobs": [-1, -2]}}]})

    turns = server(reply)([[k] for k in range(20)], [4] * 20, [stream(0, 0, k) for k in range(20)])
    assert [ids for ids, _ in turns] == [[k + 100, 9] for k in range(20)]


@pytest.mark.parametrize(
    ("status", "body", "message"),
    [
        (400, {"error": "bad"}, "answered 400"),
        (503, {"error": "busy"}, "answered 503"),
        (200, {"choices": [{"text": "x"}]}, "0 token ids"),
        (200, {"choices": [{"token_ids": [1, 2], "logprobs": {"token_logprobs": [-1]}}]}, "2 token ids and 1"),
    ],
)
def test_server_trouble_is_a_typed_error(status: int, body: Any, message: str, monkeypatch: pytest.MonkeyPatch) -> None:
    (httpx,) = needs("httpx")
    monkeypatch.setattr("full_scale.sampling_vllm.time.sleep", lambda seconds: None)
    with pytest.raises(SamplerError, match=message):
        server(lambda request: httpx.Response(status, json=body))([[1]], [4], [stream(0, 0, 0)])


def test_streams_are_of_their_row() -> None:
    a, b, c = stream(0, 1, 2), stream(0, 1, 2), stream(0, 1, 3)
    first = [a.random() for _ in range(3)]
    assert first == [b.random() for _ in range(3)]
    assert first != [c.random() for _ in range(3)]


@pytest.fixture(scope="module")
def model() -> Any:
    needs("transformers", "tokenizers", "countryinfo", "mendeleev")
    from full_scale.factworld import build_factworld
    from full_scale.tiny import make_model, train_tokenizer

    tokenizer = train_tokenizer(build_factworld(), vocab_size=400)
    return make_model(tokenizer, hidden_size=32).eval(), tokenizer


def sample(model: Any, contexts: list[list[int]], rooms: list[int], rows: list[int], size: int) -> Any:
    import torch

    network, tokenizer = model
    with torch.no_grad():
        sampler = TransformersSampler(network, tokenizer, batch_size=size)
        return sampler(contexts, rooms, [stream(0, 0, r) for r in rows])


def test_sampled_logps_are_the_models(model: Any) -> None:
    import torch

    contexts, rooms = [[5, 6, 7], [8, 9], [10] * 9], [6, 12, 3]
    for context, (ids, logps) in zip(contexts, sample(model, contexts, rooms, [0, 1, 2], 3), strict=True):
        with torch.no_grad():
            logits = model[0](torch.tensor([context + ids])).logits[0, len(context) - 1 : -1]
        wanted = logits.float().log_softmax(-1)[range(len(ids)), ids]
        assert np.allclose(logps, wanted.tolist(), atol=2e-5)


def test_text_does_not_depend_on_the_batch(model: Any) -> None:
    contexts, rooms = [[5, 6, 7], [8, 9], [10] * 9, [11]], [8, 3, 8, 8]
    together = sample(model, contexts, rooms, [0, 1, 2, 3], 4)
    apart = sample(model, contexts, rooms, [0, 1, 2, 3], 1)
    assert [ids for ids, _ in together] == [ids for ids, _ in apart]
    assert [len(ids) for ids, _ in together][1] <= 3


def test_sampler_stops_at_a_closing_tag(model: Any) -> None:
    network, tokenizer = model
    ids = tokenizer.encode("</answer>\n", add_special_tokens=False)
    sampler = TransformersSampler(network, tokenizer)
    ended = [sampler._ended(ids[: k + 1], 99) for k in range(len(ids))]
    closing = next(k for k in range(len(ids)) if "</answer>" in tokenizer.decode(ids[: k + 1]))
    assert ended.index(True) == closing
    assert sampler._ended([tokenizer.eos_token_id], 99)
    assert sampler._ended([50], 1)
    assert not sampler._ended([50], 2)
