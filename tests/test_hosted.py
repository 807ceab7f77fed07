"""What Binder and Colab need.

Locked here: links follow the clone's own remote, another host is refused; the pins lie in the package's ranges and
agree with the tests' torch; Binder's files name what they need and nothing that trains a language model. The steps
themselves are run by `make hosted-check`.
"""

from __future__ import annotations

import os
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from lldsim.errors import ConfigError
from lldsim.hosted import FIRST, github_name, links


def pins(repo_root: Path) -> dict[str, Requirement]:
    lines = (repo_root / "binder" / "requirements.txt").read_text().splitlines()
    found = [Requirement(line) for line in lines if line and not line.startswith(("#", "--"))]
    return {requirement.name: requirement for requirement in found}


@pytest.mark.parametrize(
    "remote",
    ["https://github.com/a/b.git", "https://github.com/a/b", "git@github.com:a/b.git", "ssh://git@github.com/a/b.git"],
)
def test_links_follow_the_remote(remote: str, repo_root: Path) -> None:
    found = links(remote, "main")
    assert "(https://mybinder.org/v2/gh/a/b/main?urlpath=lab/tree/notebooks/00_" in found["binder"]
    assert f"(https://colab.research.google.com/github/a/b/blob/main/{FIRST})" in found["colab"]
    assert "git+https://github.com/a/b@main" in found["install"]
    assert (repo_root / FIRST).exists()


@pytest.mark.parametrize("remote", ["", "https://gitlab.com/a/b", "elsewhere/github.com/a/b"])
def test_another_host_is_refused(remote: str) -> None:
    with pytest.raises(ConfigError, match="no GitHub repository"):
        github_name(remote)


def test_pins_lie_in_the_ranges_of_the_package(repo_root: Path) -> None:
    project = tomllib.loads((repo_root / "pyproject.toml").read_text())["project"]
    wanted = [Requirement(text) for text in (*project["dependencies"], *project["optional-dependencies"]["notebooks"])]
    found = pins(repo_root)
    assert found.keys() - {"voila"} == {requirement.name for requirement in wanted}
    for requirement in wanted:
        (pin,) = found[requirement.name].specifier
        assert pin.operator == "=="
        assert requirement.specifier.contains(pin.version), requirement.name


def test_torch_is_that_of_the_tests_and_postbuild_can_run(repo_root: Path) -> None:
    constraint = (repo_root / "constraints" / "cpu.txt").read_text().splitlines()
    assert str(pins(repo_root)["torch"]) in constraint
    assert os.access(repo_root / "binder" / "postBuild", os.X_OK)
