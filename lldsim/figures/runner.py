"""Make figures: check every notebook's parameters first, then execute, record and show them, two at a time if asked.

A figure is a rule: notebook + parameters + package source + library versions -> files. The rule's hash is kept
in the manifest, so a figure that is up to date is not drawn again. Quick or overridden runs go to a folder under
`build`, so they never replace the full figures unless `out` says so.
What this file does not do: draw (notebooks do), or decide what a figure claims: label and caption come from the
numbers that the notebook saves.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import shlex
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

import lldsim
from lldsim.errors import LldsimError, MissingDataError
from lldsim.figures.manifest import LABELS, intact, read_manifest, remove_stale, sha256, write_gallery, write_manifest
from lldsim.figures.notebook import RESERVED, FigureSpec, check_parameters, discover_figures, select_figures
from lldsim.plots.save import figure_paths

FULL_OUT, FAST_OUT, CUSTOM_OUT = "paper_figures", "build/figures_fast", "build/figures_custom"
VERSIONED = ("numpy", "torch", "matplotlib", "numba")
# Threads reorder sums and hash seeds reorder sets: either would change bytes between two runs.
KERNEL_ENVIRONMENT = {"OMP_NUM_THREADS": "1", "NUMBA_NUM_THREADS": "1", "PYTHONHASHSEED": "0"}


Plan = tuple[FigureSpec, Mapping[str, Any]]  # a notebook and the parameters it is run with


class FigureError(LldsimError):
    """A figure notebook failed while running, or did not write what a figure must write."""


@dataclass(frozen=True)
class FigureResult:
    """What one call made of one figure: its manifest row, and whether the row was already up to date."""

    name: str
    cached: bool
    out: Path
    row: dict[str, Any]


def repository_root() -> Path:
    """Return the folder that holds `notebooks/figures`: the package's checkout, else the current folder.

    Raises MissingDataError when neither has one, as after an installation without the repository.
    """
    for root in (Path(lldsim.__file__).resolve().parents[1], Path.cwd()):
        if (root / "notebooks" / "figures").is_dir():
            return root
    raise MissingDataError("no notebooks/figures folder here: run this from a clone of the repository")


def cache_key(spec: FigureSpec, parameters: Mapping[str, Any]) -> str:
    """Return the hash of all that decides a figure's bytes: cells, parameters, package source, versions, and the
    measured records in the folder that a parameter RECORDS names.

    The output folder is left out, because it changes where files lie and not what they hold.
    """
    package = Path(lldsim.__file__).parent
    sources = sorted(path for kind in ("*.py", "*.yaml", "*.csv", "*.csv.gz") for path in package.rglob(kind))
    digest = hashlib.sha256()
    settings = {name: repr(value) for name, value in parameters.items() if name != "OUT"}
    root = spec.path.resolve().parents[2]
    if (records := parameters.get("RECORDS")) is not None:  # measured runs that the figure draws over its own
        sources += sorted(path for path in (root / records).rglob("record.*") if path.suffix in (".json", ".csv"))
    for part in (json.dumps([spec.name, spec.cells, settings, _versions()], sort_keys=True).encode(), *sources):
        if isinstance(part, Path):
            name = part.relative_to(package).as_posix() if part.is_relative_to(package) else part.name
            digest.update(name.encode())
            part = part.read_bytes()
        digest.update(len(part).to_bytes(8, "big") + part)
    return digest.hexdigest()


def run_figures(
    names: Sequence[str] = (),
    *,
    fast: bool = False,
    overrides: Mapping[str, Any] | None = None,
    out: str | Path | None = None,
    force: bool = False,
    root: str | Path | None = None,
    say: Callable[[str], object] = lambda _: None,
    progress: bool = False,
    workers: int = 1,
) -> list[FigureResult]:
    """Make the named figures (all for none) and return one result each, hero first.

    `out` defaults to `paper_figures`, to `build/figures_fast` for fast runs and to `build/figures_custom` for
    overridden ones. `say` receives each line for the user; `progress` draws a bar. `workers` notebooks run at a time,
    after the first alone, which compiles and fills the cache; each in a kernel of its own, so no file depends on it.
    Raises, before anything runs, MissingDataError without notebooks and ConfigError for a bad name or parameter;
    FigureError at the first notebook that fails, the results of those done being kept.
    """
    root = Path(root).resolve() if root is not None else repository_root()
    overrides = overrides or {}
    specs = select_figures(discover_figures(root), names)
    if not specs:
        raise MissingDataError("there are no figure notebooks in notebooks/figures")
    plans = [(spec, {**check_parameters(spec, overrides), "FAST": fast}) for spec in specs]
    default_out = FAST_OUT if fast else CUSTOM_OUT if overrides else FULL_OUT
    target = (Path.cwd() / out).resolve() if out is not None else root / default_out
    manifest = read_manifest(target)
    say(_announcement(plans, fast=fast, target=_shown(target, root)))
    keys = {spec.name: cache_key(spec, parameters) for spec, parameters in plans}
    rows = {
        spec.name: None if force else _current(manifest.get(spec.name), keys[spec.name], target) for spec, _ in plans
    }
    todo = [(spec, parameters) for spec, parameters in plans if rows[spec.name] is None]
    drawn: dict[str, FigureResult] = {}
    for spec, row in _executed(todo, root=root, out=target, workers=workers, progress=progress):
        row |= {"key": keys[spec.name], "command": _command(spec, fast=fast, overrides=overrides)}
        remove_stale(manifest.get(spec.name), row, target)
        manifest[spec.name] = row
        write_manifest(manifest, target)
        write_gallery(manifest, target)
        say(f"{spec.name}: {row['seconds']:.1f} s, {row['label']}")
        drawn[spec.name] = FigureResult(spec.name, False, target, row)
    results = []
    for spec, _ in plans:
        if (row := rows[spec.name]) is not None:
            say(f"{spec.name}: up to date")
            results.append(FigureResult(spec.name, True, target, row))
        else:
            results.append(drawn[spec.name])
    if any(result.cached for result in results):
        say("figures that are up to date were not drawn again; --force (make: FORCE=1) draws them")
    return results


def _executed(
    plans: Sequence[Plan], *, root: Path, out: Path, workers: int, progress: bool
) -> Iterator[tuple[FigureSpec, dict[str, Any]]]:
    """Execute the notebooks and yield each with its row as it is done."""
    # One after the other a bar counts the cells of a notebook; side by side one bar counts notebooks.
    alone = plans if workers <= 1 or len(plans) <= 2 else plans[:1]
    for number, (spec, parameters) in enumerate(alone, start=1):
        bar = {"desc": f"{spec.name} ({number}/{len(plans)})", "unit": "cell", "leave": False, "disable": None}
        yield spec, _execute(spec, parameters, root=root, out=out, bar=bar if progress else False)
    rest = plans[len(alone) :]
    if not rest:
        return
    from concurrent.futures import ProcessPoolExecutor, as_completed
    from multiprocessing import get_context

    from tqdm import tqdm

    # The longest first, so that none is left running alone; processes, because papermill changes the folder it is in.
    rest = sorted(rest, key=lambda plan: -_seconds(plan))
    with (
        ProcessPoolExecutor(min(workers, len(rest)), mp_context=get_context("spawn")) as pool,
        tqdm(total=len(rest), unit="figure", leave=False, disable=None if progress else True) as shown,
    ):
        futures = {pool.submit(_execute, spec, parameters, root=root, out=out): spec for spec, parameters in rest}
        try:
            for future in as_completed(futures):
                row = future.result()
                shown.update()
                yield futures[future], row
        finally:  # after a failure nothing new begins
            pool.shutdown(wait=True, cancel_futures=True)


def _seconds(plan: Plan) -> float:
    """Return how long a notebook says that it takes; one that does not say goes first."""
    spec, parameters = plan
    return spec.expected_seconds.get("fast" if parameters["FAST"] else "full", float("inf"))


def _current(row: dict[str, Any] | None, key: str, out: Path) -> dict[str, Any] | None:
    return row if row is not None and row["key"] == key and intact(row, out) else None


def _execute(
    spec: FigureSpec, parameters: Mapping[str, Any], *, root: Path, out: Path, bar: Any = False
) -> dict[str, Any]:
    try:
        import papermill
    except ImportError as error:
        raise MissingDataError("figures need papermill and Jupyter: pip install -e '.[notebooks]'") from error
    for name, value in KERNEL_ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    executed = root / "build" / "notebooks" / f"{spec.name}.ipynb"
    executed.parent.mkdir(parents=True, exist_ok=True)
    out.mkdir(parents=True, exist_ok=True)
    before = _modified(spec.name, out)
    started = time.perf_counter()
    try:
        papermill.execute_notebook(
            spec.path,
            executed,
            parameters={name: _listed(value) for name, value in parameters.items()} | {"OUT": str(out)},
            kernel_name="python3",
            language="python",
            cwd=root,
            progress_bar=bar,
            # Critical only: the kernel's remarks on its own transport would otherwise land in the user's terminal.
            extra_arguments=["--log-level=50"],
        )
    except Exception as error:  # papermill's own, a dead kernel, a missing kernel: all mean that this figure failed
        raise FigureError(_failure(spec, error, executed=_shown(executed, root))) from error
    seconds = time.perf_counter() - started
    after = _modified(spec.name, out)
    written = sorted(path for path, stamp in after.items() if before.get(path) != stamp)
    return _row(spec, parameters, seconds=seconds, written=written, out=out)


def _listed(value: Any) -> Any:
    # papermill writes a tuple into the notebook as the text "(0, 1)", which a notebook then reads letter by letter.
    return [_listed(item) for item in value] if isinstance(value, list | tuple) else value


def _versions() -> dict[str, str]:
    return {name: metadata.version(name) for name in VERSIONED}


def _modified(name: str, out: Path) -> dict[Path, int]:
    found = [*out.glob(f"{name}.*"), *out.glob(f"data/{name}*.csv"), *out.glob(f"numbers/{name}.json")]
    return {path: path.stat().st_mtime_ns for path in found}


def _failure(spec: FigureSpec, error: Exception, *, executed: str) -> str:
    if not hasattr(error, "ename"):
        return f"{spec.name} failed: {type(error).__name__}: {error}"
    source = getattr(error, "source", "").strip().splitlines()
    first = next((line for line in source if not line.startswith("#")), "")
    where = f"In [{getattr(error, 'exec_count', '?')}], which starts {first[:60]!r}"
    reason = f"{getattr(error, 'ename', '')}: {str(getattr(error, 'evalue', '')).strip()[:500]}"
    return f"{spec.name} failed at {where}\n  {reason}\n  executed up to there: {executed}"


def _row(
    spec: FigureSpec, parameters: Mapping[str, Any], *, seconds: float, written: Sequence[Path], out: Path
) -> dict[str, Any]:
    paths = figure_paths(spec.name, out=out)
    for path in (paths.png, paths.svg, paths.numbers):
        if path not in written:
            raise FigureError(f"{spec.name} ran, but wrote no {path.relative_to(out).as_posix()}")
    numbers = json.loads(paths.numbers.read_text(encoding="utf-8"))
    label, caption = numbers.get("label", ""), numbers.get("caption", "")
    if not label or any(part not in LABELS for part in label.split("+")):
        raise FigureError(f"{spec.name}: label {label!r} is not one of {', '.join(LABELS)}, or several joined by '+'")
    if not caption:
        raise FigureError(f"{spec.name}: its numbers have no 'caption'")
    return {
        "label": label,
        "caption": caption,
        "config_hash": numbers.get("config_hash"),
        "seeds": numbers.get("seeds"),
        "fast": parameters["FAST"],
        "parameters": {name: value for name, value in parameters.items() if name not in RESERVED},
        "seconds": round(seconds, 1),
        "versions": {"python": platform.python_version(), **_versions()},
        "machine": f"{platform.system()} {platform.machine()}",
        "files": {path.relative_to(out).as_posix(): sha256(path) for path in written},
    }


def _command(spec: FigureSpec, *, fast: bool, overrides: Mapping[str, Any]) -> str:
    short = spec.name.split("_")[0]
    if not overrides:
        return f"make {short}" + (" FAST=1" if fast else "")
    pairs = [f"--set {shlex.quote(f'{name}={value}')}" for name, value in overrides.items()]
    return " ".join(["lldsim figures", short, *(["--fast"] if fast else []), *pairs])


def _announcement(plans: Sequence[tuple[FigureSpec, Mapping[str, Any]]], *, fast: bool, target: str) -> str:
    speed = "fast" if fast else "full"
    times = [spec.expected_seconds.get(speed) for spec, _ in plans]
    total = f"about {sum(seconds or 0 for seconds in times):.0f} s" + (" or more" if None in times else "")
    lines = [f"{len(plans)} figure(s), {speed} version, {total} when none is up to date; written to {target}"]
    for (spec, parameters), seconds in zip(plans, times, strict=True):
        shown = ", ".join(f"{name}={value!r}" for name, value in parameters.items() if name not in RESERVED)
        lines.append(f"  {spec.name}  {'?' if seconds is None else f'{seconds:.0f}'} s  {shown}".rstrip())
    return "\n".join(lines)


def _shown(path: Path, root: Path) -> str:
    return path.relative_to(root).as_posix() if path.is_relative_to(root) else str(path)
