"""The vLLM samplers against answers that a real vLLM gave (`make vllm-contract` records them; CPU build, tiny Qwen2).

Locked here: from the recorded outputs both samplers read the same turns, ids and log-probabilities of one length; a
token that ends a tag and begins a line is whole; what the samplers ask for is what was asked for in the recording; the
recording is of a version that the package allows; the contract's checks see a cut token, a wrong probability and a turn
beyond its room.
"""

from __future__ import annotations

import json
import tomllib
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from full_tools import needs
from packaging.requirements import Requirement

from full_scale.sampling import stream
from full_scale.sampling_vllm import VLLMColocateSampler, VLLMServerSampler
from full_scale.vllm_contract import LOGP_TOLERANCE, RECORDED, ROOM, TEXTS
from lldsim.errors import LldsimError

CONTRACT = json.loads(RECORDED.read_text())
TURNS = CONTRACT["colocate"]["turns"]
STREAMS = [stream(0, 0, k) for k in range(len(TURNS))]


def recorded_engine(asked: list[Any]) -> Any:
    """Return an engine with vLLM's fields that answers as the recorded one did."""

    def output(row: dict[str, Any]) -> Any:
        steps = [{int(i): SimpleNamespace(logprob=x) for i, x in step.items()} for step in row["logprobs"]]
        return SimpleNamespace(outputs=[SimpleNamespace(token_ids=row["token_ids"], logprobs=steps)])

    def generate(prompts: Any, parameters: Any, use_tqdm: bool) -> list[Any]:
        asked.extend([prompts, parameters])
        return [output(row) for row in CONTRACT["colocate"]["outputs"]]

    return SimpleNamespace(generate=generate)


def test_engine_sampler_reads_the_recorded_answers() -> None:
    asked: list[Any] = []
    sampler = VLLMColocateSampler(recorded_engine(asked), parameters=dict, temperature=0.0)
    turns = sampler(CONTRACT["contexts"], [ROOM] * len(TURNS), STREAMS)
    assert [ids for ids, _ in turns] == TURNS
    assert [logps for _, logps in turns] == CONTRACT["colocate"]["logps"]
    prompts, parameters = asked
    assert [prompt["prompt_token_ids"] for prompt in prompts] == CONTRACT["contexts"]
    assert {k: parameters[0][k] for k in CONTRACT["colocate"]["parameters"]} == CONTRACT["colocate"]["parameters"]


def test_server_sampler_reads_the_recorded_answers() -> None:
    (httpx,) = needs("httpx")
    by_prompt = {tuple(b["choices"][0]["prompt_token_ids"]): b for b in CONTRACT["server"]["bodies"][: len(TURNS)]}

    def reply(request: Any) -> Any:
        return httpx.Response(200, json=by_prompt[tuple(json.loads(request.content)["prompt"])])

    sampler = VLLMServerSampler("http://test", "m", temperature=0.0, transport=httpx.MockTransport(reply))
    turns = sampler(CONTRACT["contexts"], [ROOM] * len(TURNS), STREAMS)
    assert [ids for ids, _ in turns] == TURNS
    for (ids, logps), known in zip(turns, CONTRACT["colocate"]["logps"], strict=True):
        assert len(ids) == len(logps)
        assert logps == pytest.approx(known, abs=LOGP_TOLERANCE)


def test_recorded_turns_end_where_the_protocol_needs_them_to() -> None:
    said = ["".join(CONTRACT["tokens"][str(i)] for i in ids) for ids in TURNS]
    assert said[0].endswith("</search>\n")  # the token is whole, although vLLM cuts its own text at the stop string
    assert CONTRACT["server"]["bodies"][0]["choices"][0]["text"].endswith("</search>")
    assert said[1].endswith("</answer>")
    assert [row["finish_reason"] for row in CONTRACT["colocate"]["outputs"]] == ["stop", "stop", "length"]
    assert len(TURNS[2]) == ROOM
    assert all(text.startswith(wrote[: len(text)]) for text, wrote in zip(said, TEXTS.values(), strict=True))


def test_recording_is_of_an_allowed_version() -> None:
    extras = tomllib.loads((Path(__file__).resolve().parents[2] / "pyproject.toml").read_text())["project"]
    (vllm,) = [Requirement(line) for line in extras["optional-dependencies"]["vllm"]]
    assert vllm.specifier.contains(CONTRACT["versions"]["vllm"]), "run `make vllm-contract` with the allowed version"


@pytest.mark.filterwarnings("ignore")
def test_contract_sees_what_it_is_for(tmp_path: Path) -> None:
    needs("transformers", "tokenizers")
    import torch

    from full_scale.sampling import TransformersSampler
    from full_scale.vllm_contract import check_episode, check_seeds, check_turns, contexts, memorised

    model, tokenizer = memorised(tmp_path, steps=90)
    with torch.no_grad():
        sampler = TransformersSampler(model, tokenizer, temperature=0.0)
        right = sampler(contexts(tokenizer), [ROOM] * 3, STREAMS)
        check_turns(right, model, tokenizer)
        assert check_episode(sampler, model, tokenizer)["episodes"] == 3
        check_seeds(TransformersSampler(model, tokenizer), tokenizer)
        cut = [(right[0][0][:-1], right[0][1][:-1]), *right[1:]]
        off = [(right[0][0], [right[0][1][0] - 0.1, *right[0][1][1:]]), *right[1:]]
        for turns in (cut, off):
            with pytest.raises(LldsimError, match="vLLM contract"):
                check_turns(turns, model, tokenizer)
        with pytest.raises(LldsimError, match="the same text"):
            check_seeds(TransformersSampler(model, tokenizer, temperature=0.0), tokenizer)
