"""The tab that shows what a radius looks like: changes of a given norm."""

from __future__ import annotations

import html
import threading
from collections.abc import Iterator
from functools import partial
from typing import Any, NamedTuple

import gradio as gr
import numpy.typing as npt
import torch

from pprs.app import directions
from pprs.app.certification import check_costs
from pprs.app.render import render, render_note
from pprs.app.requests import NAMES, Request
from pprs.app.server.fair_queue import Turn
from pprs.app.server.limits import check_number
from pprs.app.tabs import jobs
from pprs.app.tabs.explore import Explore
from pprs.app.tabs.fields import QUIET
from pprs.app.votes import describe_request
from pprs.errors import PprsError
from pprs.report import figures
from pprs.smoothing.certificate import Certificate, round_down
from pprs.smoothing.sampling import Sampling

TASK, MAX_NORM = "radius", 5.0
Array = npt.NDArray[Any]


def build_tab(explore: Explore) -> dict[str, Any]:
    """Build the tab, for the image and settings of Explore. Returns the event that draws it."""
    gr.HTML(render("radius_intro.html"), padding=False)
    with gr.Row():
        norm = gr.Slider(
            0, MAX_NORM, value=0.5, step=0.01, label="Norm of the change (L2)", elem_id="norm",
            scale=3, min_width=280, info="The root of the sum of squares over all pixels and channels, each in 0–1.",
        )  # fmt: skip
        method = gr.Radio(
            list(NAMES), value="A", label="Method", elem_id="radius-method", scale=1, min_width=160,
            info="The method whose margin and votes are shown.",
        )  # fmt: skip
    with gr.Row():
        set_radius = gr.Button("Set to its certified radius", size="sm", elem_id="to-certified")
        another = gr.Button("Another random direction", size="sm", elem_id="another")
    which = gr.State(0)
    content = gr.HTML(render_note("Loading …", "empty"), elem_id="changed", padding=False)

    def draw(visitor: gr.Request, norm: Any, method: str, which: int, *values: Any) -> Iterator[str]:
        session = str(visitor.session_hash)
        start = partial(iter_directions, explore, session, norm, method, which, values)
        yield from jobs.iter_pages(explore.context, session, TASK, start)

    def set_norm(visitor: gr.Request, method: str, norm: float, *values: Any) -> float:
        try:
            return find_radius(explore, str(visitor.session_hash), method, values)
        except PprsError as error:
            gr.Info(html.escape(str(error)))
            return norm

    inputs = explore.inputs
    event: dict[str, Any] = {
        "fn": draw, "inputs": [norm, method, which, *inputs], "outputs": [content],
        "api_visibility": "private", "show_progress": "minimal", "concurrency_limit": explore.context.limits.concurrent,
    }  # fmt: skip
    gr.on([norm.input, method.input], **event, trigger_mode="always_last")
    another.click(lambda which: which + 1, [which], [which], **QUIET).then(**event)
    set_radius.click(set_norm, [method, norm, *inputs], [norm], **QUIET).then(**event)
    return event


def find_radius(explore: Explore, session: str, method: str, values: tuple[Any, ...]) -> float:
    """Return the certified radius of a method on Explore, rounded down to what the slider shows."""
    i, (network, parsed), certificate = _parse_method(method), explore.parse(values), None
    if network.loaded is not None:
        request = explore.make_request(network, network.loaded, parsed)
        certificate = explore.context.sessions.find_certificate(session, request, i)
    if certificate is None:
        raise PprsError(f"{method} has no certified radius yet. Certify these settings on the Explore tab first.")
    return min(MAX_NORM, float(round_down(certificate.radius, 2)))


def _parse_method(method: str) -> int:
    if method not in NAMES:
        raise PprsError(f"choose one of {', '.join(NAMES)}")
    return NAMES.index(method)


class _ChangedImage(NamedTuple):
    """A changed image, and the result of a small vote on it."""

    image: Array  # [H, W, 3] in [0, 1]
    title: str
    how: str
    norm: float  # of the change, computed from its pixels
    where: str  # inside or outside the certified radius
    label: str
    votes: int  # for that label


class _Change(NamedTuple):
    """A change by itself, scaled so that its largest value is black or white."""

    image: Array
    title: str
    largest: float


def iter_directions(
    explore: Explore, session: str, norm: Any, method: str, which: int, values: tuple[Any, ...], halt: threading.Event
) -> Iterator[str]:
    """Yield the progress of loading the network, and then the changed images."""
    norm, i = check_number(norm, "the norm", 0, MAX_NORM), _parse_method(method)
    request = yield from explore.read(values, halt)
    if request is not None:
        certificate = explore.context.sessions.find_certificate(session, request, i)
        with explore.context.queue.take(lambda: not halt.is_set()) as turn:
            yield _render_directions(request, norm, i, int(which), certificate, turn)


def _render_directions(
    request: Request[Sampling], norm: float, i: int, which: int, certificate: Certificate | None, turn: Turn
) -> str:
    check_costs(request, turn)
    pair = [directions.draw_direction(request, which), directions.find_worst_direction(request, i, turn, norm)]
    original = request.chosen.values.double()
    images = [_describe_image(request, i, original, "original", "no change", None, turn)]
    for direction in pair:
        image = directions.shift_image(request, direction, norm)
        images.append(_describe_image(request, i, image, direction.title, direction.how, certificate, turn))
    return render(
        "directions.html",
        norm=norm,
        values=request.chosen.values.numel(),
        even=directions.spread_evenly(norm, request.shape),
        images=images,
        certified=certificate is not None,
        changes=[_describe_change(norm * direction.vector, direction.title) for direction in pair],
        total_votes=directions.VOTES,
        description=describe_request(request),
    )


def _describe_image(
    request: Request[Sampling],
    method: int,
    image: torch.Tensor,
    title: str,
    how: str,
    certificate: Certificate | None,
    turn: Turn,
) -> _ChangedImage:
    label, count = directions.count_votes(request, method, image, turn)
    change = image - request.chosen.values.double()
    where = "" if certificate is None else describe_position(certificate, change)
    return _ChangedImage(
        figures.to_rgb(image.numpy()), title, how, float(change.norm()), where,
        request.loaded.get_class_name(label), count,
    )  # fmt: skip


def describe_position(certificate: Certificate, change: torch.Tensor) -> str:
    """Say whether a change is inside the certified radius, and what follows."""
    radius = round_down(certificate.radius)
    if certificate.covers(change.numpy()):
        return f"inside the certified radius of {radius}: it cannot alter the label"
    if not certificate.abstained and float(change.double().norm()) <= certificate.radius:
        return f"its norm is inside the certified radius of {radius}, which holds for changes by whole grey levels"
    return f"outside the certified radius of {radius}: it may alter the label"


def _describe_change(change: torch.Tensor, title: str) -> _Change:
    largest = max(float(change.abs().max()), 1e-9)
    return _Change(figures.to_rgb((0.5 + 0.5 * change / largest).numpy()), title, largest)
