"""The images and the live results of the Explore tab, one card per method."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from pprs.app.certification import STOP_REASONS, MethodState, Request, Tile, describe_certificate, rank_votes
from pprs.app.render import render
from pprs.inputs.domain import IMAGE, Domain
from pprs.smoothing.certificate import Certificate, confidence, round_down

COLOURS = ("var(--m0)", "var(--m1)", "var(--m2)")


class _ImageCard(NamedTuple):
    """The images of one method."""

    name: str
    partition: str
    colour: str
    tiles: Sequence[Tile]


def render_images(rows: Sequence[Sequence[Tile]], titles: Sequence[tuple[str, str]], domain: Domain = IMAGE) -> str:
    """Render the images or signals of each method side by side. Titles are pairs of a name and a partition."""
    methods = [
        _ImageCard(name, partition, colour, tiles)
        for tiles, (name, partition), colour in zip(rows, titles, COLOURS[: len(rows)], strict=True)
    ]
    return render("images.html", methods=methods, domain=domain.name)


class _Statement(NamedTuple):
    """A sentence, split where the radius is inserted."""

    before: str
    after: str = ""


class _VoteBar(NamedTuple):
    """The votes for one class."""

    name: str
    votes: int
    share: float
    selected: bool


@dataclass(frozen=True)
class _Card:
    """The state of one method, ready for display."""

    state: MethodState
    colour: str
    label: str  # name of the selected class; empty if none is selected yet
    radius: str  # rounded down; a dash if nothing is proved
    certified: bool
    statement: _Statement
    stop_reason: str
    votes: Sequence[_VoteBar] = ()
    confidence: str = ""
    exact: dict[str, object] = field(default_factory=dict)  # unrounded numbers, as data attributes


def render_states(request: Request, states: Sequence[MethodState]) -> str:
    """Render the votes, the radius and the guarantee of each method, the growth of the radii, and the settings."""
    cards = [_make_card(request, state, colour) for state, colour in zip(states, COLOURS[: len(states)], strict=True)]
    done = all(state.done for state in states)
    return render("cards.html", request=request, cards=cards, done=done, growth=_make_growth(states))


def _make_card(request: Request, state: MethodState, colour: str) -> _Card:
    certificate = state.certificate
    reason = STOP_REASONS.get(state.done or "", state.done or "")
    if certificate is None:
        statement = _Statement(describe_certificate(None, "", state.done, request.label_choice))
        return _Card(state, colour, "", "–", False, statement, reason)
    name, certified = request.loaded.get_class_name(certificate.selected), not certificate.abstained
    radius = round_down(certificate.radius) if certified else "–"
    text = describe_certificate(certificate, name, state.done, request.label_choice, request.scope, request.domain)
    before, _, after = (text + _warn(request, certificate)).partition(f" up to {radius} to ")
    return _Card(
        state,
        colour,
        name,
        radius,
        certified,
        _Statement(f"{before} up to", f"to {after}") if certified else _Statement(text),
        reason,
        [
            _VoteBar(request.loaded.get_class_name(label), votes, votes / certificate.n, label == certificate.selected)
            for label, votes in rank_votes(certificate)
        ],
        confidence(certificate.alpha),
        {"radius": repr(certificate.radius), "samples": certificate.n},
    )


def _warn(request: Request, certificate: Certificate) -> str:
    """Return a warning if the certified label is wrong: a certificate proves that it is stable, not correct."""
    if certificate.prediction is None or request.true_label is None or request.true_label == certificate.prediction:
        return ""
    true_name = request.loaded.get_class_name(request.true_label)
    return (
        f" The true label is {true_name}, though: a certificate proves that a label is stable, not that it is correct."
    )


class _Tick(NamedTuple):
    """A grid line of the chart."""

    y: float
    text: str


class _Line(NamedTuple):
    """The curve of one method."""

    points: str
    colour: str


@dataclass(frozen=True)
class _Growth:
    """A chart of radii against samples, in units of its view box."""

    width: int
    height: int
    left: int
    right: int
    ticks: Sequence[_Tick]
    lines: Sequence[_Line]
    samples: int


def _make_growth(states: Sequence[MethodState], width: int = 640, height: int = 150) -> _Growth | None:
    """Return the chart of each method's radius against its samples; None before the first radius."""
    trails = [state.trail for state in states]
    if not any(trails):
        return None
    max_samples = max(t[-1][0] for t in trails if t)
    max_radius = max(r for t in trails for _, r in t) * 1.1 or 0.1
    left, right, bottom, top = 62, width - 8, height - 14, 12

    def to_point(samples: int, radius: float) -> str:
        return (
            f"{left + (right - left) * samples / max_samples:.1f},{bottom - (bottom - top) * radius / max_radius:.1f}"
        )

    lines = [
        _Line(" ".join(to_point(*p) for p in ((0, 0.0), *trail)), colour)
        for trail, colour in zip(trails, COLOURS[: len(trails)], strict=True)
        if trail
    ]
    ticks = [
        _Tick(bottom - (bottom - top) * value / max_radius, round_down(value, 2))
        for value in (0.0, max_radius / 2.2, max_radius / 1.1)
    ]
    return _Growth(width, height, left, right, ticks, lines, max_samples)
