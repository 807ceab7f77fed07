"""Read a figure notebook and check its parameters before anything runs.

A figure notebook has one cell tagged `parameters` that holds only `NAME = literal` lines. papermill only warns
about a misspelt parameter and never looks at types; here a misspelt name, a wrong type, and a parameter that no
later cell reads are errors.
What this file does not do: execute a notebook. It reads plain JSON, so listing figures needs no Jupyter.
"""

from __future__ import annotations

import ast
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lldsim.errors import ConfigError, suggest

HERO = "fig00_hero"  # first, because a reader who stops early should have seen this one
RESERVED = {"FAST": "--fast", "OUT": "--out"}  # declared by every figure notebook, set by the runner alone


@dataclass(frozen=True)
class FigureSpec:
    """A figure notebook as found on disk: declared parameters, expected seconds and the sources of its cells."""

    name: str
    path: Path
    parameters: dict[str, Any]
    expected_seconds: dict[str, float]  # keys "fast" and "full"; empty where the notebook does not say
    cells: tuple[str, ...]


def figure_order(name: str) -> tuple[bool, str]:
    """Return the sort key of a figure's name: the hero first, then by name."""
    return name != HERO, name


def discover_figures(root: str | Path) -> list[FigureSpec]:
    """Return every notebook `figNN_*` (the paper's figures, also `figNNx_*`) and `figxN_*` (tables, ours), hero first.

    Raises ConfigError for a notebook without a well-formed `parameters` cell or with a parameter that is not read.
    """
    specs = [_read_notebook(path) for path in sorted(Path(root).glob("notebooks/figures/fig[0-9a-z][0-9]*_*.ipynb"))]
    return sorted(specs, key=lambda spec: figure_order(spec.name))


def select_figures(specs: Sequence[FigureSpec], names: Sequence[str]) -> list[FigureSpec]:
    """Return the specs called `names`, each a full name or its `figNN`; all of them for no names.

    Raises ConfigError for a name that matches none.
    """
    known = {spec.name: spec for spec in specs}
    short = {spec.name.split("_")[0]: spec.name for spec in specs}
    for name in names:
        if short.get(name, name) not in known:
            raise ConfigError(f"no figure {name!r}{suggest(name, [*known, *short])}; there are {', '.join(known)}")
    wanted = {short.get(name, name) for name in names}
    return [spec for spec in specs if not names or spec.name in wanted]


def check_parameters(spec: FigureSpec, overrides: Mapping[str, Any]) -> dict[str, Any]:
    """Return the notebook's parameters with `overrides` applied, after checking names and types.

    An override must have the type of the declared default; an int is taken for a float, a bool never for an int,
    text is read as a Python literal where the default is not text. A default of None takes any literal.
    Raises ConfigError for an unknown name, a reserved one, or a wrong type.
    """
    effective = dict(spec.parameters)
    for name, value in overrides.items():
        if name in RESERVED:
            raise ConfigError(f"{name} is set by {RESERVED[name]}, not by an override")
        if name not in spec.parameters:
            known = [known for known in spec.parameters if known not in RESERVED]
            raise ConfigError(
                f"{spec.name} has no parameter {name!r}{suggest(name, known)}; it has {', '.join(known) or 'none'}"
            )
        effective[name] = _typed(value, like=spec.parameters[name], where=f"{spec.name}: {name}")
    return effective


def _read_notebook(path: Path) -> FigureSpec:
    notebook = json.loads(path.read_text(encoding="utf-8"))
    cells = [
        (_source(cell), cell["metadata"].get("tags", [])) for cell in notebook["cells"] if cell["cell_type"] == "code"
    ]
    tagged = [index for index, (_, tags) in enumerate(cells) if "parameters" in tags]
    if len(tagged) != 1:
        raise ConfigError(f"{path.name}: {len(tagged)} cells are tagged 'parameters', need exactly one")
    parameters = _declared(cells[tagged[0]][0], where=path.name)
    if missing := RESERVED.keys() - parameters.keys():
        raise ConfigError(f"{path.name}: its parameters cell must declare {', '.join(sorted(missing))}")
    _check_each_is_read(parameters, [source for source, _ in cells[tagged[0] + 1 :]], where=path.name)
    expected = notebook["metadata"].get("lldsim", {}).get("expected_seconds", {})
    return FigureSpec(path.stem, path, parameters, expected, tuple(source for source, _ in cells))


def _source(cell: Mapping[str, Any]) -> str:
    return cell["source"] if isinstance(cell["source"], str) else "".join(cell["source"])


def _parse(source: str, *, where: str) -> ast.Module:
    lines = ["pass" if line.startswith(("%", "!")) else line for line in source.splitlines()]
    try:
        return ast.parse("\n".join(lines))
    except SyntaxError as error:
        raise ConfigError(f"{where}: a cell does not parse: {error}") from error


def _declared(source: str, *, where: str) -> dict[str, Any]:
    parameters: dict[str, Any] = {}
    for statement in _parse(source, where=where).body:
        match statement:
            case ast.Assign(targets=[ast.Name(id=name)], value=value):
                pass
            case ast.AnnAssign(target=ast.Name(id=name), value=ast.expr() as value):
                pass
            case _:
                raise ConfigError(f"{where}: line {statement.lineno} of the parameters cell is not NAME = literal")
        try:
            parameters[name] = ast.literal_eval(value)
        except ValueError as error:
            raise ConfigError(f"{where}: parameter {name} must be a literal, not an expression") from error
    return parameters


def _check_each_is_read(parameters: Mapping[str, Any], cells: Sequence[str], *, where: str) -> None:
    statements = [statement for cell in cells for statement in _parse(cell, where=where).body]
    names = [[node for node in ast.walk(statement) if isinstance(node, ast.Name)] for statement in statements]
    for parameter in parameters:
        # The first statement that mentions it decides: reading it is use, storing over it throws the value away.
        contexts = [[type(node.ctx) for node in found if node.id == parameter] for found in names]
        first = next((mentioned for mentioned in contexts if mentioned), None)
        if first is None:
            raise ConfigError(f"{where}: parameter {parameter} is declared, but no later cell reads it")
        if ast.Load not in first:
            raise ConfigError(f"{where}: parameter {parameter} is overwritten before any cell reads it")


def _typed(value: Any, *, like: Any, where: str) -> Any:
    if isinstance(value, str) and (not isinstance(like, str) or value[:1] in ("'", '"')):
        try:
            value = ast.literal_eval(value)
        except (ValueError, SyntaxError) as error:
            raise ConfigError(f"{where} needs {_kind(like)}, got {value!r}") from error
    if like is None:
        return value
    if type(like) is float and type(value) is int:
        return float(value)
    if type(value) is not type(like):
        raise ConfigError(f"{where} needs {_kind(like)} as in its default {like!r}, got {_kind(value)} {value!r}")
    if isinstance(like, list | tuple) and like:
        items = [_typed(item, like=like[0], where=f"{where}[{index}]") for index, item in enumerate(value)]
        return type(like)(items)
    return value


def _kind(value: Any) -> str:
    return "a literal" if value is None else type(value).__name__
