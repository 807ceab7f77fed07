"""The causal table's settings: each dial at its null and on, where LLDS fails, and a factorial of the strongest dials.

What this file does not do: run them (rows.table).
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

from lldsim.causal.rows import Setting
from lldsim.causal.twins import calibrated
from lldsim.config import RunConfig, preset
from lldsim.dials import DIALS, Dial, apply, base_config, dial
from lldsim.errors import ConfigError, suggest
from lldsim.paper_worlds import NOISY_TWO_HOPS, TWO_HOPS

# name: (what, changes of spiral, how many times as long as the others). A lambda is too small or the world too noisy.
FAILURES: dict[str, tuple[str, dict[str, Any], int]] = {
    "lambda_01": ("LLDS .01", {"llds_coef": 0.01}, 1),
    "lambda_03": ("LLDS .03", {"llds_coef": 0.03}, 1),
    "lambda_2": ("LLDS .2", {"llds_coef": 0.2}, 1),
    "two_hops": ("two searches needed", TWO_HOPS, 2),
    "two_hops_lambda_2": ("the same, LLDS .2", {**TWO_HOPS, "llds_coef": 0.2}, 2),
    "two_hops_lambda_1": (
        "the same, LLDS 1: stays at one search, and a lucky guess looks like a peak",
        {**TWO_HOPS, "llds_coef": 1.0},
        2,
    ),
    "noisy_two_hops": ("two searches needed, most fail", NOISY_TWO_HOPS, 2),
    "noisy_two_hops_lambda_2": ("the same, LLDS .2", {**NOISY_TWO_HOPS, "llds_coef": 0.2}, 2),
    "noisy_two_hops_lambda_1": ("the same, LLDS 1", {**NOISY_TWO_HOPS, "llds_coef": 1.0}, 2),
}


def causal_settings(dials: Sequence[str] | None = None, *, updates: int | None = None) -> list[Setting]:
    """Return the rows: spiral, its on-policy twin's two forms, then every dial's setting that differs from its base.

    A cause is shown at its null (spiral is its default), an extra at its on setting (its base is its null). `dials`
    names some; all by default. `updates` shortens the runs.
    """
    chosen = DIALS if dials is None else [dial(name) for name in dials]
    settings = [Setting(_labels("spiral", "default", "reference", "all causes on"), preset("spiral"))]
    if any(d.base == "twin" for d in chosen):
        settings.append(
            Setting(_labels("twin", "default", "reference", "sampler not sharper, stale"), base_config("twin"))
        )
    for d in chosen:
        setting = "null" if d.cause else "on"
        settings.append(Setting(_labels(d.name, setting, d.family, d.what) | {"base": d.base}, dial_config(d, setting)))
    return [shortened(setting, updates) for setting in settings]


def failure_settings(names: Sequence[str] | None = None, *, updates: int = 150) -> list[Setting]:
    """Return the rows where LLDS fails or costs, beside GRPO in the same world and the lambda that holds.

    `updates` is the length of the causal table's runs; two-hop worlds learn more slowly and get twice as many.
    """
    settings = []
    for name in FAILURES if names is None else names:
        if name not in FAILURES:
            raise ConfigError(f"unknown row {name!r}{suggest(name, FAILURES)}; known: {', '.join(FAILURES)}")
        what, changes, times = FAILURES[name]
        config = preset("spiral").replace(updates=updates * times, **changes)
        settings.append(Setting(_labels(name, "on", "where LLDS fails", what), config))
    return settings


def dial_config(d: Dial, setting: Any) -> RunConfig:
    """Return a dial's configuration, calibrated to its base's first reward where the dial asks for it."""
    config = d.config(setting)
    if setting == "null" and d.calibrate is not None:
        config = calibrated(config, d.calibrate, target=base_config(d.base))
    return config


def strongest(rows: Sequence[dict[str, Any]], count: int = 4) -> list[str]:
    """Return the names of the factor dials whose null lowers the collapse rate most; ties by the reward kept."""
    factors = {d.name for d in DIALS if d.factor}
    nulls = [row for row in rows if row["setting"] == "null" and row["name"] in factors]
    return [row["name"] for row in sorted(nulls, key=lambda row: (row["rate"], -row["kept_share"]))[:count]]


def factorial_settings(names: Sequence[str], *, updates: int | None = None) -> list[Setting]:
    """Return the 2^n settings of the dials `names`: every combination of null (0) and default (1), all on last.

    Nulls are combined as they are, without calibration: a calibrated field would be one more thing that differs.
    """
    settings = []
    for levels in itertools.product((0, 1), repeat=len(names)):
        changes: dict[str, Any] = {}
        for name, level in zip(names, levels, strict=True):
            changes |= {} if level else dial(name).null
        config = apply(preset("spiral"), changes)
        settings.append(shortened(Setting(dict(zip(names, levels, strict=True)), config), updates))
    return settings


def shortened(setting: Setting, updates: int | None) -> Setting:
    """Return the setting with `updates` rollout batches; None leaves it alone."""
    return setting if updates is None else Setting(setting.labels, setting.config.replace(updates=updates))


def _labels(name: str, setting: str, family: str, what: str) -> dict[str, Any]:
    return {"name": name, "setting": setting, "family": family, "what": what, "base": "spiral"}
