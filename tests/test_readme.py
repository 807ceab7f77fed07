"""The README tells the truth: its tables are those of the committed numbers, its links and commands exist."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from lldsim.config import PRESETS, field_specs
from lldsim.transformer.config import TRANSFORMER_PRESETS

ROOT = Path(__file__).resolve().parents[1]
README = (ROOT / "README.md").read_text()


def numbers(name: str) -> dict[str, Any]:
    return json.loads((ROOT / "paper_figures" / "numbers" / f"{name}.json").read_text())


def three_phases_row(arm: str, differs: str) -> str:
    n = numbers("fig02_three_phases")["arms"][arm]
    low, high = n["collapse_rate_interval"]
    return (
        f"| {differs} | {n['collapsed']}/{n['runs']} [{low:.2f}, {high:.2f}] | {n['kept_share_min']:.2f} "
        f"| x{n['entropy_surge_median']:.1f}, x{n['grad_norm_surge_median']:.1f} |"
    )


@pytest.mark.parametrize("arm", ["grpo", "llds", "null", "onpolicy"])
def test_table_of_arms_is_the_figures(arm):
    row = next(line for line in README.splitlines() if line.startswith(f"| `{arm}` |"))
    differs = row.split("|")[2].strip()
    assert row == f"| `{arm}` " + three_phases_row(arm, differs)


def test_table_of_lambdas_is_the_figures():
    arms = numbers("fig08_lambda_ablation")["arms"]
    collapsed = " | ".join(f"{n['collapsed']}/{n['runs']}" for n in arms.values())
    assert f"| collapsed | {collapsed} |" in README
    delays = []
    for n in arms.values():
        if "paired_delay" not in n:
            delays.append("-")
            continue
        d = n["paired_delay"]
        bound = ">= " if d["censored"] else ""
        delays.append(f"{bound}{d['median']:.0f} [{d['interval'][0]:.0f}, {d['interval'][1]:.0f}]")
    assert f"| updates later than the same seed at 0 | {' | '.join(delays)} |" in README


def test_plateau_sentence_is_the_figures():
    held = sorted(numbers("fig02_three_phases")["arms"]["grpo"]["updates_falling_while_reward_holds"])
    assert f"falling for a median of {held[len(held) // 2]} updates" in " ".join(README.split())


def test_commands_name_presets_flags_and_targets_that_exist():
    makefile = (ROOT / "Makefile").read_text()
    for target in re.findall(r"\bmake ([a-z-]+)\b", README):
        assert re.search(rf"^{target}:", makefile, re.M) or re.fullmatch(r"fig", target), f"make {target}"
    for name in re.findall(r"--preset ([\w-]+)", README):
        assert name in PRESETS or name in TRANSFORMER_PRESETS
    for flag in re.findall(r"lldsim run [^`]*?(--[a-z-]+)", README):
        assert flag[2:].replace("-", "_") in {*field_specs(), "preset", "out", "config", "engine", "help"}


def test_paths_in_the_map_exist():
    block = README.split("## Map")[1].split("```")[1]
    for name in re.findall(r"\b([a-z_0-9]+\.py)\b", block):
        assert list((ROOT / "lldsim").rglob(name)) or list((ROOT / "full_scale").rglob(name)), name
    for folder in re.findall(r"^([a-z_]+)/", block, re.M):
        assert (ROOT / folder).is_dir(), folder
