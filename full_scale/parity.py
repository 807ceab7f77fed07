"""`python -m full_scale.parity [--out DIR]`: do all engines compute the same loss? One batch, one answer, one table.

Two kinds of comparison, value and gradient, in float64: with the outputs of the authors' released code (GRPO, GSPO and
LLDS on its own batches), and with lldsim's total loss on a batch of ours under every combination of surrogate,
aggregation, gate, normaliser and answer weight, in 1, 2 and 4 micro-batches. Writes parity.json and parity.csv; status
1 if a difference is above the tolerance. An engine that is not installed is left out and named.
What this file does not do: train, or look at speed.
"""

from __future__ import annotations

import argparse
import csv
import importlib.util
import itertools
import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from full_scale.parity_engines import ENGINES, PACKAGES, Case, Engine, Result
from lldsim.config import ObjectiveConfig
from lldsim.errors import MissingDataError
from lldsim.record import versions

GOLDEN = Path(__file__).resolve().parents[1] / "tests" / "golden" / "released_code_outputs.json"
# Rounding is 1e-16; the released code adds 1e-8 to the tokens of a response in its sequence means, which makes 1e-9.
TOLERANCE = 1e-8
MICRO_BATCHES = (1, 2, 4)
PLAIN = ObjectiveConfig(kl_coef=0.0, entropy_coef=0.0)


@dataclass(frozen=True)
class Row:
    """Largest differences of one engine from a reference over a family of cases."""

    reference: str
    engine: str
    family: str
    micro_batches: int
    cases: int
    value: float
    gradient: float


def available() -> dict[str, Engine]:
    """Return the engines whose packages are installed; looks, but does not import."""
    return {n: e for n, e in ENGINES.items() if all(importlib.util.find_spec(p) for p in PACKAGES[n])}


def golden_cases(path: Path = GOLDEN) -> Iterator[tuple[str, Case, Result]]:
    """Yield (family, case, released value and gradient); LLDS cases hold the penalty times lambda alone.

    Left out are the five cases with a fixed answer coefficient below lambda: the engines' rules have no such setting.
    """
    if not path.is_file():
        raise MissingDataError(f"{path} does not exist; it lies in the repository's tests, not in the package")
    golden = json.loads(path.read_text())
    for number, item in enumerate(golden["surrogates"]):
        for kind, mode in (("grpo", "token-mean"), ("gspo", "seq-mean-token-mean")):
            objective = ObjectiveConfig(
                surrogate=kind,  # pyright: ignore[reportArgumentType]
                aggregation=mode,  # pyright: ignore[reportArgumentType]
                clip_eps=item["clip_eps"],
                kl_coef=0.0,
                entropy_coef=0.0,
            )
            yield kind.upper(), _golden_case(f"{kind} {number}", item, objective), _released(item[kind])
    for item in golden["llds"]:
        s = item["settings"]
        if "answer_mask" in s and not s.get("adaptive"):
            continue
        objective = ObjectiveConfig(
            kl_coef=0.0,
            entropy_coef=0.0,
            llds_coef=s["lam"],
            gate="action" if s["chunk"] else "response",
            normalizer="all",
            answer_weight_rule="released" if s.get("adaptive") else "fixed",
        )
        case = _golden_case(item["name"], item, objective, answers=s.get("answer_mask"), searches=s.get("valid_search"))
        yield f"LLDS, {objective.gate} gate{', answer weight' if 'answer_mask' in s else ''}", case, _released(item)


def _golden_case(
    name: str, item: Any, objective: ObjectiveConfig, *, answers: Any = None, searches: Any = None
) -> Case:
    mask = _double(item["action_mask"]).bool()
    per_token = _double(item["advantages"])
    # The released code repeats a response's advantage on its tokens and 0 elsewhere.
    advantages = torch.where(mask.any(1), per_token.sum(1) / mask.sum(1).clamp(min=1), 0.0)
    where = None if answers is None else (_double(answers) == 0)
    return Case(
        name, _double(item["logps"]), _double(item["old_logps"]), advantages, mask, objective, None, where, searches
    )


def _released(item: Any) -> Result:
    return item["loss"], _double(item["grad_logps"])


def _double(values: Any) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64)


