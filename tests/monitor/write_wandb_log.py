# pyright: reportMissingImports=false
"""Write the genuine Weights & Biases offline run that the monitor's tests read: `python .../write_wandb_log.py OUT`.

The verl log of this folder (write_verl_logs.py), logged once more by the package `wandb` (0.31) in offline mode, under
the names of transformers' integration: `train/...` and `train/global_step`. The output lies gzipped in
`tests/monitor/data`. What this file does not do: log in, send, or record machine and code.
"""

from __future__ import annotations

import gzip
import json
import os
import sys
import tempfile
from pathlib import Path

DATA = Path(__file__).parent / "data"
KEYS = {
    "critic/rewards/mean": "train/reward",
    "actor/entropy": "train/entropy",
    "actor/grad_norm": "train/grad_norm",
    "lldsim/logp_correct": "train/logp_correct",
    "actor/pg_loss": "train/loss",
    "actor/lr": "train/learning_rate",
}


def main(out: Path) -> None:
    """Write OUT/offline.wandb.gz."""
    import wandb

    folder = tempfile.mkdtemp()
    os.environ |= {"WANDB_SILENT": "true", "WANDB_ERROR_REPORTING": "false"}
    settings = wandb.Settings(
        mode="offline", console="off", disable_git=True, disable_code=True, host="host", root_dir=folder,
        x_disable_meta=True, x_disable_stats=True, x_disable_machine_info=True, x_save_requirements=False,
        program="train.py",
    )  # fmt: skip
    run = wandb.init(project="toy", name="spiral", id="spiral", settings=settings)
    for line in gzip.decompress((DATA / "verl.jsonl.gz").read_bytes()).splitlines():
        row = json.loads(line)
        if row["step"]:
            values = {new: row["data"][old] for old, new in KEYS.items() if old in row["data"]}  # late: none correct
            run.log(values | {"train/global_step": 10 * row["step"]})
    run.finish()
    (path,) = Path(folder).glob("wandb/offline-run-*/run-spiral.wandb")
    (out / "offline.wandb.gz").write_bytes(gzip.compress(path.read_bytes(), mtime=0))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
