"""The detector inside other monitors.

Locked here: nothing is registered, and nothing breaks, where they are not installed; where they are, the sick log is
found and the healthy one is not, under the log's own names too, and registering twice gives one finding. With neither
package installed the last two are skipped.
"""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest
from monitor_logs import rows, run

from lldsim.monitor.plugins import first_alarm, register


def test_registers_exactly_with_what_is_installed() -> None:
    packages = {"rl-doctor": "rl_doctor", "rlprobe": "rlprobe"}
    assert register() == [name for name, package in packages.items() if importlib.util.find_spec(package)]


def test_first_alarm_is_the_likelihoods() -> None:
    sick, healthy = (rows(run(sick=flag)) for flag in (True, False))
    alarm = first_alarm((row["step"], row) for row in sick)
    assert alarm is not None
    assert 55 <= alarm.step <= 80  # the likelihood falls from 50 on, the reward from 140
    assert first_alarm((row["step"], row) for row in healthy) is None


def test_inside_rl_doctor() -> None:
    rl_doctor = pytest.importorskip("rl_doctor")
    register()
    register()
    for sick, severity in ((True, "CRITICAL"), (False, "OK")):
        found = rl_doctor.diagnose(rl_doctor.run_from_records(rows(run(sick=sick)))).findings
        assert [f.severity.name for f in found if f.detector == "lazy_likelihood_displacement"] == [severity]


@pytest.mark.parametrize("key", ["logp_correct", "lldsim/logp_correct"])
def test_inside_rlprobe(key: str, tmp_path: Path) -> None:
    rlprobe = pytest.importorskip("rlprobe")
    engine = pytest.importorskip("rlprobe.doctor.engine")
    register()
    register()
    for sick, count in ((True, 1), (False, 0)):
        folder = tmp_path / str(sick)
        with rlprobe.Recorder(folder) as recorder:
            for row in rows(run(sick=sick)):
                recorder.log_step(int(row["step"]), reward_mean=row["reward"], **{key: row["logp_correct"]})
        ours = [f for f in engine.diagnose(folder) if f.signature_id == "LAZY_LIKELIHOOD_DISPLACEMENT"]
        assert len(ours) == count
        assert all(55 <= finding.first_step <= 80 for finding in ours)
