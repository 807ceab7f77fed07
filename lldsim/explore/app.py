"""The widgets: a move of a dial runs the simulation and replaces picture, words and download.

Moves are answered one after another, in the kernel's own thread; a slider reports when it is let go. While a run is
on, and when a setting is refused, the last picture stays. What this file does not do: decide what a dial means
(settings.py) or what is drawn (picture.py).
"""

from __future__ import annotations

import base64
import html
import io
import tempfile
import time
from collections import OrderedDict
from pathlib import Path
from typing import Any

import ipywidgets as widgets

from lldsim.config import RunConfig
from lldsim.errors import LldsimError
from lldsim.explore.picture import figure
from lldsim.explore.settings import DIALS, PRESETS, Settings, preset_settings
from lldsim.explore.story import what_changed, what_happened
from lldsim.probe import pull_run
from lldsim.record import RunRecord

KEPT_RUNS = 64  # answered from memory when a dial comes back
OWN = "own setting"  # shown as preset once a dial was moved


class Explorer(widgets.VBox):
    """The explorer as one widget: `settings`, `record`, `words` and `seconds` hold what it shows."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.record: RunRecord | None = None
        self.words = ""
        self.seconds = 0.0  # from the move to the picture, of the last answer
        self._runs: OrderedDict[RunConfig, RunRecord] = OrderedDict()
        self._moving = False  # True while a preset moves many dials: one run answers them all
        self.dials = {name: _dial_widget(name, getattr(settings, name)) for name in DIALS}
        start = next((name for name in PRESETS if preset_settings(name, keep=settings) == settings), OWN)
        self.preset = widgets.Dropdown(options=[OWN, *PRESETS], value=start, description="preset", style=_STYLE)
        self.status = widgets.HTML()
        self.image = widgets.Image(format="png", layout=widgets.Layout(width="900px", max_width="100%"))
        self.image.add_class("lldsim-picture")
        self.status.add_class("lldsim-status")
        self.download = widgets.HTML()
        controls = widgets.VBox([self.preset, *self.dials.values(), self.download], layout={"width": "330px"})
        shown = widgets.VBox([self.status, self.image], layout={"flex": "1 1 500px", "overflow": "hidden"})
        super().__init__([widgets.HBox([controls, shown], layout={"flex_flow": "row wrap"})])
        self.preset.observe(self._on_preset, names="value")
        for widget in self.dials.values():
            widget.observe(self._on_dial, names="value")
        self.answer()

    def answer(self) -> None:
        """Run what the dials say and show it; a refused setting is shown as text, and the last picture stays."""
        started = time.perf_counter()
        new = Settings(**{name: widget.value for name, widget in self.dials.items()})
        self._say("computing …", muted=True)
        try:
            record = self._run(new.config())
        except LldsimError as error:
            self._say(str(error), warning=True)
            return
        except Exception as error:  # a widget swallows what its callback raises, so nobody would see it
            self._say(f"this should not happen: {type(error).__name__}: {error}", warning=True)
            return
        words = what_happened(record, self.record)
        title = what_changed(new, self.settings) or f"seed {new.seed}"
        self.image.value = _png(record, previous=self.record, title=f"simulated · {title}")
        self.record, self.settings, self.words = record, new, words
        self.download.value = _links(record)
        self.seconds = time.perf_counter() - started
        self._say(words, note=f"{self.seconds:.2f} s")

    def _run(self, config: RunConfig) -> RunRecord:
        if config not in self._runs:
            self._runs[config] = pull_run(config)
            if len(self._runs) > KEPT_RUNS:
                self._runs.popitem(last=False)
        self._runs.move_to_end(config)
        return self._runs[config]

    def _on_dial(self, _: Any) -> None:
        if not self._moving:
            self._moving = True
            self.preset.value = OWN
            self._moving = False
            self.answer()

    def _on_preset(self, change: Any) -> None:
        if self._moving or change["new"] == OWN:
            return
        wanted = preset_settings(change["new"], keep=self.settings)
        self._moving = True
        try:
            for name, widget in self.dials.items():
                widget.value = getattr(wanted, name)
        finally:
            self._moving = False
        self.answer()

    def _say(self, text: str, *, note: str = "", muted: bool = False, warning: bool = False) -> None:
        shade = "#888888" if muted else "#B00020" if warning else "inherit"
        kept = " The picture is that of the last run." if warning and self.record is not None else ""
        small = f' <small style="color:#888888">{note}</small>' if note else ""
        self.status.value = (
            f'<div style="color:{shade};line-height:1.35;min-height:2.7em">{html.escape(text)}{kept}{small}</div>'
        )


_STYLE = {"description_width": "150px"}


def _dial_widget(name: str, value: Any) -> Any:
    """Return the widget of a dial, standing at `value`; a value between its steps becomes a step."""
    dial = DIALS[name]
    common = {"value": value, "description": dial.label, "style": _STYLE, "layout": {"width": "320px"}}
    if name == "seed":
        widget = widgets.IntText(**common, tooltip=dial.what)
    elif isinstance(dial.values[0], str):
        options = dial.values if value in dial.values else (*dial.values, value)
        widget = widgets.Dropdown(options=options, **common, tooltip=dial.what)
    else:
        options = [(f"{v:g}", v) for v in sorted({*dial.values, value})]
        widget = widgets.SelectionSlider(options=options, continuous_update=False, **common, tooltip=dial.what)
    widget.add_class(f"lldsim-dial-{name.replace('_', '-')}")
    return widget


def _png(record: RunRecord, *, previous: RunRecord | None, title: str) -> bytes:
    buffer = io.BytesIO()
    figure(record, previous=previous, title=title).savefig(buffer, format="png", dpi=100)
    return buffer.getvalue()


def _links(record: RunRecord) -> str:
    """Return download links whose data travel in the page: they work wherever the widget is shown."""
    with tempfile.TemporaryDirectory() as folder:
        record.save(folder)
        parts = []
        for name, kind in (("record.csv", "text/csv"), ("record.json", "application/json")):
            data = base64.b64encode((Path(folder) / name).read_bytes()).decode()
            stem, suffix = name.split(".")
            file = f"{stem}-{record.config_hash}.{suffix}"
            parts.append(f'<a download="{file}" href="data:{kind};base64,{data}">{name}</a>')
    return "download " + ", ".join(parts)
