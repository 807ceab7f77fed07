# pyright: reportMissingImports=false
"""The GPU check in its smoke form, on a CPU: every line runs, and what it reports is what was done.

Locked here: the penalty is exactly 0 on the first step and positive later; both arms are timed equally often; the drift
is 0 for one precision against itself and positive for bfloat16 against float32; without a GPU the command says so; the
shape of the full run is Qwen2.5-3B's. With a GPU (marker gpu) the full run ends in eight minutes.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from full_tools import needs

from full_scale.gpu_check import QWEN_3B, SMOKE, TINY, Sizes, gate_drift, logps, main, make_model, run_check, sample

needs("transformers")
pytestmark = pytest.mark.filterwarnings("ignore")


def test_smoke_writes_what_it_did(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "check.json"
    assert main(["--smoke", "--out", str(out)]) == 0
    found = json.loads(out.read_text())
    assert found["smoke"] is True
    assert [len(found["seconds"]["step"][arm]) for arm in ("grpo", "llds")] == [SMOKE.rounds] * 2
    first, *later = found["penalties"]
    assert first == 0.0  # the first step of all is one with LLDS: old and current policy are equal
    assert max(later) > 0
    assert found["bf16_against_fp32"]["logp_gap_mean"] > 0
    assert found["peak_gib"] == {"sampling": None, "grpo": None, "llds": None}
    assert "tokens/s" in capsys.readouterr().out


def test_sampling_has_full_length_and_its_own_logps() -> None:
    model = make_model(TINY, "cpu")
    ids = sample(model, SMOKE, "cpu")
    assert ids.shape == (SMOKE.trajectories, SMOKE.prompt + SMOKE.response)
    with torch.no_grad():
        found = logps(model, ids, SMOKE, "cpu", bf16=False)
        logits = model(input_ids=ids).logits.log_softmax(-1)
    wanted = logits[:, SMOKE.prompt - 1 : -1].gather(-1, ids[:, SMOKE.prompt :, None])[..., 0]
    torch.testing.assert_close(found, wanted, atol=1e-5, rtol=0)


def test_drift_of_a_policy_that_did_not_move_is_its_precision_alone() -> None:
    model = make_model(TINY, "cpu")
    ids = sample(model, SMOKE, "cpu")
    with torch.no_grad():
        old = logps(model, ids, SMOKE, "cpu")
    drift = gate_drift(model, ids, old, SMOKE, "cpu")
    assert drift["repeat_gap_max"] == 0.0
    assert 0 < drift["drop_per_token_mean"] <= drift["logp_gap_mean"] <= drift["logp_gap_max"]


def test_without_a_gpu_the_command_says_so(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert main([]) == 1
    assert "--smoke" in capsys.readouterr().out


def test_full_shape_is_qwen_2_5_3b() -> None:
    from transformers import Qwen2Config, Qwen2ForCausalLM

    with torch.device("meta"):
        model = Qwen2ForCausalLM(Qwen2Config(**QWEN_3B))
    assert sum(p.numel() for p in model.parameters()) == 3_085_938_688


@pytest.mark.gpu
def test_full_run_on_a_gpu() -> None:
    if not torch.cuda.is_available():
        pytest.skip("no CUDA device")
    found = run_check(QWEN_3B, Sizes(), "cuda")
    assert sum(found["seconds"]["step"]["llds"]) < 240
    assert abs(found["llds_time_overhead"]) < 0.05
