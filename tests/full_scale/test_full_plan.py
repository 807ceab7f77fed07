"""The planner: exact parameter counts, a refusal with a remedy, and sums that move the right way.

Locked here: the four published Qwen2.5 sizes; a tiny model's count equals the sum over its tensors; 7B on one GPU is
refused; the 3B runs fit on four of 80 GiB; more GPUs need less memory and time.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from full_tools import needs

from full_scale.config import CONFIGS, load_config
from full_scale.plan import QWEN25, Assumptions, check, hours, kv_bytes_per_token, main, memory, shape_of
from lldsim.errors import ConfigError


@pytest.mark.parametrize(
    ("size", "count"), [("0.5B", 494032768), ("1.5B", 1543714304), ("3B", 3085938688), ("7B", 7615616512)]
)
def test_published_parameter_counts(size: str, count: int) -> None:
    assert QWEN25[size].parameters == count


def test_count_of_a_real_model(tmp_path: Path) -> None:
    needs("transformers", "tokenizers", "countryinfo", "mendeleev")
    from full_scale.factworld import build_factworld
    from full_scale.tiny import make_model, train_tokenizer

    model = make_model(train_tokenizer(build_factworld(), vocab_size=400), hidden_size=32)
    model.save_pretrained(tmp_path)
    assert shape_of(str(tmp_path)).parameters == sum(p.numel() for p in model.parameters())


@pytest.mark.parametrize("name", sorted(p.stem for p in CONFIGS.glob("*.yaml") if p.stem[0].isdigit()))
def test_every_gpu_configuration_fits_on_four_of_80_gib(name: str) -> None:
    assert sum(check(load_config(name), gpus=4, gpu_gib=80).values()) > 0


def test_what_cannot_fit_is_refused_with_a_remedy(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(ConfigError, match="use more GPUs"):
        check(load_config("7b_base_llds"), gpus=1, gpu_gib=80)
    with pytest.raises(ConfigError, match="lower vllm_memory"):
        check(load_config("7b_base_llds", {"vllm_memory": 0.7}), gpus=4, gpu_gib=80)
    assert main(["7b_base_llds", "--gpus", "1"]) == 1
    assert "cannot run" in capsys.readouterr().err
    assert main(["3b_base_llds"]) == 0
    with pytest.raises(ConfigError, match="Llama"):
        shape_of("meta/Llama-3")


def test_more_gpus_need_less() -> None:
    config = load_config("3b_base_llds")
    four, eight = (sum(memory(config, gpus=n, gpu_gib=80).values()) for n in (4, 8))
    assert eight < four
    slow, fast = (sum(hours(config, gpus=n, assume=Assumptions()).values()) for n in (4, 8))
    assert fast < slow
    assert kv_bytes_per_token(QWEN25["7B"]) == 57344
