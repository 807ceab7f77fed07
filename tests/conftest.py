"""What every test starts from: one thread, no display, seeded generators, the repository's root.

Two processes with one thread each are faster here than two threads, and sums keep their order.
"""

from __future__ import annotations

import os

# Before numpy, torch or numba is imported: they read these once.
for _name in ("OMP_NUM_THREADS", "NUMBA_NUM_THREADS"):
    os.environ.setdefault(_name, "1")
os.environ["MPLBACKEND"] = "Agg"

from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import settings

torch.set_num_threads(1)
# Derandomised: a red run can be repeated. No deadline: the first call of a compiled kernel is slow.
settings.register_profile("lldsim", derandomize=True, deadline=None, max_examples=50, database=None)
settings.load_profile("lldsim")


@pytest.fixture
def generator() -> torch.Generator:
    """A torch generator with a fixed seed, fresh for each test."""
    return torch.Generator().manual_seed(20251204)


@pytest.fixture
def rng() -> np.random.Generator:
    """A NumPy generator with a fixed seed, fresh for each test."""
    return np.random.default_rng(20251204)


@pytest.fixture(scope="session")
def repo_root() -> Path:
    """The folder that holds pyproject.toml."""
    return Path(__file__).resolve().parents[1]
