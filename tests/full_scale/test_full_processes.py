"""Two processes on a CPU give the trajectory of one: DDP and FSDP2 through accelerate.

Locked here: losses, LLDS penalties, gradient norms and rewards agree with one process within 1e-5 when mini-batches do
not depend on the process count (`even_minibatches`); LLDS fires in all three.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from full_tools import needs

needs("transformers", "trl", "datasets", "accelerate", "bm25s", "countryinfo", "mendeleev")
pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]

SCRIPT = """
import sys
import torch
torch.set_num_threads(1)
import full_scale.train
from full_tools import parity_reward, tiny_run
full_scale.train.reward_function = parity_reward
config = tiny_run(sys.argv[1], llds_coef=0.5, even_minibatches=True, micro_batch=5)
trainer = full_scale.train.train(config, sys.argv[2])
print("processes", trainer.accelerator.num_processes)
"""
FSDP2 = {
    "compute_environment": "LOCAL_MACHINE",
    "distributed_type": "FSDP",
    "num_machines": 1,
    "num_processes": 2,
    "machine_rank": 0,
    "use_cpu": True,
    "mixed_precision": "no",
    "fsdp_config": {
        "fsdp_version": 2,
        "fsdp_auto_wrap_policy": "TRANSFORMER_BASED_WRAP",
        "fsdp_state_dict_type": "FULL_STATE_DICT",
        "fsdp_cpu_ram_efficient_loading": False,  # see metrics.check_reference
    },
}


def run(kind: str, folder: Path, out: Path, script: Path) -> list[dict[str, Any]]:
    root = Path(__file__).resolve().parents[2]
    command = [sys.executable]
    if kind == "ddp":
        command += ["-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2"]
    elif kind == "fsdp2":
        settings = out.with_suffix(".yaml")
        settings.write_text(yaml.safe_dump(FSDP2))
        command += ["-m", "accelerate.commands.launch", "--config_file", str(settings), "--main_process_port", "0"]
    paths = os.pathsep.join([str(root), str(Path(__file__).parent)])
    environment = os.environ | {"PYTHONPATH": paths, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    done = subprocess.run(
        [*command, str(script), str(folder), str(out)], capture_output=True, text=True, env=environment, timeout=400
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert f"processes {1 if kind == 'one' else 2}" in done.stdout
    return [json.loads(line) for line in (out / "log.jsonl").read_text().splitlines()]


@pytest.fixture(scope="module")
def setting(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path, list[dict[str, Any]]]:
    from full_scale.factworld import build_factworld
    from full_scale.tiny import make_model, train_tokenizer

    folder = tmp_path_factory.mktemp("processes")
    tokenizer = train_tokenizer(build_factworld(), vocab_size=400)
    make_model(tokenizer, hidden_size=32).save_pretrained(folder / "model")
    tokenizer.save_pretrained(folder / "model")
    script = folder / "run.py"
    script.write_text(SCRIPT)
    return folder, script, run("one", folder / "model", folder / "one", script)


@pytest.mark.parametrize("kind", ["ddp", "fsdp2"])
def test_two_processes_equal_one(setting: tuple[Path, Path, list[dict[str, Any]]], kind: str) -> None:
    folder, script, one = setting
    two = run(kind, folder / "model", folder / kind, script)
    for name in ("loss", "llds/penalty", "grad_norm", "rollout/reward", "rollout/logp_correct"):
        first, second = ([line[name] for line in log if name in line] for log in (one, two))
        assert second == pytest.approx(first, abs=1e-5), name
        assert len(first) >= 1
    assert min(line["llds/penalty"] for line in two[1::2]) > 0
