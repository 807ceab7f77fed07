#!/usr/bin/env bash
# A full_scale run on verl over several nodes. Run the same line on every node, head first:
#   full_scale/launch/verl_nodes.sh HEAD_HOST RANK NODES GPUS CONFIG OUT [NAME=VALUE ...]
# For example, two nodes of 8 GPUs:  verl_nodes.sh node0 0 2 8 7b_base_llds /shared/run updates_per_rollout=8
# OUT must be one folder that all nodes see. One node: `python -m full_scale.verl_plugin.launch ... --run` is enough.
# Never run on GPUs by us.
set -euo pipefail
if [ "$#" -lt 6 ]; then
    sed -n '2,7p' "$0" >&2
    exit 2
fi
head=$1 rank=$2 nodes=$3 gpus=$4 config=$5 out=$6
shift 6

if [ "$rank" -ne 0 ]; then
    exec ray start --address="$head:6379" --num-gpus="$gpus" --block
fi
ray start --head --port=6379 --num-gpus="$gpus"
trap 'ray stop' EXIT
python - "$nodes" <<'PY'
import sys, time, ray
ray.init(address="auto", log_to_driver=False)
for _ in range(60):
    alive = sum(node["Alive"] for node in ray.nodes())
    if alive >= int(sys.argv[1]):
        sys.exit(0)
    time.sleep(5)
sys.exit(f"only {alive} of {sys.argv[1]} nodes joined within five minutes")
PY
python -m full_scale.verl_plugin.launch "$config" --out "$out" --nodes "$nodes" --gpus "$gpus" --set "$@" --run
