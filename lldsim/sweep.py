"""Many runs: grids times seeds, cached by configuration hash, in parallel processes or on a cluster when asked.

A finished run lies in the cache as its record; a sweep that is interrupted goes on where it stopped. The cache key
holds the configuration and the sources that decide a result, so that old results never answer for new code.
What this file does not do: talk to a scheduler (backends.py). Its table has one summary row per run; whole records stay
in the cache.
"""

from __future__ import annotations

import hashlib
import itertools
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from lldsim.config import RunConfig, field_spec, from_mapping
from lldsim.errors import ConfigError, MissingDataError, suggest
from lldsim.record import RunRecord, load, versions

DEFAULT_CACHE = Path("build/cache")
_SOURCES = ("config", "draws", "features", "world", "k3", "kernels", "arm_kernels", "engine", "record")


def run_all(
    configs: Sequence[RunConfig],
    *,
    cache_dir: Path | str | None = DEFAULT_CACHE,
    workers: int = 1,
    backend: str | None = None,
    address: str | None = None,
    on_done: Callable[[int, int], None] | None = None,
) -> list[RunRecord]:
    """Return the records of `configs` in their order, from the cache where they are there.

    `workers` single-thread processes share the work; `on_done(done, total)` is called once before the first run (what
    the cache holds is done) and after every run. Equal configurations are run once. `cache_dir=None` turns the cache
    off. `backend` names a joblib backend and `address` its scheduler, see `backends.simulate_on`; None = processes.
    """
    unique = list(dict.fromkeys(configs))
    records: dict[RunConfig, RunRecord] = {}
    for config in unique:
        cached = _read(config, cache_dir)
        if cached is not None:
            records[config] = cached
    missing = [config for config in unique if config not in records]
    if on_done:
        on_done(len(records), len(unique))
    for index, record in _simulated(missing, workers, backend, address) if missing else ():
        records[missing[index]] = record
        if cache_dir is not None:
            write_record(record, cache_path(missing[index], cache_dir))
        if on_done:
            on_done(len(records), len(unique))
    return [records[config] for config in configs]


def _simulated(
    configs: Sequence[RunConfig], workers: int, backend: str | None, address: str | None
) -> Iterator[tuple[int, RunRecord]]:
    # Inside, because compiling kernels is not for those who only read the cache.
    if backend is not None:
        from lldsim.backends import simulate_on

        return simulate_on(backend, configs, workers=workers, address=address)
    if address is not None:
        raise ConfigError(f"address={address!r} without a backend; add backend='dask'")
    from lldsim.engine import simulate_many

    return simulate_many(configs, workers=workers)


def cache_path(config: RunConfig, cache_dir: Path | str = DEFAULT_CACHE) -> Path:
    """Return the folder of a configuration's cached record."""
    return Path(cache_dir) / code_hash() / config.config_hash()


@cache
def code_hash() -> str:
    """Return twelve hex digits over the sources and versions that decide a run's numbers."""
    digest = hashlib.sha256(repr(sorted(versions().items())).encode())
    for name in _SOURCES:
        digest.update((Path(__file__).parent / f"{name}.py").read_bytes())
    return digest.hexdigest()[:12]


def load_grid(path: Path | str) -> list[RunConfig]:
    """Return the configurations of a grid file.

    YAML with three optional keys: `preset` (a name), `fixed` (field: value) and `grid` (field: list of values); the
    result is the product of all lists, the last one varying fastest. Raises ConfigError naming the bad key or value.
    """
    path = Path(path)
    if not path.is_file():
        raise MissingDataError(f"{path} does not exist; see configs in the README for a grid file to copy")
    try:
        content = yaml.safe_load(path.read_text()) or {}
    except yaml.YAMLError as error:
        raise ConfigError(f"{path} is no YAML: {error}") from None
    if not isinstance(content, Mapping):
        raise ConfigError(f"{path} holds a {type(content).__name__}; write the keys preset, fixed and grid")
    for key in content:
        if key not in ("preset", "fixed", "grid"):
            raise ConfigError(f"{path}: unknown key {key!r}{suggest(str(key), ('preset', 'fixed', 'grid'))}")
    return expand_grid(content.get("grid") or {}, fixed=content.get("fixed") or {}, preset=content.get("preset"))


def expand_grid(
    grid: Mapping[str, Sequence[Any]], *, fixed: Mapping[str, Any] | None = None, preset: str | None = None
) -> list[RunConfig]:
    """Return the product of the grid's lists as configurations, the last list varying fastest.

    >>> [c.objective.llds_coef for c in expand_grid({"llds_coef": [0.0, 0.2]}, preset="spiral")]
    [0.0, 0.2]
    """
    base = from_mapping(({"preset": preset} if preset else {}) | dict(fixed or {}))
    for name, values in grid.items():
        field_spec(name)
        if not isinstance(values, Sequence) or isinstance(values, str) or not values:
            raise ConfigError(f"grid {name}={values!r}: give a list of at least one value")
    return [base.replace(**dict(zip(grid, point, strict=True))) for point in itertools.product(*grid.values())]


def summary_rows(configs: Sequence[RunConfig], records: Sequence[RunRecord]) -> Iterator[dict[str, Any]]:
    """Yield one tidy row per run: its hash, what differs between the runs, and its outcome."""
    from lldsim.diagnostics.collapse import collapse_step, kept_share, smooth, surge
    from lldsim.diagnostics.thresholds import DEFAULT

    flats = [config.flat() for config in configs]
    varying = [name for name in flats[0] if len({repr(flat[name]) for flat in flats}) > 1]
    for flat, config, record in zip(flats, configs, records, strict=True):
        reward = smooth(record["reward"], DEFAULT.reward_window)
        step = collapse_step(record["reward"])
        yield {
            "config_hash": config.config_hash(),
            **{name: flat[name] for name in varying},
            "collapse_step": "" if step is None else step,
            "peak_reward": float(reward.max()),
            "final_reward": float(reward[-1]),
            "kept_share": kept_share(record["reward"]),
            "entropy_surge": surge(record["entropy"]),
            "grad_norm_surge": surge(record["grad_norm"]),
            "ratio_max": float(record["ratio_max"].max()),
        }


def cached_record(key: str, make: Callable[[], RunRecord], cache_dir: Path | str | None) -> RunRecord:
    """Return the record under `key` in the cache, or make it and put it there; for records that are not plain runs."""
    folder = None if cache_dir is None else Path(cache_dir) / key
    record = read_record(folder)
    if record is None:
        record = make()
        if folder is not None:
            write_record(record, folder)
    return record


def _read(config: RunConfig, cache_dir: Path | str | None) -> RunRecord | None:
    return None if cache_dir is None else read_record(cache_path(config, cache_dir))


def read_record(folder: Path | None) -> RunRecord | None:
    """Return the record that lies in a cache's `folder`, or None where there is none or only a broken one."""
    try:
        return load(folder) if folder is not None and folder.is_dir() else None
    except MissingDataError:  # written by a run that was killed; make it again
        return None


def write_record(record: RunRecord, folder: Path) -> None:
    """Put a record into the cache in one move, so that an interruption leaves all of it or nothing."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    temporary = Path(tempfile.mkdtemp(dir=folder.parent))
    record.save(temporary)
    if folder.exists():
        shutil.rmtree(folder)
    os.replace(temporary, folder)
