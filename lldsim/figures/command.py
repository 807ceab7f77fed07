"""`lldsim figures`: the command line of the figure runner, also `python -m lldsim.figures`.

What this file does not do: anything but read arguments, print lines and choose an exit status.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable, Sequence

from lldsim.errors import ConfigError, LldsimError
from lldsim.figures.notebook import RESERVED, FigureSpec, discover_figures, select_figures
from lldsim.figures.runner import FAST_OUT, FULL_OUT, FigureError, repository_root, run_figures


def main(argv: Sequence[str] | None = None) -> int:
    """Run `lldsim figures` and return the exit status: 0 done, 1 a notebook failed, 2 bad input."""
    parser = argparse.ArgumentParser(prog="lldsim figures", description="Make the paper figures from their notebooks.")
    parser.add_argument("names", nargs="*", metavar="NAME", help="fig02 or fig02_three_phases; all when none is given")
    parser.add_argument("--fast", action="store_true", help=f"small, quick versions, written to {FAST_OUT}")
    parser.add_argument("--set", action="append", default=[], metavar="NAME=VALUE", help="override a parameter")
    parser.add_argument("--out", metavar="DIR", help=f"output folder (default {FULL_OUT})")
    parser.add_argument("--force", action="store_true", help="draw again what is up to date")
    parser.add_argument("--workers", type=int, default=1, metavar="N", help="notebooks that run at a time (default 1)")
    parser.add_argument("--list", action="store_true", help="list figures, parameters and expected seconds")
    args = parser.parse_args(argv)
    try:
        root = repository_root()
        if args.list:
            for spec in select_figures(discover_figures(root), args.names):
                print(_listing(spec))
            return 0
        overrides = _parse_overrides(args.set)
        if args.workers < 1:
            raise ConfigError(f"--workers {args.workers}: at least one notebook must run at a time")
        options = {"workers": args.workers, "fast": args.fast, "out": args.out, "force": args.force, "root": root}
        run_figures(args.names, overrides=overrides, say=print, progress=True, **options)
    except FigureError as error:
        print(f"figures: {error}", file=sys.stderr)
        return 1
    except LldsimError as error:
        print(f"figures: {error}", file=sys.stderr)
        return 2
    return 0


def _parse_overrides(pairs: Iterable[str]) -> dict[str, str]:
    overrides: dict[str, str] = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not equals or not name.isidentifier():
            raise ConfigError(f"--set takes NAME=VALUE, got {pair!r}")
        if name in overrides:
            raise ConfigError(f"--set gives {name} twice")
        overrides[name] = value
    return overrides


def _listing(spec: FigureSpec) -> str:
    seconds = ", ".join(f"{speed} {value:.0f} s" for speed, value in sorted(spec.expected_seconds.items()))
    shown = ", ".join(f"{name}={value!r}" for name, value in spec.parameters.items() if name not in RESERVED)
    return f"{spec.name}  [{seconds or 'time unknown'}]  {shown}".rstrip()
