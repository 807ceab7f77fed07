"""`lldsim diagnose`.

Locked here: text and JSON name verdict, alarms, phases, conditions and what is missing; exit statuses; one bad path
does not silence the others; a report is one self-contained page that escapes what a log says; a column map; progress
goes to stderr only.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from monitor_logs import run, write_jsonl, write_verl_console

from lldsim.cli import main


@pytest.fixture
def logs(tmp_path: Path) -> tuple[Path, Path]:
    write_jsonl(tmp_path / "sick.jsonl", run(sick=True))
    write_verl_console(tmp_path / "healthy.log", run(sick=False))
    return tmp_path / "sick.jsonl", tmp_path / "healthy.log"


def test_json_has_what_a_program_needs(logs: tuple[Path, Path], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["diagnose", *map(str, logs), "--json"]) == 0
    sick, healthy = json.loads(capsys.readouterr().out)
    assert (sick["verdict"], healthy["verdict"]) == ("collapsed", "healthy")
    assert {"step", "rule", "value", "severity"} <= sick["alarms"][0].keys()
    assert healthy["alarms"] == []
    assert sick["phases"][-1]["phase"] == "COLLAPSED"
    assert set(sick["conditions"]) == {"1 correct falls", "2 wrong does not rise", "3 the fall grows"}
    assert "logp_wrong" in sick["missing"]
    assert healthy["unknown_keys"] == ["timing_s/step"]
    assert {sick["label"], healthy["label"]} == {"measured"}


def test_exit_status_for_ci(logs: tuple[Path, Path], capsys: pytest.CaptureFixture[str]) -> None:
    sick, healthy = map(str, logs)
    assert main(["diagnose", sick, "--fail-on", "decay"]) == 1
    assert main(["diagnose", sick, "--fail-on", "collapse"]) == 1
    assert main(["diagnose", healthy, "--fail-on", "decay"]) == 0
    assert main(["diagnose", healthy, "nowhere.jsonl", "--fail-on", "decay"]) == 2
    captured = capsys.readouterr()
    assert "nowhere.jsonl does not exist" in captured.err
    assert captured.out.count("HEALTHY") == 2
    assert main(["diagnose", healthy, "--map", "reward"]) == 2
    assert "SIGNAL=KEY" in capsys.readouterr().err
    assert main(["diagnose", healthy, "--steps-per-update", "0"]) == 2


def test_text_fits_a_screen_and_says_what_is_missing(
    logs: tuple[Path, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    main(["diagnose", str(logs[0])])
    text = capsys.readouterr().out
    assert "COLLAPSED" in text
    assert "likelihood-slope" in text
    assert "not logged: logp_wrong; that rules out condition 2" in text
    assert len(text.splitlines()) < 40


def test_report_is_one_page_that_escapes(tmp_path: Path) -> None:
    hostile = "<img src=x onerror=alert(1)>"
    path = tmp_path / f"{hostile.replace('/', '')}.jsonl"
    columns = run(sick=True)
    path.write_text("".join(
        json.dumps({"step": i, "reward": reward, "lp": logp, hostile: 1.0}) + "\n"
        for i, (reward, logp) in enumerate(zip(columns["reward"], columns["logp_correct"], strict=True))
    ))  # fmt: skip
    out = tmp_path / "report"
    assert main(["diagnose", str(path), "--map", "logp_correct=lp", "--report", str(out)]) == 0
    (page,) = out.glob("*.html")
    (picture,) = out.glob("*.png")
    assert picture.read_bytes().startswith(b"\x89PNG")
    text = page.read_text()
    assert "<img src=x" not in text
    assert "&lt;img src=x" in text
    assert "<script" not in text
    assert "data:image/png;base64," in text
    assert "What to try" in text


def test_same_log_gives_the_same_report(logs: tuple[Path, Path], tmp_path: Path) -> None:
    for name in ("a", "b"):
        main(["diagnose", str(logs[0]), "--report", str(tmp_path / name)])
    files = [sorted((tmp_path / name).iterdir()) for name in ("a", "b")]
    assert [f.read_bytes() for f in files[0]] == [f.read_bytes() for f in files[1]]
