"""Binary logs as a stream of flat rows: TensorBoard event files, Weights & Biases offline runs, TRL's completions.

The two protocol-buffer formats are read here by field number, without their packages (and without pickle or code
execution): only the few fields that hold scalars are looked at. A cut or damaged file yields what comes before the
damage. What this file does not do: images, histograms, media.

Formats: TFRecord = length (8) crc (4) data crc (4), event.proto; W&B = LevelDB log blocks of 32 KiB,
wandb_internal.proto.
"""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any, BinaryIO

from lldsim.errors import MissingDataError
from lldsim.monitor.text_logs import Row, Trouble, number

MAX_RECORD = 64 * 2**20
_BLOCK = 32 * 1024


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7
        if shift > 63:
            raise ValueError("a variable-length integer longer than 64 bits")


def fields(data: bytes) -> Iterator[tuple[int, Any]]:
    """Yield (field number, value) of a protocol-buffer message; nested messages stay bytes, fixed ones raw bytes.

    Raises ValueError or IndexError on damaged input.
    """
    at = 0
    while at < len(data):
        key, at = _varint(data, at)
        kind = key & 7
        if kind == 0:
            value, at = _varint(data, at)
        elif kind in (1, 2, 5):
            size, at = (8, at) if kind == 1 else (4, at) if kind == 5 else _varint(data, at)
            value = data[at : at + size]
            if len(value) < size:
                raise ValueError("a field is cut short")
            at += size
        else:
            raise ValueError(f"wire type {kind}")
        yield key >> 3, value


def _is_bytes(value: Any, size: int | None = None) -> bool:
    return isinstance(value, bytes) and (size is None or len(value) == size)


def tensorboard_rows(file: BinaryIO, trouble: Trouble) -> Iterator[Row]:
    """Yield one row per event that holds scalars, with its `step`."""
    while head := file.read(12):
        size = struct.unpack("<Q", head[:8])[0] if len(head) == 12 else MAX_RECORD + 1
        data = file.read(size) if size <= MAX_RECORD else b""
        if len(data) < size or size > MAX_RECORD or len(file.read(4)) < 4:
            trouble.truncated = True
            return
        try:
            row = _event(data)
        except (ValueError, IndexError, struct.error):
            trouble.bad(0)
            continue
        if len(row) > 1:
            yield row


def _event(data: bytes) -> Row:
    row: Row = {"step": 0.0}
    for name, value in fields(data):
        if name == 2 and isinstance(value, int):
            row["step"] = float(value if value < 2**63 else value - 2**64)
        elif name == 5 and _is_bytes(value):
            for part, item in fields(value):
                if part == 1 and _is_bytes(item):
                    _scalar(item, row)
    return row


def _scalar(data: bytes, row: Row) -> None:
    tag, found = "", None
    for name, value in fields(data):
        if name == 1 and _is_bytes(value):
            tag = value.decode("utf-8", errors="replace")
        elif name == 2 and _is_bytes(value, 4):
            found = struct.unpack("<f", value)[0]
        elif name == 8 and _is_bytes(value):
            found = _tensor_scalar(value)
    if tag and found is not None:
        row[tag] = float(found)


def _tensor_scalar(data: bytes) -> float | None:
    kind, content, floats = 0, b"", b""
    for name, value in fields(data):
        if name == 1 and isinstance(value, int):
            kind = value
        elif name == 4 and _is_bytes(value):
            content = value
        elif name == 5 and _is_bytes(value):
            floats = value
    raw = content or floats
    if kind == 1 and len(raw) == 4:
        return struct.unpack("<f", raw)[0]
    return struct.unpack("<d", raw)[0] if kind == 2 and len(raw) == 8 else None


def wandb_rows(file: BinaryIO, trouble: Trouble) -> Iterator[Row]:
    """Yield one row per history record of an offline run (`run-*.wandb`)."""
    file.read(7)  # magic ':W&B', two bytes, version
    offset, pending = 7, b""
    while True:
        left = _BLOCK - offset % _BLOCK
        if left < 7:
            file.read(left)
            offset += left
        head = file.read(7)
        if len(head) < 7:
            trouble.truncated |= bool(head or pending)
            return
        size, kind = struct.unpack("<HB", head[4:])
        data = file.read(size)
        offset += 7 + size
        if len(data) < size or kind not in (1, 2, 3, 4) or len(pending) > MAX_RECORD:
            trouble.truncated = True
            return
        pending = data if kind in (1, 2) else pending + data
        if kind in (1, 4):
            try:
                row = _history(pending)
            except (ValueError, IndexError, RecursionError):
                trouble.bad(0)
                row = {}
            pending = b""
            if row:
                yield row


