"""Which signs agree: per-question measures of a checkpoint, set against the packaged small transformer's.

A sign is read from units: the questions of a probe here, the seeds or probed questions there. It is + or - when the
95 % Wilson interval of the share of positive units lies on one side of a half, else ? (open), and two signs agree,
differ or stay open. A unit is one question or one run, never a token; one within float32's rounding of 0 is none.
What this file does not do: compare sizes (two vocabularies, two optimisers), or correct for the number of rows.
"""

from __future__ import annotations

import csv
import gzip
import json
import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from importlib.resources import files
from typing import Any

from full_scale.config import FullConfig
from full_scale.data import Row
from full_scale.evaluate import wilson
from full_scale.protocol import Trajectory, decode
from full_scale.retriever.client import Search
from lldsim.diagnostics.statistics import Rate, finite_or_none

Measures = list[dict[str, float | None]]  # one row per question; None where a question has nothing to measure
ROUNDING = 1e-5  # float32 sums of a few dozen terms; two cosines of 1 differ by less
SIDES = ("correct", "wrong")
# Words, the two columns here, the two columns there; what is compared is the first less the second.
DIFFERENCES = (
    ("correct less wrong", ("logp_correct", "logp_wrong"), ("logp_correct", "logp_wrong")),
    ("correct, second less first action", *[("logp_correct_action2", "logp_correct_action1")] * 2),
    ("after a right document less first turn", ("after_good", "after_none"), ("logp_after_good", "logp_after_none")),
    ("after a wrong document less a right one", ("after_bad", "after_good"), ("logp_after_bad", "logp_after_good")),
    ("after an error less first turn", ("after_error", "after_none"), ("logp_after_error", "logp_after_none")),
)
# What is followed from the start to the end of an arm: the column here and there.
MOVES = {
    "reward": "reward",
    "logp_correct": "logp_correct",
    "logp_wrong": "logp_wrong",
    "logp_correct_action1": "logp_correct_action1",
    "logp_correct_action2": "logp_correct_action2",
    "after_good": "logp_after_good",
    "similarity_action1": "similarity_all",
}


def measure(
    config: FullConfig, model: Any, tokenizer: Any, search: Search, *, queries: int, make_sampler: Any
) -> Measures:
    """Return a row per question: the probe's, with log-probabilities per token by side, action and last feedback.

    `make_sampler` must give samplers that return the policy's own log-probabilities (PolicySampler). Questions whose
    responses are all right or all wrong have no displacement, G or similarity.
    """
    from full_scale.probe import probe

    seen: Measures = []

    def on_group(question: Row, group: Sequence[Trajectory], rewards: Sequence[float]) -> None:
        row = by_place(group, rewards, question.golds, tokenizer)
        seen.append({name: finite_or_none(value) for name, value in row.items()})

    rows, _ = probe(
        config, model, tokenizer, search, queries=queries, spread=True, make_sampler=make_sampler, on_group=on_group
    )
    for row in rows:
        seen[int(row["query"])] |= {name: finite_or_none(value) for name, value in row.items() if name != "query"}
    return seen


def by_place(
    group: Sequence[Trajectory],
    rewards: Sequence[float],
    golds: Sequence[str],
    tokenizer: Any,
) -> dict[str, float]:
    """Return mean log-probabilities per action token of one question's responses, NaN over nothing.

    `after_none` is the first action, `after_good` follows documents that hold a right answer, `after_bad` others,
    `after_error` the corrective message.
    """
    places: dict[str, list[float]] = defaultdict(list)
    for trajectory, reward in zip(group, rewards, strict=True):
        feedback: list[int] = []
        kind, last = "none", 0
        for token, number, logp in zip(trajectory.completion_ids, trajectory.action_id, trajectory.logps, strict=True):
            if number < 0:
                feedback.append(token)
                continue
            if number != last:
                kind, last = feedback_kind(trajectory.actions[last].kind, decode(tokenizer, feedback), golds), number
            feedback = []
            side = SIDES[not reward > 0]
            for name in (f"logp_{side}", f"logp_action{number + 1}", f"after_{kind}"):
                places[name].append(logp)
    names = [f"logp_{side}" for side in SIDES] + [f"logp_action{k}" for k in (1, 2, 3)]
    names += [f"after_{kind}" for kind in ("none", "good", "bad", "error")]
    found = {name: math.fsum(v) / len(v) if (v := places[name]) else math.nan for name in names}
    return {"reward": sum(rewards) / len(rewards)} | found


def feedback_kind(action: str, feedback: str, golds: Sequence[str]) -> str:
    """Return what an action answers: `error` after an invalid one, else whether the documents hold a right answer."""
    if action != "search":
        return "error"
    return "good" if any(gold.lower() in feedback.lower() for gold in golds) else "bad"


def share(values: Iterable[float | None]) -> Rate | None:
    """Return the share of positive units with its 95 % Wilson interval; None without a unit that has a sign."""
    known = [v for v in values if v is not None and not math.isnan(v) and abs(v) > ROUNDING]
    k = sum(v > 0 for v in known)
    return Rate(k, len(known), *wilson(k, len(known))) if known else None


