"""Logs that verl 0.9.1, wandb 0.31 and TRL 1.16 wrote themselves: the `write_*_logs.py` beside these tests.

verl and wandb logged one collapsing toy run, TRL thirty healthy steps of a tiny model.

Locked here: console (through Ray), JSON lines and TensorBoard of verl give the same numbers, the verdict and a first
alarm before the reward falls; what verl does not log by itself is reported as missing, its other keys as unread, its
validation is no training row; a line that Ray cut in two is put together; the W&B run counts in `train/global_step`;
TRL's state, print and completions agree.
"""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import numpy as np
import pytest

from lldsim.monitor import diagnose, first_alarm, read_log

DATA = Path(__file__).parent / "data"
VERL = {"JSON lines": "verl.jsonl", "console": "verl_console.log", "TensorBoard events": "verl_events.out.tfevents"}


def lines() -> list[dict]:
    return [json.loads(line) for line in gzip.open(DATA / "verl.jsonl.gz", "rt")]


@pytest.mark.parametrize("kind", VERL)
def test_verls_own_logs_are_read_and_judged(kind: str, tmp_path: Path) -> None:
    path = tmp_path / VERL[kind]
    path.write_bytes(gzip.decompress((DATA / f"{path.name}.gz").read_bytes()))
    log = read_log(path)
    assert log.format == kind
    assert log.trusted
    want = {row["step"]: row["data"] for row in lines()}
    first = 71 if kind == "TensorBoard events" else 1
    np.testing.assert_array_equal(log.steps, np.arange(first, 111))
    for signal, key in {
        "reward": "critic/score/mean", "entropy": "actor/entropy", "grad_norm": "actor/grad_norm",
        "kl": "actor/kl_loss", "clip_fraction": "actor/pg_clipfrac", "loss": "actor/pg_loss",
        "response_length": "response_length/mean", "logp_correct": "lldsim/logp_correct",
        "sampler_gap": "training/rollout_probs_diff_mean",
    }.items():  # fmt: skip
        assert log.sources[signal] == key
        written = [want[int(step)].get(key, np.nan) for step in log.steps]
        np.testing.assert_allclose(log.record[signal], written, rtol=2e-7, err_msg=signal)
    assert {"timing_s/gen", "perf/throughput", "num_turns/mean", "training/epoch"} <= set(log.unknown_keys)
    assert not any("restart" in note or "repeat" in note or "no step" in note for note in log.notes)
    found = diagnose(log)
    assert found.verdict == "collapsed"
    assert found.phases[-1]["phase"] == "COLLAPSED"
    assert 95 <= found.phases[-1]["from"] <= 105
    alarm = first_alarm(log)
    assert alarm is not None
    assert alarm.rule.startswith("likelihood")
    assert 80 <= alarm.step < 95


def test_packed_log_is_the_same_log(tmp_path: Path) -> None:
    path = tmp_path / "verl.jsonl"
    path.write_bytes(gzip.decompress((DATA / "verl.jsonl.gz").read_bytes()))
    packed, plain = read_log(DATA / "verl.jsonl.gz"), read_log(path)
    assert packed.record.config_hash == plain.record.config_hash


def test_verl_as_it_comes_lacks_the_likelihood_and_says_so(tmp_path: Path) -> None:
    path = tmp_path / "verl.jsonl"
    with path.open("w") as file:
        for row in lines():
            ours = [key for key in row["data"] if key.startswith("lldsim/") or key == "success_rate"]
            for key in ours:
                del row["data"][key]
            file.write(json.dumps(row) + "\n")
    log = read_log(path)
    found = diagnose(log)
    assert not log.trusted
    assert {"logp_correct", "logp_wrong", "similarity", "ratio_max"} == set(found.missing)
    assert all(state["holds"] is None for state in found.conditions.values())
    assert found.verdict == "collapsed"
    alarm = first_alarm(log)
    assert alarm is not None
    assert alarm.rule == "entropy-surge"


def test_line_that_ray_cut_in_two_is_one_row(tmp_path: Path) -> None:
    text = gzip.decompress((DATA / "verl_console.log.gz").read_bytes()).decode()
    whole = [line for line in text.split("\n") if " step:" in line or "mstep:" in line]
    prefix, row = whole[50][: whole[50].index("step:")], whole[50][whole[50].index("step:") :]
    for at in (row.index(" - perf/"), row.index("actor/ppo_kl") + 9, row.index("actor/entropy") + 18, len(row) - 3):
        path = tmp_path / "cut.log"
        path.write_text(text.replace(whole[50], f"{prefix}{row[:at]}\n{prefix}{row[at:]}"))
        cut, log = read_log(path), read_log(DATA / "verl_console.log.gz")
        assert cut.notes == log.notes
        assert cut.record.config_hash == log.record.config_hash, row[at - 20 : at + 5]


def test_wandb_offline_run(tmp_path: Path) -> None:
    path = tmp_path / "run-spiral.wandb"
    path.write_bytes(gzip.decompress((DATA / "offline.wandb.gz").read_bytes()))
    log = read_log(path)
    assert log.format == "W&B offline run"
    np.testing.assert_array_equal(log.steps, 10 * np.arange(1, 111))
    want = [row["data"]["actor/entropy"] for row in lines() if row["step"]]
    np.testing.assert_allclose(log.record["entropy"], want, rtol=1e-12)
    assert log.notes == []
    assert {"train/learning_rate", "_runtime", "_timestamp"} == set(log.unknown_keys)
    assert diagnose(log, steps_per_update=10).verdict == "collapsed"


def test_trl_trainer_state_and_what_trl_prints(tmp_path: Path) -> None:
    for name in ("trainer_state.json", "trl_console.log"):
        (tmp_path / name).write_bytes(gzip.decompress((DATA / f"{name}.gz").read_bytes()))
    state, printed = read_log(tmp_path / "trainer_state.json"), read_log(tmp_path / "trl_console.log")
    assert (state.format, printed.format) == ("TRL trainer state", "console")
    history = json.loads((tmp_path / "trainer_state.json").read_text())["log_history"]
    np.testing.assert_array_equal(state.steps, np.arange(1, 31))
    np.testing.assert_array_equal(printed.steps, np.arange(1, 31))  # the summary at its end is no row
    for signal, key in {
        "reward": "reward", "entropy": "entropy", "grad_norm": "grad_norm", "kl": "kl", "loss": "loss",
        "clip_fraction": "clip_ratio/region_mean", "response_length": "completions/mean_length",
        "tied_groups": "frac_reward_zero_std",
    }.items():  # fmt: skip
        written = [row.get(key, np.nan) for row in history]
        np.testing.assert_array_equal(state.record[signal], written, err_msg=signal)
        np.testing.assert_allclose(printed.record[signal], written, rtol=1e-3, atol=1e-6, err_msg=signal)
    assert np.isfinite(state.record["reward"]).sum() == 15  # TRL logs it on the steps that sample, here every second
    found = diagnose(state)
    assert found.verdict == "healthy"
    assert "likelihood" in found.why
    assert {"logp_correct", "logp_wrong", "similarity", "ratio_max"} == set(found.missing)


def test_trl_completions_parquet() -> None:
    pytest.importorskip("pyarrow")
    log = read_log(DATA / "completions_00030.parquet")
    state = read_log(DATA / "trainer_state.json.gz")
    assert log.steps.tolist() == [30]
    assert "rewards/letter_reward/mean" in log.unknown_keys
    np.testing.assert_allclose(log.record["reward"][-1], state.record["reward"][-2], rtol=1e-6)
