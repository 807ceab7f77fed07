"""Style and saving.

Locked here: the same figure and the same numbers give the same bytes, without date, version or random ids, also
under a hostile matplotlibrc; a table's float format, its empty cells, and its three input forms; unequal columns,
NaN numbers and bad names are refused; colours are one per role and stay apart under colour blindness;
the first picture marks the alarm in every panel of its row, and no alarm where there was none.
"""

from __future__ import annotations

import itertools
import json
from pathlib import Path

import matplotlib as mpl
import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pytest
import torch
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure

from lldsim.errors import ConfigError, NonFiniteError, ShapeError
from lldsim.plots import PHASE_SHADE, ROLE, color, figure_size, save_figure, save_numbers, save_table, style, use_style
from lldsim.plots.hero import hero
from lldsim.record import RunRecord


def draw() -> Figure:
    fig, ((left, right), (low, drifting)) = plt.subplots(2, 2, figsize=figure_size("page"))
    steps = np.arange(50)
    left.plot(steps, np.exp(-steps / 20), color=color("grpo"), label=r"$\pi_\theta$")
    left.fill_between(steps, 0, 0.2, color=color("null"), clip_path=left.patch)
    left.legend()
    fig.colorbar(right.scatter(steps, np.sqrt(steps), c=steps), ax=right)
    # Without a fixed layout these two move the axes a little on every draw.
    low.annotate("text outside", (1.2, 0.5), xycoords="axes fraction")
    drifting.plot(1e6 + steps)
    return fig


@pytest.fixture(autouse=True)
def styled():
    with mpl.rc_context():
        use_style()
        yield
    plt.close("all")


def test_same_figure_gives_same_bytes(tmp_path: Path) -> None:
    fig = draw()
    first = save_figure(fig, "fig99_demo", out=tmp_path / "a", pdf=True)
    again = save_figure(fig, "fig99_demo", out=tmp_path / "b", pdf=True)
    redrawn = save_figure(draw(), "fig99_demo", out=tmp_path / "c", pdf=True)
    assert [path.name for path in first] == ["fig99_demo.png", "fig99_demo.svg", "fig99_demo.pdf"]
    for one, two, three in zip(first, again, redrawn, strict=True):
        assert one.read_bytes() == two.read_bytes() == three.read_bytes()


def test_files_carry_no_date_and_no_version(tmp_path: Path) -> None:
    for path in save_figure(draw(), "fig99_demo", out=tmp_path, pdf=True):
        content = path.read_bytes()
        assert b"Matplotlib" not in content
        assert b"CreationDate" not in content
        assert b"dc:date" not in content


def test_style_resets_what_a_user_has_set(tmp_path: Path) -> None:
    (clean,) = [path.read_bytes() for path in save_figure(draw(), "demo", out=tmp_path)[1:]]
    mpl.rcParams.update({"lines.linewidth": 9.0, "svg.hashsalt": "mine", "axes.facecolor": "yellow"})
    use_style()
    assert save_figure(draw(), "demo", out=tmp_path)[1].read_bytes() == clean


def test_style_context_restores() -> None:
    mpl.rcParams["lines.linewidth"] = 9.0
    with style.style_context():
        assert mpl.rcParams["lines.linewidth"] == style.RC["lines.linewidth"]
    assert mpl.rcParams["lines.linewidth"] == 9.0


def test_table_format_and_its_three_inputs(tmp_path: Path) -> None:
    columns = {"step": [1, 2], "reward": [1 / 3, float("nan")], "ok": [True, False], "note": ["a,b", None]}
    rows = [dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)]
    texts = [save_table(table, "demo", out=tmp_path).read_bytes() for table in (columns, rows, pd.DataFrame(columns))]
    assert texts[0] == b'step,reward,ok,note\n1,0.3333333333,true,"a,b"\n2,,false,\n'
    assert texts[1] == texts[0]
    assert texts[2] == texts[0]


def test_table_takes_arrays_and_tensors(tmp_path: Path) -> None:
    path = save_table({"x": np.arange(2), "y": torch.tensor([0.5, 1.5])}, "demo", out=tmp_path)
    assert path.relative_to(tmp_path).as_posix() == "data/demo.csv"
    assert path.read_text() == "x,y\n0,0.5\n1,1.5\n"


def test_table_refuses_unequal_columns_and_emptiness(tmp_path: Path) -> None:
    with pytest.raises(ShapeError, match=r"'a': 1, 'b': 2"):
        save_table({"a": [1], "b": [1, 2]}, "demo", out=tmp_path)
    with pytest.raises(ShapeError, match="row 1"):
        save_table([{"a": 1}, {"b": 1}], "demo", out=tmp_path)
    for empty in ({}, [], {"a": []}):
        with pytest.raises(ConfigError, match="empty"):
            save_table(empty, "demo", out=tmp_path)
    assert not (tmp_path / "data").exists()


