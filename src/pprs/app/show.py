"""Pieces of the page as HTML, from the templates."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from pprs.app.explore import WHY, MethodState, Request, Tile, statement, top_votes
from pprs.app.rendering import render, render_macro
from pprs.certificate import Certificate, confidence, round_down

COLOURS = ("var(--m0)", "var(--m1)", "var(--m2)")


def number(text: str, unit: str, tip: str, **data: object) -> str:
    """A number with its unit. What it means appears when it is pointed at or reached by keyboard."""
    return render_macro("number", text, unit, tip, data)


def note(text: str, kind: str = "note") -> str:
    """A sentence for the reader: kind "error" if something is to be put right."""
    return render_macro("note", text, kind)


def chart(png: bytes, alt: str) -> str:
    return render_macro("chart", png, alt)


class _Column(NamedTuple):
    """The pictures of one method."""

    name: str
    partition: str
    colour: str
    tiles: Sequence[Tile]


def columns(rows: Sequence[Sequence[Tile]], titles: Sequence[tuple[str, str]]) -> str:
    """The pictures of each method, side by side; titles: names and partitions."""
    methods = [
        _Column(name, partition, colour, tiles)
        for tiles, (name, partition), colour in zip(rows, titles, COLOURS, strict=True)
    ]
    return render("pictures.html", methods=methods)


class _Statement(NamedTuple):
    """A sentence, cut in two where the radius belongs."""

    before: str
    after: str = ""


class _Vote(NamedTuple):
    name: str
    votes: int
    share: float
    chosen: bool


@dataclass(frozen=True)
class _Card:
    """The state of one method as its card shows it."""

    state: MethodState
    colour: str
    label: str  # the name of the selected class; empty: none is selected yet
    radius: str  # rounded down; a dash: nothing is proved
    certified: bool
    statement: _Statement
    why: str  # why it ended
    votes: Sequence[_Vote] = ()
    confidence: str = ""
    exact: dict[str, object] = field(default_factory=dict)  # unrounded


def states(request: Request, now: Sequence[MethodState]) -> str:
    """The votes, radius and guarantee of each method, the curve of radii, and the settings that they belong to."""
    cards = [_card(request, state, colour) for state, colour in zip(now, COLOURS, strict=True)]
    done = all(state.done for state in now)
    return render("states.html", request=request, cards=cards, done=done, growth=_growth(now))


def _card(request: Request, state: MethodState, colour: str) -> _Card:
    certificate, why = state.certificate, WHY.get(state.done or "", state.done or "")
    if certificate is None:
        said = _Statement(statement(None, "", state.done, request.among))
        return _Card(state, colour, "", "–", False, said, why)
    name, certified = request.loaded.name_of(certificate.selected), not certificate.abstained
    radius = round_down(certificate.radius) if certified else "–"
    text = statement(certificate, name, state.done, request.among) + _warning(request, certificate)
    before, _, after = text.partition(f" up to {radius} can ")
    return _Card(
        state,
        colour,
        name,
        radius,
        certified,
        _Statement(f"{before} up to", f"can {after}") if certified else _Statement(text),
        why,
        [
            _Vote(request.loaded.name_of(label), votes, votes / certificate.n, label == certificate.selected)
            for label, votes in top_votes(certificate)
        ],
        confidence(certificate.alpha),
        {"radius": repr(certificate.radius), "samples": certificate.n},
    )


def _warning(request: Request, certificate: Certificate) -> str:
    """A certificate says that a label is stable, not that it is right."""
    if certificate.prediction is None or request.truth is None or request.truth == certificate.prediction:
        return ""
    truth = request.loaded.name_of(request.truth)
    return f" It is a {truth}, though: certified is that the label stays, not that it is right."


class _Tick(NamedTuple):
    y: float
    text: str


class _Line(NamedTuple):
    points: str
    colour: str


@dataclass(frozen=True)
class _Growth:
    """A chart of radii against samples, in its own units of length."""

    width: int
    height: int
    left: int
    right: int
    ticks: Sequence[_Tick]
    lines: Sequence[_Line]
    samples: int


def _growth(now: Sequence[MethodState], width: int = 640, height: int = 150) -> _Growth | None:
    """The radius of each method against its samples, as they came in."""
    trails = [state.trail for state in now]
    if not any(trails):
        return None
    across = max(t[-1][0] for t in trails if t)
    top = max(r for t in trails for _, r in t) * 1.1 or 0.1
    left, right, low, high = 62, width - 8, height - 14, 12

    def point(samples: int, radius: float) -> str:
        return f"{left + (right - left) * samples / across:.1f},{low - (low - high) * radius / top:.1f}"

    lines = [
        _Line(" ".join(point(*p) for p in ((0, 0.0), *trail)), colour)
        for trail, colour in zip(trails, COLOURS, strict=True)
        if trail
    ]
    ticks = [_Tick(low - (low - high) * value / top, round_down(value, 2)) for value in (0.0, top / 2.2, top / 1.1)]
    return _Growth(width, height, left, right, ticks, lines, across)
