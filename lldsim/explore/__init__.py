"""The explorer: dials, a run behind every move, its curves and a line that says what just happened.

    settings.py  dials -> RunConfig     story.py  records -> words     picture.py  records -> figure     app.py  widgets

`explore()` needs ipywidgets and works in JupyterLab and under Voila; `small_multiples` is its static twin and needs
neither. What this package does not do: statements about more than one seed (experiments.py does).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from lldsim.errors import MissingDataError
from lldsim.explore.picture import figure, small_multiples
from lldsim.explore.settings import DIALS, PRESETS, Settings
from lldsim.explore.story import what_happened

if TYPE_CHECKING:
    from lldsim.explore.app import Explorer

__all__ = ["DIALS", "PRESETS", "Settings", "explore", "figure", "small_multiples", "what_happened"]


def explore(**dials: Any) -> Explorer:
    """Return the explorer, to be the last line of a notebook cell; `dials` set where it starts (names of `Settings`).

    Raises MissingDataError where ipywidgets is not installed, and ConfigError for an unknown dial.
    """
    settings = Settings().replace(**dials)
    try:
        from lldsim.explore.app import Explorer
    except ModuleNotFoundError as error:
        raise MissingDataError(
            f"{error.name} is not installed; `pip install -e .[notebooks]` brings it, and small_multiples needs none"
        ) from None
    return Explorer(settings)
