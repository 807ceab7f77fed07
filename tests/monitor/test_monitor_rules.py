"""Alarms, verdicts, phases and conditions.

Locked here: an alarm at step s does not change when the log after s does (whatever comes); a live run and a finished
log give the same alarms; the hand-made sick log is heard long before the reward, the healthy one not at all; the
released metric's trap raises no alarm and is corrected, an honest likelihood is believed; a little of four signals at
once is heard, three of them are not; verdicts in order; bends and their intervals on curves with
known bends; conditions of Def. A.3; the interval and the unit of steps do not matter more than they must.
"""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from monitor_logs import Columns, rows, run, write_jsonl

from lldsim.errors import ConfigError, MissingDataError
from lldsim.monitor import LLDMonitor, Log, Rules, Watch, diagnose, first_alarm, log_of_record, read_log, replay
from lldsim.monitor.changepoints import bends
from lldsim.monitor.rules import DEFAULT_RULES
from lldsim.record import RunRecord


def log_of(columns: Columns, folder: Path) -> Log:
    write_jsonl(folder / "log.jsonl", columns)
    return read_log(folder / "log.jsonl")


def spoken(log: Log, **options: Any) -> list[tuple[float, str]]:
    return [(a.step, a.rule) for a in replay(log, **options) if a.severity != "info"]


def test_sick_log_is_heard_long_before_the_reward_and_healthy_one_not(tmp_path: Path) -> None:
    alarms = spoken(log_of(run(sick=True), tmp_path))
    assert alarms[0][1] == "likelihood-entropy"
    assert 55 <= alarms[0][0] <= 80  # the likelihood falls from 50 on, the reward from 140
    assert "reward-fall" in {rule for _, rule in alarms}
    blind = {name: values for name, values in run(sick=True).items() if name != "entropy"}
    alarms = spoken(log_of(blind, tmp_path))
    assert alarms[0][1] == "likelihood-slope"
    assert 55 <= alarms[0][0] <= 75


def test_a_gentle_slope_warns_only_where_entropy_confirms_it(tmp_path: Path) -> None:
    columns = run(sick=True)
    flat = columns | {"entropy": np.full_like(columns["entropy"], columns["entropy"][0])}
    rules = {rule for step, rule in spoken(log_of(flat, tmp_path)) if step < 140}
    assert "likelihood-entropy" not in rules
    assert "likelihood-slope" not in rules
    assert rules  # the drop itself still warns
    for seed in range(5):
        assert spoken(log_of(run(sick=False, seed=seed), tmp_path)) == []


def a_little_at_once() -> Columns:
    """Return a log in which from step 60 on likelihood, entropy, ratio and gradient norm all move, none by much."""
    columns, late = run(sick=False), np.maximum(0, np.arange(160.0) - 60)
    smooth = {"reward": 0.9, "logp_correct": -0.2 * (1 + late / 150), "entropy": 0.5 * (1 + late / 150),
              "ratio_max": 1.1 + late / 40, "grad_norm": 0.2 * (1 + late / 100)}  # fmt: skip
    return columns | {name: np.broadcast_to(values, 160).astype(float) for name, values in smooth.items()}


def test_a_little_of_everything_warns_and_any_part_alone_does_not(tmp_path: Path) -> None:
    columns = a_little_at_once()
    (step, rule), *_ = spoken(log_of(columns, tmp_path))
    assert rule == "likelihood-unrest"
    assert 82 <= step <= 85  # ln ratio reaches .5 at 82; -log-probability and entropy are up by a tenth from 75 on
    for name in ("logp_correct", "entropy", "ratio_max", "grad_norm"):
        sunk = 0.5 if name == "grad_norm" else 1.0  # as a healthy run's does; the others stay where they were
        calm = columns | {name: np.where(np.arange(160) < 60, 1.0, sunk) * columns[name][0]}
        before = [rule for at, rule in spoken(log_of(calm, tmp_path)) if at <= 100]
        assert before == [], name
        unlogged = {k: v for k, v in columns.items() if k != name}
        before = [rule for at, rule in spoken(log_of(unlogged, tmp_path)) if at <= 110]
        assert "likelihood-unrest" not in before, name


def test_a_likelihood_that_rose_with_the_reward_is_believed_and_the_released_metric_is_not() -> None:
    t = np.arange(40.0)
    reward = np.minimum(0.3 + t / 60, 0.9)
    for logp, believed in ((-0.4 + t / 200, True), (-0.4 * reward, False), ((-0.4 + t / 200) * reward, False)):
        watch = Watch()
        for step in range(40):
            watch.add(step, {"reward": reward[step], "logp_correct": logp[step]})
        assert watch.trusted is believed
    flat = Watch()
    for step in range(40):
        flat.add(step, {"reward": 0.5, "logp_correct": -0.4})
    assert not flat.trusted  # nothing has been shown


