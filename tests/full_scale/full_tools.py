"""What the tests of full_scale share: skipping with a reason when an optional package is absent, and a tiny tokenizer.

`make full-scale-test` installs the packages and sets LLDSIM_STRICT_OPTIONAL=1, which turns such a skip into a failure.
"""

from __future__ import annotations

import importlib
import os
from typing import Any

import pytest


def needs(*packages: str) -> list[Any]:
    """Return the modules, or skip the calling test file and name the one that is missing."""
    if os.environ.get("LLDSIM_STRICT_OPTIONAL"):
        return [importlib.import_module(package) for package in packages]
    why = "package {} is not installed; `make full-scale-test` installs and runs these"
    return [pytest.importorskip(package, reason=why.format(package)) for package in packages]


class CharTokenizer:
    """A tokenizer of characters, except that `>` and a following newline are one token, as in Qwen's vocabulary."""

    MERGED = 0x110000

    def encode(self, text: str, *, add_special_tokens: bool = False) -> list[int]:
        ids: list[int] = []
        for character in text:
            if character == "\n" and ids and ids[-1] == ord(">"):
                ids[-1] = self.MERGED
            else:
                ids.append(ord(character))
        return ids

    def decode(self, token_ids: list[int], *, skip_special_tokens: bool = False) -> str:
        return "".join(">\n" if i == self.MERGED else chr(i) for i in token_ids)
