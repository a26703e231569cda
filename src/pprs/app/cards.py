"""Cards: what a tab shows of each method, side by side. All tabs share them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy.typing as npt

from pprs.app.render import render
from pprs.partition import Partition
from pprs.report.colours import FILLS, Style, choose_styles, name_method

BORDERS = {"-": "solid", "--": "dashed", ":": "dotted", "-.": "double"}  # of cards, by the dashes of a curve
STROKES = {"-": "none", "--": "8 5", ":": "2 4", "-.": "9 4 2 4"}  # of curves
Array = npt.NDArray[Any]


class CardStyle(NamedTuple):
    """What the card of a method and its curve look like, in CSS."""

    colour: str = "var(--body-text-color)"
    text: str = "var(--body-text-color)"
    border: str = "solid"
    stroke: str = "none"

    @classmethod
    def of(cls, style: Style) -> CardStyle:
        """Return the style that figures have, as a page shows it."""
        name = style.colour.name
        return cls(f"var(--method-{name})", f"var(--text-{name})", BORDERS[style.dashes], STROKES[style.dashes])


NEUTRAL = CardStyle()


def style_methods(partitions: Iterable[Partition | None]) -> list[CardStyle]:
    """Return the styles of methods with these partitions, as in every figure."""
    names = [name_method(str(partition or "none")) for partition in partitions]
    return [CardStyle.of(style) for style in choose_styles(names)]


def style_fill(fill: str) -> CardStyle:
    """Return the style of a fill of masks."""
    return CardStyle.of(choose_styles([fill.partition(":")[0]], FILLS)[0])


class Tile(NamedTuple):
    """An image with a caption."""

    caption: str
    image: Array  # [H, W, 3] in [0, 1]
    tip: str = ""  # explains a number in the caption


class Number(NamedTuple):
    """A number with its unit, a tip that explains it, and unrounded values as data attributes."""

    text: str
    unit: str
    tip: str
    data: dict[str, object] = {}  # noqa: RUF012  # never changed


Words = Sequence[str | Number]  # a text with numbers in it


class VoteBar(NamedTuple):
    """The votes for one class."""

    name: str
    share: float
    number: Number
    selected: bool


@dataclass(frozen=True)
class TabCard:
    """What is shown of one method. Whatever is empty is left out."""

    name: str
    detail: str = ""  # such as its partition
    style: CardStyle = NEUTRAL
    id: str = ""
    data: dict[str, object] = field(default_factory=dict)
    headline: Words = ()
    statement: Words = ()
    proved: bool = True  # whether the statement proves anything
    tiles: Sequence[Tile] = ()
    bars: Sequence[VoteBar] | None = None
    voters: str = "noisy copies"  # whose votes the bars are
    chips: Sequence[str] = ()
    notes: Sequence[Words] = ()
    legend: Sequence[tuple[str, str]] = ()  # names of classes and their colours


@dataclass(frozen=True)
class TabAnswer:
    """The cards of a tab, and what holds for all of them."""

    id: str
    cards: Sequence[TabCard]
    notes: Sequence[str] = ()
    promise: str = ""
    growth: object = None  # a chart of radii
    data: dict[str, object] = field(default_factory=dict)
    domain: str = "image"
    snippets: Sequence[tuple[str, str]] = ()  # where else the answer can be had, and by which code


def render_answer(answer: TabAnswer) -> str:
    """Render cards side by side."""
    return render("cards.html", answer=answer)
