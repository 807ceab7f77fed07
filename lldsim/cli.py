"""The command `lldsim`: run one simulation, sweep a grid, draw figures, diagnose training logs.

Every configuration field is a flag (`--llds-coef`) and a YAML key (`llds_coef`); an unknown one is an error that
suggests the nearest. What this file does not do: compute; it parses, calls, and prints. Imports stay inside functions,
so that `lldsim --help` answers at once.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lldsim.config import PRESETS, FieldSpec, RunConfig, describe_type, field_specs, from_mapping, preset
from lldsim.errors import ConfigError, LldsimError, MissingDataError, suggest
from lldsim.transformer.config import (
    TRANSFORMER_PRESETS,
    TransformerConfig,
    transformer_fields,
    transformer_from_mapping,
)

if TYPE_CHECKING:
    from lldsim.record import RunRecord


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit status: 0 done, 1 a result failed, 2 bad input."""
    argv = list(sys.argv[1:] if argv is None else argv)
    if argv[:1] == ["figures"]:  # has flags of its own
        from lldsim.figures import main as figures_main

        return figures_main(argv[1:])
    if argv[:1] == ["diagnose"]:  # likewise
        return _diagnose(argv[1:])
    parser = _parser()
    try:
        if argv[:1] == ["causal"]:
            from lldsim.causal.command import main as causal_main

            return causal_main(argv[1:])
        known, unknown = parser.parse_known_args(argv)
        if unknown:
            raise ConfigError(f"unknown argument {unknown[0]!r}{_suggest_flag(unknown[0])}")
        if known.command is None:
            parser.print_help()
            return 0
        return {"run": _run, "sweep": _sweep, "presets": _presets}[known.command](known)
    except LldsimError as error:
        print(f"lldsim: {error}", file=sys.stderr)
        return 2


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="lldsim", description="See, verify and prevent lazy likelihood displacement in GRPO.", allow_abbrev=False
    )
    commands = parser.add_subparsers(dest="command", metavar="COMMAND")
    run = commands.add_parser("run", help="one simulation -> record.csv, record.json, record.png", allow_abbrev=False)
    run.add_argument("--preset", help=f"where to start: {', '.join([*PRESETS, *TRANSFORMER_PRESETS])} (default spiral)")
    run.add_argument("--config", type=Path, metavar="FILE.yaml", help="flat YAML of fields; flags win over it")
    run.add_argument("--out", type=Path, required=True, metavar="DIR", help="folder for the record, made if needed")
    run.add_argument("--engine", choices=("compiled", "plain"), default="compiled", help="plain = the loop to read")
    run.add_argument("--no-picture", action="store_true", help="skip record.png")
    fields = run.add_argument_group("configuration fields")
    own = run.add_argument_group("fields of transformer runs alone")
    for spec in _all_fields().values():
        shown = ",".join(map(str, spec.default)) if isinstance(spec.default, tuple) else spec.default
        text = f"{spec.part}: {describe_type(spec.type)} (default {str(shown).lower()})"
        (fields if spec.name in field_specs() else own).add_argument(
            _flag(spec.name), dest=f"field_{spec.name}", metavar="X", help=text
        )
    sweep = commands.add_parser("sweep", help="a grid of simulations -> runs.csv", allow_abbrev=False)
    sweep.add_argument("grid", type=Path, metavar="GRID.yaml", help="keys: preset, fixed, grid")
    sweep.add_argument("--out", type=Path, required=True, metavar="DIR")
    sweep.add_argument("--workers", type=int, default=1, help="single-thread processes (default 1)")
    sweep.add_argument("--backend", help="joblib backend for the workers: loky, dask, ray, ... (default: processes)")
    sweep.add_argument("--address", help="scheduler of the backend dask (default: a cluster on this machine)")
    commands.add_parser("presets", help="list the presets and what each is for")
    commands.add_parser("diagnose", help="look for the collapse in training logs, anyone's", add_help=False)
    commands.add_parser("causal", help="which ingredient makes it collapse, and what cures it", add_help=False)
    commands.add_parser("figures", help="regenerate figures; see `lldsim figures --help`", add_help=False)
    return parser


def _flag(name: str) -> str:
    return "--" + name.replace("_", "-")


def _all_fields() -> dict[str, FieldSpec]:
    """Return the fields of both kinds of run; one that both have is described as the toy's."""
    return transformer_fields() | field_specs()


def _suggest_flag(argument: str) -> str:
    flags = [_flag(name) for name in _all_fields()] + ["--preset", "--config", "--out", "--engine", "--no-picture"]
    return suggest(argument.split("=")[0], flags)


