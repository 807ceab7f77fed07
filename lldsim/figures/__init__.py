"""The runner behind `make figures` and `lldsim figures`: figure notebooks in, pictures, data and a manifest out.

    >>> from lldsim.figures import run_figures
    >>> run_figures(["fig02"], fast=True)  # doctest: +SKIP

notebook.py reads and checks notebooks, runner.py executes and records them, manifest.py keeps the rows and the
gallery, command.py is the command line. What this package does not do: draw; that is in the notebooks.
"""

from __future__ import annotations

from lldsim.figures.command import main
from lldsim.figures.notebook import FigureSpec, check_parameters, discover_figures, select_figures
from lldsim.figures.runner import FigureError, FigureResult, cache_key, run_figures

__all__ = [
    "FigureError",
    "FigureResult",
    "FigureSpec",
    "cache_key",
    "check_parameters",
    "discover_figures",
    "main",
    "run_figures",
    "select_figures",
]
