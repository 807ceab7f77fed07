"""Logs for the monitor's tests: one sick and one healthy run, written the way each framework writes them."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

Columns = dict[str, np.ndarray]


def run(*, sick: bool, steps: int = 160, seed: int = 0) -> Columns:
    """A hand-made run: reward rises to a plateau; if sick the likelihood falls from step 50 and the reward from 140."""
    rng = np.random.default_rng(seed)
    t = np.arange(steps, dtype=float)
    reward = 0.3 + 0.6 * (1 - np.exp(-t / 20))
    logp = -0.25 + 0.1 * (1 - np.exp(-t / 20))
    entropy = np.full(steps, 0.4)
    if sick:
        logp -= 0.012 * np.maximum(0, t - 50) + 0.08 * np.maximum(0, t - 120)
        entropy += 0.01 * np.maximum(0, t - 60)
        reward *= np.where(t > 140, np.maximum(0.0, 1 - (t - 140) / 10), 1.0)
    noise = rng.normal(size=(4, steps))
    return {
        "step": t,
        "reward": np.clip(reward + 0.01 * noise[0], 0, 1),
        "logp_correct": logp + 0.004 * noise[1],
        "entropy": entropy * np.exp(0.03 * noise[2]),
        "grad_norm": 0.3 * np.exp(0.1 * noise[3]),
    }


def rows(columns: Columns) -> list[dict[str, float]]:
    return [{k: float(v[i]) for k, v in columns.items()} for i in range(len(columns["step"]))]


def verl(row: dict[str, float]) -> dict[str, float]:
    names = {"reward": "critic/score/mean", "entropy": "actor/entropy", "grad_norm": "actor/grad_norm"}
    names |= {"logp_correct": "actor/logp_correct"}
    return {names.get(k, k): v for k, v in row.items() if k != "step"} | {"timing_s/step": 3.0}


def write_jsonl(path: Path, columns: Columns) -> None:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows(columns)))


def write_verl_jsonl(path: Path, columns: Columns) -> None:
    path.write_text("".join(json.dumps({"step": int(r["step"]), "data": verl(r)}) + "\n" for r in rows(columns)))


def write_verl_console(path: Path, columns: Columns) -> None:
    def line(r: dict[str, float]) -> str:
        parts = [f"{k}:np.float64({v})" if "score" in k else f"{k}:{v}" for k, v in verl(r).items()]
        return "\x1b[36m(TaskRunner pid=7)\x1b[0m step:" + " - ".join([str(int(r["step"])), *parts])

    path.write_text("INFO starting\n" + "\n".join(line(r) for r in rows(columns)) + "\n")


def write_trainer_state(path: Path, columns: Columns) -> None:
    history: list[dict[str, Any]] = []
    for r in rows(columns):
        history.append({"epoch": 0.1, "loss": 0.0, "step": int(r["step"]), **{k: r[k] for k in r if k != "step"}})
        if r["step"] % 50 == 49:
            history.append({"epoch": 0.1, "eval_reward": 0.0, "step": int(r["step"])})
    path.write_text(json.dumps({"best_metric": None, "log_history": history, "max_steps": 500}, indent=2))


def write_trl_console(path: Path, columns: Columns) -> None:
    keys = ("reward", "logp_correct", "entropy", "grad_norm")
    path.write_text("".join(str({k: str(r[k]) for k in keys} | {"epoch": 0.1}) + "\n" for r in rows(columns)))


def write_csv(path: Path, columns: Columns) -> None:
    """As Weights & Biases exports it."""
    head = ["Step"] + [f"happy-run-7 - train/{k}" for k in columns if k != "step"]
    body = [",".join(f"{v}" for v in r.values()) for r in rows(columns)]
    path.write_text("\n".join([",".join(f'"{h}"' for h in head), *body]) + "\n")


def varint(n: int) -> bytes:
    out = b""
    while n > 127:
        out, n = out + bytes([n & 127 | 128]), n >> 7
    return out + bytes([n])


def message(number: int, data: bytes) -> bytes:
    return varint(number << 3 | 2) + varint(len(data)) + data


def write_tfevents(path: Path, columns: Columns) -> None:
    """Simple values for odd steps, float tensors for even ones: both exist in the wild."""
    out = b""
    for r in rows(columns):
        values = b""
        for k, v in r.items():
            if k != "step":
                raw = struct.pack("<f", v)
                scalar = (
                    varint(2 << 3 | 5) + raw
                    if r["step"] % 2
                    else message(8, varint(1 << 3) + b"\x01" + message(4, raw))
                )
                values += message(1, message(1, f"train/{k}".encode()) + scalar)
        event = (
            varint(1 << 3 | 1) + struct.pack("<d", 1e9) + varint(2 << 3) + varint(int(r["step"])) + message(5, values)
        )
        out += struct.pack("<Q", len(event)) + b"crc1" + event + b"crc2"
    path.write_bytes(out)


def write_wandb(path: Path, columns: Columns) -> None:
    """Records chunked over 32 KiB blocks; crc is not checked by the reader."""
    out = b":W&B\x00\x00\x00"
    for r in rows(columns):
        items = b"".join(
            message(1, message(1 if i % 2 else 2, k.encode()) + message(16, json.dumps(v).encode()))
            for i, (k, v) in enumerate(r.items())
            if k != "step"
        )
        data = message(2, items + message(2, varint(1 << 3) + varint(int(r["step"]))))
        first = True
        while True:
            left = 32768 - len(out) % 32768
            if left < 7:
                out += b"\0" * left
                left = 32768
            part, data = data[: left - 7], data[left - 7 :]
            kind = (1 if first else 4) if not data else (2 if first else 3)
            out += b"crc!" + struct.pack("<HB", len(part), kind) + part
            first = False
            if not data:
                break
    path.write_bytes(out)


WRITERS: dict[str, tuple[str, Callable[[Path, Columns], None]]] = {
    "JSON lines": ("log.jsonl", write_jsonl),
    "verl JSON lines": ("verl.jsonl", write_verl_jsonl),
    "verl console": ("verl.log", write_verl_console),
    "TRL trainer state": ("trainer_state.json", write_trainer_state),
    "TRL console": ("train.log", write_trl_console),
    "W&B CSV": ("export.csv", write_csv),
    "TensorBoard": ("events.out.tfevents.1.host", write_tfevents),
    "W&B offline": ("run-1.wandb", write_wandb),
}