def _history(data: bytes) -> Row:
    row: Row = {}
    for name, value in fields(data):
        if name != 2 or not _is_bytes(value):
            continue
        for part, item in fields(value):
            if part == 1 and _is_bytes(item):
                key, nested, text = "", [], b"null"
                for inner, content in fields(item):
                    if inner == 1 and _is_bytes(content):
                        key = content.decode("utf-8", errors="replace")
                    elif inner == 2 and _is_bytes(content):
                        nested.append(content.decode("utf-8", errors="replace"))
                    elif inner == 16 and _is_bytes(content):
                        text = content
                plain = number(json.loads(text))
                if plain is not None:
                    row[key or "/".join(nested)] = plain
            elif part == 2 and _is_bytes(item):
                # proto3 leaves out a number that is 0
                row["_step"] = float(next((n for inner, n in fields(item) if inner == 1 and isinstance(n, int)), 0))
    return row


def completions_rows(path: Path, trouble: Trouble) -> Iterator[Row]:
    """Yield one row per step of TRL's completions (`completions_*.parquet`): reward, success, ties, length in
    characters.

    Raises MissingDataError where pyarrow is not installed. The files hold no log-probabilities.
    """
    try:
        parquet = import_module("pyarrow.parquet")
        damage = (import_module("pyarrow.lib").ArrowException, OSError, ValueError, KeyError)
    except ImportError:
        raise MissingDataError(
            f"{path.name} is Parquet; reading it needs pyarrow: pip install 'lldsim[monitor]'"
        ) from None
    step, rows, rewards = None, list[dict[str, Any]](), list[str]()
    try:
        table = parquet.ParquetFile(path)
        wanted = [
            name for name in table.schema_arrow.names if name in ("step", "prompt", "advantage", "reward", "completion")
        ]
        rewards = _reward_columns(table.schema_arrow, wanted, trouble)
        for batch in table.iter_batches(batch_size=1024, columns=wanted + rewards):
            for item in batch.to_pylist():
                if item.get("step") != step and rows:
                    yield _completions_row(step, rows, rewards)
                    rows = []
                step = item.get("step")
                rows.append(item)
    except damage as error:
        trouble.truncated = True
        trouble.notes.append(f"the Parquet file is damaged: {str(error)[:200]}")
    if rows:
        yield _completions_row(step, rows, rewards)


def _reward_columns(schema: Any, wanted: list[str], trouble: Trouble) -> list[str]:
    """Return the columns of rewards: those named so, else all numbers, which may include what TRL calls extra."""
    numbers = [f.name for f in schema if f.name not in wanted and str(f.type) in ("double", "float", "int64", "bool")]
    named = [name for name in numbers if name.endswith(("reward", "reward_func"))]
    note = f"no column is named a reward; the sum of {', '.join(numbers)} is taken for it"
    if numbers and not named and "reward" not in wanted and note not in trouble.notes:
        trouble.notes.append(note)
    return named or numbers


def _completions_row(step: Any, rows: list[dict[str, Any]], rewards: list[str]) -> Row:
    names = ["reward"] if "reward" in rows[0] else rewards
    totals = [sum(n for name in names if (n := number(item.get(name))) is not None) for item in rows]
    groups: dict[str, set[float]] = {}
    for item, total in zip(rows, totals, strict=True):
        groups.setdefault(str(item.get("prompt")), set()).add(total)
    plain = number(step)
    row = {} if plain is None or math.isnan(plain) else {"step": plain}
    if names:
        row |= {
            "reward": sum(totals) / len(totals),
            "tied_groups": sum(len(g) == 1 for g in groups.values()) / len(groups),
        }
    for name in rewards:
        values = [n for item in rows if (n := number(item.get(name))) is not None]
        row |= {f"rewards/{name}/mean": sum(values) / len(values)} if values else {}
    lengths = [len(item["completion"]) for item in rows if isinstance(item.get("completion"), str)]
    return row | ({"completion_characters": sum(lengths) / len(lengths)} if lengths else {})
