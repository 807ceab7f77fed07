"""The LLD monitor: any training log in, a verdict and early, causal alarms out; and a callback for live runs.

    >>> from lldsim.monitor import diagnose, read_log
    >>> diagnose(read_log("trainer_state.json")).verdict  # doctest: +SKIP
    'decaying'

What this package does not do: simulate, or draw (lldsim.plots.monitor_report does).
"""

from __future__ import annotations

from lldsim.monitor.callback import LLDMonitor
from lldsim.monitor.diagnose import Diagnosis, diagnose, first_alarm, replay
from lldsim.monitor.readers import Log, log_of_record, read_log
from lldsim.monitor.rules import Alarm, Rules, Watch
from lldsim.monitor.trl_signals import measured
from lldsim.monitor.verl_signals import measured_metrics

__all__ = [
    "Alarm",
    "Diagnosis",
    "LLDMonitor",
    "Log",
    "Rules",
    "Watch",
    "diagnose",
    "first_alarm",
    "log_of_record",
    "measured",
    "measured_metrics",
    "read_log",
    "replay",
]
