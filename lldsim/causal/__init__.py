"""The causal table, the factorial design and the comparison of cures: `lldsim causal`.

    dials.py, arms.py -> twins (matched starts) -> rows (one per run, one per setting) -> settings, cures -> CSV files

What this package does not do: draw (notebooks/figures/figc1_causal_table.ipynb does), or decide thresholds
(diagnostics/thresholds.py).
"""

from lldsim.causal.cures import cure_rows, tune
from lldsim.causal.lead import lead_rows
from lldsim.causal.rows import Setting, run_row, setting_row, table
from lldsim.causal.settings import causal_settings, factorial_settings, failure_settings, strongest
from lldsim.causal.twins import calibrated, first_rollouts

__all__ = [
    "Setting",
    "calibrated",
    "causal_settings",
    "cure_rows",
    "factorial_settings",
    "failure_settings",
    "first_rollouts",
    "lead_rows",
    "run_row",
    "setting_row",
    "strongest",
    "table",
    "tune",
]
