"""Golden trajectories: short runs of the main objectives, frozen with the environment that made them.

Locked here: GRPO, GSPO, every gate of LLDS, LLDS-MA, CISPO, NTHR, PPO and Adam give the numbers in
golden/trajectories.json: exactly to 1e-9 under the stamped versions, to 1e-6 under others, and with residuals that
average to zero there. A changed snapshot needs a reason in its commit: `python tests/test_golden.py` writes it anew.
"""

from __future__ import annotations

import json
import platform
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lldsim.config import RunConfig
from lldsim.engine import simulate
from lldsim.record import versions

GOLDEN = Path(__file__).parent / "golden" / "trajectories.json"
COLUMNS = ("reward", "logp_correct", "logp_wrong", "entropy", "grad_norm", "ratio_max", "llds", "gate_fraction")
# Small, and fast enough a learner that all columns move: 15 % of the responses fail, and groups are rarely tied.
WORLD: dict[str, Any] = {
    "n_queries": 8, "max_turns": 4, "turn_tokens": 8, "vocab_size": 24, "n_features": 16, "invalid_threshold": 4,
    "updates": 20, "updates_per_rollout": 8, "staleness": 3,
}  # fmt: skip
RUNS: dict[str, dict[str, Any]] = {
    "grpo": {},
    "gspo": {"surrogate": "gspo", "aggregation": "seq-mean-token-mean"},
    "llds_token": {"llds_coef": 0.2, "gate": "token"},
    "llds_action": {"llds_coef": 0.2, "gate": "action"},
    "llds_response": {"llds_coef": 0.2, "gate": "response"},
    "llds_ma": {"llds_coef": 0.2, "answer_weight_rule": "paper"},
    "llds_all_tokens": {"llds_coef": 0.2, "normalizer": "all"},
    "cispo": {"surrogate": "cispo", "cispo_cap": 1.1},
    "nthr": {"nthr_beta": 1.0},
    "ppo": {"advantage": "gae", "gae_lambda": 0.95},
    "ppo_llds": {"advantage": "gae", "llds_coef": 0.2},
    "adam": {"optimizer": "adam", "learning_rate": 0.01},
    "features": {"feature_rate": 0.01},
}


def stamp() -> dict[str, str]:
    return versions() | {"machine": platform.machine()}


def run(name: str) -> dict[str, list[float | None]]:
    record = simulate(RunConfig().replace(**WORLD, **RUNS[name]))
    return {column: [None if np.isnan(x) else float(x) for x in record[column]] for column in COLUMNS}


def residuals(name: str) -> dict[str, np.ndarray]:
    golden, now = json.loads(GOLDEN.read_text())["runs"][name], run(name)
    return {column: np.array(now[column], dtype=float) - np.array(golden[column], dtype=float) for column in COLUMNS}


@pytest.mark.parametrize("name", RUNS)
def test_trajectory_is_the_golden_one(name: str) -> None:
    golden = json.loads(GOLDEN.read_text())
    tolerance = 1e-9 if golden["environment"] == stamp() else 1e-6
    for column, values in residuals(name).items():
        missing = [x is None for x in golden["runs"][name][column]]
        assert np.isnan(values).tolist() == missing, f"{column}: a value is missing on one side only"
        known = values[np.isfinite(values)]
        assert np.abs(known).max(initial=0.0) < tolerance, column
        # Rounding goes both ways; a residual with a mean is a change, however small.
        assert abs(known.mean()) < tolerance / 10, column


def test_snapshot_covers_what_it_says_and_its_runs_differ() -> None:
    golden = json.loads(GOLDEN.read_text())
    assert golden["runs"].keys() == RUNS.keys()
    assert golden["world"] == WORLD
    rewards = {name: tuple(columns["logp_correct"]) for name, columns in golden["runs"].items()}
    assert len(set(rewards.values())) == len(RUNS)
    assert max(golden["runs"]["llds_action"]["gate_fraction"]) > 0


if __name__ == "__main__":
    content = {"environment": stamp(), "world": WORLD, "runs": {name: run(name) for name in RUNS}}
    GOLDEN.write_text(json.dumps(content, indent=1) + "\n")
    print(f"wrote {len(RUNS)} runs to {GOLDEN.name}")
