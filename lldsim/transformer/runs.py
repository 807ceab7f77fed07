"""Many transformer runs: cached by configuration, resumable, in parallel processes when asked.

A finished run lies in the cache as its record; an unfinished one as its state every `SAVE_EVERY` updates, from which it
goes on to the same bits. The cache key holds the configuration and the code that decides a result (comments and
docstrings do not count). What this file does not do: choose conditions (conditions.py).
"""

from __future__ import annotations

import ast
import hashlib
import json
import os
from collections import deque
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path

import numpy as np
import torch

from lldsim.record import RunRecord, versions
from lldsim.sweep import read_record, write_record
from lldsim.transformer.arrays import read_arrays
from lldsim.transformer.config import TransformerConfig
from lldsim.transformer.train import TrainState, first_state, train
from lldsim.transformer.warm_start import PACKAGED, packaged

DEFAULT_CACHE = Path("build/cache/transformer")
SAVE_EVERY = 10
_PACKAGE = Path(__file__).resolve().parents[1]
_SOURCES = ("config", "world", "model", "sampler", "measures", "train")
_SHARED = ("advantages", "policy", "trainer", "diagnostics/similarity", "diagnostics/displacement")


def run_all(
    configs: Sequence[TransformerConfig],
    *,
    cache_dir: Path | str = DEFAULT_CACHE,
    workers: int = 1,
    on_done: Callable[[int, int], None] | None = None,
) -> list[RunRecord]:
    """Return the records of `configs` in their order; those in the cache are read, the others run and kept there.

    `workers` single-thread processes share the work; `on_done(done, total)` is called after every run.
    """
    unique = list(dict.fromkeys(configs))
    missing = [config for config in unique if read_cached(config, cache_dir) is None]
    done = len(unique) - len(missing)
    if on_done:
        on_done(done, len(unique))
    for _ in _work(missing, Path(cache_dir), workers):
        done += 1
        if on_done:
            on_done(done, len(unique))
    records = {config: read_cached(config, cache_dir) for config in unique}
    return [record for config in configs if (record := records[config]) is not None]


def _work(configs: Sequence[TransformerConfig], cache_dir: Path, workers: int):  # yields once per finished run
    if workers == 1 or len(configs) <= 1:
        for config in configs:
            yield run_resumable(config, cache_dir)
        return
    import multiprocessing
    from concurrent.futures import ProcessPoolExecutor, as_completed

    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(workers, mp_context=context, initializer=torch.set_num_threads, initargs=(1,)) as pool:
        for future in as_completed([pool.submit(run_resumable, config, cache_dir) for config in configs]):
            yield future.result()


def run_resumable(config: TransformerConfig, cache_dir: Path | str = DEFAULT_CACHE) -> RunRecord:
    """Return the record of one run, going on from the state that an interrupted one left in the cache."""
    cached = read_cached(config, cache_dir)
    if cached is not None:
        return cached
    folder = cache_path(config, cache_dir)
    saved = folder.with_suffix(".npz")
    state = first_state(config, packaged(config.trainer.warm_start))
    if saved.is_file():
        load_state(state, saved)

    def keep(now: TrainState) -> None:
        if now.update % SAVE_EVERY == 0:
            save_state(now, saved)

    record = train(config, state=state, on_update=keep)
    write_record(record, folder)
    saved.unlink(missing_ok=True)
    return record


def save_state(state: TrainState, path: Path) -> None:
    """Write a run's state to `path` in one move; arrays and the rows as JSON, no pickle."""
    path.parent.mkdir(parents=True, exist_ok=True)
    rows = np.array(json.dumps(state.rows))
    arrays = {"rows": rows, "flat": state.flat.detach().numpy(), "past": torch.stack(list(state.past)).numpy()}
    for name, value in state.optimizer.state.get(state.flat, {}).items():
        if torch.is_tensor(value):
            arrays[f"optimizer.{name}"] = value.numpy()
    temporary = path.with_suffix(f".{os.getpid()}.tmp")
    with temporary.open("wb") as file:
        np.savez(file, allow_pickle=False, **arrays)
    os.replace(temporary, path)


def load_state(state: TrainState, path: Path) -> None:
    """Put what `save_state` wrote into `state`, a fresh one of the same configuration."""
    found = read_arrays(path, what="saved state", remedy="remove it to start afresh")
    rows = json.loads(str(found.pop("rows")))
    flat, past = torch.from_numpy(found.pop("flat")), torch.from_numpy(found.pop("past"))
    with torch.no_grad():
        state.flat.copy_(flat)
    state.past = deque(past.unbind(), maxlen=state.past.maxlen)
    state.rows = rows
    moments = {name.removeprefix("optimizer."): torch.from_numpy(value) for name, value in found.items()}
    if moments:
        state.optimizer.state[state.flat] = moments


def cache_path(config: TransformerConfig, cache_dir: Path | str = DEFAULT_CACHE) -> Path:
    """Return the folder of a configuration's cached record."""
    return Path(cache_dir) / code_hash() / config.config_hash()


def read_cached(config: TransformerConfig, cache_dir: Path | str = DEFAULT_CACHE) -> RunRecord | None:
    """Return the cached record of `config`, or None where there is none or only a broken one."""
    return read_record(cache_path(config, cache_dir))


@cache
def code_hash() -> str:
    """Return twelve hex digits over the code, the packaged weights and the versions that decide a run's numbers."""
    digest = hashlib.sha256(repr(sorted(versions().items())).encode())
    files = [Path(__file__).with_name(f"{name}.py") for name in _SOURCES]
    files += [_PACKAGE / f"{name}.py" for name in _SHARED] + sorted((_PACKAGE / "objectives").glob("*.py"))
    for path in files:
        digest.update(bare_code(path.read_text()).encode())
    for path in sorted(PACKAGED.glob("*.npz")):
        digest.update(path.read_bytes())
    return digest.hexdigest()[:12]


def bare_code(source: str) -> str:
    """Return a source's syntax tree as text, without comments, layout and docstrings.

    >>> bare_code("def f():\\n    'Say one.'\\n    return 1  # one") == bare_code("def f(): return 1")
    True
    """
    tree = ast.parse(source)
    for node in ast.walk(tree):
        body = getattr(node, "body", None)
        if (
            isinstance(body, list)
            and body
            and isinstance(body[0], ast.Expr)
            and isinstance(body[0].value, ast.Constant)
        ):
            node.body = body[1:]  # type: ignore[attr-defined]
    return ast.dump(tree)
