"""The Explore tab: one image, certified by three methods."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import gradio as gr

from pprs.app.cards import render_images, render_states
from pprs.app.catalog import CatalogEntry, parse_labels
from pprs.app.certification import NAMES, Request, iter_states, make_sampling, make_tiles
from pprs.app.images import choose_image
from pprs.app.partition_forms import SLOTS
from pprs.app.render import render_note
from pprs.app.server.context import Context
from pprs.app.server.limits import check_number
from pprs.app.tabs.controls import (
    ALPHAS,
    MAX_SEED,
    SIGMAS,
    MethodControls,
    build_alpha,
    build_buttons,
    build_dropdown,
    build_image,
    build_method,
    build_model,
    build_seed,
    build_sigma,
    parse_method,
    parse_seed,
    update_options,
)
from pprs.app.tabs.jobs import CONCURRENCY
from pprs.errors import PprsError, suggest
from pprs.inputs.space import FILE, NETWORK, check_pixels
from pprs.noise import parse_noise
from pprs.runs.subject import recommend_for_model

NOISES = ("gaussian", "exponential", "powerlaw")
REFUSED: tuple[Any, ...] = ()  # stored instead of the values of controls that were refused
TASK = "certify"
PIXEL_CHOICES = [("the network's input", NETWORK), ("the pixels of the file", FILE)]


def silent_error(text: str) -> Any:
    """Return an error that ends the chain of events, without a message from Gradio: the page already shows one."""
    return gr.Error(text, visible=False, print_exception=False)


@dataclass(frozen=True)
class Controls:
    """The controls that a request depends on, in the order in which handlers receive their values."""

    model: Any
    example: Any
    upload: Any
    labels: Any
    noise: Any
    sigma: Any
    first: MethodControls
    second: MethodControls
    n: Any
    alpha: Any
    seed: Any
    pixels: Any

    @property
    def inputs(self) -> list[Any]:
        """All controls, in order."""
        return [
            self.model, self.example, self.upload, self.labels, self.noise, self.sigma, *self.first.inputs,
            *self.second.inputs, self.n, self.alpha, self.seed, self.pixels,
        ]  # fmt: skip


def parse_request(context: Context, values: tuple[Any, ...]) -> Request:
    """Check the values of the controls and return the request that they describe."""
    model, example, upload, labels, noise, sigma, *rest = values
    width = SLOTS + 2
    first, second, (n, alpha, seed, pixels) = rest[:width], rest[width : 2 * width], rest[2 * width :]
    sigma = check_number(sigma, "sigma", *SIGMAS)
    if noise not in NOISES:
        raise PprsError(f'unknown noise "{noise}". {suggest(str(noise), NOISES)}')
    n = int(check_number(n, "the number of samples", 100, context.limits.samples, integer=True))
    alpha = check_number(alpha, "alpha", min(ALPHAS), max(ALPHAS))
    seed = parse_seed(seed)
    check_pixels(pixels)
    requested = (None, parse_method(*first), parse_method(*second))
    entry, loaded = context.catalog.get(model), context.catalog.load(model)
    chosen_labels = parse_labels(labels)
    all_classes = loaded.num_classes
    loaded = loaded.restrict(chosen_labels)
    label_choice = f"{loaded.num_classes} of {all_classes} labels" if loaded.num_classes < all_classes else ""
    chosen = choose_image(context.limits, loaded, entry.examples, example, upload, pixels)
    true_label = None if chosen_labels else chosen.label
    run_noise = parse_noise(f"{noise}:sigma={sigma:g}")
    recommendation = recommend_for_model(loaded.model, run_noise, tuple(chosen.image.shape))
    recommendations = tuple(recommendation if isinstance(method, str) else None for method in requested)
    partitions = tuple(recommendation.partition if isinstance(method, str) else method for method in requested)
    return Request(
        loaded.take_files() if pixels == FILE else loaded, chosen.image, chosen.index, chosen.title, run_noise,
        partitions, make_sampling(n, alpha), seed, true_label, label_choice, chosen.file_shape, pixels,
        recommendations,
    )  # fmt: skip


def _build_controls(context: Context) -> tuple[Controls, Any, Any, Any]:
    """Build the left column. Returns the controls and the buttons."""
    entry = next(iter(context.catalog.entries.values()))
    limits = context.limits
    model = build_model(context.catalog.names)
    example, upload = build_image(entry.examples, limits)
    sigma = build_sigma(entry.sigma)
    go, stop = build_buttons("Certify")
    dropdowns = [build_dropdown("A", entry.first[0]), build_dropdown("B", entry.second[0])]
    first, second = build_method("A", dropdowns[0], entry.first), build_method("B", dropdowns[1], entry.second)
    pixels = gr.Radio(
        PIXEL_CHOICES, value=NETWORK, label="Noise is added to", elem_id="pixels",
        info="The radius is about these pixels. If they are the file's, noise is added before resizing.",
    )  # fmt: skip
    with gr.Accordion("Noise, samples, confidence, labels", open=False):
        noise = gr.Dropdown(list(NOISES), value="gaussian", label="Noise", info="The distribution of the noise.")
        n = gr.Number(
            entry.samples, label="Maximum samples (per method)", precision=0, minimum=100, maximum=limits.samples,
            elem_id="n", info=f"Noisy copies. More samples prove a larger radius. At most {limits.samples:,}.",
        )  # fmt: skip
        alpha = build_alpha()
        seed = build_seed()
        labels = gr.Textbox(
            entry.examples[0].labels, label="Labels to choose from", elem_id="labels", max_length=20_000,
            info="Names or numbers, separated by commas. Empty: all labels of the model.",
        )  # fmt: skip
    next_seed = gr.Button("Another seed", size="sm", elem_id="next-seed")
    controls = Controls(model, example, upload, labels, noise, sigma, first, second, n, alpha, seed, pixels)
    return controls, go, stop, next_seed


class _Handlers:
    """The event handlers of the controls."""

    def __init__(self, context: Context) -> None:
        self._context, self._sessions = context, context.sessions

    def preview(self, visitor: gr.Request, *values: Any) -> Iterator[Any]:
        """Show the images of a request and cancel a certification in progress."""
        self._sessions.cancel(_session_id(visitor), TASK)
        self._sessions.remember_values(_session_id(visitor), values)
        try:
            request = parse_request(self._context, values)
            with self._context.queue.take() as turn:
                rows = make_tiles(request, turn)
        except PprsError as error:
            # Not raised: after an event that failed, Gradio drops the one that was waiting behind it.
            self._sessions.remember_values(_session_id(visitor), REFUSED)
            yield render_note(str(error), "error"), ""
            return
        titles = [(name, request.name_method(method)) for method, name in enumerate(NAMES)]
        yield render_images(rows, titles), render_note("Starting with these settings …", "empty")

    def certify(self, visitor: gr.Request, *values: Any) -> Iterator[Any]:
        """Certify, and show the states until the end. Does nothing after a preview that was refused."""
        if self._sessions.last_values(_session_id(visitor)) == REFUSED:
            yield ""
            return
        halt = self._sessions.begin(_session_id(visitor), TASK)
        try:
            request = parse_request(self._context, values)
            for states in iter_states(request, self._context.queue, halt, self._context.limits):
                if not self._sessions.is_current(_session_id(visitor), TASK, halt):
                    return  # replaced by a newer request
                self._sessions.remember_states(_session_id(visitor), request, states)
                yield render_states(request, states)
        except PprsError as error:
            yield render_note(str(error), "error")
        finally:
            halt.set()

    def stop(self, visitor: gr.Request) -> None:
        """Stop the certification in progress."""
        self._sessions.stop(_session_id(visitor), TASK)

    def check_changed(self, visitor: gr.Request, *values: Any) -> None:
        """End the chain of events if a text box lost the focus without a change."""
        if self._sessions.last_values(_session_id(visitor)) == values:
            raise silent_error("nothing has changed")

    def choose_model(self, model: str) -> list[Any]:
        """Return the initial values for a model."""
        return initial_values(self._context.catalog.get(model))

    def choose_example(self, model: str, example: str) -> tuple[None, str]:
        """Return no upload, and the labels of the example."""
        return None, self.get_labels(model, example)

    def get_labels(self, model: str, example: str) -> str:
        """Return the labels of an example."""
        return self._context.catalog.get(model).get_labels(example)


def build_tab(context: Context) -> tuple[Controls, tuple[dict[str, Any], dict[str, Any]]]:
    """Build the tab. Returns its controls, and the events that show the images and start the certification."""
    with gr.Row():
        with gr.Column(scale=4, min_width=320):
            controls, go, stop, next_seed = _build_controls(context)
        with gr.Column(scale=9, min_width=320):
            images = gr.HTML(render_note("Loading the example …", "empty"), elem_id="preview", padding=False)
            live = gr.HTML("", elem_id="results", padding=False)
    handlers = _Handlers(context)
    preview: dict[str, Any] = {
        "fn": handlers.preview, "inputs": controls.inputs, "outputs": [images, live], "api_visibility": "private",
        "show_progress": "hidden",  # the indicator would cover the message with "Error"
    }  # fmt: skip
    certify: dict[str, Any] = {
        "fn": handlers.certify, "inputs": controls.inputs, "outputs": [live], "api_visibility": "private",
        "show_progress": "hidden", "concurrency_limit": context.limits.concurrent, "concurrency_id": CONCURRENCY,
    }  # fmt: skip
    quiet: dict[str, Any] = {"api_visibility": "private", "show_progress": "hidden", "queue": False}
    image = [controls.model, controls.example]
    changes = [  # a dropdown fires "input" whenever it loses the focus, and "select" only when something is chosen
        controls.model.select(handlers.choose_model, [controls.model], controls.inputs[1:], **quiet),
        controls.example.input(handlers.choose_example, image, [controls.upload, controls.labels], **quiet),
        controls.upload.upload(lambda: "", None, [controls.labels], **quiet),
        controls.upload.clear(handlers.get_labels, image, [controls.labels], **quiet),
        next_seed.click(lambda seed: (int(seed or 0) + 1) % MAX_SEED, [controls.seed], [controls.seed], **quiet),
    ]
    changes += [
        m.partition.select(update_options, [m.partition], [*m.slots, m.text], **quiet)
        for m in (controls.first, controls.second)
    ]
    for event in changes:
        event.then(**preview).success(**certify)
    typed = [
        *controls.first.slots,
        controls.first.text,
        *controls.second.slots,
        controls.second.text,
        controls.n,
        controls.seed,
        controls.labels,
    ]
    chosen = [controls.noise.select, controls.alpha.select, controls.pixels.input]
    triggers = [controls.sigma.input, *chosen, *(box.submit for box in typed)]
    gr.on(triggers, **preview, trigger_mode="always_last").success(**certify)
    left = gr.on([box.blur for box in typed], handlers.check_changed, controls.inputs, None, api_visibility="private")
    left.success(**preview).success(**certify)
    go.click(**preview).success(**certify)
    stop.click(handlers.stop, None, None, **quiet)
    return controls, (preview, certify)


def initial_values(entry: CatalogEntry) -> list[Any]:
    """Return the initial values of all controls except the model."""
    titles = [e.title for e in entry.examples]
    methods = [[form, *update_options(form, values)] for form, values in (entry.first, entry.second)]
    return [
        gr.Radio(titles, value=titles[0]), None, entry.examples[0].labels, "gaussian", entry.sigma, *methods[0],
        *methods[1], entry.samples, 0.001, 0, NETWORK,
    ]  # fmt: skip


def _session_id(visitor: gr.Request) -> str:
    return str(visitor.session_hash)
