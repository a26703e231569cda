"""The tab on which a radius becomes something that one sees."""

from __future__ import annotations

import html
from typing import Any

import gradio as gr

from pprs.app import radius as ways
from pprs.app import show
from pprs.app.context import Context
from pprs.app.explore import NAMES, check_costs
from pprs.app.limits import check_number
from pprs.app.tab_explore import Controls, read
from pprs.certificate import round_down
from pprs.errors import PprsError
from pprs.report import figures

LARGEST = 5.0


def tab(context: Context, made: Controls) -> tuple[Any, dict[str, Any]]:
    """Build the tab, on the picture and settings of Explore. Gives back the event that fills it."""
    gr.HTML(
        '<div class="pp"><h2 style="font-size:18px;margin:0">What does a radius look like?</h2></div>'
        + show.note(
            "The picture and settings of Explore, changed by exactly the chosen norm. If a certificate reaches this "
            "far, none of these changes can alter the label, nor can any other of this norm."
        ),
        padding=False,
    )
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

    def to_certified(request: gr.Request, method: str, norm: float, *values: Any) -> float:
        try:
            asked, i = read(context, values), _index(method)
            found = context.sessions.certified(str(request.session_hash), asked, i)
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


def _drawn(context: Context, norm: float, method: str, which: int, values: tuple[Any, ...]) -> str:
    asked, i = read(context, values), _index(method)
    tiles = []
    with context.turns.take() as mine:
        check_costs(asked, mine)
        found = [ways.random_direction(asked, which), ways.worst_direction(asked, i, mine)]
        tiles.append(_tile(asked, i, asked.picture.double(), "original", "nothing is changed", mine))
        for direction in found:
            changed = ways.moved(asked, direction, norm)
            tiles.append(_tile(asked, i, changed, direction.title, direction.how, mine))
        for direction in found:
            change = norm * direction.unit
            most = max(float(change.abs().max()), 1e-9)
            seen = figures.shown((0.5 + 0.5 * change / most).numpy())
            tiles.append(
                f"<div>{show.image(seen, f'the change alone, {direction.title}')}<p class='note'>grey is 0, "
                + show.number(
                    f"{255 * most:.1f}", "of 255", "The largest change of any pixel's value, in steps of 8 bits."
                )
                + " at most</p></div>"
            )
    exact = show.number(f"{norm:.2f}", "L2", "Norm of each of the changes below.", norm=norm)
    many = show.number(
        f"{asked.picture.numel():,}", "values", "Pixels times channels of the picture that the network takes."
    )
    even = show.number(
        f"{ways.evenly(norm, asked.picture.shape):.1f}", "of 255",
        "In steps of 8 bits, if the change were spread evenly over all values.",
    )  # fmt: skip
    return (
        f"<div class='pp' id='directions'><p>Changes of norm {exact}: the norm of "
        f"changing each of the {many} by {even}.</p>"
        f"<div class='tiles five'>{''.join(tiles)}</div><p class='note'>Shown clipped to what a screen can show; the "
        f"changes themselves are not clipped. The votes are {ways.VOTES} noisy copies each, for a feeling: no "
        f"certificate is made from them. {html.escape(asked.told)}.</p></div>"
    )


def _tile(asked: Any, method: int, picture: Any, title: str, how: str, mine: Any) -> str:
    label, count = ways.votes(asked, method, picture, mine)
    delta = float((picture - asked.picture.double()).norm())
    votes = show.number(
        f"{count}", f"of {ways.VOTES} votes", "Noisy copies of this picture that were taken for that label."
    )
    norm = show.number(f"{delta:.4f}", "L2", "Norm of this change, computed from its pixels.", delta=repr(delta))
    name = html.escape(asked.loaded.name_of(label))
    return (
        f"<div>{show.image(figures.shown(picture.numpy()), title)}<p class='note'><b>{name}"
        f"</b>, {votes}<br>changed by {norm}<br>{html.escape(how)}</p></div>"
    )
