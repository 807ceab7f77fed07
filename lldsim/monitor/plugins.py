"""Our detector inside the general monitors: registers with rl-doctor and rlprobe, where they are installed.

    from lldsim.monitor.plugins import register
    register()   # ['rl-doctor', 'rlprobe']: their next diagnosis has lazy likelihood displacement among its findings

rl-doctor 0.2 drops keys that it does not know, so its tables learn the likelihood's names; rlprobe 0.1 keeps them in a
step's `extra`. What this file does not do: import either at module level, or change their other detectors.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from importlib import import_module
from typing import Any

import numpy as np

from lldsim.monitor.aliases import ALIASES, lookup
from lldsim.monitor.rules import Alarm, Watch
from lldsim.monitor.text_logs import number

NAME = "lazy_likelihood_displacement"
TITLE = "Lazy likelihood displacement"
ACTIONS = (
    "Keep the last checkpoint from before the first alarm.",
    "From there: ratio to the sampler, or a lower weight of wrong responses; LLDS helps most from the start.",
)
_SIGNALS = ("logp_correct", "logp_correct_over_all", "success_rate")


def register() -> list[str]:
    """Register with every general monitor that is installed and return their names; twice is as good as once."""
    done = []
    for name, package, attach in (("rl-doctor", "rl_doctor", _rl_doctor), ("rlprobe", "rlprobe", _rlprobe)):
        try:
            import_module(package)
        except ImportError:
            continue
        attach()
        done.append(name)
    return done


def first_alarm(rows: Iterable[tuple[float, Mapping[str, float]]]) -> Alarm | None:
    """Return the first likelihood alarm of (step, signals) rows."""
    watch = Watch()
    for step, row in rows:
        found = [a for a in watch.add(step, row) if a.rule.startswith("likelihood") and a.severity != "info"]
        if found:
            return found[0]
    return None


def _rl_doctor() -> None:
    schema, aliases, detectors = (import_module(f"rl_doctor.{part}") for part in ("schema", "aliases", "detectors"))
    for signal in _SIGNALS:
        if signal not in schema.CANONICAL_FIELDS:
            schema.CANONICAL_FIELDS.append(signal)
        for keys in ALIASES[signal].values():
            aliases._EXACT.update({key: signal for key in keys if key not in aliases._EXACT})

    def run(self: Any, log: Any) -> Any:
        names = {"reward_mean": "reward", **{signal: signal for signal in _SIGNALS}}
        series = {ours: np.asarray(log.series[theirs]) for theirs, ours in names.items() if theirs in log.series}
        rows = (
            (float(step), {name: float(v[i]) for name, v in series.items() if np.isfinite(v[i])})
            for i, step in enumerate(log.steps)
        )
        alarm = first_alarm(rows)
        if alarm is None:
            return self.ok("the likelihood of correct responses holds")
        summary = f"from step {alarm.step:g}: {alarm.message}"
        return self.finding(detectors.Severity.CRITICAL, summary, [alarm.rule], list(ACTIONS), {"step": alarm.step})

    base = detectors.Detector
    body = {"name": NAME, "title": TITLE, "requires": ["logp_correct"], "references": ["arXiv:2512.04220"], "run": run}
    detectors.register(type("LazyLikelihoodDisplacement", (base,), body))


def _rlprobe() -> None:
    base = import_module("rlprobe.doctor.base")
    import_module("rlprobe.doctor.engine")  # its own detectors first
    if any(detector.id == NAME.upper() for detector in base.REGISTRY):
        return

    def inspect(self: Any, run: Any) -> list[Any]:
        def rows() -> Iterable[tuple[float, Mapping[str, float]]]:
            for record in run._records:
                named = {found[0]: v for k, v in record.extra.items() if (found := lookup(str(k)))}
                row = {k: n for k, v in named.items() if k in _SIGNALS and (n := number(v)) is not None}
                if record.reward_mean is not None:
                    row["reward"] = record.reward_mean
                yield float(record.step), row

        alarm = first_alarm(rows())
        if alarm is None:
            return []
        return [self.finding(alarm.message, confidence=0.9, first_step=int(alarm.step), actions=list(ACTIONS))]

    body = {"id": NAME.upper(), "severity": "critical", "min_steps": 12, "inspect": inspect}
    base.register(type("LazyLikelihoodDisplacement", (base.Detector,), body))
