"""Links that open the notebooks on Binder and Colab, built from the address that a clone was made from.

No address is written into the repository: a fork's links lead to the fork. `make badges` prints them.
What this file does not do: ask git (the caller passes what git says), or open anything.
"""

from __future__ import annotations

import re

from lldsim.errors import ConfigError

FIRST = "notebooks/00_collapse_in_one_minute.ipynb"


def github_name(remote: str) -> str:
    """Return "owner/name" of a GitHub remote in any of git's spellings; ConfigError for another host.

    >>> github_name("git@github.com:someone/lldsim.git"), github_name("https://github.com/someone/lldsim")
    ('someone/lldsim', 'someone/lldsim')
    """
    found = re.fullmatch(
        r"(?:https?://(?:[^@/]+@)?|ssh://git@|git@)github\.com[:/]([\w.-]+/[\w.-]+?)(?:\.git)?/?", remote
    )
    if found is None:
        raise ConfigError(f"remote {remote!r} is no GitHub repository: Colab opens GitHub's alone; push a fork there")
    return found[1]


def links(remote: str, branch: str, *, notebook: str = FIRST) -> dict[str, str]:
    """Return what a README or a first cell needs: Binder and Colab badges in Markdown, and Colab's install cell.

    >>> links("https://github.com/someone/lldsim", "main")["install"]
    '%pip install -q "lldsim[notebooks] @ git+https://github.com/someone/lldsim@main"'
    """
    name = github_name(remote)
    binder = f"https://mybinder.org/v2/gh/{name}/{branch}?urlpath=lab/tree/{notebook}"
    colab = f"https://colab.research.google.com/github/{name}/blob/{branch}/{notebook}"
    return {
        "binder": f"[![Binder](https://mybinder.org/badge_logo.svg)]({binder})",
        "colab": f"[![Colab](https://colab.research.google.com/assets/colab-badge.svg)]({colab})",
        "install": f'%pip install -q "lldsim[notebooks] @ git+https://github.com/{name}@{branch}"',
    }