def _config(args: argparse.Namespace) -> RunConfig | TransformerConfig:
    """Return the configuration of a command line: preset, then file, then flags."""
    values: dict[str, Any] = {}
    if args.config is not None:
        values |= read_yaml(args.config)
    if args.preset is not None:
        values["preset"] = args.preset
    for name, spec in _all_fields().items():
        given = getattr(args, f"field_{name}")
        if given is not None:
            values[name] = spec.check(given)
    if values.get("preset") in TRANSFORMER_PRESETS:
        return transformer_from_mapping(values)
    if values.get("preset", "spiral") not in PRESETS:
        known = [*PRESETS, *TRANSFORMER_PRESETS]
        chosen = values["preset"]
        raise ConfigError(f"unknown preset {chosen!r}{suggest(str(chosen), known)}; known: {', '.join(known)}")
    return from_mapping(values, base=preset("spiral"))


def read_yaml(path: Path) -> dict[str, Any]:
    """Return a flat YAML mapping; ConfigError says what is wrong with it."""
    import yaml

    if not path.is_file():
        raise MissingDataError(f"{path} does not exist; give the path of a YAML file with configuration fields")
    try:
        content = yaml.safe_load(path.read_text())
    except yaml.YAMLError as error:
        raise ConfigError(f"{path} is no YAML: {error}") from None
    if not isinstance(content, dict):
        raise ConfigError(f"{path} holds a {type(content).__name__}; write one `field: value` per line")
    return {str(key): value for key, value in content.items()}


def _run(args: argparse.Namespace) -> int:
    config = _config(args)
    from tqdm import tqdm

    from lldsim.record import COLUMNS

    columns = COLUMNS
    if isinstance(config, TransformerConfig):
        from lldsim.transformer.measures import TRANSFORMER_COLUMNS as columns

        record = _run_transformer(config)
    elif args.engine == "plain":
        from lldsim.trainer import train

        print(f"{config.trainer.updates} updates with the plain loop: about {config.trainer.updates * 0.1:.0f} s")
        record = train(config)
    else:
        from lldsim.engine import simulate, warm_up

        print("loading the compiled kernels (the first time after installation takes about 20 s)")
        warm_up(config.trainer.dtype)
        with tqdm(total=config.trainer.updates, unit="update", disable=None) as bar:
            record = simulate(config, on_update=lambda done: advance(bar, done))
    record.save(args.out, descriptions=columns)
    if not args.no_picture:
        from lldsim.plots.panels import draw_record

        draw_record(record, args.out / "record.png")
    print(_verdict(record), f"-> {args.out}")
    return 0


def _run_transformer(config: TransformerConfig) -> RunRecord:
    import torch
    from tqdm import tqdm

    from lldsim.transformer.train import train

    torch.set_num_threads(1)  # matrices this small are no faster on two, and their sums then keep their order
    print(f"at most {config.trainer.updates} updates, about {config.trainer.updates * 0.5:.0f} s on one free core")
    with tqdm(total=config.trainer.updates, unit="update", disable=None) as bar:
        return train(config, on_update=lambda state: advance(bar, state.update))


def advance(bar: Any, done: int) -> None:
    """Move a progress bar to `done`."""
    bar.update(done - bar.n)


def _verdict(record: Any) -> str:
    from lldsim.diagnostics.collapse import kept_share
    from lldsim.diagnostics.phases import find_phases

    phases = find_phases(record)
    named = [f"{phase.name.lower()} from {start}" for phase, start, _ in phases.spans()]
    outcome = "no collapse" if phases.collapsed is None else f"collapsed at update {phases.collapsed}"
    return f"{outcome}; kept {kept_share(record['reward']):.0%} of its peak reward; {', '.join(named)}"


def _sweep(args: argparse.Namespace) -> int:
    from lldsim.progress import Progress, duration
    from lldsim.sweep import load_grid, run_all, summary_rows

    configs = load_grid(args.grid)
    updates = sum(c.trainer.updates for c in set(configs))
    print(f"{len(configs)} runs, about {duration(updates * 0.006 / max(args.workers, 1))} when none is cached")
    with Progress("sweep", say=print) as on_done:
        records = run_all(configs, workers=args.workers, backend=args.backend, address=args.address, on_done=on_done)
    args.out.mkdir(parents=True, exist_ok=True)
    rows = list(summary_rows(configs, records))
    import csv

    with (args.out / "runs.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, rows[0], lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
    collapsed = sum(row["collapse_step"] != "" for row in rows)
    print(f"{collapsed} of {len(rows)} runs collapsed -> {args.out / 'runs.csv'}")
    return 0


def _diagnose(argv: Sequence[str]) -> int:
    from lldsim.monitor.command import main as monitor_main
    from lldsim.plots.monitor_report import draw_diagnosis

    return monitor_main(argv, draw=draw_diagnosis)


def _presets(args: argparse.Namespace) -> int:
    for name, (_, what_for) in (PRESETS | TRANSFORMER_PRESETS).items():
        print(f"{name:20}{what_for}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
