"""README's sentences on causes, cures, failures, prediction and the monitor say what the committed numbers say.

CLAIMS maps a sentence, as a pattern with one group per number, to the file and the values behind it; the paragraph on
cures is read as a list. A sentence that was rewritten beyond its pattern fails as well: then the map needs the new
wording, so that no number of these sections stands unheld. Not held here: the run of switched-on cures (chapter 10 of
the notebooks), which no committed file holds.
"""

from __future__ import annotations

import csv
import json
import math
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[1]
README = " ".join((ROOT / "README.md").read_text().split())


def numbers(name: str) -> dict[str, Any]:
    return json.loads((ROOT / "paper_figures" / "numbers" / f"{name}.json").read_text())


def rows(name: str) -> list[dict[str, str]]:
    with (ROOT / "paper_figures" / "data" / f"{name}.csv").open() as file:
        return list(csv.DictReader(file))


def cause(name: str) -> dict[str, str]:
    return next(row for row in rows("figc1_causal_table") if row["name"] == name)


def factorial() -> list[Any]:
    """Collapses and runs with all causes on; the most collapses of any other mix, how many mixes, and their runs."""
    *others, full = rows("figc1_causal_table_factorial")
    most = max(int(row["collapsed"]) for row in others)
    return [int(full["collapsed"]), int(full["runs"]), len(others), most, int(others[0]["runs"])]


def two_hops() -> list[Any]:
    arms = numbers("fig09b_searches")["arms"]
    locked, free, grpo = arms["1"], arms["1 MA"], arms["0"]
    return [locked["runs"] - locked["escaped"], locked["runs"], free["escaped"], grpo["escaped"], grpo["broken"]]


def four_worlds() -> list[Any]:
    arms = numbers("fig07_four_models")["arms"]
    assert sum(n["collapsed"] for name, n in arms.items() if not name.endswith("grpo")) == 0, "README says: in none"
    grpo = [n for name, n in arms.items() if name.endswith("grpo")]
    return [sum(n["collapsed"] for n in grpo), sum(n["runs"] for n in grpo)]


def prediction() -> list[Any]:
    score = numbers("fig16_prediction")["scores"]["complete"]
    ratio = math.exp(score["log_time_bias"])
    return [percent(score["right_side"]), score["settings"], percent(score["majority"]), f"{ratio:.2f}"]


def monitor_on_toys() -> list[Any]:
    scores = numbers("fig20_alarm_lead")["scores"]
    ours, entropy = scores["lldsim"], scores["plain: entropy over its early mean"]
    told = [ours[k] for k in ("in_time", "collapses", "false", "healthy")] + [percent(ours["median_lead_share"])]
    told += [entropy["in_time"], entropy["false"], percent(entropy["median_lead_share"])]
    return [ours["collapses"] + ours["healthy"], *told]


def monitor_on_transformer() -> list[Any]:
    s = numbers("bench_monitor_transformer")["held out: trainer's likelihoods"]
    told = [s[k] for k in ("in_time", "collapses", "false", "healthy")] + [percent(s["median_lead_share"])]
    return [s["collapses"] + s["healthy"], *told]


def network(*pairs: tuple[str, str]) -> list[Any]:
    """Return the named columns of the named conditions of figure x3, with the number of runs where the name is `of`."""
    conditions = numbers("figx3_transformer_conditions")["conditions"]
    return [conditions[name]["runs" if column == "of" else column] for name, column in pairs]


def network_runs() -> list[Any]:
    conditions = numbers("figx3_transformer_conditions")["conditions"]
    assert [conditions[n]["lost"] for n in ("llds 1", "llds token 1", "llds response 1")] == [0, 0, 0], (
        "README: nothing"
    )
    assert [conditions[n]["collapsed"] for n in ("ratio to sampler", "positive only")] == [0, 0], "README: never"
    return [sum(row["runs"] for row in conditions.values()), sum("," not in name for name in conditions)]


def percent(share: float) -> int:
    return round(100 * share)


