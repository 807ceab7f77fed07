"""One look for every figure: fonts, sizes, one colour per role and one shade per phase.

A role keeps its colour in every figure, so GRPO is vermillion wherever it is drawn. Colours come from the
Okabe-Ito palette, with a few of Paul Tol's muted set for the roles it has no room for; within each family of
roles that share a panel they stay apart under red- and green-blindness (tested).
What this file does not do: draw. Text is set by mathtext in DejaVu Sans, which ships with matplotlib, so no
LaTeX and no system font is needed.

Sources: Okabe & Ito, "Color Universal Design" (2008); Paul Tol, "Colour Schemes" (2021), scheme "muted".
"""

from __future__ import annotations

import sys
from contextlib import AbstractContextManager
from typing import Any, Literal

from lldsim.errors import ConfigError, suggest

ARM_COLORS = {
    "grpo": "#D55E00",
    "llds": "#0072B2",
    "llds_ma": "#56B4E9",
    "gspo": "#E69F00",
    "onpolicy": "#009E73",
    "null": "#555555",  # the twin with the cause's dial at 0
}
OUTCOME_COLORS = {"correct": "#332288", "wrong": "#CC79A7"}
QUANTITY_COLORS = {
    "reward": "#000000",
    "logp": "#882255",
    "grad_norm": "#DDAA33",
    "entropy": "#44AA99",
    "similarity": "#88CCEE",
}
PROVENANCE_COLORS = {
    "published": "#999933",  # numbers as printed in the paper, never ours
    "measured": "#117733",  # runs of a real model beside simulated ones
}
ROLE: dict[str, str] = {**ARM_COLORS, **OUTCOME_COLORS, **QUANTITY_COLORS, **PROVENANCE_COLORS}

# Pale, and darker as the phase is worse: they lie behind curves and must also read in grey print.
PHASE_SHADE: dict[str, str] = {
    "STAGNATION": "#F7F7F7",
    "DECAY": "#FBE9CC",
    "ACCELERATION": "#F3C9A8",
    "COLLAPSED": "#CFCFCF",
}

Width = Literal["column", "page", "readme"]
WIDTH_INCHES: dict[str, float] = {"column": 3.25, "page": 6.75, "readme": 9.0}  # ICML column and text width; GitHub

# Fixed whatever the user's matplotlibrc says, because they decide the bytes of a saved file (see save.py).
FILE_FORMAT_RC: dict[Any, Any] = {
    "svg.hashsalt": "lldsim",
    "svg.fonttype": "path",
    "pdf.fonttype": 42,  # fonts embedded as TrueType: text stays text, and submission systems accept it
    "ps.fonttype": 42,
}
RC: dict[Any, Any] = {
    **FILE_FORMAT_RC,
    "font.family": "DejaVu Sans",
    "mathtext.fontset": "dejavusans",
    "text.usetex": False,
    "font.size": 8.0,
    "axes.titlesize": 8.5,
    "axes.titlelocation": "left",
    "axes.labelsize": 8.0,
    "xtick.labelsize": 7.0,
    "ytick.labelsize": 7.0,
    "legend.fontsize": 7.0,
    "legend.frameon": False,
    "figure.titlesize": 9.0,
    "figure.figsize": (6.75, 2.4),
    "figure.dpi": 110.0,
    "figure.constrained_layout.use": True,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.linewidth": 0.7,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.linewidth": 0.4,
    "grid.alpha": 0.35,
    "lines.linewidth": 1.4,
    "lines.markersize": 3.5,
    "xtick.major.width": 0.7,
    "ytick.major.width": 0.7,
    "image.cmap": "cividis",
}


def color(role: str) -> str:
    """Return the colour of a role as a hex string.

    Raises ConfigError for an unknown role.

    >>> color("grpo")
    '#D55E00'
    """
    if role not in ROLE:
        raise ConfigError(f"no colour for role {role!r}{suggest(role, ROLE)}; roles are {', '.join(ROLE)}")
    return ROLE[role]


def figure_size(width: Width = "page", *, height_ratio: float = 0.36) -> tuple[float, float]:
    """Return (width, height) in inches for a paper column, a paper page or the README, height = ratio * width.

    Raises ConfigError for an unknown width or a ratio that is not positive.

    >>> figure_size("column", height_ratio=0.8)
    (3.25, 2.6)
    """
    if width not in WIDTH_INCHES:
        raise ConfigError(f"unknown width {width!r}{suggest(width, WIDTH_INCHES)}; known: {', '.join(WIDTH_INCHES)}")
    if not height_ratio > 0:
        raise ConfigError(f"height_ratio must be positive, got {height_ratio}")
    inches = WIDTH_INCHES[width]
    return inches, round(inches * height_ratio, 3)


def use_style() -> None:
    """Set the style for the rest of the process; whatever a user's matplotlibrc says is reset first.

    In a notebook this also makes the figures of this package visible: Jupyter shows a figure as a picture only once
    pyplot has chosen its backend, and the package draws without pyplot.
    """
    import matplotlib.style

    if "IPython" in sys.modules and sys.modules["IPython"].get_ipython() is not None:
        import matplotlib.pyplot as plt

        plt.switch_backend(matplotlib.get_backend())
    matplotlib.style.use(["default", RC])


def style_context() -> AbstractContextManager[None]:
    """Return a context manager in which the style holds, and after which the former settings are back."""
    import matplotlib.style

    return matplotlib.style.context(["default", RC])
