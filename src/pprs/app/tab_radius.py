"""The tab that shows what a radius looks like."""

from __future__ import annotations

import html
from typing import Any, NamedTuple

import gradio as gr
import numpy.typing as npt
import torch

from pprs.app import radius as ways
from pprs.app import show
from pprs.app.context import Context
from pprs.app.explore import NAMES, Request, check_costs
from pprs.app.fair_queue import Turn
from pprs.app.limits import check_number
from pprs.app.rendering import render
from pprs.app.tab_explore import Controls, read
from pprs.certificate import round_down
from pprs.errors import PprsError
from pprs.report import figures

LARGEST = 5.0
Array = npt.NDArray[Any]


def tab(context: Context, made: Controls) -> tuple[Any, dict[str, Any]]:
    """Build the tab, on the picture and settings of Explore. Returns the event that fills it."""
    gr.HTML(render("radius_intro.html"), padding=False)
    with gr.Row():
        norm = gr.Slider(
            0, LARGEST, value=0.5, step=0.01, label="Norm of the change (L2)", elem_id="norm",
            scale=3, min_width=280, info="The root of the sum of squares over all pixels and channels, each in 0–1.",
        )  # fmt: skip
        method = gr.Radio(
            list(NAMES), value="A", label="Smoothed by", elem_id="radius-method", scale=1, min_width=160,
            info="Whose margin, and whose votes.",
        )  # fmt: skip
    with gr.Row():
        certified = gr.Button("Set to its certified radius", size="sm", elem_id="to-certified")
        again = gr.Button("Another random direction", size="sm", elem_id="another")
    which = gr.State(0)
    seen = gr.HTML(show.note("Loading …", "empty"), elem_id="changed", padding=False)

    def draw(norm: Any, method: str, which: int, *values: Any) -> str:
        try:
            return _drawn(context, check_number(norm, "the norm", 0, LARGEST), method, int(which), values)
        except PprsError as error:
            return show.note(str(error), "error")

    def to_certified(visitor: gr.Request, method: str, norm: float, *values: Any) -> float:
        try:
            request, i = read(context, values), _index(method)
            found = context.sessions.certified(str(visitor.session_hash), request, i)
            if found is None:
                raise PprsError(f"{method} has no certified radius: certify these settings first, on the Explore tab.")
        except PprsError as error:
            gr.Info(html.escape(str(error)))
            return norm
        return min(LARGEST, float(round_down(found.radius, 2)))

    event: dict[str, Any] = {
        "fn": draw, "inputs": [norm, method, which, *made.inputs], "outputs": [seen], "api_visibility": "private",
        "show_progress": "minimal", "concurrency_limit": context.limits.at_once,
    }  # fmt: skip
    quiet: dict[str, Any] = {"api_visibility": "private", "show_progress": "hidden", "queue": False}
    gr.on([norm.input, method.input], **event, trigger_mode="always_last")
    again.click(lambda which: which + 1, [which], [which], **quiet).then(**event)
    certified.click(to_certified, [method, norm, *made.inputs], [norm], **quiet).then(**event)
    return norm, event


def _index(method: str) -> int:
    if method not in NAMES:
        raise PprsError(f"choose one of {', '.join(NAMES)}")
    return NAMES.index(method)


class _Changed(NamedTuple):
    """A changed image, and what a small vote takes it for."""

    picture: Array  # [H, W, 3] in [0, 1]
    title: str
    how: str
    norm: float  # of the change, computed from its pixels
    label: str
    votes: int  # for that label


class _Change(NamedTuple):
    """A change on its own, scaled so that its largest value is black or white."""

    picture: Array
    title: str
    largest: float


def _drawn(context: Context, norm: float, method: str, which: int, values: tuple[Any, ...]) -> str:
    request, i = read(context, values), _index(method)
    with context.queue.take() as turn:
        check_costs(request, turn)
        directions = [ways.random_direction(request, which), ways.worst_direction(request, i, turn)]
        images = [_changed(request, i, request.image.double(), "original", "nothing is changed", turn)]
        for direction in directions:
            image = ways.moved(request, direction, norm)
            images.append(_changed(request, i, image, direction.title, direction.how, turn))
    return render(
        "directions.html",
        norm=norm,
        values=request.image.numel(),
        even=ways.evenly(norm, request.image.shape),
        images=images,
        changes=[_change(norm * direction.unit, direction.title) for direction in directions],
        total_votes=ways.VOTES,
        description=request.description,
    )


def _changed(request: Request, method: int, image: torch.Tensor, title: str, how: str, turn: Turn) -> _Changed:
    label, count = ways.votes(request, method, image, turn)
    norm = float((image - request.image.double()).norm())
    return _Changed(figures.to_rgb(image.numpy()), title, how, norm, request.loaded.name_of(label), count)


def _change(change: torch.Tensor, title: str) -> _Change:
    largest = max(float(change.abs().max()), 1e-9)
    return _Change(figures.to_rgb((0.5 + 0.5 * change / largest).numpy()), title, largest)
