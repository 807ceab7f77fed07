"""Sweeps on joblib backends and their progress.

Locked here: loky, threading, multiprocessing, dask's local cluster, a dask scheduler given by address, and ray give bit
for bit the records of the plain loop; results are cached one by one; unknown names and missing packages are refused
with a remedy; a sweep that is killed goes on where it stopped; progress counts what the cache held apart, and says how
long the rest takes. Backends that are not installed are skipped, with the reason.
"""

from __future__ import annotations

import builtins

import numpy as np
import pytest

from lldsim.cli import main
from lldsim.config import preset
from lldsim.errors import ConfigError, MissingDataError
from lldsim.progress import Progress
from lldsim.sweep import cache_path, run_all

TINY = {"n_queries": 4, "updates_per_rollout": 2, "max_turns": 2, "updates": 12}
NEEDS = {"loky": "joblib", "threading": "joblib", "multiprocessing": "joblib", "dask": "distributed", "ray": "ray"}


def configs(n=5):
    return [preset("spiral").replace(seed=s, **TINY) for s in range(n)]


@pytest.mark.parametrize(
    "backend", [pytest.param(name, marks=pytest.mark.slow if name == "ray" else ()) for name in NEEDS]
)
@pytest.mark.filterwarnings("default")  # schedulers warn about their own house: sockets, forks, accelerators
def test_a_backend_changes_nothing_but_the_place(backend, tmp_path):
    pytest.importorskip("joblib", reason="joblib is not installed: pip install -e '.[cluster]'")
    pytest.importorskip(NEEDS[backend], reason=f"{NEEDS[backend]} is not installed")
    seen = []
    there = run_all(
        configs(),
        cache_dir=tmp_path,
        workers=2,
        backend=backend,
        on_done=lambda done, total: seen.append((done, total)),
    )
    here = run_all(configs(), cache_dir=None)
    for a, b in zip(there, here, strict=True):
        assert a.config == b.config
        for name in a.columns:
            np.testing.assert_array_equal(a[name], b[name], err_msg=name)
    assert seen == [(i, 5) for i in range(6)]
    assert all(cache_path(config, tmp_path).is_dir() for config in configs())


@pytest.mark.filterwarnings("default")
def test_dask_takes_the_address_of_a_scheduler():
    distributed = pytest.importorskip("distributed", reason="distributed is not installed")
    pytest.importorskip("joblib", reason="joblib is not installed")
    with distributed.LocalCluster(n_workers=1, threads_per_worker=1, dashboard_address=None) as cluster:
        there = run_all(configs(2), cache_dir=None, backend="dask", address=cluster.scheduler_address)
    for a, b in zip(there, run_all(configs(2), cache_dir=None), strict=True):
        np.testing.assert_array_equal(a["reward"], b["reward"])


def test_bad_backends_are_refused_with_a_remedy(monkeypatch):
    with pytest.raises(ConfigError, match="add backend='dask'"):
        run_all(configs(1), cache_dir=None, address="tcp://127.0.0.1:1")
    with pytest.raises(ConfigError, match="is for the backend dask, not 'loky'"):
        run_all(configs(1), cache_dir=None, backend="loky", address="tcp://127.0.0.1:1")
    with pytest.raises(ConfigError, match="workers=0: give at least 1"):
        run_all(configs(1), cache_dir=None, backend="loky", workers=0)
    honest = builtins.__import__

    def without_joblib(name, *args, **kwargs):
        if name == "joblib":
            raise ImportError(name)
        return honest(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", without_joblib)
    with pytest.raises(MissingDataError, match=r"needs joblib: pip install -e '\.\[cluster\]'"):
        run_all(configs(1), cache_dir=None, backend="loky")


def test_an_unknown_backend_is_named():
    pytest.importorskip("joblib", reason="joblib is not installed")
    with pytest.raises(ConfigError, match=r"unknown backend 'lokky' \(did you mean 'loky'\?\)"):
        run_all(configs(1), cache_dir=None, backend="lokky")


def test_a_killed_sweep_goes_on_where_it_stopped(tmp_path):
    def kill(done, total):
        if done == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_all(configs(), cache_dir=tmp_path, on_done=kill)
    stamps = {c: (cache_path(c, tmp_path) / "record.csv").stat().st_mtime_ns for c in configs()[:2]}
    assert not any(cache_path(c, tmp_path).exists() for c in configs()[2:])
    seen = []
    resumed = run_all(configs(), cache_dir=tmp_path, on_done=lambda done, total: seen.append(done))
    assert seen == [2, 3, 4, 5]
    assert {c: (cache_path(c, tmp_path) / "record.csv").stat().st_mtime_ns for c in stamps} == stamps
    for a, b in zip(resumed, run_all(configs(), cache_dir=None), strict=True):
        for name in a.columns:
            np.testing.assert_array_equal(a[name], b[name], err_msg=name)


def test_progress_tells_the_remaining_time_of_what_is_not_cached():
    said: list[str] = []
    now = [0.0]
    with Progress("sweep", say=said.append, every=30, bar=False, clock=lambda: now[0]) as progress:
        progress(100, 300)
        for done, seconds in ((120, 20.0), (140, 40.0), (150, 50.0), (300, 200.0)):
            now[0] = seconds
            progress(done, 300)
    assert said == [
        "sweep: 100 of 300 runs are in the cache",
        "sweep: 140 of 300 runs, about 3 min left",  # 40 runs took 40 s, 160 are left
        "sweep: 300 of 300 runs, 200 made in 3 min",
    ]


def test_progress_bar_starts_at_what_the_cache_held():
    with Progress("sweep", say=lambda _: None, bar=True) as progress:
        progress(3, 5)
        progress(4, 5)
        assert (progress._bar.initial, progress._bar.n, progress._bar.total) == (3, 4, 5)


def test_command_resumes_and_says_what_is_left(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "grid.yaml").write_text(
        "fixed: {n_queries: 4, updates_per_rollout: 2, max_turns: 2, updates: 6}\ngrid: {seed: [0, 1, 2]}\n"
    )
    arguments = ["sweep", "grid.yaml", "--out", "out"]
    assert main(arguments) == 0
    first = (tmp_path / "out" / "runs.csv").read_text()
    assert main(arguments) == 0
    assert "sweep: 3 of 3 runs are in the cache" in capsys.readouterr().out
    assert (tmp_path / "out" / "runs.csv").read_text() == first
    assert main([*arguments, "--address", "tcp://127.0.0.1:1"]) == 0, "nothing is left to run: no scheduler is asked"
