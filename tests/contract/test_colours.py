"""A method has one colour, in reports, in the figures of an experiment, on label sets and in the app."""

from __future__ import annotations

import re
import runpy
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pprs.app.cards import style_fill, style_methods
from pprs.app.server.serve import STYLE
from pprs.label_sets.figures import HATCHES, plot_radii, plot_sizes
from pprs.partition import PARTITIONS, parse_partition
from pprs.patches import FILLS as FILL_NAMES
from pprs.report.colours import BLACK, BLUE, COLOURS, DASHES, FILLS, METHODS, Style, choose_styles, name_method, to_css
from pprs.report.figures import MARKERS, plot_tuning
from pprs.reproduction import charts, read_plan
from pprs.reproduction.plan import Line

RESULTS = Path(__file__).resolve().parents[2] / "docs" / "results"
WHITE, DARK = "#FFFFFF", "#27272A"  # the pages that text is on
TEXTS = {"none": "none", "slic": "slic:n_segments=9", "blur": "blur:size=5", "shifts": "slic/soft/shifts:k=4"}


def luminance(colour: str) -> float:
    """As WCAG 2 defines it."""
    channels = np.array([int(colour[i : i + 2], 16) for i in (1, 3, 5)]) / 255
    linear = np.where(channels <= 0.03928, channels / 12.92, ((channels + 0.055) / 1.055) ** 2.4)
    return float(linear @ [0.2126, 0.7152, 0.0722])


def contrast(one: str, other: str) -> float:
    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


def test_every_method_has_a_colour_and_plain_smoothing_the_first() -> None:
    assert METHODS.keys() == {*PARTITIONS, "none", "mean"}
    assert FILLS.keys() == FILL_NAMES.keys()
    assert METHODS["none"] is BLACK is COLOURS[0]
    assert [name for name, colour in METHODS.items() if colour is BLACK] == ["none"]
    for name in METHODS:
        assert METHODS.get(f"{name}1d", METHODS[name]) is METHODS[name]
    assert {*METHODS.values(), *FILLS.values()} == {*COLOURS}


def test_colours_differ_and_text_in_them_is_legible() -> None:
    for kind in ("name", "figure", "text", "dark"):
        assert len({getattr(colour, kind) for colour in COLOURS}) == len(COLOURS)
    for colour in COLOURS:
        assert contrast(colour.text, WHITE) >= 4.5, colour
        assert contrast(colour.dark, DARK) >= 4.5, colour


@pytest.mark.parametrize("name", METHODS)
def test_a_method_looks_the_same_in_every_company(name: str) -> None:
    others = [other for other in METHODS if METHODS[other] is not METHODS[name]]
    assert choose_styles([*others, name, None])[-2] == choose_styles([name])[0] == Style(METHODS[name])


def test_runs_of_one_method_are_told_apart() -> None:
    many = choose_styles(["slic"] * 20 + [None, "own"])
    assert len({*many}) == len(many)
    assert [style.dashes for style in many[:4]] == list(DASHES)
    assert {style.colour for style in many[:4]} == {BLUE}
    assert len({MARKERS[dashes] for dashes in DASHES}) == len({HATCHES[dashes] for dashes in DASHES}) == len(DASHES)
    assert choose_styles(["soft", "own", "own"])[1:] == [Style(BLUE), Style(BLUE, "--")]


def test_the_style_sheet_of_the_app_knows_the_colours() -> None:
    light, dark = to_css().splitlines()
    for colour in COLOURS:
        assert f" --method-{colour.name}: {colour.figure}; --text-{colour.name}: {colour.text};" in light
        assert f" --method-{colour.name}: {colour.dark}; --text-{colour.name}: {colour.dark};" in dark
    cards = [*style_methods(parse_partition(text) for text in TEXTS.values()), *map(style_fill, FILL_NAMES)]
    for card, colour in zip(cards, [*(METHODS[name] for name in TEXTS), *FILLS.values()], strict=True):
        assert card[:3] == (f"var(--method-{colour.name})", f"var(--text-{colour.name})", "solid")
    rules = STYLE.read_text(encoding="utf-8")
    assert "--method-" not in rules
    assert {*re.findall(r"var\(--(\w+)\)", rules)} <= {"c", "text", "border"}


def colours_of(axes: Any) -> list[str]:
    return [line.get_color() for line in axes.get_lines()]


def test_a_method_has_the_same_colour_in_every_figure() -> None:
    expected = {name: choose_styles([name])[0].colour.figure for name in TEXTS}
    plan = read_plan()
    assert charts._colour(plan, Line("rs")) == expected["none"]
    assert charts._colour(plan, Line("slic")) == charts._colour(plan, Line("slic-150")) == expected["slic"]
    assert charts._colour(plan, Line("slic:n_segments={}", value=50)) == expected["slic"]
    assert charts._colour(plan, Line("shifted")) == charts._colour(plan, Line("shifted1d")) == expected["shifts"]

    script = runpy.run_path(str(RESULTS / "label_sets.py"))
    evaluations = script["read"](script["STORED"])[::-1]
    names = [name_method(evaluation.settings.partition_text) for evaluation in evaluations]
    assert names == ["shifts", "slic", "blur", "none"]
    sizes, _ = plot_radii(evaluations).axes
    assert colours_of(sizes) == [expected[str(name)] for name in names]
    bars = [container[0] for container in plot_sizes([*evaluations, evaluations[0]]).axes[0].containers]
    assert [bar.get_hatch() or "" for bar in bars] == ["", "", "", "", "//"]

    points = [("superpixels", 1.0, 0.5, 0.1), ("blur", 1.0, 0.4, 0.1), ("none", 1.0, 0.3, 0.1)]
    drawn = colours_of(plot_tuning(points, [], "gaussian").axes[0])
    assert drawn == [BLUE.figure, expected["blur"], expected["none"]]
