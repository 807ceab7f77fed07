"""Reading other people's logs.

Locked here: every format gives the same signals as what was written; folders; restarts, repeats, disorder, gaps,
NaN, cut files, mixed intervals, long logs in bounded rows; unknown keys are reported, a column map wins, a bad one
names the key; typed errors for what is no log; a record round-trips.
"""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest
from monitor_logs import WRITERS, rows, run, verl, write_jsonl, write_tfevents, write_trainer_state

from lldsim.errors import ConfigError, MissingDataError
from lldsim.monitor import readers
from lldsim.monitor.aliases import ALIASES, lookup
from lldsim.monitor.table import TableBuilder
from lldsim.record import COLUMNS, make_record


@pytest.mark.parametrize("kind", WRITERS)
def test_every_format_reads_back_what_was_written(kind: str, tmp_path: Path) -> None:
    name, write = WRITERS[kind]
    columns = run(sick=True)
    write(tmp_path / name, columns)
    log = readers.read_log(tmp_path / name)
    first = 1 if kind == "TRL console" else 0  # its lines carry no step
    np.testing.assert_allclose(log.steps, columns["step"] + first)
    for signal in ("reward", "logp_correct", "entropy", "grad_norm"):
        np.testing.assert_allclose(log.record[signal], columns[signal], rtol=1e-6, err_msg=signal)
    assert log.record.label == "measured"
    assert ("no step" in " ".join(log.notes)) == (kind == "TRL console")
    folder = readers.read_log(tmp_path)
    np.testing.assert_array_equal(folder.steps, log.steps)


def test_own_record_is_read_with_its_label(tmp_path: Path) -> None:
    columns = {name: np.arange(5.0) for name in COLUMNS}
    make_record(columns, {}, "abc").save(tmp_path)
    log = readers.read_log(tmp_path)
    assert (log.format, log.record.label, log.trusted) == ("RunRecord", "simulated", True)
    np.testing.assert_array_equal(readers.read_log(tmp_path / "record.csv").steps, np.arange(5.0))


def test_latest_checkpoint_of_a_folder_is_read(tmp_path: Path) -> None:
    for number in (5, 40, 100):
        (tmp_path / f"checkpoint-{number}").mkdir()
        write_trainer_state(tmp_path / f"checkpoint-{number}" / "trainer_state.json", run(sick=False, steps=number))
    assert len(readers.read_log(tmp_path).steps) == 100


def test_restart_takes_the_new_branch_and_drops_the_abandoned_one(tmp_path: Path) -> None:
    lines = [{"step": i, "reward": 0.1} for i in range(30)] + [{"step": i, "reward": 0.9} for i in range(20, 25)]
    path = tmp_path / "a.jsonl"
    path.write_text("\n".join(map(json.dumps, lines)))
    log = readers.read_log(path)
    np.testing.assert_array_equal(log.steps, np.arange(25))
    np.testing.assert_allclose(log.record["reward"], [0.1] * 20 + [0.9] * 5)
    assert log.restarts == [20]
    assert any("restart" in note and "5 abandoned" in note for note in log.notes)


def test_disorder_repeats_and_mixed_intervals(tmp_path: Path) -> None:
    lines = [
        {"step": 2, "reward": 0.2},
        {"step": 1, "reward": 0.1},
        {"step": 3, "reward": 0.2},
        {"step": 3, "reward": 0.4},
    ]
    lines += [{"step": 4, "entropy": 1.0}, {"global_step": 4, "reward": 0.5}]
    path = tmp_path / "a.jsonl"
    path.write_text("\n".join(map(json.dumps, lines)))
    log = readers.read_log(path)
    np.testing.assert_array_equal(log.steps, [1, 2, 3, 4])
    np.testing.assert_allclose(log.record["reward"], [0.1, 0.2, 0.3, 0.5])
    np.testing.assert_array_equal(np.isnan(log.record["entropy"]), [True, True, True, False])
    assert any("not in order" in note for note in log.notes)
    assert any("repeat" in note for note in log.notes)


def test_shuffled_log_with_repeats_loses_no_step() -> None:
    builder = TableBuilder()
    order = np.random.default_rng(0).permutation(np.repeat(np.arange(100), 2))
    for step in order:
        builder.add(float(step), {"reward": float(step)})
    steps, columns = builder.finish()
    np.testing.assert_array_equal(steps, np.arange(100))
    np.testing.assert_allclose(columns["reward"], np.arange(100))


def test_bins_keep_memory_bounded_and_means_right() -> None:
    builder = TableBuilder(max_rows=100)
    for step in range(10_000):
        builder.add(float(step), {"reward": float(step)})
    steps, columns = builder.finish()
    assert 20 <= len(steps) <= 101
    np.testing.assert_allclose(columns["reward"][:-1], steps[:-1] + (builder.width - 1) / 2, atol=1)


