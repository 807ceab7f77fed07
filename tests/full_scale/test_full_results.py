# pyright: reportMissingImports=false
"""What comes out: evaluation tables, run records, the probe.

Locked here: the columns of the paper's tables, averages only over complete sets and FactWorld never under their names;
a log becomes a RunRecord that the laboratory's diagnostics read, with missing values missing; a cut log is an error;
the probe's G equals lldsim's kernel, its update is a step along the surrogate's gradient and leaves the weights as they
were, and a query whose answers tie is counted, not scored.
"""

from __future__ import annotations

import dataclasses
import json
import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from full_tools import needs

from full_scale.config import FullConfig, load_config
from full_scale.data import Row
from full_scale.evaluate import COLUMNS, first_of_each, table_row
from full_scale.export import export
from full_scale.probe import Batch, forward, gwhes_response, one_update, probe_query
from lldsim.diagnostics.phases import find_phases
from lldsim.errors import MissingDataError
from lldsim.record import COLUMNS as RECORD_COLUMNS
from lldsim.record import load
from lldsim.theory.kernel import gwhes


def test_table_has_the_papers_columns() -> None:
    printed = "table,model,train_set,method,mark,nq,triviaqa,popqa,gen_avg,hotpotqa,2wiki,musique,bamboogle,mh_avg,avg"
    assert ",".join(COLUMNS) == printed
    counts = {name: (k, 10) for k, name in enumerate(["nq", "triviaqa", "popqa", "hotpotqa", "2wikimultihopqa"])}
    line = table_row(load_config("3b_base_llds_ma"), counts)
    assert (line["nq"], line["gen_avg"], line["2wiki"]) == ("0.000", "0.100", "0.400")
    assert (line["mh_avg"], line["avg"], line["musique"]) == ("", "", "")
    assert (line["method"], line["mark"], line["model"]) == ("grpo+llds-ma", "em_search_r1", "Qwen2.5-3B")
    counts |= {"musique": (5, 10), "bamboogle": (6, 10)}
    line = table_row(load_config("3b_base_grpo"), counts)
    assert (line["mh_avg"], line["avg"]) == ("0.450", "0.300")
    factworld = table_row(load_config("cpu_tiny"), {"factworld-1hop": (1, 2)})
    assert factworld["factworld-1hop"] == "0.500"
    assert {factworld[name] for name in ("nq", "hotpotqa", "avg")} == {""}


def test_limit_is_per_source() -> None:
    rows = [Row(source, str(k), "q", ("a",)) for k in range(3) for source in ("nq", "popqa")]
    assert [(row.source, row.index) for row in first_of_each(rows, 1)] == [("nq", "0"), ("popqa", "0")]


