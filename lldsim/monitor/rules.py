"""The alarm rules: causal, streaming, the same code for a live run and for a finished log.

`Watch.add(step, row)` looks at nothing but what it has been given, so an alarm at step s uses nothing after s. The
numbers in `Rules` were fixed on the sets TUNE and CHECK of tests/benchmarks/monitor_worlds.py and on the transformer
runs of seeds 0 to 4 (bench_monitor_transformer.py); they are reported on runs that share no seed and, in the toy, no
cause with these. The paper's advice (section 6 of arXiv 2512.04220) is the list of signals.

Units: log-probabilities in nats per token, time in rollout batches ("updates"; `steps_per_update` converts).
What this file does not do: read logs, or give a verdict on a whole run (diagnose.py).
"""

from __future__ import annotations

import math
from bisect import insort
from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal

from lldsim.errors import ConfigError
from lldsim.monitor.trail import Trail, least_squares_slope

Severity = Literal["info", "warning", "critical"]


@dataclass(frozen=True)
class Rules:
    """Thresholds of all rules, in one place."""

    warm_up: float = 12.0  # updates without alarms: a run's first steps move everything
    hold: int = 2  # rows in a row on which a condition must hold ...
    sparse: float = 3.0  # ... or one, where rows are at least this many updates apart
    joint_window: float = 20.0  # updates; where entropy is logged, a slope of the likelihood that it confirms ...
    joint_slope: float = -0.005  # nats per update over that window
    joint_entropy: float = 1.4  # ... by standing at this multiple of its lowest level so far, ...
    joint_rise: float = 0.15  # nats above that level, ...
    joint_entropy_slope: float = 0.002  # and rising by this many nats per update over slope_window
    # Everything a little at once; in a network this speaks before any signal alone, and one row is enough. Ratio,
    # gradient norm and entropy must be logged; "usual" is the median so far.
    unrest_fallen: float = 1.1  # -log-probability over its lowest level so far, ...
    unrest_slope: float = -0.001  # which still falls by this many nats per update over fast_window, ...
    unrest_ratio: float = 3.2  # ln of the largest ratio over the usual, ...
    unrest_ratio_floor: float = 0.5  # and itself at least this (a ratio of 1.65), ...
    unrest_norm: float = 0.9  # gradient norm over the usual: that of a healthy run sinks, ...
    unrest_entropy: float = 1.1  # entropy over its lowest level so far, and rising over slope_window
    # Where entropy is not logged, a slope alone must be steeper to be a warning; where it is, such a slope only counts
    # in the verdict on the whole log.
    slope_window: float = 15.0  # updates
    slope: float = -0.0097  # nats per update over that window
    fast_window: float = 10.0
    fast_slope: float = -0.025
    drop: float = 0.3  # nats below the best level so far
    fallen: float = 1.5  # no likelihood alarm unless -log-probability is this multiple of its lowest level so far
    accelerating: float = 3.0  # -log-probability over its lowest value so far: phase III
    entropy_surge: float = 2.2  # entropy over its lowest level so far; with the likelihood in the log only a symptom
    entropy_rise: float = 0.1  # nats that it must have risen, too: near zero, noise alone doubles it
    invalid_rise: float = 0.15  # invalid actions per response above their lowest level; likewise
    ratio_spike: float = 2.0
    grad_norm_surge: float = 10.0  # over the median so far
    reward_fall: float = 0.8  # trailing mean of nine rows under this share of its running peak
    released_floor: float = 0.05  # success rate under which the released metric cannot be corrected
    # The released metric falls as the success rate rises, with a slope near 1 between their logarithms; a log in which
    # the likelihood does not is taken at its word.
    trust_rows: int = 6
    trust_rise: float = 0.1  # of ln success rate, mean of the second half of the rows minus mean of the first
    trust_slope: float = 0.2
    rearm: int = 10  # rows without the condition after which a rule may speak again
    min_rows: int = 4


DEFAULT_RULES = Rules()


@dataclass(frozen=True)
class Alarm:
    """One alarm: the rule held at `step`, judged from rows up to that step."""

    step: float
    rule: str
    value: float
    severity: Severity
    message: str

    def as_dict(self) -> dict[str, object]:
        """Return a JSON-ready mapping; a value that is no finite number becomes None."""
        value = self.value if math.isfinite(self.value) else None
        return {
            "step": self.step,
            "rule": self.rule,
            "value": value,
            "severity": self.severity,
            "message": self.message,
        }