def test_nan_is_kept_as_an_event_and_cut_file_as_a_note(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text('{"step": 1, "loss": 0.1}\n{"step": 2, "loss": NaN}\n{"step": 3, "loss": 0.3}\n{"step": 4, "lo')
    log = readers.read_log(path)
    assert log.nonfinite == {"loss": [2.0]}
    assert any("cut short" in note for note in log.notes)
    assert math.isnan(log.record["loss"][1])


@pytest.mark.parametrize("share", [0.3, 0.7])
@pytest.mark.parametrize("kind", WRITERS)
def test_cut_files_give_what_is_whole(kind: str, share: float, tmp_path: Path) -> None:
    name, write = WRITERS[kind]
    columns = run(sick=False)
    write(tmp_path / name, columns)
    data = (tmp_path / name).read_bytes()
    (tmp_path / name).write_bytes(data[: int(share * len(data))])
    log = readers.read_log(tmp_path / name)
    assert 0.25 < len(log.steps) / len(columns["step"]) <= share + 0.1


def test_several_event_files_are_one_run(tmp_path: Path) -> None:
    columns = run(sick=False)
    for i, part in enumerate((slice(0, 80), slice(80, 160))):
        write_tfevents(tmp_path / f"events.out.tfevents.{i}.host", {k: v[part] for k, v in columns.items()})
    np.testing.assert_array_equal(readers.read_log(tmp_path).steps, columns["step"])


def test_column_map_wins_and_unknown_keys_are_reported(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text("".join(json.dumps({"n": i, "my_lp": -0.1, "reward": 0.5, "what": 1}) + "\n" for i in range(5)))
    log = readers.read_log(path, columns={"step": "n", "logp_correct": "my_lp"})
    assert log.sources == {"logp_correct": "my_lp", "reward": "reward"}
    assert log.unknown_keys == ["what"]
    with pytest.raises(ConfigError, match=r"has no key 'my_pl' \(did you mean 'my_lp'"):
        readers.read_log(path, columns={"logp_correct": "my_pl"})
    with pytest.raises(ConfigError, match="did you mean 'entropy'"):
        readers.read_log(path, columns={"entrpy": "what"})


def test_preferred_key_wins_whatever_the_order(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text("".join(json.dumps({"critic/rewards/mean": 0.0, **verl(r)}) + "\n" for r in rows(run(sick=False))))
    log = readers.read_log(path)
    assert log.sources["reward"] == "critic/score/mean"
    assert any("both" in note for note in log.notes)


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"", "is empty"),
        (b"\0\0\0", "is empty"),
        (b"hello world\n", "in no format"),
        (b'{"step": 1, "banana": 2}\n', "logs no signal"),
        (b"a,b\n1,2\n", "logs no signal"),
        (b"\x89PNG\r\n\x1a\n" + bytes(range(256)), "in no format|logs no signal"),
        (b"[" * 100_000, "holds no row of numbers"),
    ],
)
def test_what_is_no_log_is_a_typed_error(content: bytes, says: str, tmp_path: Path) -> None:
    path = tmp_path / "x"
    path.write_bytes(content)
    with pytest.raises(MissingDataError, match=says):
        readers.read_log(path)


def test_absent_path_and_empty_folder(tmp_path: Path) -> None:
    with pytest.raises(MissingDataError, match="does not exist"):
        readers.read_log(tmp_path / "nowhere")
    with pytest.raises(MissingDataError, match="holds no log"):
        readers.read_log(tmp_path)
    with pytest.raises(MissingDataError):
        readers.read_log("bad\0name")


def test_parquet_completions(tmp_path: Path) -> None:
    pa = pytest.importorskip("pyarrow")
    pq = pytest.importorskip("pyarrow.parquet")
    for step in (1, 2):
        table = {
            "step": [step] * 4, "prompt": ["a", "a", "b", "b"], "completion": ["xx", "xxxx", "xx", "xx"],
            "exact_match_reward": [1.0, 0.0, 1.0, 1.0], "advantage": [0.7, -0.7, 0.0, 0.0],
        }  # fmt: skip
        pq.write_table(pa.table(table), tmp_path / f"completions_{step:05d}.parquet")
    log = readers.read_log(tmp_path)
    np.testing.assert_array_equal(log.steps, [1, 2])
    np.testing.assert_allclose(log.record["reward"], 0.75)
    np.testing.assert_allclose(log.record["tied_groups"], 0.5)


def test_no_alias_is_claimed_twice() -> None:
    keys = [key for by_framework in ALIASES.values() for group in by_framework.values() for key in group]
    assert len(keys) == len(set(keys))
    assert all(key == key.lower() for key in keys)
    assert all(lookup(f"my run - train/{key}") is not None for key in keys)


def test_progress_reaches_the_end(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    write_jsonl(path, run(sick=False))
    seen: list[tuple[int, int]] = []
    readers.read_log(path, on_progress=lambda done, total: seen.append((done, total)))
    assert seen[-1] == (path.stat().st_size, path.stat().st_size)
