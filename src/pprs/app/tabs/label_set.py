"""The Label set tab: a set of labels that contains the true one with a promised probability, also under attack."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import gradio as gr

from pprs.app.images import choose_image
from pprs.app.label_sets import CalibrationStore, SetsRequest, predict_sets, render_sets
from pprs.app.partition_forms import RECOMMENDED
from pprs.app.render import render_note
from pprs.app.server.context import Context
from pprs.app.server.jobs import Job
from pprs.app.server.limits import check_number
from pprs.app.tabs import jobs
from pprs.app.tabs.controls import (
    SIGMAS,
    build_buttons,
    build_dropdown,
    build_image,
    build_method,
    build_model,
    build_seed,
    build_sigma,
    choose_examples,
    parse_method,
    parse_seed,
    update_options,
)
from pprs.label_sets import SetRequest
from pprs.label_sets.scores import SCORES, Aps
from pprs.noise import Gaussian
from pprs.runs.engine import EngineOptions
from pprs.runs.subject import recommend_for_model

TASK, PREFIX = "sets", "set-"
RADIUS, MAX_RADIUS, ALPHA, IMAGES, MAX_IMAGES = 0.25, 5.0, 0.1, 500, 5000
ALPHAS = (0.2, 0.1, 0.05, 0.01)
INTRO = (
    "Where votes are split, a certificate abstains. A set of labels need not: it contains the true label with a chosen "
    "probability, whatever change up to the radius was made. Press Predict."
)


def build_tab(context: Context) -> None:
    """Build the tab."""
    entry = next(iter(context.catalog.entries.values()))
    with gr.Row():
        with gr.Column(scale=4, min_width=320):
            model = build_model(context.catalog.names, PREFIX)
            example, upload = build_image(entry.examples, context.limits, PREFIX)
            sigma = build_sigma(entry.sigma, PREFIX)
            radius = gr.Slider(
                0.0, 1.0, value=RADIUS, step=0.01, label="Radius (L2)", elem_id=f"{PREFIX}radius",
                info="Norm of the changes that the sets withstand.",
            )  # fmt: skip
            buttons = build_buttons("Predict", PREFIX)
            method = build_method("A", build_dropdown("A", RECOMMENDED, PREFIX), (RECOMMENDED, {}), PREFIX)
            with gr.Accordion("Coverage, calibration, seed", open=False):
                alpha = gr.Dropdown(
                    [(f"{1 - a:.0%}", a) for a in ALPHAS], value=ALPHA, label="Coverage (probability)",
                    info="How likely a set is to contain the true label, at least.",
                )  # fmt: skip
                score = gr.Dropdown(
                    list(SCORES), value=Aps.name, label="Score",
                    info="How badly a label fits. Sets of aps are never empty.",
                )  # fmt: skip
                images = gr.Number(
                    IMAGES, label="Calibration images", precision=0, minimum=1, maximum=MAX_IMAGES,
                    elem_id=f"{PREFIX}images", info="Labelled images of the model, drawn at random.",
                )  # fmt: skip
                seed = build_seed(PREFIX)
                file = gr.File(
                    label="or a calibration from `pprs calibrate` (JSON)", file_types=[".json"], type="filepath",
                    height=120, elem_id=f"{PREFIX}file",
                )  # fmt: skip
        with gr.Column(scale=9, min_width=320):
            output = gr.HTML(render_note(INTRO, "empty"), elem_id=f"{PREFIX}result", padding=False)
    choose_examples(context, model, example, upload)
    quiet: dict[str, Any] = {"api_visibility": "private", "show_progress": "hidden", "queue": False}
    method.partition.select(update_options, [method.partition], [*method.slots, method.text], **quiet)
    inputs = [model, example, upload, sigma, radius, alpha, score, images, seed, file, *method.inputs]
    jobs.connect(context, TASK, partial(start, context, CalibrationStore()), inputs, output, buttons)


def start(context: Context, store: CalibrationStore, *values: Any) -> jobs.Start:
    """Return the work that the values of the controls ask for."""

    def run(halt: threading.Event) -> Iterator[str]:
        request = parse_request(context, values)

        def work(job: Job[Any]) -> Any:
            return predict_sets(request, store, job)

        job = Job(work, context.queue, halt, context.limits.seconds)
        yield from jobs.show_job(job, partial(render_sets, request))

    return run


def parse_request(context: Context, values: tuple[Any, ...]) -> SetsRequest:
    """Check the values of the controls and return the request that they describe."""
    model, example, upload, sigma, radius, alpha, score, images, seed, file, *method = values
    entry, loaded = context.catalog.get(model), context.catalog.load(model)
    chosen = choose_image(context.limits, loaded, entry.examples, example, upload)
    if file:
        return SetsRequest(model, loaded, entry.examples, chosen, (), file=Path(file))
    noise = Gaussian(check_number(sigma, "sigma", *SIGMAS))
    radius = check_number(radius, "the radius", 0, MAX_RADIUS)
    alpha = check_number(alpha, "alpha", min(ALPHAS), max(ALPHAS))
    images = int(check_number(images, "the number of calibration images", 1, MAX_IMAGES, integer=True))
    requested, seed, recommendation = parse_method(*method), parse_seed(seed), None
    if isinstance(requested, str):
        recommendation = recommend_for_model(loaded.model, noise, tuple(chosen.image.shape))
        requested = recommendation.partition
    partitions = (None,) if requested is None else (None, requested)
    methods = tuple(
        SetRequest(noise, partition, radius, alpha, score, seed=seed, options=EngineOptions(loaded.engine))
        for partition in partitions
    )
    return SetsRequest(
        model, loaded, entry.examples, chosen, methods, images, seed, recommendation=recommendation
    )  # fmt: skip