def write_run(folder: Path, lines: list[dict[str, Any]], config: FullConfig) -> None:
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps(dataclasses.asdict(config)))
    (folder / "log.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))


def test_log_becomes_a_record(tmp_path: Path) -> None:
    config = load_config("cpu_tiny", {"updates_per_rollout": 2})
    lines = [
        {"step": 1, "loss": 0.0, "grad_norm": 1.0, "rollout/reward": 0.25, "llds/ratio_max": 1.0, "kl": 0.0},
        {"step": 2, "loss": 0.0, "grad_norm": 3.0, "llds/ratio_max": 1.5, "kl": 0.5, "llds/penalty": 0.2},
        {"step": 3, "loss": 0.0, "grad_norm": 2.0, "rollout/reward": 0.5, "rollout/logp_correct": -0.5},
    ]
    write_run(tmp_path, lines, config)
    record = export(tmp_path)
    assert list(record.columns) == list(RECORD_COLUMNS)
    assert record["update"].tolist() == [0, 1]
    assert record["reward"].tolist() == [0.25, 0.5]
    assert record["grad_norm"].tolist() == [2.0, 2.0]
    assert record["ratio_max"][0] == 1.5
    assert math.isnan(record["logp_correct"][0])
    assert record["logp_correct"][1] == -0.5
    assert (record.label, record.config_hash) == ("measured", config.config_hash())
    assert "trl" in record.versions
    record.save(tmp_path / "record")
    assert find_phases(load(tmp_path / "record")).length == 2
    (tmp_path / "log.jsonl").write_text('{"step": 1\n')
    with pytest.raises(MissingDataError, match="line 1"):
        export(tmp_path)
    with pytest.raises(MissingDataError, match=r"log\.jsonl does not exist"):
        export(tmp_path / "absent")


@pytest.fixture(scope="module")
def network() -> Any:
    needs("transformers", "tokenizers", "countryinfo", "mendeleev")
    from full_scale.factworld import build_factworld
    from full_scale.tiny import make_model, train_tokenizer

    tokenizer = train_tokenizer(build_factworld(), vocab_size=300)
    return make_model(tokenizer, hidden_size=16, layers=1, heads=2).eval()


def responses() -> list[Any]:
    """Four responses of different lengths: two actions with feedback between them."""
    made = []
    for k in range(4):
        ids = [20 + k, 30, 31, 40 + k, 41, 50 + k][: 6 - k % 2]
        mask = [1, 1, 0, 1, 1, 1][: len(ids)]
        numbers = [0, 0, -1, 1, 1, 1][: len(ids)]
        made.append(
            SimpleNamespace(prompt_ids=[5, 6, 7][k % 2 :], completion_ids=ids, action_mask=mask, action_id=numbers)
        )
    return made


def test_g_is_the_laboratorys(network: Any) -> None:
    batch = Batch(responses(), 0, "cpu")
    advantages = torch.tensor([1.0, -0.5, 0.5, -1.0])
    with torch.no_grad():
        hidden, logits, logps = forward(network, batch)
        ours = gwhes_response(hidden, logits, batch, advantages)
        theirs = gwhes(
            hidden.double(),
            logits.double().softmax(-1),
            batch.tokens,
            batch.mask,
            advantages.double(),
            level="response",
        ).total
        whole = network(input_ids=batch.ids, attention_mask=batch.attention).logits[:, -batch.width - 1 : -1]
    assert torch.allclose(ours.double(), theirs, rtol=1e-4, atol=1e-6)
    assert torch.allclose(logits, whole.float(), atol=1e-5)
    assert torch.allclose(logps, whole.float().log_softmax(-1).gather(-1, batch.tokens[..., None])[..., 0], atol=1e-5)


def test_one_update_moves_along_the_gradient_and_back(network: Any) -> None:
    config = load_config("cpu_tiny", {"learning_rate": 1e-3})
    batch = Batch(responses(), 0, "cpu")
    before = {name: p.detach().clone() for name, p in network.named_parameters()}
    with torch.no_grad():
        old = forward(network, batch)[2]
    advantages = torch.tensor([1.5, -0.5, -0.5, -0.5])
    new = one_update(network, batch, advantages, config)
    change = torch.where(batch.mask, new - old, 0.0).sum(1)
    assert change[0] > 0
    assert change[0] > change[1:].max()
    assert all(torch.equal(p, before[name]) for name, p in network.named_parameters())
    assert torch.equal(one_update(network, batch, torch.zeros(4), config), old)


def test_probe_row(network: Any) -> None:
    row = probe_query(network, responses(), [1.0, 0.0, 1.0, 0.0], load_config("cpu_tiny"), 0)
    assert row["correct_share"] == 0.5
    assert row["displacement"] == pytest.approx(row["displacement_per_token"] * 5, rel=1e-5)  # 5 action tokens each
    assert -1 <= row["similarity_action1"] <= 1
    assert {"logp_correct_action2", "logp_wrong_action1", "nll_round0", "nll_round1", "gwhes"} <= row.keys()
    assert all(math.isfinite(value) for value in row.values())
