"""How the laboratory draws: one style, one colour per role, one way to write a figure and its numbers.

What this package does not do: compute anything, or run anything. Only notebooks, the command line and the
figure runner import it. Importing it does not import matplotlib; calling it does.
"""

from __future__ import annotations

from lldsim.plots.save import FigurePaths, figure_paths, save_figure, save_numbers, save_table
from lldsim.plots.style import PHASE_SHADE, ROLE, color, figure_size, style_context, use_style

__all__ = [
    "PHASE_SHADE",
    "ROLE",
    "FigurePaths",
    "color",
    "figure_paths",
    "figure_size",
    "save_figure",
    "save_numbers",
    "save_table",
    "style_context",
    "use_style",
]
