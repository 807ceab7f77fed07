"""Say in words what a run did, from its diagnostics alone.

What this file does not do: explain why. One run of one seed is an anecdote; the words say what its curves show.
"""

from __future__ import annotations

import numpy as np

from lldsim.diagnostics.collapse import collapse_step, kept_share, surge
from lldsim.diagnostics.phases import falls_while_reward_holds, find_phases
from lldsim.explore.settings import DIALS, Settings
from lldsim.record import RunRecord


def what_happened(record: RunRecord, previous: RunRecord | None = None) -> str:
    """Return a few sentences about `record`: outcome, what the likelihood did meanwhile, and what changed.

    Numbers come from `diagnostics` with its fixed thresholds; `previous` is the run that was shown before.
    """
    phases, step = find_phases(record), collapse_step(record["reward"])
    if step is None:
        outcome = (
            f"No collapse in {len(record)} updates: it keeps {kept_share(record['reward']):.0%} of its peak reward."
        )
    else:
        outcome = f"Collapsed at update {step}."
    held = falls_while_reward_holds(record)
    if phases.decay is None:
        likelihood = "The likelihood of right responses did not leave its best for good."
    else:
        likelihood = f"The likelihood of right responses falls from update {phases.decay} on" + (
            f", {held} updates of it with the reward within 5 % of its peak." if held else "."
        )
    surges = (
        f"At most, entropy was ×{surge(record['entropy']):.1f} and gradient norm ×{surge(record['grad_norm']):.1f} of "
        "its early mean."
    )
    return " ".join([outcome, likelihood, *_pull(record, step), surges, *_compared(step, previous, record)])


def what_changed(new: Settings, old: Settings) -> str:
    """Return the dials that differ, as "label old → new"; an empty string where none does."""
    moved = [name for name in DIALS if getattr(new, name) != getattr(old, name)]
    return ", ".join(f"{DIALS[name].label} {getattr(old, name)} → {getattr(new, name)}" for name in moved)


def _pull(record: RunRecord, step: int | None) -> list[str]:
    """Say at how many looks before the end wrong responses pulled harder than right ones lifted, if any look was."""
    if "gwhes_batch" not in record.columns:
        return []
    seen = record["gwhes_batch"][:step]
    seen = seen[np.isfinite(seen)]
    if not seen.size:
        return []
    looks = f"{(seen > 0).sum()} of {seen.size} looks" + ("" if step is None else " before it")
    return [f"Wrong responses pulled harder than right ones lifted (G > 0) in {looks}."]


def _compared(step: int | None, previous: RunRecord | None, record: RunRecord) -> list[str]:
    if previous is None or previous.config_hash == record.config_hash:
        return []
    before = collapse_step(previous["reward"])
    match before, step:
        case None, None:
            change = float(np.mean(record["reward"][-10:]) - np.mean(previous["reward"][-10:]))
            return [f"The run before did not collapse either; reward at the end is {change:+.2f} different."]
        case None, _:
            return ["The run before did not collapse."]
        case _, None:
            return [f"The run before collapsed at update {before}."]
        case _:
            assert before is not None
            assert step is not None
            delay = step - before
            return [
                f"That is {abs(delay)} updates {'later' if delay > 0 else 'earlier'} than before."
                if delay
                else "As before."
            ]
