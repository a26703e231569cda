"""Cards: what a tab shows of each method, side by side. All tabs share them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy.typing as npt

from pprs.app.render import render

COLOURS = ("var(--m0)", "var(--m1)", "var(--m2)")
NEUTRAL = "var(--body-text-color)"
Array = npt.NDArray[Any]


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
    colour: str = NEUTRAL
    id: str = ""
    data: dict[str, object] = field(default_factory=dict)
    headline: Words = ()
    statement: Words = ()
    proved: bool = True  # whether the statement proves anything
    tiles: Sequence[Tile] = ()
    bars: Sequence[VoteBar] | None = None
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


def render_answer(answer: TabAnswer) -> str:
    """Render cards side by side."""
    return render("cards.html", answer=answer)
