"""The picture of a monitor's report: the signals a log has, one panel each, with phases shaded and alarms marked.

What this file does not do: judge; it draws a `Diagnosis`.
"""

from __future__ import annotations

import io
from typing import TYPE_CHECKING

from lldsim.plots.save import DPI
from lldsim.plots.style import PHASE_SHADE, color, figure_size, style_context

if TYPE_CHECKING:
    import numpy as np
    from matplotlib.axes import Axes

    from lldsim.monitor.diagnose import Diagnosis

# signal: (colour role, axis label); drawn in this order, at most `MOST`.
PANELS = {
    "reward": ("reward", "reward"),
    "logp_correct": ("correct", "log-prob., correct"),
    "logp_correct_over_all": ("correct", "released log-prob. metric"),
    "logp_all": ("logp", "log-prob., all"),
    "logp_wrong": ("wrong", "log-prob., wrong"),
    "entropy": ("entropy", "entropy"),
    "grad_norm": ("grad_norm", "gradient norm"),
    "ratio_max": ("onpolicy", "largest ratio"),
    "kl": ("gspo", "KL"),
    "response_length": ("null", "response length"),
}
MOST = 6


def _show_the_decay(ax: Axes, result: Diagnosis, values: np.ndarray) -> None:
    """Fit the axis to the rows before the reward collapses, where a log-probability falls too far to show the rest."""
    import numpy as np

    fallen = next((phase["from"] for phase in result.phases if phase["phase"] == "COLLAPSED"), np.inf)
    before = values[(result.log.steps < fallen) & np.isfinite(values)]
    if len(before) and np.ptp(before) > 0:
        low, high = float(before.min()), float(before.max())
        ax.set_ylim(low - 0.1 * (high - low), high + 0.1 * (high - low))


def draw_diagnosis(result: Diagnosis) -> bytes:
    """Return a PNG of a diagnosis's log."""
    import numpy as np
    from matplotlib.figure import Figure

    log = result.log
    names = [name for name in PANELS if log.has(name)][:MOST] or list(log.sources)[:1]
    with style_context():
        width, height = figure_size("readme", height_ratio=0.16 * len(names) + 0.06)
        figure = Figure(figsize=(width, height), layout="constrained")
        axes = np.atleast_1d(figure.subplots(len(names), 1, sharex=True))
        for ax, name in zip(axes, names, strict=True):
            role, label = PANELS.get(name, ("null", name))
            values = log.record[name]
            known = np.isfinite(values)
            ax.plot(log.steps[known], values[known], color=color(role))
            ax.set_ylabel(label)
            if name.startswith("logp"):
                _show_the_decay(ax, result, values)
            if name in ("grad_norm", "ratio_max") and known.any() and values[known].min() > 0:
                ax.set_yscale("log")
            for phase in result.phases:
                ax.axvspan(phase["from"], phase["to"], color=PHASE_SHADE.get(phase["phase"], "#FFFFFF"), zorder=0, lw=0)
            for alarm in result.alarms:
                if alarm.severity != "info":
                    ax.axvline(alarm.step, color="#B22222", lw=0.9, ls=":" if alarm.severity == "warning" else "-")
        for phase in result.phases:
            place, name = (phase["from"], 0.05), phase["phase"].lower()
            axes[0].text(*place, name, transform=axes[0].get_xaxis_transform(), fontsize="small", clip_on=True)
        axes[-1].set_xlabel("step (red: dotted = warning, solid = critical; shade = phase)")
        axes[0].set_title(f"{result.verdict}: {result.why}".replace("$", r"\$")[:140])
        image = io.BytesIO()
        figure.savefig(image, format="png", dpi=DPI / 2, metadata={"Software": None})
    return image.getvalue()
