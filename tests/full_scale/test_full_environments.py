"""The environment files: one place for pins, agreeing with the package. `make resolve-check` asks a package index.

Locked here: every file installs this repository with extras that exist; exact pins lie inside the package's ranges;
TRL's and verl's environments name the versions that the code is written for; each file says what checked it.
"""

from __future__ import annotations

import re
import subprocess
import tomllib
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement

from full_scale.resolve_check import NAMES, requirements, resolve
from full_scale.verl_plugin import VERL
from lldsim.errors import ConfigError

ROOT = Path(__file__).resolve().parents[2]
EXTRAS = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]


@pytest.mark.parametrize("name", NAMES)
def test_pins_agree_with_the_package(name: str) -> None:
    own, *pins = requirements(name)
    extras = re.fullmatch(rf"{re.escape(str(ROOT))}\[(.+)\]", own)
    assert extras is not None
    used = extras.group(1).split(",")
    assert set(used) <= set(EXTRAS)
    ranges = {r.name: r.specifier for extra in used for r in map(Requirement, EXTRAS[extra])}
    for pin in map(Requirement, pins):
        (specifier,) = pin.specifier
        assert specifier.operator == "=="
        assert pin.name not in ranges or ranges[pin.name].contains(specifier.version), pin.name
    assert "make resolve-check" in (ROOT / "full_scale" / f"environment-{name}.yml").read_text().replace("\n# ", " ")


def test_engines_are_the_versions_the_code_is_written_for() -> None:
    assert f"verl[vllm]=={VERL}" in requirements("verl")
    assert f"verl=={VERL}" in EXTRAS["verl"]
    (trl,) = EXTRAS["trl"]
    assert trl.replace("trl", "trl[vllm]") in requirements("gpu")


def test_failure_to_resolve_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(command: list[str], **rest: Any) -> Any:
        assert "--dry-run" in command
        return subprocess.CompletedProcess(command, 1, "", "ResolutionImpossible")

    monkeypatch.setattr(subprocess, "run", fail)
    with pytest.raises(ConfigError, match=r"environment-verl\.yml does not resolve:\nResolutionImpossible"):
        resolve("verl")
    with pytest.raises(ConfigError, match="no environment 'gpus'"):
        requirements("gpus")