# A log-probability is NaN where no response was correct (or none wrong); these are never NaN in a sound run.
_ALWAYS_FINITE = ("loss", "grad_norm", "kl", "entropy", "reward")


class Watch:
    """All rules over one run, fed row by row in rising order of steps.

    `trusted` says that `logp_correct` is the mean over correct responses' own tokens. Otherwise it may be the released
    metric, which falls when the success rate rises; a likelihood rule must then hold for the value as logged AND for
    the value divided by the success rate, where that is known, until a rise of both has shown that it is not.

    >>> watch = Watch(trusted=True)
    >>> sick = [watch.add(t, {"logp_correct": -0.1 - 0.01 * max(0, t - 20)}) for t in range(60)]
    >>> next(alarms for alarms in sick if alarms)[0].rule
    'likelihood-slope'
    """

    def __init__(self, rules: Rules = DEFAULT_RULES, *, steps_per_update: float = 1.0, trusted: bool = False) -> None:
        if not (math.isfinite(steps_per_update) and steps_per_update > 0):
            raise ConfigError(
                f"steps_per_update={steps_per_update}: give the positive number of log steps per rollout batch"
            )
        self.rules, self.unit, self.trusted = rules, steps_per_update, trusted
        self._trails: dict[str, Trail] = {}
        self._states: dict[str, _State] = {}
        self._first = self._last = math.nan
        self._hold = rules.hold
        self._early: dict[str, list[float]] = {"grad_norm": [], "log_ratio": []}  # in rising order
        self._rewards: deque[float] = deque(maxlen=9)
        self._reward_peak = -math.inf
        self._jumps, self._jump_count = 0.0, 0  # of the reward from row to row: its noise
        self._binary = True
        self._pairs: list[tuple[float, float]] = []  # ln success rate, ln -likelihood

    def add(self, step: float, row: Mapping[str, float]) -> list[Alarm]:
        """Take one row and return the alarms that begin with it. NaN or infinity in loss, gradient norm, KL, entropy
        or reward is one."""
        if math.isnan(self._first):
            self._first = step
        self._hold = 1 if step - self._last >= self.rules.sparse * self.unit else self.rules.hold
        self._last = step
        broken = [name for name in _ALWAYS_FINITE if not math.isfinite(row.get(name, 0.0))]
        alarms = [alarm for name in broken if (alarm := self._nonfinite(step, name, row[name]))]
        finite = {name: float(value) for name, value in row.items() if math.isfinite(value)}
        if "ratio_max" in finite:
            finite["log_ratio"] = math.log(max(finite["ratio_max"], 1.0))
        for name, value in (finite | self._derived(finite)).items():
            self._trail(name).add(step, value)
        for name, values in self._early.items():  # the early run is the reference; this also bounds memory
            if name in finite and len(values) < 256:
                insort(values, finite[name])
        if step - self._first < self.rules.warm_up * self.unit:
            return alarms
        for rule, holds, value, severity, message in self._conditions(finite):
            hold = 1 if rule == "likelihood-unrest" else 0
            alarm = self._latch(rule, holds, step, value, severity, message, hold=hold)
            if alarm:
                alarms.append(alarm)
        return alarms

    def _trail(self, name: str) -> Trail:
        if name not in self._trails:
            self._trails[name] = Trail(2 * self.rules.slope_window * self.unit)
        return self._trails[name]

    def _derived(self, row: Mapping[str, float]) -> dict[str, float]:
        """Return the likelihood divided by the success rate where a log may hold the released metric."""
        self._binary &= 0 <= row.get("reward", 0.0) <= 1
        success = row.get("success_rate", row.get("reward") if self._binary else None)
        if success is None or success < self.rules.released_floor:
            return {}
        derived = {}
        if "logp_correct_over_all" in row:
            derived["logp_corrected"] = row["logp_correct_over_all"] / min(success, 1.0)
        elif "logp_correct" in row and not self.trusted:
            derived["logp_divided"] = row["logp_correct"] / min(success, 1.0)
            self._learn_to_trust(success, row["logp_correct"])
        return derived

    def _learn_to_trust(self, success: float, logp: float) -> None:
        """Trust the likelihood as logged once the success rate has risen and the released metric would have fallen."""
        rules = self.rules
        if logp >= 0 or len(self._pairs) >= 256:
            return
        self._pairs.append((math.log(success), math.log(-logp)))
        n, half = len(self._pairs), len(self._pairs) // 2
        if n < rules.trust_rows:
            return
        xs = [x for x, _ in self._pairs]
        if sum(xs[half:]) / (n - half) - sum(xs[:half]) / half > rules.trust_rise:
            self.trusted = least_squares_slope(self._pairs) < rules.trust_slope

    def _likelihoods(self) -> list[Trail]:
        """Return the trails that must agree for a likelihood alarm; empty when the log holds no usable likelihood."""
        plain = ("logp_correct",) if self.trusted else ("logp_correct", "logp_divided")
        for names in (("logp_corrected",), plain, ("logp_all",)):
            found = [self._trails[name] for name in names if name in self._trails]
            if found:
                return found
        return []

    def _entropy_spreads(self) -> bool | None:
        """Return whether entropy has left its lowest level and still rises; None where it is not logged."""
        if "entropy" not in self._trails:
            return None
        rules, entropy = self.rules, self._trails["entropy"]
        slope = entropy.slope(rules.slope_window * self.unit, rules.min_rows) * self.unit
        far = entropy.level > rules.joint_entropy * max(entropy.lowest, 0.0)
        return far and entropy.level - entropy.lowest > rules.joint_rise and slope > rules.joint_entropy_slope

    def _usual(self, name: str) -> float:
        """Return the median so far of the gradient norm or the log-ratio."""
        values = self._early[name]
        return values[len(values) // 2]

    def _unrest(self, row: Mapping[str, float], likelihood: Trail) -> bool:
        """Return whether the likelihood is down, ratio and entropy up, each a little, and the gradient norm not sunk.

        False unless all are logged. One reading of the likelihood is enough: where it is the released metric and falls
        because the reward rises, ratio and entropy do not rise.
        """
        rules = self.rules
        if not row.keys() >= {"log_ratio", "grad_norm", "entropy"} or likelihood.highest >= 0:
            return False
        ratio, norm, entropy = (self._trails[name] for name in ("log_ratio", "grad_norm", "entropy"))
        return (
            likelihood.level < rules.unrest_fallen * likelihood.highest
            and likelihood.slope(rules.fast_window * self.unit, rules.min_rows) * self.unit < rules.unrest_slope
            and ratio.level > max(rules.unrest_ratio_floor, rules.unrest_ratio * self._usual("log_ratio"))
            and norm.level > rules.unrest_norm * self._usual("grad_norm")
            and entropy.level > rules.unrest_entropy * max(entropy.lowest, 0.0)
            and entropy.slope(rules.slope_window * self.unit, rules.min_rows) > 0
        )

    def _conditions(self, row: Mapping[str, float]) -> list[tuple[str, bool, float, Severity, str]]:
        rules, found = self.rules, []
        trails = self._likelihoods() if row.keys() & {"logp_correct", "logp_correct_over_all", "logp_all"} else []
        if trails:
            # Of two readings the milder one decides.
            slow = _mildest(t.slope(rules.slope_window * self.unit, rules.min_rows) * self.unit for t in trails)
            fast = _mildest(t.slope(rules.fast_window * self.unit, rules.min_rows) * self.unit for t in trails)
            drop = min(t.highest - t.level for t in trails)
            ratio = min(t.level / t.highest if t.highest < 0 else math.inf for t in trails)
            joint = _mildest(t.slope(rules.joint_window * self.unit, rules.min_rows) * self.unit for t in trails)
            fell = ratio > rules.fallen
            spreads = self._entropy_spreads()
            correct = row.keys() & {"logp_correct", "logp_correct_over_all"}
            what = "likelihood of correct responses" if correct else "likelihood of all responses"
            found += [
                ("likelihood-entropy", fell and joint < rules.joint_slope and spreads is True, joint, "warning",
                 f"{what} falls {-joint:.3f} nats per update over {rules.joint_window:g} updates while entropy rises"),
                ("likelihood-unrest", self._unrest(row, trails[0]), fast, "warning",
                 f"{what} falls, entropy and ratio rise, and the gradient norm does not sink"),
                ("likelihood-slope", fell and slow < rules.slope, slow, "warning" if spreads is None else "info",
                 f"{what} falls {-slow:.3f} nats per update over {rules.slope_window:g} updates"),
                ("likelihood-fast", fell and fast < rules.fast_slope, fast, "warning",
                 f"{what} falls {-fast:.3f} nats per update over {rules.fast_window:g} updates"),
                ("likelihood-drop", fell and drop > rules.drop, drop, "warning",
                 f"{what} is {drop:.2f} nats per token below its best"),
                ("likelihood-acceleration", ratio > rules.accelerating and drop > rules.drop, ratio, "critical",
                 f"-log-likelihood is {ratio:.1f} times its lowest"),
            ]  # fmt: skip
        # Without the likelihood, its symptoms are all there is.
        symptom: Severity = "info" if self._likelihoods() else "warning"
        if "entropy" in row and (entropy := self._trails["entropy"]).lowest > 0:
            surge = entropy.level / entropy.lowest
            surges = surge > rules.entropy_surge and entropy.level - entropy.lowest > rules.entropy_rise
            found.append(("entropy-surge", surges, surge, symptom,
                          f"entropy is {surge:.1f} times its lowest level"))  # fmt: skip
        if "invalid_actions" in row:
            rise = self._trails["invalid_actions"].level - self._trails["invalid_actions"].lowest
            found.append(("invalid-actions", rise > rules.invalid_rise, rise, symptom,
                          f"invalid actions are up by {rise:.2f} per response"))  # fmt: skip
        if "ratio_max" in row:
            ratio = self._trails["ratio_max"].level
            found.append(("ratio-spike", ratio > rules.ratio_spike, ratio, "info", f"largest ratio is {ratio:.1f}"))
        found += self._gradient(row) + self._reward(row)
        return found

    def _gradient(self, row: Mapping[str, float]) -> list[tuple[str, bool, float, Severity, str]]:
        if "grad_norm" not in row:
            return []
        usual = self._usual("grad_norm")
        surge = self._trails["grad_norm"].level / usual if usual > 0 else 1.0
        return [("grad-norm-surge", surge > self.rules.grad_norm_surge, surge, "info",
                 f"gradient norm is {surge:.0f} times its usual size")]  # fmt: skip

    def _reward(self, row: Mapping[str, float]) -> list[tuple[str, bool, float, Severity, str]]:
        if "reward" not in row:
            return []
        if self._rewards:
            self._jumps += abs(row["reward"] - self._rewards[-1])
            self._jump_count += 1
        self._rewards.append(row["reward"])
        if len(self._rewards) < 9:
            return []
        mean = sum(self._rewards) / 9
        self._reward_peak = max(self._reward_peak, mean)
        share = mean / self._reward_peak if self._reward_peak > 0 else 1.0
        # A mean jump of 1.13 sigma between rows, and the difference of two means of nine.
        noise = self._jumps / self._jump_count / 1.13 * math.sqrt(2 / 9)
        falls = share < self.rules.reward_fall and self._reward_peak - mean > 4 * noise
        return [("reward-fall", falls, share, "critical",
                 f"reward is at {share:.0%} of its peak")]  # fmt: skip

    def _nonfinite(self, step: float, name: str, value: float) -> Alarm | None:
        return self._latch(f"non-finite {name}", True, step, value, "critical", f"{name} is {value}", hold=1)

    def _latch(
        self, rule: str, holds: bool, step: float, value: float, severity: Severity, message: str, *, hold: int = 0
    ) -> Alarm | None:
        """Return an alarm on the row on which the rule has held long enough, once per episode."""
        state = self._states.setdefault(rule, _State())
        if not holds:
            state.held, state.quiet = 0, state.quiet + 1
            state.spoken &= state.quiet < self.rules.rearm
            return None
        state.held, state.quiet = state.held + 1, 0
        if state.spoken or state.held < (hold or self._hold):
            return None
        state.spoken = True
        return Alarm(step, rule, float(value), severity, message)


@dataclass
class _State:
    """How long one rule has held or been quiet, and whether it has spoken in this episode."""

    held: int = 0
    quiet: int = 0
    spoken: bool = False


def _mildest(slopes: Iterable[float]) -> float:
    """Return the largest slope; NaN (too few rows) in one of them means no alarm."""
    values = list(slopes)
    return math.nan if any(math.isnan(v) for v in values) else max(values)
