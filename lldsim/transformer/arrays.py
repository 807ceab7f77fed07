"""Read an .npz file whole and without pickle, or say what is wrong with it.

What this file does not do: know what should be in it.
"""

from __future__ import annotations

import io
import zipfile
from pathlib import Path

import numpy as np

from lldsim.errors import MissingDataError


def read_arrays(path: Path, *, what: str, remedy: str) -> dict[str, np.ndarray]:
    """Return the arrays of `path` by name; MissingDataError calls it no `what` and adds the `remedy`."""
    try:
        # From memory: np.load leaves a file that is no zip open when it gives up on it.
        with np.load(io.BytesIO(path.read_bytes()), allow_pickle=False) as arrays:
            return {name: arrays[name] for name in arrays.files}
    except (ValueError, OSError, EOFError, AttributeError, zipfile.BadZipFile) as error:
        raise MissingDataError(f"{path} is cut short or no {what} ({error}); {remedy}") from None