CLAIMS: dict[str, tuple[str, Callable[[], Sequence[Any]]]] = {
    "all causes and their mixes": (
        r"All four together: (\d+) of (\d+) seeds collapse; each of the other (\d+) mixes: (\d+) of (\d+)",
        factorial,
    ),
    "without staleness": (
        r"without staleness reward still falls to (\.\d)",
        lambda: [f"{float(cause('staleness')['final_reward']):.1f}".removeprefix("0")],
    ),
    "wrong need not be longer": (
        r"\((\d+) of (\d+) collapse without them, start matched\)",
        lambda: [cause("longer_wrong")["collapsed"], cause("longer_wrong")["runs"]],
    ),
    "gradient norm with trained features": (
        r"\(x(\d+) with trained features\)",
        lambda: [f"{float(cause('features')['grad_norm_surge']):.0f}"],
    ),
    "two hops": (
        r"lambda 1 keeps (\d+) of (\d+) policies at one search; the answer-weighted form \(LLDS-MA\) frees (\d+); "
        r"GRPO frees (\d+), of which (\d+) then break",
        two_hops,
    ),
    "four worlds": (r"GRPO collapses in (\d+) of (\d+) runs, with LLDS in none, and without", four_worlds),
    "prediction": (
        r"theory puts (\d+) % of (\d+) settings on the right side of collapse \(always betting on the commoner "
        r"outcome: (\d+) %\); where both collapse the predicted time is ([\d.]+) times",
        prediction,
    ),
    "monitor on toys": (
        r"On (\d+) simulated runs .*? in (\d+) of (\d+) collapses \(goal 95 %\) and spoke in "
        r"(\d+) of (\d+) healthy runs; the median lead "
        r"was (\d+) % .*? entropy threshold is as early \((\d+) and (\d+), lead (\d+) %\)",
        monitor_on_toys,
    ),
    "monitor on the transformer": (
        r"On (\d+) held-out runs of the transformer it is as reliable and hears later: (\d+) of (\d+) in time, "
        r"(\d+) of (\d+) false, lead (\d+) %",
        monitor_on_transformer,
    ),
    "the network's runs": (r"records of (\d+) runs, (\d+) conditions", network_runs),
    "the network's collapses": (
        r"stale sampler collapses in (\d+) of (\d+) runs .*? on-policy in (\d+) of (\d+) \((\d+) of (\d+) at three .*? "
        r"alone suffices \((\d+) of (\d+)\)",
        lambda: network(
            *((name, column) for name in ("leak", "clean", "clean fast", "stale 8") for column in ("collapsed", "of"))
        ),
    ),
    "a sharp, fresh sampler": (
        r"takes the reward to (\.\d) \((\d+) of (\d+) collapses\)",
        lambda: [
            f"{network(('sharp only', 'end_reward'))[0]:.1f}".removeprefix("0"),
            *network(("sharp only", "collapsed"), ("sharp only", "of")),
        ],
    ),
    "LLDS in the network": (
        r"LLDS \.2 collapses in (\d+) of (\d+) and loses over a quarter of the peak in (\d+), under the token gate in "
        r"(\d+) and the response gate in (\d+) of (\d+); .*? only delays \((\d+) of (\d+)\)\. With Adam, LLDS \.2 "
        r"loses a quarter in (\d+) of (\d+), with four turns in (\d+) of (\d+)",
        lambda: network(
            ("llds", "collapsed"),
            ("llds", "of"),
            ("llds", "lost"),
            ("llds token", "lost"),
            ("llds response", "lost"),
            ("llds response", "of"),
            ("llds .01", "collapsed"),
            ("llds .01", "of"),
            ("adam llds", "lost"),
            ("adam llds", "of"),
            ("4 turns llds", "lost"),
            ("4 turns llds", "of"),
        ),
    ),
    "truncated weights in the network": (
        r"truncated importance weights do \((\d+) of (\d+)\)",
        lambda: network(("truncated IS", "collapsed"), ("truncated IS", "of")),
    ),
    "prediction with a constant drift": (
        r"constant drift reaches (\d+) %",
        lambda: [percent(numbers("fig16_prediction")["scores"]["constant"]["right_side"])],
    ),
}


@pytest.mark.parametrize("name", CLAIMS)
def test_sentence_says_what_the_numbers_say(name: str) -> None:
    pattern, source = CLAIMS[name]
    found = re.search(pattern, README)
    assert found, f"README has no sentence like {pattern!r}: put its new wording into CLAIMS"
    assert list(found.groups()) == [str(value) for value in source()]


# README's words for an arm, and the arms they stand for in the table of cures.
CURES = {
    "every LLDS gate": ("llds_action", "llds_token", "llds_response"),
    "positive-only": ("positive_only",),
    "negatives x .25": ("negative_weight",),
    "Dr.GRPO": ("dr_grpo",),
    "GSPO": ("gspo",),
    "ratio to the sampler": ("sampler_ratio",),
    "truncated importance weights": ("tis",),
    "masked importance weights": ("mis",),
    "IcePop": ("icepop",),
    "NTHR": ("nthr",),
    "shared-prefix masking": ("prefix_mask",),
    "PPO": ("ppo",),
    "clip-higher": ("dapo",),
    "CISPO": ("cispo",),
    "advantage reweighting": ("reweighting",),
    "LLDS with one update per rollout": ("llds_one_update",),
}


def cures() -> tuple[int, dict[str, int]]:
    """README's paragraph on cures: seeds, and collapses by name."""
    found = re.search(
        r"\*\*Cures\*\* at their published settings, (\d+) seeds, collapses: (.*?) Tuned settings", README
    )
    assert found, "README's paragraph on cures has another form: teach this test to read it"
    claimed: dict[str, int] = {}
    for part in found[2].rstrip(".").split("; "):
        count, _, names = part.partition(" with ")
        for name in re.split(r", (?:and )?", names.replace(", where it is inert", "")):
            claimed[name] = int(count)
    return int(found[1]), claimed


def test_paragraph_on_cures_says_what_the_table_says() -> None:
    published = {row["name"]: row for row in rows("figc1_causal_table_cures") if row["setting"] == "published"}
    seeds, claimed = cures()
    assert {int(row["runs"]) for row in published.values()} == {seeds}
    assert claimed.keys() == CURES.keys()
    for words, count in claimed.items():
        for arm in CURES[words]:
            assert int(published[arm]["collapsed"]) == count, f"{words}: {arm}"


def test_numbers_and_tables_of_the_causes_agree() -> None:
    saved = numbers("figc1_causal_table")
    for row in rows("figc1_causal_table"):
        assert saved["rates"][f"{row['name']} {row['setting']}"] == [int(row["collapsed"]), int(row["runs"])], row
    for row in rows("figc1_causal_table_cures"):
        collapsed, runs, _ = saved["cures"][f"{row['name']} {row['setting']}"]
        assert (collapsed, runs) == (int(row["collapsed"]), int(row["runs"])), row
