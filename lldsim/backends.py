# pyright: reportMissingImports=false
"""Many runs on someone else's scheduler: any joblib backend by name (loky, dask, ray, ...), for clusters.

joblib is an optional dependency (extra `cluster`). A run is a pure function of its configuration, so a backend changes
where it is computed and nothing else; results come back one by one, so that each is cached as it finishes.
What this file does not do: start machines. Give dask the address of a scheduler; without one it and ray use this
machine.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence

from lldsim.config import RunConfig
from lldsim.engine import simulate, warm_up
from lldsim.errors import ConfigError, MissingDataError, suggest
from lldsim.record import RunRecord

LOCAL_BACKENDS = ("loky", "multiprocessing", "threading", "sequential")
_EXTRA = "pip install -e '.[cluster]'"
_CHUNK = 4  # runs per worker between two looks at the results, where a backend cannot hand them out singly


def simulate_on(
    backend: str, configs: Sequence[RunConfig], *, workers: int = 1, address: str | None = None
) -> Iterator[tuple[int, RunRecord]]:
    """Yield (index, record) of every configuration as it finishes on the joblib backend `backend`, in any order.

    `workers` counts single-thread workers. `address` is that of a running scheduler and for dask alone; without it
    dask gets a cluster of `workers` processes on this machine, which ends with the iteration. Raises ConfigError for
    an unknown backend, MissingDataError when a package is not installed.
    """
    if workers < 1:
        raise ConfigError(f"workers={workers}: give at least 1")
    if address is not None and backend != "dask":
        raise ConfigError(f"address={address!r} is for the backend dask, not {backend!r}; leave it out")
    joblib = _joblib()
    with contextlib.ExitStack() as stack:
        _register(backend, workers, address, stack)
        if backend in LOCAL_BACKENDS:
            warm_up()  # compile once, so that local workers load the cache instead of compiling each
        try:
            stack.enter_context(joblib.parallel_config(backend=backend, n_jobs=workers))
        except (KeyError, ValueError):  # joblib's answer to a name that nobody registered
            known = (*LOCAL_BACKENDS, "dask", "ray")
            raise ConfigError(
                f"unknown backend {backend!r}{suggest(backend, known)}; joblib knows {', '.join(known)}, and any name "
                "that was registered with joblib.register_parallel_backend"
            ) from None
        yield from _results(joblib, list(enumerate(configs)), workers)


def _results(joblib, tasks: list[tuple[int, RunConfig]], workers: int) -> Iterator[tuple[int, RunRecord]]:
    try:
        parallel = joblib.Parallel(return_as="generator_unordered", batch_size=1)
    except ValueError:  # this backend (ray, multiprocessing) returns lists only: look at the results in between
        step = _CHUNK * workers
        for first in range(0, len(tasks), step):
            chunk = tasks[first : first + step]
            yield from joblib.Parallel(batch_size=1)(joblib.delayed(_indexed)(*task) for task in chunk)
        return
    yield from parallel(joblib.delayed(_indexed)(*task) for task in tasks)


def _indexed(index: int, config: RunConfig) -> tuple[int, RunRecord]:
    return index, simulate(config)


def _joblib():
    try:
        import joblib
    except ImportError as error:
        raise MissingDataError(f"a sweep with a backend needs joblib: {_EXTRA}") from error
    return joblib


def _register(backend: str, workers: int, address: str | None, stack: contextlib.ExitStack) -> None:
    """Make `backend` known to joblib, connecting to its scheduler or starting one on this machine."""
    if backend == "dask":
        try:
            from distributed import Client, LocalCluster
        except ImportError as error:
            raise MissingDataError(f"the backend dask needs distributed: {_EXTRA}") from error
        where = address or stack.enter_context(
            LocalCluster(n_workers=workers, threads_per_worker=1, dashboard_address=None)
        )
        stack.enter_context(Client(where, set_as_default=True))
    elif backend == "ray":
        try:
            import ray
            from ray.util.joblib import register_ray
        except ImportError as error:
            raise MissingDataError("the backend ray needs ray: pip install ray") from error
        if not ray.is_initialized():  # a program that sits in a ray cluster has connected to it already
            ray.init(num_cpus=workers, include_dashboard=False, log_to_driver=False)
            stack.callback(ray.shutdown)
        register_ray()