@given(cut=st.integers(1, 159), after=st.sampled_from(["nothing", "noise", "zero", "huge"]), seed=st.integers(0, 3))
def test_alarms_are_causal(cut: int, after: str, seed: int) -> None:
    columns = rows(run(sick=True, seed=seed))
    changes = {"nothing": 1.0, "noise": -3.0, "zero": 0.0, "huge": 1e9}
    other = columns[:cut] + [
        {k: v * (1 if k == "step" else changes[after]) for k, v in r.items()} for r in columns[cut:]
    ]
    heard = []
    for version in (columns, other):
        watch = Watch()
        heard.append([watch.add(r["step"], {k: v for k, v in r.items() if k != "step"}) for r in version][:cut])
    assert heard[0] == heard[1]


def test_live_and_finished_give_the_same_alarms(tmp_path: Path) -> None:
    columns = run(sick=True)
    monitor = LLDMonitor()
    for row in rows(columns):
        monitor.observe(row["step"], row)
    assert monitor.alarms == replay(log_of(columns, tmp_path))
    assert len(monitor.alarms) >= 4


def test_released_metric_raises_no_alarm_and_is_corrected(tmp_path: Path) -> None:
    columns = run(sick=False)
    released = -0.6 * np.ones(160) * columns["reward"]  # what the released code logs of a likelihood that never moves
    log = log_of({**columns, "logp_correct": released}, tmp_path)
    naive = Watch(trusted=True)  # believes the column's name
    assert any(
        naive.add(r["step"], {"logp_correct": r["logp_correct"]}) for r in rows({**columns, "logp_correct": released})
    )
    assert spoken(log) == []
    found = diagnose(log)
    assert (found.trap, found.verdict) == ("corrected", "stagnating")


def test_released_metric_that_does_fall_is_heard(tmp_path: Path) -> None:
    columns = run(sick=True)
    released = columns["logp_correct"] * columns["reward"]
    del columns["logp_correct"]
    log = log_of({**columns, "logp_correct_over_all": released}, tmp_path)
    assert 55 <= spoken(log)[0][0] <= 80
    assert diagnose(log).trap == "corrected"
    del columns["reward"]
    assert diagnose(log_of({**columns, "logp_correct_over_all": released}, tmp_path)).trap == "suspected"


def test_verdicts(tmp_path: Path) -> None:
    sick, healthy = run(sick=True), run(sick=False)
    until = {name: (lambda n: {k: v[:n] for k, v in sick.items()})(n) for name, n in (("decay", 65), ("late", 120))}
    assert diagnose(log_of(sick, tmp_path)).verdict == "collapsed"
    assert diagnose(log_of(until["late"], tmp_path)).verdict == "accelerating"
    assert diagnose(log_of(until["decay"], tmp_path)).verdict == "decaying"
    assert diagnose(log_of(healthy, tmp_path)).verdict == "healthy"
    flat = {**healthy, "logp_correct": -0.25 - 0.0003 * healthy["step"]}
    assert diagnose(log_of(flat, tmp_path)).verdict == "stagnating"
    assert diagnose(log_of({k: v[:8] for k, v in sick.items()}, tmp_path)).verdict == "undecidable"
    assert diagnose(log_of({k: healthy[k] for k in ("step", "reward")}, tmp_path)).verdict == "undecidable"


def test_what_is_missing_is_named_with_what_it_rules_out(tmp_path: Path) -> None:
    columns = run(sick=True)
    found = diagnose(log_of({k: columns[k] for k in ("step", "reward", "entropy")}, tmp_path))
    assert set(found.missing) == {"logp_correct", "logp_wrong", "similarity", "grad_norm", "ratio_max"}
    assert "lazy likelihood displacement itself" in found.missing["logp_correct"]
    assert all(c["holds"] is None for c in found.conditions.values())
    assert [a.rule for a in found.alarms if a.severity == "warning"] == ["entropy-surge"]


def test_conditions_of_the_death_spiral(tmp_path: Path) -> None:
    t = np.arange(120.0)
    columns = run(sick=False, steps=120)
    spiral = -0.2 - 1e-4 * np.maximum(0, t - 30) ** 2
    found = diagnose(log_of({**columns, "logp_correct": spiral, "logp_wrong": 2 * spiral}, tmp_path)).conditions
    assert [c["holds"] for c in found.values()] == [True, True, True]
    assert 25 <= found["1 correct falls"]["from"] <= 40
    rising = {**columns, "logp_correct": -0.2 - 0.01 * t, "logp_wrong": -3 + 0.01 * t}
    assert [c["holds"] for c in diagnose(log_of(rising, tmp_path)).conditions.values()] == [True, False, False]


