# pyright: reportMissingImports=false
"""All engines compute the same loss: one batch, one answer, value and gradient.

Locked here, for lldsim, TRL's trainer and verl's registry: the released code's outputs are met; GRPO and GSPO, every
gate, both normalisers, with and without answer weight, in 1, 2 and 4 micro-batches give lldsim's total loss; verl's two
processes give that of one; a wrong gate, normaliser or weight would be seen; the committed table covers all of this and
has no difference above the tolerance.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from full_tools import needs

from full_scale.parity import GOLDEN, MICRO_BATCHES, TOLERANCE, compare, difference, golden_cases, our_cases
from full_scale.parity_engines import ENGINES, PACKAGES, ours, verl

pytestmark = pytest.mark.filterwarnings("ignore")
TABLE = Path(__file__).resolve().parents[2] / "full_scale" / "results" / "parity.json"


@pytest.mark.parametrize("name", ENGINES)
def test_engine_computes_the_same_loss(name: str, generator: torch.Generator) -> None:
    needs(*PACKAGES[name])
    rows = compare({name: ENGINES[name]}, generator)
    assert {row.reference for row in rows} == {"released code"} | ({"ours"} if name != "ours" else set())
    worst = max(rows, key=lambda row: max(row.value, row.gradient))
    assert max(worst.value, worst.gradient) < TOLERANCE, worst


def test_processes_of_verl_do_not_change_the_loss(generator: torch.Generator) -> None:
    needs("verl")
    for _, case in our_cases(generator):
        assert max(difference(verl(case, 2, processes=2), ours(case))) < TOLERANCE, case.name


def test_a_wrong_setting_would_be_seen(generator: torch.Generator) -> None:
    cases = {case.name: case for _, case in our_cases(generator)}
    case = cases["grpo token-mean action preserving, answer weight"]
    for change in ({"gate": "response"}, {"normalizer": "all"}, {"answer_weight_rule": "fixed"}, {"kl_coef": 0.0}):
        assert max(difference(ours(case.with_objective(**change)), ours(case))) > 100 * TOLERANCE, change
    assert len(cases) == 36


def test_released_cases_are_those_the_engines_can_express() -> None:
    names = [case.name for _, case, _ in golden_cases()]
    left_out = {item["name"] for item in json.loads(GOLDEN.read_text())["llds"]} - set(names)
    assert len(names) == 46
    assert len(left_out) == 5
    assert all(name.endswith("answer-fixed") for name in left_out)


def test_committed_table_is_complete_and_within_the_tolerance() -> None:
    table = json.loads(TABLE.read_text())
    assert table["label"] == "measured"
    assert table["engines_missing"] == []
    assert {row["engine"] for row in table["rows"]} == set(ENGINES)
    assert {row["micro_batches"] for row in table["rows"] if row["reference"] == "ours"} == set(MICRO_BATCHES)
    assert max(max(row["value"], row["gradient"]) for row in table["rows"]) < table["tolerance"] == TOLERANCE


def test_readme_shows_the_committed_table() -> None:
    readme = (TABLE.parents[1] / "README.md").read_text()
    rows = json.loads(TABLE.read_text())["rows"]

    def worst(engine: str, reference: str) -> str:
        found = [max(r["value"], r["gradient"]) for r in rows if (r["engine"], r["reference"]) == (engine, reference)]
        return f"{max(found):.0e}" if found else "-"

    for engine in ENGINES:
        assert f"| {engine} | {worst(engine, 'released code')} | {worst(engine, 'ours')} |" in readme
