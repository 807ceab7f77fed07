"""The tiny model's beginnings: scripted traces, tokenizer, warm start, and the demo's own checks.

Locked here: a trace is a valid episode of the protocol whose answer stands in its last document, whether that is true
or made up; test questions are never used; any text survives the tokenizer; loss falls; a check that should fail fails.
"""

from __future__ import annotations

import copy
import random
from typing import Any

import pytest
from full_tools import CharTokenizer, needs
from hypothesis import given
from hypothesis import strategies as st

from full_scale.config import load_config
from full_scale.demo import checks
from full_scale.protocol import Limits, Trajectory, parse_action
from full_scale.warmstart import scripted_trace
from lldsim.errors import ConfigError

SUMMARY = {
    "warm": {"valid_action_rate": 0.95, "em_train_interval": (0.1, 0.2)},
    "grpo": {"reward": [0.1, 0.2, 0.3], "penalty": [0.0] * 6, "em_train_interval": (0.3, 0.4)},
    "llds": {
        "reward": [0.1, 0.2, 0.4],
        "penalty": [0.0, 0.1, 0.0, 0.2, 0.0, 0.1],
        "em_train_interval": (0.3, 0.5),
    },
}


def test_all_checks_hold_on_a_good_summary() -> None:
    assert all(checks(SUMMARY, 2).values())


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (("warm", "valid_action_rate"), 0.9),
        (("grpo", "reward"), [0.1, 0.2, 0.1]),
        (("grpo", "em_train_interval"), (0.15, 0.4)),
        (("llds", "em_train_interval"), (0.2, 0.4)),
        (("llds", "reward"), [0.2, 0.2, 0.1]),
        (("llds", "penalty"), [0.01, 0.1, 0.0, 0.2, 0.0, 0.1]),
        (("llds", "penalty"), [0.0] * 6),
    ],
)
def test_each_check_can_fail(path: tuple[str, str], value: Any) -> None:
    bad = copy.deepcopy(SUMMARY)
    bad[path[0]][path[1]] = value
    assert not all(checks(bad, 2).values())


def test_a_short_run_is_not_asked_to_have_learned() -> None:
    untaught = {name: part | {"reward": [0.0, 0.0], "em_train_interval": (0.0, 0.2)} for name, part in SUMMARY.items()}
    assert all(checks(untaught, 2, short=True).values())
    assert not all(checks(untaught, 2).values())


@pytest.fixture(scope="module")
def world() -> Any:
    needs("countryinfo", "mendeleev")
    from full_scale.factworld import build_factworld

    return build_factworld()


@pytest.mark.parametrize("right", [0.0, 1.0])
def test_traces_are_valid_episodes_that_read_their_document(world: Any, right: float) -> None:
    texts = {document.title: document.text for document in world.documents}
    values = [question.answers[0] for question in world.questions]
    tokenizer, rng, truthful = CharTokenizer(), random.Random(0), 0
    for question in rng.sample(world.questions, 200):
        segments = scripted_trace(question, texts, values, rng, right=right)
        episode = Trajectory(tokenizer.encode(segments[0][0]), Limits(max_turns=3), tokenizer)
        for text, weight in segments[1:]:
            if weight == 1.0:
                ids = tokenizer.encode(text)
                episode.act(ids, [0.0] * len(ids))
            else:
                assert episode.finish is None
                episode.observe(text)
        assert (episode.finish, episode.invalid_actions, episode.searches) == ("answer", 0, question.hops)
        assert [a.content for a in episode.actions[:-1]] == list(question.gold_titles)
        assert f" is {episode.answer}." in segments[-2][0]
        truthful += episode.answer == question.answers[0]
    assert 0.3 < truthful / 200 < 0.7 if right == 1.0 else truthful / 200 < 0.3


def test_long_prompts_are_refused() -> None:
    from full_scale.warmstart import warm_start

    with pytest.raises(ConfigError, match="prompt: short"):
        warm_start(load_config("cpu_tiny", {"prompt": "search_r1"}))


@pytest.fixture(scope="module")
def warmed(world: Any) -> Any:
    needs("transformers", "tokenizers")
    from full_scale.warmstart import warm_start

    small = {"warm_steps": 25, "warm_batch": 8, "tiny_hidden": 32, "tiny_vocab": 600}
    return warm_start(load_config("cpu_tiny", small), world=world)


def test_loss_falls(warmed: Any) -> None:
    losses = warmed[2]
    assert sum(losses[-5:]) / 5 < sum(losses[:5]) / 5 - 0.3  # nats per token, after 25 small steps


@given(text=st.text(max_size=60))
def test_any_text_survives_the_tokenizer(warmed: Any, text: str) -> None:
    tokenizer = warmed[1]
    text = text.encode("utf-8", "ignore").decode()
    assert tokenizer.decode(tokenizer.encode(text, add_special_tokens=False), skip_special_tokens=False) == text


def test_pad_is_not_end(warmed: Any) -> None:
    tokenizer = warmed[1]
    assert tokenizer.pad_token_id != tokenizer.eos_token_id
    assert tokenizer.padding_side == "left"
    assert parse_action(tokenizer.decode(tokenizer.encode("<search> q </search>"))).content == "q"