def test_bends_are_found_within_their_intervals() -> None:
    rng = np.random.default_rng(1)
    covered = 0
    for _ in range(20):
        t = np.arange(120.0)
        first, second = rng.uniform(25, 45), rng.uniform(75, 95)
        curve = -0.01 * np.maximum(0, t - first) - 0.05 * np.maximum(0, t - second) + 0.05 * rng.normal(size=120)
        found = bends(t, curve)
        assert len(found) == 2
        covered += sum(b.low - 2 <= place <= b.high + 2 for b, place in zip(found, (first, second), strict=True))
        assert found[1].after < found[0].after < found[0].before + 0.005
    assert covered >= 34  # of 40; 38 expected
    assert bends(t, rng.normal(size=120)) == []
    assert bends(t[:5], t[:5]) == []


def test_phases_of_the_sick_log(tmp_path: Path) -> None:
    found = diagnose(log_of(run(sick=True), tmp_path)).phases
    assert [p["phase"] for p in found][-3:] in (
        ["DECAY", "ACCELERATION", "COLLAPSED"],
        ["STAGNATION", "DECAY", "COLLAPSED"],
    )
    (decay,) = [p for p in found if p["phase"] == "DECAY"]
    assert 35 <= decay["from"] <= 65
    assert decay["low"] <= decay["from"] <= decay["high"]
    assert all(a["to"] == b["from"] for a, b in pairwise(found))


@pytest.mark.parametrize("every", [2, 5])
def test_sparser_logs_are_heard_in_time(every: int, tmp_path: Path) -> None:
    columns = {k: v[::every] for k, v in run(sick=True).items()}
    assert 55 <= spoken(log_of(columns, tmp_path))[0][0] <= 90


def test_unit_of_steps_is_a_matter_of_scale(tmp_path: Path) -> None:
    columns = run(sick=True)
    plain = spoken(log_of(columns, tmp_path))
    scaled = spoken(log_of({**columns, "step": 10 * columns["step"]}, tmp_path), steps_per_update=10)
    assert [(step / 10, rule) for step, rule in scaled] == plain
    with pytest.raises(ConfigError, match="steps_per_update=0"):
        Watch(steps_per_update=0)


def test_rule_speaks_once_per_episode_and_again_after_a_rest() -> None:
    watch = Watch(Rules(warm_up=0), trusted=True)
    heard = []
    for t in range(80):
        reward = 0.1 if 20 <= t < 30 or 60 <= t < 70 else 0.9
        heard += [a for a in watch.add(t, {"reward": reward}) if a.rule == "reward-fall"]
    assert len(heard) == 2
    assert heard[0].step < 30 < 60 < heard[1].step


def test_nan_is_an_alarm_at_its_step(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    write_jsonl(path, run(sick=False))
    path.write_text(path.read_text().replace('"step": 77.0, "reward": ', '"step": 77.0, "loss": NaN, "reward": '))
    assert spoken(read_log(path)) == [(77.0, "non-finite loss")]
    assert Watch().add(0, {"logp_wrong": float("nan"), "reward": 1.0}) == []  # no wrong response: nothing is broken


def test_noise_of_small_batches_is_no_collapse(tmp_path: Path) -> None:
    for seed in range(10):
        rng = np.random.default_rng(seed)
        noisy = {
            "step": np.arange(40.0),
            "reward": rng.binomial(8, 0.3, 40) / 8,
            "logp_correct": rng.normal(-5, 0.1, 40),
        }
        log = log_of(noisy, tmp_path)
        assert diagnose(log).verdict != "collapsed"
        assert spoken(log) == []


def test_thresholds_are_the_fixed_ones() -> None:
    """A changed threshold needs a new look at the benchmark: its numbers are quoted."""
    r = DEFAULT_RULES
    assert (r.slope, r.slope_window, r.fast_slope, r.fast_window) == (-0.0097, 15, -0.025, 10)
    assert (r.drop, r.fallen, r.hold, r.sparse, r.warm_up) == (0.3, 1.5, 2, 3, 12)


def test_a_record_in_memory_alarms_like_the_same_record_on_disk(tmp_path: Path) -> None:
    record = log_of(run(sick=True), tmp_path).record
    record.save(tmp_path / "saved")
    alarm = first_alarm(log_of_record(record))
    assert alarm == first_alarm(read_log(tmp_path / "saved"))
    assert alarm is not None
    assert alarm.severity != "info"
    assert first_alarm(log_of(run(sick=False), tmp_path)) is None
    with pytest.raises(MissingDataError, match="no column 'update'"):
        log_of_record(RunRecord({"reward": np.ones(3)}, {}, "0", {}, "simulated"))
