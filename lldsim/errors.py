"""Typed errors: each message names the offending value and what to do about it.

All derive from `LldsimError`, itself a ValueError, so `except ValueError` keeps working in user code.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class LldsimError(ValueError):
    """Base of every error that this package raises on bad input."""


class ConfigError(LldsimError):
    """A configuration value is out of range, of the wrong type, or can never do what it promises."""


class ShapeError(LldsimError):
    """Two tensors that must agree in shape do not."""


class GroupError(LldsimError):
    """A rollout group is empty, has a single member, or lacks a kind of response that is needed."""


class NonFiniteError(LldsimError):
    """A value that must be finite is NaN or infinite where it counts."""


class MissingDataError(LldsimError):
    """A file, column or record that is needed is absent or cut short."""


def suggest(name: str, known: Iterable[str]) -> str:
    """Return ' (did you mean ...?)' for the known name nearest to `name`, or an empty string."""
    close = difflib.get_close_matches(name, list(known), n=1, cutoff=0.5)
    return f" (did you mean {close[0]!r}?)" if close else ""
