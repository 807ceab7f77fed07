# pyright: reportMissingImports=false
"""The agent loop on a CPU against a server that says what it is told: no Ray, no model.

Locked here: a good search, an invalid action, an answer, a stop string inside a token, an over-long observation, a dead
retriever and the last turn end as the protocol says; a stray closing tag does not end a turn; ids are what the server
sent, masks and log-probabilities have their length; each turn gets its stop strings and room; nothing is lost silently.
"""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest
from full_tools import needs

from full_scale.protocol import decode, encode
from full_scale.verl_plugin import FIELD
from lldsim.errors import ConfigError, LldsimError

needs("verl", "transformers")
pytestmark = pytest.mark.filterwarnings("ignore")
ROOM = {"prompt_length": 64, "response_length": 400}


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    core = Tokenizer(models.BPE())
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    core.decoder = decoders.ByteLevel()
    special, alphabet = ["<|endoftext|>", "<|im_end|>"], pre_tokenizers.ByteLevel.alphabet()
    core.train_from_iterator([], trainers.BpeTrainer(special_tokens=special, initial_alphabet=alphabet))
    made = PreTrainedTokenizerFast(tokenizer_object=core, eos_token="<|im_end|>", pad_token="<|endoftext|>")
    made.add_tokens([">\n"])  # as in Qwen's vocabulary: a tag can end inside a token
    made.chat_template = "{% for m in messages %}{{ m['content'] }}{% endfor %}"
    return made


class Server:
    """Says the listed texts in turn and remembers what it was asked; None is an aborted request."""

    def __init__(self, tokenizer: Any, *texts: str | None) -> None:
        self.tokenizer, self.texts, self.asked = tokenizer, list(texts), list[dict[str, Any]]()

    async def generate(self, *, request_id: str, prompt_ids: list[int], sampling_params: dict[str, Any]) -> Any:
        self.asked.append({"prompt": list(prompt_ids), **sampling_params})
        text = self.texts.pop(0)
        ids = [] if text is None else encode(self.tokenizer, text)[: sampling_params["max_tokens"]]
        logps = [-0.5] * len(ids) if sampling_params.get("logprobs") else None
        return SimpleNamespace(token_ids=ids, log_probs=logps, stop_reason="aborted" if text is None else "completed")


class Retriever:
    """An asynchronous client with one answer for every query."""

    def __init__(self, document: str | Exception) -> None:
        self.document, self.asked = document, list[str]()

    async def retrieve(self, queries: list[str]) -> list[list[str]]:
        self.asked += queries
        if isinstance(self.document, Exception):
            raise self.document
        return [[self.document] for _ in queries]


def play(
    tokenizer: Any,
    server: Server,
    retriever: Any = None,
    *,
    prompt: str = "Question: who?",
    room: Any = None,
    **kw: Any,
) -> Any:
    from omegaconf import OmegaConf
    from verl.experimental.agent_loop.agent_loop import DictConfigWrap

    from full_scale.verl_plugin.agent_loop import SearchR1Loop

    async def run() -> Any:
        loop = SearchR1Loop(
            DictConfigWrap(OmegaConf.create({"actor_rollout_ref": {"rollout": ROOM | (room or {})}})),
            server,
            tokenizer,
            None,
            None,
            DictConfigWrap(OmegaConf.create({})),
            name="search_r1",
            client=retriever or Retriever("T\nbody"),
            **kw,
        )
        return await loop.run({"temperature": 1.0, "logprobs": True}, raw_prompt=[{"role": "user", "content": prompt}])

    output = asyncio.run(run())
    assert len(output.response_ids) == len(output.response_mask) == len(output.response_logprobs)
    assert all((p == -0.5) == bool(m) for p, m in zip(output.response_logprobs, output.response_mask, strict=True))
    return output


def written(tokenizer: Any, output: Any, mask: int) -> str:
    pairs = zip(output.response_ids, output.response_mask, strict=True)
    return decode(tokenizer, [i for i, m in pairs if m == mask])


def test_good_search_then_answer(tokenizer: Any) -> None:
    server, retriever = Server(tokenizer, "<search>who</search>", "<answer>Bo</answer>"), Retriever("T\nbody")
    output = play(tokenizer, server, retriever)
    assert retriever.asked == ["who"]
    assert written(tokenizer, output, 1) == "<search>who</search><answer>Bo</answer>"
    assert "<information>Doc 1(Title: T) body</information>" in written(tokenizer, output, 0)
    note = output.extra_fields[FIELD]
    assert (note["answer"], note["searches"], note["finish"]) == ("Bo", 1, "answer")
    assert decode(tokenizer, [output.response_ids[k] for k in note["answer_tokens"]]) == "<answer>Bo</answer>"
    assert server.asked[1]["prompt"] == output.prompt_ids + output.response_ids[: -len("<answer>Bo</answer>")]
    assert output.num_turns == 4


