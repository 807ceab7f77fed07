"""Logs as they lie about: other people's names, units, encodings, packings and folders.

Locked here: each of these gives the signals of the plain log or says what is wrong: keys in capitals, with blanks,
hyphens or nested; percents, decimal commas, numbers as text; BOM, Windows lines, UTF-16, gzip (cut, too); JSON that
wraps its history; one row; evaluation only; positive log-probabilities; folders of many runs; exports of many runs.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from monitor_logs import rows, run, write_tfevents

from lldsim.cli import main
from lldsim.errors import ConfigError, MissingDataError
from lldsim.monitor import diagnose, read_log

Rows = list[dict[str, float]]
SICK = run(sick=True)
SIGNALS = ("reward", "logp_correct", "entropy", "grad_norm")


def lines(table: list) -> str:
    return "".join(json.dumps(row) + "\n" for row in table)


def csv(table: list, *, comma: str = ",", end: str = "\n") -> str:
    return end.join([comma.join(table[0]), *(comma.join(map(str, row.values())) for row in table)]) + end


def renamed(change: Callable[[str], str]) -> list:
    return [{change(key): value for key, value in row.items()} for row in rows(SICK)]


def nested(row: dict[str, float]) -> dict:
    inner = {"reward": {"mean": row["reward"]}, "policy": {"entropy": row["entropy"], "grad_norm": row["grad_norm"]}}
    return {"step": row["step"], "train": inner | {"logp": {"correct": row["logp_correct"]}}}


def percents(row: dict[str, float]) -> dict:
    return row | {"reward": f"{100 * row['reward']:.10f}%"}


def european(row: dict[str, float]) -> dict:
    return {key: str(value).replace(".", ",") for key, value in row.items()}


ODD: dict[str, tuple[str, bytes]] = {
    "capitals": ("a.csv", csv(renamed(str.upper)).encode()),
    "blanks": ("a.csv", csv(renamed(lambda key: f" {key.replace('_', ' ').title()} ")).encode()),
    "hyphens": ("a.csv", csv(renamed(lambda key: key.replace("_", "-"))).encode()),
    "nested": ("a.jsonl", lines(list(map(nested, rows(SICK)))).encode()),
    "percents": ("a.csv", csv(list(map(percents, rows(SICK)))).encode()),
    "decimal commas": ("a.csv", csv(list(map(european, rows(SICK))), comma=";").encode()),
    "numbers as text": ("a.jsonl", lines([{k: str(v) for k, v in row.items()} for row in rows(SICK)]).encode()),
    "BOM": ("a.jsonl", lines(rows(SICK)).encode("utf-8-sig")),
    "BOM, CSV": ("a.csv", csv(rows(SICK)).encode("utf-8-sig")),
    "Windows lines": ("a.jsonl", lines(rows(SICK)).replace("\n", "\r\n").encode()),
    "Windows lines, CSV": ("a.csv", csv(rows(SICK), end="\r\n").encode()),
    "UTF-16": ("a.jsonl", lines(rows(SICK)).encode("utf-16")),
    "gzip": ("a.jsonl.gz", gzip.compress(lines(rows(SICK)).encode())),
    "gzip in two members": (
        "a.jsonl.gz",
        gzip.compress(lines(rows(SICK)[:70]).encode()) + gzip.compress(lines(rows(SICK)[70:]).encode()),
    ),
    "gzip, UTF-16": ("a.csv.gz", gzip.compress(csv(rows(SICK)).encode("utf-16"))),
    "wrapped": ("a.json", json.dumps({"config": {"seed": 0}, "history": rows(SICK)}, indent=1).encode()),
    "columns": ("a.json", json.dumps({key: list(values) for key, values in SICK.items()}).encode()),
}


@pytest.mark.parametrize("kind", ODD)
def test_odd_log_reads_like_the_plain_one(kind: str, tmp_path: Path) -> None:
    name, content = ODD[kind]
    (tmp_path / name).write_bytes(content)
    log = read_log(tmp_path / name)
    np.testing.assert_array_equal(log.steps, SICK["step"])
    for signal in SIGNALS:
        np.testing.assert_allclose(log.record[signal], SICK[signal], rtol=1e-9, err_msg=signal)
    assert log.notes == []
    assert read_log(tmp_path).record.config_hash == log.record.config_hash


def test_cut_gzip_gives_what_is_whole(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl.gz").write_bytes(gzip.compress(lines(rows(SICK)).encode())[:-2000])
    log = read_log(tmp_path / "a.jsonl.gz")
    assert 60 < len(log.steps) < 150
    assert any("cut short" in note for note in log.notes)


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (lines([{"step": i, "eval_reward": 0.5, "eval_loss": 0.1} for i in range(20)]), "evaluation only"),
        ("step,reward\n", "no row of numbers"),
        (lines([{"0": {"reward": 1.0}, "1": {"reward": 0.0}}]), "--map reward=KEY"),
    ],
)
def test_what_holds_no_training_says_why(content: str, says: str, tmp_path: Path) -> None:
    (tmp_path / "a").write_text(content)
    with pytest.raises(MissingDataError, match=says):
        read_log(tmp_path / "a")


def test_evaluation_can_be_taken_by_name(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text(lines([{"step": i, "eval_reward": 0.5} for i in range(20)]))
    assert read_log(tmp_path / "a.jsonl", columns={"reward": "eval_reward"}).sources == {"reward": "eval_reward"}


@pytest.mark.parametrize("count", [1, 5])
def test_a_few_rows_decide_nothing(count: int, tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text(lines(rows(SICK)[:count]))
    found = diagnose(read_log(tmp_path / "a.jsonl"))
    assert found.verdict == "undecidable"
    assert f"{count} of {count} row(s)" in found.why
    assert {state["holds"] for state in found.conditions.values()} == {None}


def test_conditions_count_in_updates(tmp_path: Path) -> None:
    sparse = [row | {"step": 1000 * row["step"]} for row in rows(SICK)]
    (tmp_path / "a.jsonl").write_text(lines(sparse))
    (tmp_path / "b.jsonl").write_text(lines(rows(SICK)))
    scaled = diagnose(read_log(tmp_path / "a.jsonl"), steps_per_update=1000).conditions
    plain = diagnose(read_log(tmp_path / "b.jsonl")).conditions
    assert plain["1 correct falls"]["holds"]
    assert {k: c["holds"] for k, c in scaled.items()} == {k: c["holds"] for k, c in plain.items()}
    assert scaled["1 correct falls"]["from"] == 1000 * plain["1 correct falls"]["from"]


def test_positive_log_probability_is_set_aside(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text(lines([row | {"logp_correct": -row["logp_correct"]} for row in rows(SICK)]))
    log = read_log(tmp_path / "a.jsonl")
    assert not log.has("logp_correct")
    assert any("no log-probability" in note for note in log.notes)
    assert "logp_correct" in diagnose(log).missing


def test_similarity_that_comes_after_the_fall_is_no_error(tmp_path: Path) -> None:
    table = [row | ({"similarity": 0.9} if row["step"] > 155 else {}) | {"logp_wrong": -3.0} for row in rows(SICK)]
    (tmp_path / "a.jsonl").write_text(lines(table))
    found = diagnose(read_log(tmp_path / "a.jsonl"))
    assert "mean_similarity" not in found.conditions["2 wrong does not rise"]
    json.dumps(found.as_dict(), allow_nan=False)


def test_rows_without_a_step_belong_to_the_step_before(tmp_path: Path) -> None:
    table = [{"step": 10, "reward": 0.1}, {"entropy": 1.0}, {"step": 20, "reward": 0.2}, {"entropy": 2.0}]
    (tmp_path / "a.jsonl").write_text(lines(table))
    log = read_log(tmp_path / "a.jsonl")
    assert log.steps.tolist() == [10, 20]
    assert log.record["entropy"].tolist() == [1.0, 2.0]


def test_mapped_step_that_is_absent_is_named(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text(lines(rows(SICK)))
    with pytest.raises(ConfigError, match=r"--map step=stpe: a.jsonl has no key 'stpe' \(did you mean 'step'"):
        read_log(tmp_path / "a.jsonl", columns={"step": "stpe"})


def test_export_of_several_runs_reads_the_first_and_names_the_others(tmp_path: Path) -> None:
    healthy, table = rows(run(sick=False)), []
    for sick, well in zip(rows(SICK), healthy, strict=True):
        table.append(
            {"Step": sick["step"]}
            | {f"bad run - train/{k}": v for k, v in sick.items() if k != "step"}
            | {f"good run - train/{k}": v for k, v in well.items() if k != "step"}
        )
    (tmp_path / "wandb_export.csv").write_text(csv(table))
    log = read_log(tmp_path / "wandb_export.csv")
    assert all(key.startswith("bad run") for key in log.sources.values())
    assert any("2 runs; left out: good run" in note for note in log.notes)
    np.testing.assert_array_equal(log.record["reward"], SICK["reward"])


def test_folder_of_runs_gives_every_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name, sick in (("good", False), ("bad", True)):
        (tmp_path / "jsonl" / name).mkdir(parents=True)
        (tmp_path / "jsonl" / name / "log.jsonl").write_text(lines(rows(run(sick=sick))))
        (tmp_path / "events" / name).mkdir(parents=True)
        write_tfevents(tmp_path / "events" / name / "events.out.tfevents.1.host", run(sick=sick))
        (tmp_path / f"{name}.jsonl").write_text(lines(rows(run(sick=sick))))
    (tmp_path / "events" / "latest").symlink_to(tmp_path / "events" / "good")
    for folder, paths in (
        ("jsonl", ["jsonl/bad", "jsonl/good"]),
        ("events", ["events/bad", "events/good"]),
        (".", ["bad.jsonl", "good.jsonl"]),
    ):
        assert main(["diagnose", str(tmp_path / folder), "--json", "--fail-on", "decay"]) == 1
        found = json.loads(capsys.readouterr().out)
        assert [(Path(f["path"]), f["verdict"]) for f in found] == [
            (tmp_path / paths[0], "collapsed"),
            (tmp_path / paths[1], "healthy"),
        ]
        with pytest.raises(MissingDataError, match="holds 2 runs"):
            read_log(tmp_path / folder)


def test_file_of_a_folder_that_is_no_log_is_said_and_passed_over(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "log.jsonl").write_text(lines(rows(SICK)))
    (tmp_path / "questions.jsonl").write_text(lines([{"question": "who?", "id": 3}]))
    assert main(["diagnose", str(tmp_path)]) == 0
    captured = capsys.readouterr()
    assert "COLLAPSED" in captured.out
    assert "questions.jsonl" in captured.err
    (tmp_path / "log.jsonl").unlink()
    assert main(["diagnose", str(tmp_path)]) == 2


def test_verls_dumped_rollouts_are_one_run(tmp_path: Path) -> None:
    """`trainer.rollout_data_dir`: one file per step, one line per response."""
    for step in range(1, 25):
        table = [{"input": "q", "output": "a", "score": float(i < step % 4), "step": step} for i in range(4)]
        (tmp_path / f"{step}.jsonl").write_text(lines(table))
    log = read_log(tmp_path)
    assert log.steps.tolist() == list(range(1, 25))
    np.testing.assert_allclose(log.record["reward"], [step % 4 / 4 for step in range(1, 25)])


def test_steps_that_are_finer_than_updates_are_pointed_out(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "a.jsonl").write_text(lines([row | {"step": 10 * row["step"]} for row in rows(SICK)]))
    main(["diagnose", str(tmp_path / "a.jsonl")])
    assert "rows are 10 steps apart" in capsys.readouterr().out
    main(["diagnose", str(tmp_path / "a.jsonl"), "--steps-per-update", "10"])
    assert "steps apart" not in capsys.readouterr().out


def test_long_file_says_how_far_it_is(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lldsim.monitor.command.BIG", 1)
    (tmp_path / "a.jsonl").write_text(lines(50 * rows(run(sick=False))))
    main(["diagnose", str(tmp_path / "a.jsonl")])
    captured = capsys.readouterr()
    assert "reading a.jsonl: 1 of 1 megabytes" in captured.err
    assert "reading" not in captured.out
