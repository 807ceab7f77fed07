"""2,000 mutated logs: never a traceback, always a diagnosis or a typed message.

Every format is cut, flipped, spliced, shuffled, given huge and odd numbers and names. What comes out must be a
Diagnosis that turns into strict JSON and HTML, or an LldsimError whose text names something. A quarter of them run
here; all 2,000 in `make test-slow`. Also locked: the command line on hostile names, and memory on a long file.
"""

from __future__ import annotations

import json
import random
import subprocess
import sys
from pathlib import Path

import pytest
from monitor_logs import WRITERS, run

from lldsim.errors import LldsimError
from lldsim.monitor import diagnose, read_log
from lldsim.monitor.report import page

ODD = [
    b"NaN", b"-Infinity", b"1e999", b"-1e308", b"9" * 5000, b'"0.5"', b"null", b"true", b"[]", b"{}", b"[[[[",
    b"\xff\xfe", b"\x00", b"1e-320", b"'", b'"', b"<script>alert(1)</script>", b"\\ud800", b"step", b"\n\n",
    b"\r", b"-", b":", b",",
]  # fmt: skip
N = 2000


def mutate(data: bytes, rng: random.Random) -> bytes:
    for _ in range(rng.choice([1, 1, 2, 4, 16])):
        at, to = sorted(rng.randrange(len(data) + 1) for _ in range(2))
        to = min(to, at + rng.choice([1, 8, 64, 4096]))
        match rng.randrange(9):
            case 0:
                data = data[:at]
            case 1:
                data = data[:at] + bytes(rng.randrange(256) for _ in range(to - at)) + data[to:]
            case 2:
                data = data[:at] + rng.choice(ODD) + data[to:]
            case 3:
                data = data[:at] + data[to:]
            case 4:
                data = data[:to] + data[at:to] * rng.choice([1, 3]) + data[to:]
            case 5:
                lines = data.split(b"\n")
                rng.shuffle(lines)
                data = b"\n".join(lines)
            case 6:
                data = data.replace(
                    rng.choice([b"step", b"reward", b'"', b":", b"0"]), rng.choice(ODD), rng.choice([1, -1])
                )
            case 7:
                data = data[to:] + data[:at]
            case 8:
                data = data.replace(b".", rng.choice([b"", b"e", b"e9", b"e300", b"."]), rng.choice([1, 20]))
        data = data[: 2**18]
        if not data:
            return b""
    return data


def check(number: int, sources: list[tuple[str, bytes]], folder: Path) -> str:
    rng = random.Random(number)
    name, data = rng.choice(sources)
    if rng.random() < 0.05:
        data += rng.choice(sources)[1]
    path = folder / (rng.choice(["x", "x.csv", "x.json"]) if rng.random() < 0.2 else name)
    path.write_bytes(mutate(data, rng))
    try:
        found = diagnose(read_log(path))
    except LldsimError as error:
        return "message" if len(str(error)) > 20 else "a message that says nothing"
    finally:
        path.unlink()
    json.dumps(found.as_dict(), allow_nan=False)
    assert "<script>" not in page(found)
    return found.verdict


@pytest.mark.parametrize(
    "numbers", [range(0, N, 4), *(pytest.param(range(i, N, 4), marks=pytest.mark.slow) for i in (1, 2, 3))], ids=str
)
def test_mutated_logs_never_raise_anything_untyped(numbers: range, tmp_path: Path) -> None:
    sources = []
    for name, write in WRITERS.values():
        write(tmp_path / name, run(sick=True, steps=60))
        sources.append((name, (tmp_path / name).read_bytes()))
        (tmp_path / name).unlink()
    outcomes = [check(number, sources, tmp_path) for number in numbers]
    # The test is empty if everything is refused, or if nothing is damaged.
    assert 0.02 < outcomes.count("message") / len(outcomes) < 0.6
    assert len(set(outcomes)) >= 4
    assert "a message that says nothing" not in outcomes


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="reads its peak memory from /proc")
def test_a_long_file_is_read_in_bounded_memory(tmp_path: Path) -> None:
    """Short lines with rising steps are the worst case for a table by step; a gigabyte was measured by hand."""
    path = tmp_path / "long.jsonl"
    with path.open("w") as file:
        for i in range(800_000):
            file.write(f'{{"step": {i}, "reward": 0.5, "entropy": 0.3, "grad_norm": 0.1, "kl": 0.01, "x": 1}}\n')
    code = (
        "import sys; from pathlib import Path; from lldsim.monitor import read_log; log = read_log(sys.argv[1]); "
        "print(len(log.steps), Path('/proc/self/status').read_text().split('VmHWM:')[1].split()[0])"
    )
    done = subprocess.run([sys.executable, "-c", code, str(path)], capture_output=True, text=True, check=True)
    rows, kib = map(int, done.stdout.split())
    assert rows <= 50_001
    assert kib < 300 * 1024
