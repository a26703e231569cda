"""The Segment tab: the label map of one image, certified at all pixels at once."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from functools import partial
from typing import Any

import gradio as gr

from pprs.app.catalog import LoadedModel
from pprs.app.images import choose_image
from pprs.app.label_maps import MapRequest, certify_maps, render_label_maps
from pprs.app.partition_forms import RECOMMENDED
from pprs.app.render import render_note
from pprs.app.server.context import Context
from pprs.app.server.jobs import Job
from pprs.app.server.limits import check_number
from pprs.app.tabs import jobs
from pprs.app.tabs.controls import (
    ALPHAS,
    SIGMAS,
    build_alpha,
    build_buttons,
    build_dropdown,
    build_image,
    build_method,
    build_seed,
    build_sigma,
    parse_method,
    parse_seed,
    update_options,
)
from pprs.noise import Gaussian
from pprs.runs.subject import recommend_for_model
from pprs.segmentation import SegmentationSampling
from pprs.segmentation.masks import MaskedSet

TASK, PREFIX = "segment", "segment-"
N0, N, TAU = 20, 100, 0.75


def build_tab(context: Context) -> None:
    """Build the tab."""
    entry = context.segmenter.entry
    with gr.Row():
        with gr.Column(scale=4, min_width=320):
            gr.HTML(render_note(f"Network: {entry.name}"), padding=False)
            example, upload = build_image(entry.examples, context.limits, PREFIX)
            sigma = build_sigma(entry.sigma, PREFIX)
            tau = gr.Slider(
                0.51, 0.99, value=TAU, step=0.01, label="Tau (share of the noisy copies)", elem_id=f"{PREFIX}tau",
                info="A label must occur in more than this share. Larger: a larger radius, and more abstentions.",
            )  # fmt: skip
            buttons = build_buttons("Certify", PREFIX)
            method = build_method("A", build_dropdown("A", RECOMMENDED, PREFIX), (RECOMMENDED, {}), PREFIX)
            with gr.Accordion("Samples, confidence, seed", open=False):
                n = gr.Number(
                    N, label="Samples (per method)", precision=0, minimum=1, maximum=context.limits.samples,
                    elem_id=f"{PREFIX}n", info=f"Noisy copies that test the labels, after {N0} that select them.",
                )  # fmt: skip
                alpha = build_alpha("The largest probability that any claim of a map is false.")
                seed = build_seed(PREFIX)
        with gr.Column(scale=9, min_width=320):
            output = gr.HTML(render_note(entry.hint, "empty"), elem_id=f"{PREFIX}result", padding=False)
    quiet: dict[str, Any] = {"api_visibility": "private", "show_progress": "hidden", "queue": False}
    example.input(lambda: None, None, [upload], **quiet)
    method.partition.select(update_options, [method.partition], [*method.slots, method.text], **quiet)
    inputs = [example, upload, sigma, tau, n, alpha, seed, *method.inputs]
    jobs.connect(context, TASK, partial(start, context), inputs, output, buttons)


def start(context: Context, *values: Any) -> jobs.Start:
    """Return the work that the values of the controls ask for."""

    def run(halt: threading.Event) -> Iterator[str]:
        loaded = yield from jobs.show_loading(context, context.segmenter, halt)
        if loaded is None:
            return
        request = parse_request(context, loaded, values)
        job = Job(partial(certify_maps, request), context.queue, halt, context.limits.seconds)
        yield from jobs.show_job(job, partial(render_label_maps, request))

    return run


def parse_request(context: Context, loaded: LoadedModel, values: tuple[Any, ...]) -> MapRequest:
    """Check the values of the controls and return the request that they describe."""
    example, upload, sigma, tau, n, alpha, seed, *method = values
    noise = Gaussian(check_number(sigma, "sigma", *SIGMAS))
    sampling = SegmentationSampling(
        check_number(tau, "tau", 0.51, 0.99),
        N0,
        int(check_number(n, "the number of samples", 1, context.limits.samples, integer=True)),
        check_number(alpha, "alpha", min(ALPHAS), max(ALPHAS)),
    )
    requested, seed = parse_method(*method), parse_seed(seed)
    chosen = choose_image(context.limits, loaded, context.segmenter.entry.examples, example, upload)
    mask = None if upload or not isinstance(loaded.data, MaskedSet) else loaded.data.mask_of(chosen.index)
    if not isinstance(requested, str):
        return MapRequest(loaded, chosen, mask, noise, requested, sampling, seed)
    recommendation = recommend_for_model(loaded.model, noise, tuple(chosen.image.shape))
    return MapRequest(loaded, chosen, mask, noise, recommendation.partition, sampling, seed, recommendation)
