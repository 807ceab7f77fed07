"""Questions as rows: FactWorld, Search-R1's parquet files, FlashRAG's JSON lines.

The group key of a row is (source, index): Search-R1's row index restarts in every source, so the index alone would put
two questions into one group. What this file does not do: download; it reads files that are there.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from full_scale.protocol import PROMPT, SHORT_PROMPT
from lldsim.errors import MissingDataError


@dataclass(frozen=True)
class Row:
    """One question with its gold answers; (source, index) is its identity and its group key."""

    source: str
    index: str
    question: str
    golds: tuple[str, ...]


def load_rows(data: str, *, split: str, hops: Sequence[int] = (1, 2, 3)) -> list[Row]:
    """Return the rows of "factworld", a .parquet file of Search-R1 or a .jsonl file of FlashRAG.

    Raises MissingDataError for an absent file, a missing column, an empty set or a row without gold answer.
    """
    if data == "factworld":
        from full_scale.factworld import build_factworld

        questions = build_factworld().select(split, hops)
        rows = [Row(f"factworld-{q.hops}hop", q.id, q.question, q.answers) for q in questions]
    elif data.endswith(".parquet"):
        rows = [_search_r1(record, number, data) for number, record in enumerate(_parquet(data))]
    elif data.endswith(".jsonl"):
        rows = [_flashrag(record, number, data) for number, record in enumerate(_json_lines(data))]
    else:
        raise MissingDataError(f"data {data!r}: give 'factworld', a .parquet file (Search-R1) or a .jsonl (FlashRAG)")
    if not rows:
        raise MissingDataError(f"{data} has no question in split {split!r} with hops {tuple(hops)}")
    seen: set[tuple[str, str]] = set()
    for row in rows:
        if (row.source, row.index) in seen:
            raise MissingDataError(f"{data}: ({row.source}, {row.index}) occurs twice, so two questions share a group")
        seen.add((row.source, row.index))
    return rows


def render(row: Row, *, style: str, tokenizer: Any | None = None) -> str:
    """Return the prompt text of a row; with a tokenizer that has a chat template, as its user turn.

    Search-R1 adds a question mark where a question has none; so does this.
    """
    question = row.question.strip()
    question = question if question.endswith("?") else question + "?"
    text = (SHORT_PROMPT if style == "short" else PROMPT).format(question=question)
    if tokenizer is None or not getattr(tokenizer, "chat_template", None):
        return text
    turns = [{"role": "user", "content": text}]
    return tokenizer.apply_chat_template(turns, tokenize=False, add_generation_prompt=True)


def _search_r1(record: dict[str, Any], number: int, data: str) -> Row:
    try:
        truth = record["reward_model"]["ground_truth"]["target"]
        source, index = record["data_source"], record["extra_info"]["index"]
        question = record.get("question") or record["prompt"][0]["content"].rsplit("Question:", 1)[1]
    except (KeyError, TypeError, IndexError) as error:
        raise MissingDataError(f"{data} row {number} lacks {error}; expected Search-R1's columns") from None
    return Row(str(source), str(index), str(question).strip(), _golds(truth, number, data))


def _flashrag(record: dict[str, Any], number: int, data: str) -> Row:
    try:
        question, truth = record["question"], record["golden_answers"]
    except KeyError as error:
        raise MissingDataError(f"{data} row {number} lacks {error}; expected FlashRAG's columns") from None
    source = str(record.get("data_source") or Path(data).parent.name or Path(data).stem)
    return Row(source, str(record.get("id", number)), str(question), _golds(truth, number, data))


def _golds(truth: Any, number: int, data: str) -> tuple[str, ...]:
    golds = (truth,) if isinstance(truth, str) else tuple(str(x) for x in truth) if truth is not None else ()
    if not golds:
        raise MissingDataError(f"{data} row {number} has no gold answer")
    return golds


def _existing(data: str) -> Path:
    path = Path(data)
    if not path.is_file():
        raise MissingDataError(f"{data} does not exist; Search-R1's scripts/nq_hotpotqa makes it, or use 'factworld'")
    return path


def _parquet(data: str) -> list[dict[str, Any]]:
    path = _existing(data)
    import pyarrow.parquet as parquet  # pyright: ignore[reportMissingImports]

    return parquet.read_table(path).to_pylist()


def _json_lines(data: str) -> list[dict[str, Any]]:
    with _existing(data).open(encoding="utf-8") as file:
        return [json.loads(line) for line in file if line.strip()]