def test_every_turn_gets_stop_strings_and_its_room(tokenizer: Any) -> None:
    server = Server(tokenizer, "<search>who</search>", "<answer>Bo</answer>")
    play(tokenizer, server, turn_tokens=30)
    for asked in server.asked:
        assert asked["stop"] == ["</search>", "</answer>"]
        assert asked["include_stop_str_in_output"] is True
        assert asked["max_tokens"] == 30


def test_invalid_action_gets_the_corrective_message(tokenizer: Any) -> None:
    output = play(tokenizer, Server(tokenizer, "I think", "<answer>Bo</answer>"), invalid_text="\nWrong.\n")
    assert written(tokenizer, output, 0) == "\nWrong.\n"
    assert output.extra_fields[FIELD]["invalid_actions"] == 1


def test_stop_string_inside_a_token_keeps_the_token(tokenizer: Any) -> None:
    output = play(tokenizer, Server(tokenizer, "<search>who</search>\n", "<answer>Bo</answer>"))
    first = output.response_mask.index(0)
    assert decode(tokenizer, output.response_ids[:first]) == "<search>who</search>\n"
    assert len(output.response_ids[:first]) == len("<search>who</search>")  # the last token holds both


def test_text_after_the_action_is_dropped_with_its_logps(tokenizer: Any) -> None:
    output = play(tokenizer, Server(tokenizer, "<answer>Bo</answer> and <answer>Al</answer>"))
    assert written(tokenizer, output, 1) == "<answer>Bo</answer>"


def test_over_long_observation_is_cut_inside_its_tags(tokenizer: Any) -> None:
    server = Server(tokenizer, "<search>who</search>", "<answer>Bo</answer>")
    output = play(tokenizer, server, Retriever("T\n" + "x" * 900), observation_tokens=60)
    feedback = written(tokenizer, output, 0)
    assert sum(m == 0 for m in output.response_mask) == 60
    assert feedback.endswith("x</information>\n\n")


def test_dead_retriever_is_a_typed_error_and_no_document(tokenizer: Any) -> None:
    from full_scale.retriever.client import RetrieverClient, RetrieverError

    needs("httpx")
    server = Server(tokenizer, "<search>who</search>", "<answer>Bo</answer>")
    dead = RetrieverClient("http://127.0.0.1:9/retrieve", retries=1, pause=0.0, timeout=2.0)
    with pytest.raises(RetrieverError, match="after 2 tries"):
        play(tokenizer, server, dead)
    assert len(server.asked) == 1


def test_last_turn_may_only_answer(tokenizer: Any) -> None:
    retriever = Retriever("T\nbody")
    server = Server(tokenizer, *["<search>who</search>"] * 3)
    output = play(tokenizer, server, retriever, max_turns=2)
    note = output.extra_fields[FIELD]
    assert (note["finish"], note["answer"], len(retriever.asked), note["answer_tokens"]) == ("turns", None, 2, [])
    assert output.response_mask[-1] == 1


def test_stray_closing_tag_does_not_end_the_turn(tokenizer: Any) -> None:
    server = Server(tokenizer, "so </search>", " <answer>Bo</answer>")
    output = play(tokenizer, server, turn_tokens=50)
    assert output.extra_fields[FIELD]["answer"] == "Bo"
    assert 0 not in output.response_mask
    assert server.asked[1]["max_tokens"] == 50 - len("so </search>")


def test_response_never_exceeds_its_length(tokenizer: Any) -> None:
    output = play(tokenizer, Server(tokenizer, *["x" * 90] * 9), room={"response_length": 100}, invalid_text="no")
    assert len(output.response_ids) <= 100
    assert output.extra_fields[FIELD]["finish"] == "length"


def test_what_would_be_lost_in_silence_is_an_error(tokenizer: Any) -> None:
    with pytest.raises(ConfigError, match=r"allowed are 1\.\.64"):
        play(tokenizer, Server(tokenizer), prompt="x" * 65)
    with pytest.raises(LldsimError, match="0 tokens"):
        play(tokenizer, Server(tokenizer, None))
    with pytest.raises(ConfigError, match="merge two actions"):
        play(tokenizer, Server(tokenizer), observation_tokens=3)
