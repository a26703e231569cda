"""The votes of each method as they come in, the radius that they prove, and how it grew."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from pprs.app.cards import CardStyle, Number, TabAnswer, TabCard, VoteBar, Words, render_answer, style_methods
from pprs.app.certification import MethodState
from pprs.app.requests import Request
from pprs.inputs.domain import IMAGE, SIGNAL, Domain
from pprs.inputs.space import state_claim
from pprs.smoothing.arithmetic import Arithmetic
from pprs.smoothing.certificate import Certificate, confidence, round_down, state_arithmetic
from pprs.smoothing.sampling import Sampling


def render_states(request: Request[Sampling], states: Sequence[MethodState]) -> str:
    """Render the votes, the radius and the guarantee of each method, the growth of the radii, and the settings."""
    prefix = "signal-" if request.domain is SIGNAL else ""
    styles = style_methods(method.partition for method in request.methods)
    answer = TabAnswer(
        f"{prefix}live",
        [
            _make_card(request, state, f"{prefix}m{i}", style)
            for i, (state, style) in enumerate(zip(states, styles, strict=True))
        ],
        [
            f"{describe_request(request)}. Each radius is valid at all times, so you may stop whenever you like. Each "
            f"one is wrong with probability at most {request.settings.alpha:g}. Radii are rounded down."
        ],
        growth=_make_growth(states, styles),
        data={"state": "done" if all(state.done for state in states) else "running", "seed": request.seed},
        domain=request.domain.name,
    )
    return render_answer(answer)


def describe_request(request: Request[Sampling]) -> str:
    """Return all settings that the numbers depend on, in one line."""
    sampling, arithmetic = request.settings, Arithmetic.of("auto", request.noise).kind
    return request.describe(
        f"{sampling.n0} + at most {sampling.n:,} samples; alpha {sampling.alpha:g}; {arithmetic} arithmetic"
    )


def _make_card(request: Request[Sampling], state: MethodState, id: str, style: CardStyle) -> TabCard:
    certificate, get_name = state.certificate, request.loaded.get_class_name
    return TabCard(
        state.name,
        state.partition,
        style,
        id,
        {"done": state.done or ""},
        _make_headline(request, certificate),
        _make_statement(request, state),
        certificate is not None and not certificate.abstained,
        bars=[] if certificate is None else make_bars(certificate.counts, certificate.selected, get_name),
        notes=_make_notes(state),
    )  # fmt: skip


def _make_headline(request: Request[Sampling], certificate: Certificate | None) -> Words:
    if certificate is None:
        return "…", Number("–", "", "No radius: nothing is proved (yet).")
    name = request.loaded.get_class_name(certificate.selected)
    exact: dict[str, object] = {"radius": repr(certificate.radius), "samples": certificate.n}
    if certificate.abstained:
        return name, Number("–", "", "No radius: nothing is proved (yet).", exact)
    return name, Number(round_down(certificate.radius), "L2", _explain_radius(request), exact)


def _explain_radius(request: Request[Sampling]) -> str:
    values = (
        "times and channels, in the unit of the signal"
        if request.domain is SIGNAL
        else "pixels and channels, with values in [0, 1]"
    )
    return (
        "Certified radius: no change with an L2 norm up to this radius can alter the label. The norm is the root of "
        f"the sum of squares over all {values}, of {request.scope}."
    )


def _make_statement(request: Request[Sampling], state: MethodState) -> Words:
    """Return the claim, with its radius as a number, and a warning if the certified label is wrong."""
    certificate = state.certificate
    if certificate is None:
        return (describe_certificate(None, "", state.done, request.label_choice),)
    name = request.loaded.get_class_name(certificate.selected)
    text = describe_certificate(certificate, name, state.done, request.label_choice, request.scope, request.domain)
    if warning := request.warn_if_wrong(certificate.prediction):
        text += f" {warning}"
    if certificate.abstained:
        return (text,)
    radius = round_down(certificate.radius)
    before, _, after = text.partition(f" up to {radius} to ")
    return f"{before} up to ", Number(radius, "", _explain_radius(request)), f" to {after}"


def make_bars(
    counts: npt.ArrayLike, selected: int, get_name: Callable[[int], str], voters: str = "noisy copies"
) -> list[VoteBar]:
    """Return the votes for the leading classes as bars."""
    total, bars = int(np.sum(counts)), []
    for label, votes in rank_votes(np.asarray(counts), selected):
        name, share = get_name(label), votes / total
        tip = f"{votes:,} of {total:,} {voters} were classified as {name}"
        bars.append(VoteBar(name, share, Number(f"{100 * share:.1f}", "%", tip), label == selected))
    return bars


def _make_notes(state: MethodState) -> list[Words]:
    certificate = state.certificate
    samples = 0 if certificate is None else certificate.n
    speed = "Speed of noise, partition and network together, without waiting."
    note: list[str | Number] = [
        Number(f"{samples:,}", "samples", "Noisy copies used for the bound so far."), " · ",
        Number(f"{state.rate:,.0f}", "samples/s", speed),
    ]  # fmt: skip
    if certificate is not None:
        tip = (
            f"Lower bound on the probability of this label under noise, with {confidence(certificate.alpha)} "
            "confidence at all times simultaneously. The label is certified if it exceeds one half."
        )
        note += [" · probability at least ", Number(round_down(certificate.p_lower), "", tip)]
    return [note, [STOP_REASONS.get(state.done, state.done)]] if state.done else [note]


def describe_certificate(
    certificate: Certificate | None,
    name: str,
    done: str | None,
    label_choice: str = "",
    scope: str = "the image",
    domain: Domain = IMAGE,
) -> str:
    """Say in one sentence what is proved, or why nothing is proved and what would help."""
    if certificate is None:
        return "Stopped before anything was proved." if done else "Selecting a label to certify …"
    if not certificate.abstained:
        return (
            f"{name}: {state_claim(round_down(certificate.radius), scope)}"
            f"{f' among {label_choice}' if label_choice else ''}, with {confidence(certificate.alpha)} confidence"
            f"{_state_unit(certificate) if domain is SIGNAL else '.'}"
        )
    share = certificate.counts[certificate.selected] / certificate.n
    votes = f"{name} has {share:.0%} of {certificate.n:,} votes"
    if certificate.lost_to_rounding:
        rounding = "rounding the signal" if domain is SIGNAL else "rounding the image to 16 bits"
        if done is None:
            return f"Nothing is proved yet: {votes}, and {rounding} uses up the radius so far."
        remedy = "would help" if domain is SIGNAL else "or an 8-bit image, which is not rounded, would help"
        return f"Abstained: {votes}, which proves the label, but {rounding} used up its radius. More samples {remedy}."
    if done is None:
        return f"Nothing is proved yet: {votes}, and the majority must be certain."
    if share > 0.5:
        return (
            f"Abstained: {votes}, which does not prove a majority at this confidence. More samples, less noise (sigma) "
            "or another partition would help."
        )
    fewer = ", or fewer labels to choose from" if len(certificate.counts) > 10 else ""
    return (
        f"Abstained: {votes}, which is not a majority, and more samples will not change that. Less noise (sigma), "
        f"another partition{fewer} or a network trained with noise would help."
    )


def _state_unit(certificate: Certificate) -> str:
    """State which signals a claim is about, and in which unit its radius is."""
    arithmetic = state_arithmetic(certificate.arithmetic, certificate.levels)
    return f"{arithmetic}. The norm is over all times and channels, in the unit of the signal."


STOP_REASONS = {
    "n": "all samples have been drawn",
    "width": "more samples would hardly help",
    "hopeless": "a certificate is very unlikely",
    "you": "stopped by you",
    "time": "the time limit of a request was reached",
}


def rank_votes(counts: npt.NDArray[Any], selected: int, limit: int = 5) -> Sequence[tuple[int, int]]:
    """Return the classes with the most votes and their counts. The selected class is always included."""
    order = [int(c) for c in np.argsort(-counts, kind="stable")[:limit] if counts[c]]
    if selected not in order:
        order = [*order[: limit - 1], selected]
    return [(c, int(counts[c])) for c in order]


class _Tick(NamedTuple):
    """A grid line of the chart."""

    y: float
    text: str


class _Line(NamedTuple):
    """The curve of one method."""

    points: str
    style: CardStyle


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


def _make_growth(
    states: Sequence[MethodState], styles: Sequence[CardStyle], width: int = 640, height: int = 150
) -> _Growth | None:
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
        _Line(" ".join(to_point(*p) for p in ((0, 0.0), *trail)), style)
        for trail, style in zip(trails, styles, strict=True)
        if trail
    ]
    ticks = [
        _Tick(bottom - (bottom - top) * value / max_radius, round_down(value, 2))
        for value in (0.0, max_radius / 2.2, max_radius / 1.1)
    ]
    return _Growth(width, height, left, right, ticks, lines, max_samples)
