"""What other frameworks call the signals that the monitor reads: one table, and the rules for looking a key up.

Names on the left are those of `record.COLUMNS` where there is one. Per signal the keys are in order of preference:
when a log has several, the first wins and the report says so. What this file does not do: read files (readers.py).

Sources: trl 1.16 `GRPOTrainer._metrics`; verl 0.9.1 `metric_utils` and `dp_actor`; Search-R1's `env/...`; OpenRLHF.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

# signal: {framework: keys}. "lldsim" keys are trusted to mean what record.COLUMNS says; others are checked.
ALIASES: dict[str, dict[str, tuple[str, ...]]] = {
    "reward": {
        "lldsim": ("reward",),
        "verl": ("critic/score/mean", "critic/rewards/mean"),
        "other": ("reward_mean", "mean_reward", "rewards/mean", "reward/mean", "avg_reward", "score", "return"),
    },
    "success_rate": {
        "lldsim": ("success_rate",),
        "trl": ("rewards/accuracy_reward/mean", "rewards/exact_match/mean", "rewards/correctness_reward_func/mean"),
        "verl": ("critic/acc/mean",),
        "other": ("accuracy", "acc", "exact_match", "em", "solve_rate", "pass_rate"),
    },
    "logp_correct": {
        "lldsim": ("lldsim/logp_correct", "logp_correct"),
        "verl": ("actor/logp_correct", "actor/log_prob_correct"),
        "other": (
            "logprob_correct", "log_prob_correct", "correct_logp", "correct_logprob", "logps/correct", "logp/correct",
            "logp_pos", "logprobs/correct", "likelihood_correct", "log_likelihood_correct",
        ),
    },
    # The released code's metric: sum over correct tokens / ALL tokens. It falls when the success rate rises.
    "logp_correct_over_all": {
        "lldsim": ("lldsim/logp_correct_over_all", "logp_correct_over_all"),
        "other": ("positive_logp_over_all", "actor/pos_log_prob_mean"),
    },
    "logp_wrong": {
        "lldsim": ("lldsim/logp_wrong", "logp_wrong"),
        "verl": ("actor/logp_wrong",),
        "other": ("logprob_wrong", "logps/wrong", "logp/wrong", "logp_neg", "logp_incorrect", "logps/incorrect"),
    },
    "logp_all": {
        "lldsim": ("lldsim/logp_all", "logp_all"),
        "verl": ("actor/log_prob_mean", "actor/log_prob/mean"),
        "other": ("logp", "logp_mean", "mean_logp", "logprob_mean", "logps", "log_prob", "policy/logprobs"),
    },
    "logp_correct_action1": {
        "lldsim": ("lldsim/logp_correct_action1", "logp_correct_action1"),
        "other": ("logp_action1",),
    },
    "logp_correct_action2": {
        "lldsim": ("lldsim/logp_correct_action2", "logp_correct_action2"),
        "other": ("logp_action2",),
    },
    "similarity": {"lldsim": ("lldsim/similarity", "similarity"), "other": ("hidden_similarity", "cos_correct_wrong")},
    "entropy": {
        "lldsim": ("lldsim/entropy", "entropy"),
        "verl": ("actor/entropy", "actor/entropy_loss"),
        "other": ("policy_entropy", "entropy_mean", "mean_entropy", "policy/entropy", "policy/entropy_avg"),
    },
    "grad_norm": {
        "lldsim": ("grad_norm",),
        "verl": ("actor/grad_norm",),
        "other": ("gradient_norm", "grad_norm_mean", "optim/grad_norm", "actor_grad_norm"),
    },
    "ratio_max": {
        "lldsim": ("lldsim/ratio_max", "ratio_max", "llds/ratio_max"),
        "verl": ("actor/ratio_max",),
        "other": ("max_ratio", "ratio/max", "importance_ratio_max", "actor/ratio/max"),
    },
    "kl": {
        "lldsim": ("kl",),
        "verl": ("actor/kl_loss", "actor/reward_kl_penalty", "critic/kl"),
        "other": ("kl_mean", "mean_kl", "kl_divergence", "objective/kl", "approx_kl"),
    },
    "clip_fraction": {
        "lldsim": ("clip_fraction",),
        "trl": ("clip_ratio/region_mean", "clip_ratio"),
        "verl": ("actor/pg_clipfrac",),
        "other": ("clipfrac", "clip_frac", "policy/clipfrac_avg"),
    },
    "response_length": {
        "lldsim": ("response_length",),
        "trl": ("completions/mean_length", "completion_length"),
        "verl": ("response_length/mean",),
        "other": ("length", "mean_length", "response_len", "gen_len"),
    },
    "valid_searches": {
        "lldsim": ("valid_searches",),
        "trl": ("tools/call_frequency",),
        "verl": ("env/number_of_valid_search",),
        "other": ("n_searches", "tool_calls"),
    },
    "invalid_actions": {
        "lldsim": ("lldsim/invalid_actions", "invalid_actions"),
        "trl": ("tools/failure_frequency",),
        "other": ("invalid_action_rate", "n_invalid"),
    },
    "tied_groups": {"lldsim": ("tied_groups",), "trl": ("frac_reward_zero_std",), "other": ("zero_std_groups",)},
    "gate_fraction": {
        "lldsim": ("gate_fraction", "llds/gate_fraction", "actor/llds_gate_fraction"),
        "other": ("gate_frac", "llds/gate_frac"),
    },
    "sampler_gap": {
        "lldsim": ("sampler_gap",),
        "trl": ("sampling/sampling_logp_difference/mean",),
        "verl": ("training/rollout_probs_diff_mean",),
    },
    "loss": {"trl": ("loss",), "verl": ("actor/pg_loss",), "other": ("policy_loss", "pg_loss", "train_loss")},
}  # fmt: skip
# In order of preference: Weights & Biases' own `_step` counts calls, so it stands back.
STEP_KEYS = (
    "step", "global_step", "training/global_step", "trainer/global_step", "global_steps", "train_step", "training_step",
    "update", "iteration", "iter", "_step",
)  # fmt: skip
# Why each signal is wanted: what cannot be concluded without it.
RULES_OUT: dict[str, str] = {
    "reward": "collapse, and whether the likelihood falls while the reward still rises",
    "logp_correct": "lazy likelihood displacement itself (conditions 1 and 3 of Def. A.3); only symptoms remain",
    "logp_wrong": "condition 2 of Def. A.3 (wrong responses' likelihood does not rise)",
    "similarity": "the second half of condition 2 (hidden states of right and wrong stay similar)",
    "entropy": "the entropy surge of phase III",
    "grad_norm": "the gradient spike of phase III",
    "ratio_max": "likelihood-ratio spikes, and the alarm from four small signals at once (likelihood-unrest)",
}
_CANONICAL = {
    key: (signal, rank, framework)
    for signal, by_framework in ALIASES.items()
    for rank, (framework, key) in enumerate((f, k) for f, keys in by_framework.items() for k in keys)
}
_SCOPE = re.compile(r"^(?:train|training|metrics|rollout|policy_train|policy|learner)[/.]")
_EVALUATION = re.compile(r"^(?:eval|val|validation|test)[_/.]")
_RUN_NAME = re.compile(r"^(.*) - (?=[^ ]+$)")  # Weights & Biases CSV exports: "run name - key"


def _plain(key: str) -> str:
    """Return a key without run name, in lower case, with underscores for the blanks and hyphens that tables have."""
    return re.sub(r"[ -]+", "_", _RUN_NAME.sub("", key.strip()).lower())


def _readings(key: str) -> Iterator[str]:
    """Yield a plain key, then without its first scope, and so on."""
    while True:
        yield key
        shorter = _SCOPE.sub("", key)
        if shorter == key:
            return
        key = shorter


def run_name(key: str) -> str:
    """Return the run that a column of a Weights & Biases CSV export belongs to, or an empty string.

    >>> run_name("happy-run-7 - train/reward"), run_name("train/reward")
    ('happy-run-7', '')
    """
    found = _RUN_NAME.match(key.strip())
    return found[1] if found else ""


def lookup(key: str) -> tuple[str, int, str] | None:
    """Return (signal, preference, framework) of a log's key, or None for a key that the monitor does not read.

    >>> lookup("actor/entropy")[0], lookup("happy-run-7 - train/reward")[0], lookup("Grad Norm")[0], lookup("eval_loss")
    ('entropy', 'reward', 'grad_norm', None)
    """
    key = _plain(key)
    if is_evaluation(key):
        return None
    return next((_CANONICAL[name] for name in _readings(key) if name in _CANONICAL), None)


def is_evaluation(key: str) -> bool:
    """Return whether a key belongs to an evaluation, whose rows are no part of training."""
    return _EVALUATION.match(_plain(key)) is not None


def step_rank(key: str) -> int | None:
    """Return the place of a key among those that count steps, the best being 0, or None for any other key.

    >>> step_rank("step"), step_rank("train/global_step"), step_rank("Step"), step_rank("epoch")
    (0, 1, 0, None)
    """
    return next((STEP_KEYS.index(name) for name in _readings(_plain(key)) if name in STEP_KEYS), None)


def missing_signals(present: Iterable[str]) -> dict[str, str]:
    """Return, for every wanted signal that is absent, which conclusion that rules out."""
    have = set(present)
    if "logp_correct_over_all" in have:
        have.add("logp_correct")
    return {name: why for name, why in RULES_OUT.items() if name not in have}
