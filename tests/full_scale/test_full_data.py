"""Loaders: small files with the columns of Search-R1 and FlashRAG.

Locked here: question, gold answers and identity of a row; one row index in two sources gives two groups; a missing
column, an empty gold list, a doubled row and an absent file are typed errors; prompts end as Search-R1 writes them.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from full_tools import needs

from full_scale.data import Row, load_rows, render
from lldsim.errors import MissingDataError


def search_r1(source: str, index: int, **changes: Any) -> dict[str, Any]:
    return {
        "id": f"{source}_{index}",
        "question": "who wrote hamlet",
        "golden_answers": ["Shakespeare"],
        "data_source": source,
        "prompt": [{"role": "user", "content": "... Question: who wrote hamlet?\n"}],
        "ability": "fact-reasoning",
        "reward_model": {"style": "rule", "ground_truth": {"target": ["Shakespeare", "W. Shakespeare"]}},
        "extra_info": {"split": "train", "index": index},
    } | changes


def write_parquet(path: Path, records: list[dict[str, Any]]) -> str:
    needs("pyarrow")
    import pyarrow  # pyright: ignore[reportMissingImports]
    import pyarrow.parquet  # pyright: ignore[reportMissingImports]

    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(records), path)
    return str(path)


def test_search_r1_rows_are_keyed_by_source_and_index(tmp_path: Path) -> None:
    data = write_parquet(tmp_path / "train.parquet", [search_r1("nq", 0), search_r1("hotpotqa", 0)])
    first, second = load_rows(data, split="train")
    assert first == Row("nq", "0", "who wrote hamlet", ("Shakespeare", "W. Shakespeare"))
    assert (second.source, second.index) == ("hotpotqa", "0")


def test_question_is_read_from_the_prompt_when_there_is_no_column(tmp_path: Path) -> None:
    record = search_r1("nq", 0)
    del record["question"]
    assert load_rows(write_parquet(tmp_path / "a.parquet", [record]), split="train")[0].question == "who wrote hamlet?"


def test_doubled_rows_missing_columns_and_empty_golds_are_errors(tmp_path: Path) -> None:
    with pytest.raises(MissingDataError, match="occurs twice"):
        load_rows(write_parquet(tmp_path / "a.parquet", [search_r1("nq", 0)] * 2), split="train")
    record = search_r1("nq", 0)
    del record["extra_info"]
    with pytest.raises(MissingDataError, match="extra_info"):
        load_rows(write_parquet(tmp_path / "b.parquet", [record]), split="train")
    empty = search_r1("nq", 0, reward_model={"style": "rule", "ground_truth": {"target": []}})
    with pytest.raises(MissingDataError, match="no gold answer"):
        load_rows(write_parquet(tmp_path / "c.parquet", [empty]), split="train")


def test_flashrag_lines(tmp_path: Path) -> None:
    folder = tmp_path / "bamboogle"
    folder.mkdir()
    path = folder / "test.jsonl"
    path.write_text(json.dumps({"id": "t1", "question": "Où?", "golden_answers": ["là"]}) + "\n\n")
    assert load_rows(str(path), split="test") == [Row("bamboogle", "t1", "Où?", ("là",))]
    path.write_text(json.dumps({"id": "t1", "question": "x"}) + "\n")
    with pytest.raises(MissingDataError, match="golden_answers"):
        load_rows(str(path), split="test")


@pytest.mark.parametrize("data", ["absent.parquet", "absent.jsonl", "nq"])
def test_absent_data_is_an_error(data: str) -> None:
    with pytest.raises(MissingDataError, match=data):
        load_rows(data, split="train")


def test_prompts() -> None:
    row = Row("nq", "0", " who wrote hamlet ", ("x",))
    assert render(row, style="search_r1").endswith("<answer> Beijing </answer>. Question: who wrote hamlet?\n")
    assert render(row, style="short") == "Question: who wrote hamlet?\n"

    class Chat:
        chat_template = "x"

        def apply_chat_template(self, turns: Any, **options: Any) -> str:
            return f"<user>{turns[0]['content']}<assistant>"

    assert render(row, style="short", tokenizer=Chat()) == "<user>Question: who wrote hamlet?\n<assistant>"
