"""Exact match, twice: as Search-R1 computes it, and with Unicode in mind. The two are never mixed in one table.

The reward scores the policy's own last action only: an answer that stands in the prompt, in a retrieved document or
before the last action is no answer. What this file does not do: partial credit, format rewards, F1.
"""

from __future__ import annotations

import re
import string
import unicodedata
from collections.abc import Callable, Sequence
from typing import Literal

from lldsim.errors import ConfigError

MatchRule = Literal["em_search_r1", "em_unicode"]
_ARTICLES = re.compile(r"\b(a|an|the)\b")
_ASCII_PUNCTUATION = frozenset(string.punctuation)


def normalize_search_r1(text: str) -> str:
    """Return `text` as Search-R1 compares it: lower case, ASCII punctuation and English articles removed.

    >>> normalize_search_r1("The  U.S.A.")
    'usa'
    """
    kept = "".join(c for c in text.lower() if c not in _ASCII_PUNCTUATION)
    return " ".join(_ARTICLES.sub(" ", kept).split())


def normalize_unicode(text: str) -> str:
    """Return `text` in compatibility form (NFKC), case-folded, without punctuation of any script or English articles.

    Accents stay: they distinguish names. Dashes become spaces, so that "Austria–Hungary" is two words in any script.

    >>> normalize_unicode("“São Tomé”") == normalize_unicode("são tome\\u0301")
    True
    """
    folded = unicodedata.normalize("NFKC", text).casefold()
    kept = "".join(
        " " if unicodedata.category(c) == "Pd" else c
        for c in folded
        if unicodedata.category(c) == "Pd" or unicodedata.category(c)[0] != "P"
    )
    return " ".join(_ARTICLES.sub(" ", unicodedata.normalize("NFKC", kept)).split())


NORMALIZERS: dict[str, Callable[[str], str]] = {
    "em_search_r1": normalize_search_r1,
    "em_unicode": normalize_unicode,
}


def exact_match(answer: str | None, golds: Sequence[str], *, rule: MatchRule = "em_search_r1") -> float:
    """Return 1.0 if `answer` equals one of the gold answers after normalisation, else 0.0; None is no answer.

    An answer that normalises to nothing never matches, not even a gold answer that does too (ours: Search-R1 lets
    "the" equal "a"). Raises ConfigError for no gold answer or an unknown rule.

    >>> exact_match(" the Paris. ", ["Paris"]), exact_match(None, ["Paris"])
    (1.0, 0.0)
    """
    if rule not in NORMALIZERS:
        raise ConfigError(f"match rule is {rule!r}; choose one of {sorted(NORMALIZERS)}")
    if not golds or isinstance(golds, str):
        raise ConfigError(f"gold answers are {golds!r}; give a list with at least one answer")
    if answer is None:
        return 0.0
    normalize = NORMALIZERS[rule]
    given = normalize(answer)
    return float(bool(given) and any(given == normalize(gold) for gold in golds))