def test_numbers_are_sorted_plain_and_rounded(tmp_path: Path) -> None:
    numbers = {"b": np.float64(0.1) + 0.2, "a": {"seeds": range(2), "t": torch.tensor([1, 2])}, "none": None, "ε": True}
    path = save_numbers(numbers, "demo", out=tmp_path)
    assert path.relative_to(tmp_path).as_posix() == "numbers/demo.json"
    assert json.loads(path.read_text()) == {"a": {"seeds": [0, 1], "t": [1, 2]}, "b": 0.3, "none": None, "ε": True}
    assert list(json.loads(path.read_text())) == ["a", "b", "none", "ε"]


def test_numbers_refuse_nan_and_paths_by_name(tmp_path: Path) -> None:
    with pytest.raises(NonFiniteError, match=r"demo\.arms\[1\]"):
        save_numbers({"arms": [1.0, float("inf")]}, "demo", out=tmp_path)
    with pytest.raises(ConfigError, match=r"demo\.where is a path"):
        save_numbers({"where": tmp_path}, "demo", out=tmp_path)
    with pytest.raises(ConfigError, match="type set"):
        save_numbers({"odd": {1}}, "demo", out=tmp_path)


@pytest.mark.parametrize("name", ["", "../up", "a b", "-x", "fig02.png"])
def test_names_that_are_no_file_names_are_refused(name: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="figure name"):
        save_table({"a": [1]}, name, out=tmp_path)


def test_unknown_role_and_width_are_refused_with_a_suggestion() -> None:
    with pytest.raises(ConfigError, match="did you mean 'grpo'"):
        color("grp0")
    with pytest.raises(ConfigError, match="did you mean 'column'"):
        figure_size("colum")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="positive"):
        figure_size("page", height_ratio=float("nan"))


def test_no_two_roles_share_a_colour() -> None:
    assert len({to_rgb(value) for value in ROLE.values()}) == len(ROLE)


# Machado, Oliveira & Fernandes (2009), severity 1.0, on linear RGB.
BLINDNESS = {
    "none": np.eye(3),
    "protan": np.array(
        [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]]
    ),
    "deutan": np.array(
        [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.011820, 0.042940, 0.968881]]
    ),
}


def lab(hex_color: str, blindness: str) -> np.ndarray:
    """CIELAB coordinates, (3,), of an sRGB colour as a reader with that blindness sees it."""
    srgb = np.array(to_rgb(hex_color))
    linear = np.where(srgb <= 0.04045, srgb / 12.92, ((srgb + 0.055) / 1.055) ** 2.4)
    seen = np.clip(BLINDNESS[blindness] @ linear, 0, 1)
    to_xyz = np.array([[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]])
    x, y, z = np.cbrt(np.maximum(to_xyz @ seen / np.array([0.9505, 1.0, 1.089]), 0.008856))
    return np.array([116 * y - 16, 500 * (x - y), 200 * (y - z)])


@pytest.mark.parametrize("blindness", BLINDNESS)
@pytest.mark.parametrize("family", ["ARM_COLORS", "OUTCOME_COLORS", "QUANTITY_COLORS"])
def test_roles_that_share_a_panel_stay_apart(family: str, blindness: str) -> None:
    for (one, a), (two, b) in itertools.combinations(getattr(style, family).items(), 2):
        assert np.linalg.norm(lab(a, blindness) - lab(b, blindness)) > 15, (one, two)


def test_phase_shades_darken_and_leave_curves_readable() -> None:
    lightness = [lab(shade, "none")[0] for shade in PHASE_SHADE.values()]
    assert list(PHASE_SHADE) == ["STAGNATION", "DECAY", "ACCELERATION", "COLLAPSED"]
    assert lightness == sorted(lightness, reverse=True)
    assert min(lightness) > 80


def test_hero_marks_the_alarm_and_shades_the_typical_run() -> None:
    rng = np.random.default_rng(0)
    updates = np.arange(60.0)
    healthy = {"update": updates, "reward": np.full(60, 0.9), "logp_correct": -0.1 + 0 * updates}
    sick = healthy | {
        "reward": np.where(updates < 40, 0.9, 0.0),
        "logp_correct": np.where(updates < 20, -0.1, -0.1 - 0.2 * (updates - 19)),
    }
    records = {
        name: [RunRecord(columns | {"grad_norm": rng.uniform(0.01, 0.02, 60)}, {"seed": 0}, "0", {}, "simulated")]
        for name, columns in {"grpo": sick, "llds": healthy}.items()
    }
    fig = hero({"first": records, "second": records}, {"first": 27.0, "second": None})
    above, below = fig.axes[:3], fig.axes[3:6]
    dotted = [[line for line in ax.lines if line.get_linestyle() == ":"] for ax in (*above, *below)]
    assert [len(lines) for lines in dotted] == [1, 1, 1, 0, 0, 0]
    assert {float(np.asarray(lines[0].get_xdata())[0]) for lines in dotted[:3]} == {27.0}
    assert [len(ax.patches) for ax in (*above, *below)] == [4] * 6  # three phases and the collapse
    with pytest.raises(KeyError, match="second"):
        hero({"first": records, "second": records}, {"first": 27.0})