def sign(rate: Rate | None) -> str:
    """Return + or - where the interval lies on one side of a half, else ?.

    >>> sign(Rate(9, 10, 0.6, 0.98)), sign(Rate(1, 10, 0.02, 0.4)), sign(Rate(5, 10, 0.24, 0.76)), sign(None)
    ('+', '-', '?', '?')
    """
    if rate is None or rate.low <= 0.5 <= rate.high:
        return "?"
    return "+" if rate.low > 0.5 else "-"


def compare(checkpoints: Mapping[str, Measures], rollouts: int) -> list[dict[str, Any]]:
    """Return one row per sign: its name, both shares of positive units, both signs, and whether they agree.

    `checkpoints` holds `start` and the arms; the small transformer is read after as many rollout batches (its probes,
    made every fifth, at the last one before).
    """
    runs, probes = small_runs(), small_probes()
    start = checkpoints["start"]
    everything = [row for rows in checkpoints.values() for row in rows]
    # G is minus the predicted change, the packaged `change_head` the change itself.
    against = [-x if x is not None else None for x in _same_sign(everything, "gwhes", "displacement")]
    alike = _column(start, "similarity_action1")
    pairs: list[tuple[str, Iterable[float | None], Iterable[float | None]]] = [
        ("start: D of Eq. 3", _column(start, "displacement"), _displaced(probes, "leak", 0)),
        ("all checkpoints: -G has the sign of D", against, _same_sign(probes, "change_head", "eq3_change")),
        ("start: cosine of right and wrong, first action", alike, runs("similarity_all")),
    ]
    for name, ours, theirs in DIFFERENCES:
        values = _less(runs(theirs[0]), runs(theirs[1]))
        pairs.append((f"start: ln pi, {name}", _less(*(_column(start, column) for column in ours)), values))
    for arm, condition in (("grpo", "leak"), ("llds", "llds")):
        if arm not in checkpoints:
            continue
        end = checkpoints[arm]
        pairs.append((f"{arm}: D of Eq. 3", _column(end, "displacement"), _displaced(probes, condition, rollouts)))
        for name, theirs in MOVES.items():
            moved = _less(runs(theirs, condition, rollouts), runs(theirs, condition, 0))
            pairs.append((f"{arm}: change of {name}", _less(_column(end, name), _column(start, name)), moved))
    return [_row(name, share(ours), share(theirs)) for name, ours, theirs in pairs]


def _row(name: str, ours: Rate | None, theirs: Rate | None) -> dict[str, Any]:
    signs = sign(ours), sign(theirs)
    agree = "open" if "?" in signs else "yes" if signs[0] == signs[1] else "no"
    ours_, small = (str(rate) if rate else "none" for rate in (ours, theirs))
    return {"sign": name, "ours": ours_, "small": small, "signs": list(signs), "agree": agree}


def table(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return the comparison as a Markdown table."""
    lines = ["| quantity: share of positive units | SmolLM2-135M | small transformer | agree |", "|---|---|---|---|"]
    for row in rows:
        ours, small = (f"{s} {rate}" for s, rate in zip(row["signs"], (row["ours"], row["small"]), strict=True))
        lines.append(f"| {row['sign']} | {ours} | {small} | {row['agree']} |")
    return "\n".join(lines)


def _column(rows: Sequence[Mapping[str, Any]], name: str) -> list[float | None]:
    return [row.get(name) for row in rows]


def _same_sign(rows: Sequence[Mapping[str, Any]], a: str, b: str) -> list[float | None]:
    """Return +1 where two columns have one sign and -1 where not, whatever their size; None where one is missing."""
    pairs = [(row.get(a), row.get(b)) for row in rows]
    return [None if not x or not y else math.copysign(1.0, x) * math.copysign(1.0, y) for x, y in pairs]


def _less(left: Iterable[float | None], right: Iterable[float | None]) -> list[float | None]:
    return [None if x is None or y is None else x - y for x, y in zip(left, right, strict=True)]


def small_probes() -> list[dict[str, Any]]:
    """Return the rows of the small transformer's packaged probes, None where a number is missing."""
    return json.loads((files("lldsim") / "transformer" / "probes.json").read_text())


def _displaced(probes: Sequence[Mapping[str, Any]], arm: str, rollouts: int) -> list[float]:
    """Return +1 per probed question whose likelihood rose and -1 per displaced one, from the packaged shares."""
    units: list[float] = []
    last = max(row["update"] for row in probes if row["update"] <= rollouts)
    for row in probes:
        if row["arm"] == arm and row["update"] == last and row["eq3_bare"] is not None:
            n = round(32 * row["graded_groups"])  # questions of a packaged probe
            k = round(n * row["eq3_bare"])
            units += [-1.0] * k + [1.0] * (n - k)
    return units


def small_runs() -> Any:
    """Return f(column, condition="leak", update=0): the packaged runs' values, one per seed, None where missing."""
    raw = (files("lldsim") / "transformer" / "study.csv.gz").read_bytes()
    rows = list(csv.DictReader(gzip.decompress(raw).decode().splitlines()))

    def at(column: str, condition: str = "leak", update: int = 0) -> list[float | None]:
        chosen = [row for row in rows if row["condition"] == condition and int(row["update"]) == update]
        return [float(row[column]) if row[column] else None for row in sorted(chosen, key=lambda r: int(r["seed"]))]

    return at