def our_cases(generator: torch.Generator) -> Iterator[tuple[str, Case]]:
    """Yield (family, case) on one batch of eight responses: uneven actions, a tied group, answers, a reference."""
    rows, width = 8, 24
    logps = -torch.rand(rows, width, generator=generator, dtype=torch.float64) * 3
    old = logps + 0.4 * torch.randn(rows, width, generator=generator, dtype=torch.float64)
    ref = logps + 0.3 * torch.randn(rows, width, generator=generator, dtype=torch.float64)
    mask = torch.zeros(rows, width, dtype=torch.bool)
    answers = torch.zeros_like(mask)
    for row in range(rows):
        place = 0
        for turn in range(1 + row % 3):
            length = 2 + (3 * row + turn) % 5
            mask[row, place : place + length] = True
            answers[row] = False
            answers[row, place + 1 : place + length] = True
            place += length + 2
    advantages = _double([1.2, -0.7, 0.9, 0.0, -1.1, 0.4, -0.2, 0.0])
    weights = {"": {}, ", answer weight": {"answer_weight_rule": "paper"}}
    surrogates = (("grpo", "token-mean"), ("grpo", "seq-mean-token-mean"), ("gspo", "seq-mean-token-mean"))
    combinations = itertools.product(surrogates, ("action", "response", "token"), ("preserving", "all"), weights)
    for (kind, mode), gate, normalizer, weight in combinations:
        objective = ObjectiveConfig(
            surrogate=kind,  # pyright: ignore[reportArgumentType]
            aggregation=mode,  # pyright: ignore[reportArgumentType]
            gate=gate,  # pyright: ignore[reportArgumentType]
            normalizer=normalizer,  # pyright: ignore[reportArgumentType]
            llds_coef=0.2,
            kl_coef=0.001,
            entropy_coef=0.0,
            dual_clip=3.0 if kind == "grpo" else None,  # verl's GSPO has none
            **weights[weight],
        )
        searches = 1.4 if weight else None
        case = Case(
            f"{kind} {mode} {gate} {normalizer}{weight}",
            *(logps, old, advantages, mask, objective, ref, answers if weight else None, searches),
        )
        yield f"{kind.upper()} + KL + LLDS, {gate} gate{weight}", case


def difference(found: Result, wanted: Result) -> tuple[float, float]:
    """Return the absolute difference of the values and the largest one of the gradients."""
    return abs(found[0] - wanted[0]), (found[1] - wanted[1]).abs().max().item()


def penalty_alone(engine: Engine, case: Case, micro_batches: int) -> Result:
    """Return what LLDS adds to the loss: the total less the total with coefficient 0."""
    plain = case.with_objective(llds_coef=0.0, answer_weight_rule="fixed")
    (with_value, with_gradient), (value, gradient) = engine(case, micro_batches), engine(plain, micro_batches)
    return with_value - value, with_gradient - gradient


def compare(engines: dict[str, Engine], generator: torch.Generator) -> list[Row]:
    """Return all rows of the table."""
    found: dict[tuple[str, str, str, int], list[tuple[float, float]]] = {}
    for family, case, released in golden_cases():
        for name, engine in engines.items():
            value = penalty_alone(engine, case, 1) if case.objective.llds_coef else engine(case, 1)
            found.setdefault(("released code", name, family, 1), []).append(difference(value, released))
    for family, case in our_cases(generator):
        wanted = ENGINES["ours"](case, 1)
        for name, engine in engines.items():
            for parts in MICRO_BATCHES if name != "ours" else ():
                found.setdefault(("ours", name, family, parts), []).append(difference(engine(case, parts), wanted))
    return [
        Row(*key, len(pairs), max(value for value, _ in pairs), max(gradient for _, gradient in pairs))
        for key, pairs in found.items()
    ]


def write(rows: Sequence[Row], out: Path, *, missing: Sequence[str]) -> None:
    """Write parity.json and parity.csv."""
    out.mkdir(parents=True, exist_ok=True)
    packages = {p for names in PACKAGES.values() for p in names}
    stamp = versions() | {p: _version(p) for p in sorted(packages | {"tensordict"})}
    table = [asdict(row) for row in rows]
    content = {"label": "measured", "dtype": "float64", "tolerance": TOLERANCE, "versions": stamp}
    content |= {"engines_missing": list(missing), "rows": table}
    (out / "parity.json").write_text(json.dumps(content, indent=1) + "\n")
    with (out / "parity.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, list(table[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(table)


def _version(package: str) -> str | None:
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version(package)
    except PackageNotFoundError:
        return None


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit status."""
    parser = argparse.ArgumentParser(prog="python -m full_scale.parity", description="Compare the engines' losses.")
    parser.add_argument("--out", default="build/parity")
    args = parser.parse_args(argv)
    torch.set_num_threads(1)
    engines = available()
    missing = [name for name in ENGINES if name not in engines]
    rows = compare(engines, torch.Generator().manual_seed(0))
    write(rows, Path(args.out), missing=missing)
    for reference, engine in dict.fromkeys((row.reference, row.engine) for row in rows):
        chosen = [row for row in rows if (row.reference, row.engine) == (reference, engine)]
        value, gradient = max(row.value for row in chosen), max(row.gradient for row in chosen)
        cases = sum(row.cases for row in chosen)
        print(f"{engine:<5}against {reference:<14}{cases:>4} cases, largest difference: ", end="")
        print(f"value {value:.1e}, gradient {gradient:.1e}")
    for name in missing:
        print(f"{name} is not installed: left out")
    return int(any(max(row.value, row.gradient) > TOLERANCE for row in rows))


if __name__ == "__main__":
    raise SystemExit(main())
