"""What the verl plug-in does without verl: settings, agent-loop file, data, reward, notes on trajectories.

Locked here: every setting that decides what is trained reaches verl's configuration; layouts verl cannot have are
refused with a remedy; rows in verl's columns have unique keys; the reward scores the last action only and refuses
trajectories of another loop; a trajectory's note marks its answer's tokens.
"""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml
from full_tools import CharTokenizer, needs

from full_scale.config import load_config
from full_scale.protocol import Limits, Trajectory, decode
from full_scale.verl_plugin import AGENT, EVAL_AGENT, FIELD
from full_scale.verl_plugin.launch import agent_loops, nested, verl_settings, write_run
from full_scale.verl_plugin.reward import compute_score
from lldsim.errors import ConfigError

VERL_LAYOUT: dict[str, Any] = {"updates_per_rollout": 8}
FACTWORLD: dict[str, Any] = {"train_data": "factworld", "eval_data": "factworld"}


def settings(name: str, *, gpus: int = 8, **changes: Any) -> dict[str, Any]:
    return verl_settings(load_config(name, VERL_LAYOUT | changes), Path("run"), gpus=gpus)


@pytest.mark.parametrize("name", ["3b_base_llds", "7b_instruct_llds", "3b_base_llds_ma", "3b_instruct_gspo_llds"])
def test_objective_reaches_verl(name: str) -> None:
    config, made = load_config(name, VERL_LAYOUT), settings(name)
    policy = {k.rsplit(".", 1)[1]: v for k, v in made.items() if ".policy_loss." in k}
    assert policy["loss_mode"] == "llds"
    assert (policy["llds_coef"], policy["llds_gate"]) == (config.llds_coef, config.gate)
    assert (policy["llds_base"], policy["llds_normalizer"]) == (config.surrogate, config.normalizer)
    assert policy["llds_answer_weight_rule"] == config.answer_weight_rule
    assert made["algorithm.rollout_correction.bypass_mode"] is False
    assert made["actor_rollout_ref.actor.loss_agg_mode"] == "seq-mean-token-mean"
    assert made["actor_rollout_ref.actor.clip_ratio_c"] > 4.9e8  # none: beyond verl's largest ratio
    assert made["actor_rollout_ref.model.path"] == config.model


def test_mini_batches_are_whole_groups() -> None:
    made = settings("3b_base_llds")
    assert made["data.train_batch_size"] == 8 * made["actor_rollout_ref.actor.ppo_mini_batch_size"] == 512
    with pytest.raises(ConfigError, match="updates_per_rollout=8"):
        settings("3b_base_llds", updates_per_rollout=10)
    with pytest.raises(ConfigError, match="does not split over 7 GPUs"):
        settings("3b_base_llds", gpus=7)


@pytest.mark.parametrize("change", [{"chat_template": False}, {"sampler": "vllm_server"}])
def test_what_verl_cannot_do_is_refused(change: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=next(iter(change))):
        settings("3b_base_llds", **change)


def test_evaluation_has_its_own_number_of_turns() -> None:
    loops = {entry["name"]: entry for entry in agent_loops(load_config("3b_base_llds"))}
    assert (loops[AGENT]["max_turns"], loops[EVAL_AGENT]["max_turns"]) == (3, 4)
    assert {entry["_target_"] for entry in loops.values()} == {"full_scale.verl_plugin.agent_loop.SearchR1Loop"}


def test_dotted_settings_nest_on_top_of_verls_defaults() -> None:
    tree = nested({"a.b.c": 1, "a.d": 2})
    assert tree["a"] == {"b": {"c": 1}, "d": 2}
    assert tree["defaults"] == ["ppo_trainer", "_self_"]


def test_a_run_folder_has_config_loops_and_data(tmp_path: Path) -> None:
    _, parquet = needs("countryinfo", "pyarrow.parquet")
    needs("mendeleev")
    command = write_run(load_config("3b_base_llds", VERL_LAYOUT | FACTWORLD), tmp_path, nodes=2, gpus=8)
    assert command[1:3] == ["-m", "verl.trainer.main_ppo"]
    written = yaml.safe_load((tmp_path / "verl.yaml").read_text())
    assert written["trainer"]["nnodes"] == 2
    for split, agent in (("train", AGENT), ("test", EVAL_AGENT)):
        assert written["data"]["train_files" if split == "train" else "val_files"].endswith(f"{split}.parquet")
        rows = parquet.read_table(tmp_path / "data" / f"{split}.parquet").to_pylist()
        assert {row["agent_name"] for row in rows} == {agent}
        assert len({row["extra_info"]["index"] for row in rows}) == len(rows) > 100
        assert rows[0]["prompt"][0]["content"].startswith("Answer the given question.")
        assert rows[0]["reward_model"]["ground_truth"]["target"]


def finished(*turns: str) -> Trajectory:
    tokenizer = CharTokenizer()
    made = Trajectory([1], Limits(), tokenizer)
    for turn in turns:
        ids = tokenizer.encode(turn)
        if made.act(ids, [-1.0] * len(ids)):
            made.observe("<answer>Rome</answer>")
    return made


def test_reward_scores_the_last_action_alone() -> None:
    pytest.importorskip("torch")
    from full_scale.verl_plugin.batch import annotation

    def score(trajectory: Trajectory, *golds: str) -> float:
        note = {FIELD: annotation(trajectory)}
        return compute_score("nq", "any text", {"target": list(golds)}, note)["score"]

    assert score(finished("<search>q</search>", "<answer> paris </answer>"), "Lyon", "Paris") == 1.0
    assert score(finished("<search>q</search>", *["<search>q</search>"] * 3), "Rome") == 0.0  # a document has it
    assert (
        compute_score("nq", "", {"target": "Oslo"}, {FIELD: annotation(finished("<answer>Oslo</answer>"))})["acc"] == 1
    )
    with pytest.raises(ConfigError, match="default_agent_loop"):
        compute_score("nq", "<answer>Rome</answer>", {"target": ["Rome"]}, {})


def test_note_marks_the_answers_tokens() -> None:
    from full_scale.verl_plugin.batch import annotation, answer_mask

    trajectory = finished("<search>q</search>", "so <answer>Bo</answer>")
    note = annotation(trajectory)
    ids = [trajectory.completion_ids[k] for k in note["answer_tokens"]]
    assert decode(trajectory.tokenizer, ids) == "<answer>Bo</answer>"
    import torch

    from lldsim.errors import ShapeError

    like = torch.zeros(2, len(trajectory.completion_ids))
    mask = answer_mask([note["answer_tokens"], []], like)
    assert mask[0].long().tolist() == trajectory.answer_mask
    assert not mask[1].any()
    with pytest.raises(ShapeError, match="1 answers for a micro-batch of 2"):
        answer_mask([[]], like)


def test_shell_recipe_is_valid_and_explains_itself() -> None:
    script = Path(__file__).resolve().parents[2] / "full_scale" / "launch" / "verl_nodes.sh"
    if shutil.which("bash") is None:
        pytest.skip("bash is not installed")
    done = subprocess.run(["bash", str(script)], capture_output=True, text=True)
    assert done.returncode == 2
    assert "HEAD_HOST RANK NODES GPUS CONFIG OUT" in done.stderr
