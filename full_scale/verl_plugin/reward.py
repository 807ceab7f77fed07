"""verl's reward function: exact match of the policy's own last action, as everywhere in full_scale.

verl's own Search-R1 score reads the last <answer> of the whole text, retrieved documents included; this one reads the
answer that the agent loop noted. What this file does not do: parse text, or give partial credit.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from full_scale.rewards import MatchRule, exact_match
from full_scale.verl_plugin import AGENT, FIELD
from lldsim.errors import ConfigError


def compute_score(
    data_source: str,
    solution_str: str,
    ground_truth: Any,
    extra_info: Mapping[str, Any] | None = None,
    match: MatchRule = "em_search_r1",
    **rest: Any,
) -> dict[str, float]:
    """Return the score and what verl shall log beside it.

    `ground_truth` is Search-R1's {"target": answers}. `match` comes from `reward.custom_reward_function.reward_kwargs`.
    Raises ConfigError if the trajectory was not made by our agent loop.
    """
    note = (extra_info or {}).get(FIELD)
    if note is None:
        raise ConfigError(
            f"a response of {data_source!r} carries no note of its last action, so it was not made by the agent loop "
            f"{AGENT!r}; set actor_rollout_ref.rollout.agent.default_agent_loop={AGENT}"
        )
    target = ground_truth["target"]
    golds = [target] if isinstance(target, str) else [str(gold) for gold in target]
    score = exact_match(note["answer"], golds, rule=match)
    return {
        "score": score,
        "acc": score,
        "answered": float(note["finish"] == "answer"),
        "valid_searches": float(note["searches"]),
        "invalid_actions": float(note["invalid_actions"]),
    }
