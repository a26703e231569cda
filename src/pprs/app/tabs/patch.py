"""The Patch tab: whether any one square patch can alter the label of an image."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from functools import partial
from typing import Any

import gradio as gr

from pprs.app.images import choose_image
from pprs.app.patches import PatchRequest, certify_patch, render_patch
from pprs.app.render import render_note
from pprs.app.server.context import Context
from pprs.app.server.jobs import Job
from pprs.app.server.limits import check_number
from pprs.app.tabs import jobs
from pprs.app.tabs.controls import build_buttons, build_image, build_model, choose_examples
from pprs.errors import PprsError, suggest
from pprs.patches import FILL, FILLS, MASKS

TASK, PREFIX = "patch", "patch-"
PATCH, MAX_PATCH, MAX_MASKS = 2, 256, 9  # 9x9 masks take 3,321 passes
INTRO = (
    "A sticker changes few pixels, but these completely. Can any change inside one square patch, anywhere in the "
    "image, alter the label? Press Certify."
)


def build_tab(context: Context) -> None:
    """Build the tab."""
    entry = next(iter(context.catalog.entries.values()))
    with gr.Row():
        with gr.Column(scale=4, min_width=320):
            model = build_model(context.catalog.names, PREFIX, "The classifier behind the masks.")
            example, upload = build_image(entry.examples, context.limits, PREFIX)
            patch = gr.Number(
                PATCH, label="Patch (side in pixels)", precision=0, minimum=1, maximum=MAX_PATCH,
                elem_id=f"{PREFIX}side", info="Of the image that the network takes.",
            )  # fmt: skip
            masks = gr.Slider(
                2, MAX_MASKS, value=MASKS, step=1, label="Masks (along each axis)", elem_id=f"{PREFIX}masks",
                info="More masks are smaller and hide less, but there are more pairs of them.",
            )  # fmt: skip
            fill = gr.Dropdown(
                list(FILLS), value=FILL, label="Fill", elem_id=f"{PREFIX}fill",
                info="What stands in the place of hidden pixels, made from visible ones.",
            )  # fmt: skip
            buttons = build_buttons("Certify", PREFIX)
        with gr.Column(scale=9, min_width=320):
            output = gr.HTML(render_note(INTRO, "empty"), elem_id=f"{PREFIX}result", padding=False)
    choose_examples(context, model, example, upload)
    inputs = [model, example, upload, patch, masks, fill]
    jobs.connect(context, TASK, partial(start, context), inputs, output, buttons)


def start(context: Context, *values: Any) -> jobs.Start:
    """Return the work that the values of the controls ask for."""

    def run(halt: threading.Event) -> Iterator[str]:
        request = parse_request(context, values)
        job = Job(partial(certify_patch, request), context.queue, halt, context.limits.seconds)
        yield from jobs.show_job(job, partial(render_patch, request))

    return run


def parse_request(context: Context, values: tuple[Any, ...]) -> PatchRequest:
    """Check the values of the controls and return the request that they describe."""
    model, example, upload, patch, masks, fill = values
    patch = int(check_number(patch, "the side of the patch", 1, MAX_PATCH, integer=True))
    masks = int(check_number(masks, "the number of masks", 2, MAX_MASKS, integer=True))
    if fill not in FILLS:
        raise PprsError(f'unknown fill "{fill}". {suggest(str(fill), FILLS)}')
    entry, loaded = context.catalog.get(model), context.catalog.load(model)
    return PatchRequest(
        loaded, choose_image(context.limits, loaded, entry.examples, example, upload), patch, masks, fill
    )
