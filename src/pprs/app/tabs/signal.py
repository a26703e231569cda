"""The Signal tab: a signal drowns in noise, comes back by averaging, and is certified."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import gradio as gr

from pprs.app.cards import render_images, render_states
from pprs.app.catalog import LoadedModel
from pprs.app.certification import NAMES, Request, iter_states, make_sampling, make_tiles, name_method
from pprs.app.images import ChosenImage
from pprs.app.partition_forms import RECOMMENDED, SIGNAL_FORMS
from pprs.app.render import render, render_note
from pprs.app.server.context import Context
from pprs.app.server.limits import check_number
from pprs.app.signal_inputs import SUFFIXES, choose_signal, format_curve
from pprs.app.signals import MISSING, SignalEntry, SignalNetwork
from pprs.app.tabs import jobs
from pprs.app.tabs.controls import (
    ALPHAS,
    build_alpha,
    build_buttons,
    build_dropdown,
    build_input,
    build_method,
    build_model,
    build_seed,
    parse_method,
    parse_seed,
    update_options,
)
from pprs.errors import PprsError, suggest
from pprs.inputs.domain import SIGNAL
from pprs.inputs.space import NETWORK
from pprs.noise import Gaussian, Noise
from pprs.partition import Partition, Recommendation
from pprs.smoothing.sampling import Sampling

TASK, PREFIX = "signal", "signal-"
SIGMAS = (1e-6, 1e4)
N, MAX_INDEX = 2000, 10**6
CURVE_SCRIPT = Path(__file__).parents[1] / "static" / "curve.js"


@dataclass(frozen=True)
class SignalRequest:
    """A visitor's request, before the network is there."""

    network: SignalNetwork
    chosen: ChosenImage
    noise: Noise
    partition: Partition | None
    recommendation: Recommendation | None  # if the partition was left to the page
    sampling: Sampling
    seed: int
    pixels: str = NETWORK

    @property
    def partitions(self) -> tuple[Partition | None, ...]:
        """The partition of each method. Plain smoothing comes first."""
        return (None,) if self.partition is None else (None, self.partition)

    @property
    def image(self) -> Any:
        """The signal."""
        return self.chosen.image

    @property
    def title(self) -> str:
        """The name of the signal."""
        return self.chosen.title

    @property
    def index(self) -> int:
        """A key of the random noise."""
        return self.chosen.index

    @property
    def titles(self) -> list[tuple[str, str]]:
        """The name and the partition of each method."""
        recommendations = (None, self.recommendation)
        return [(NAMES[i], name_method(p, recommendations[i])) for i, p in enumerate(self.partitions)]

    def complete(self, loaded: LoadedModel) -> Request:
        """Return the request with its network."""
        chosen = self.chosen
        return Request(
            loaded, chosen.image, chosen.index, chosen.title, self.noise, self.partitions, self.sampling, self.seed,
            chosen.label, file_shape=chosen.file_shape,
        )  # fmt: skip


def parse_request(context: Context, values: tuple[Any, ...]) -> SignalRequest:
    """Check the values of the controls and return the request that they describe."""
    model, example, upload, index, curve, sigma, n, alpha, seed, *method = values
    network = find_network(context, model)
    noise = Gaussian(check_number(sigma, "sigma", *SIGMAS))
    n = int(check_number(n, "the number of samples", 100, context.limits.samples, integer=True))
    sampling = make_sampling(n, check_number(alpha, "alpha", min(ALPHAS), max(ALPHAS)))
    requested, seed = parse_method(*method), parse_seed(seed)
    index = int(check_number(index, "the index", 0, MAX_INDEX, integer=True))
    chosen = choose_signal(context.limits, network.entry, example, upload, index, curve)
    recommendation = None
    if isinstance(requested, str):
        recommendation = network.entry.recommend(noise, tuple(chosen.image.shape))
        requested = recommendation.partition
    return SignalRequest(network, chosen, noise, requested, recommendation, sampling, seed)


def find_network(context: Context, name: str) -> SignalNetwork:
    """Return a network by name."""
    networks = {network.entry.name: network for network in context.signals}
    if name not in networks:
        raise PprsError(f'unknown network "{name}". {suggest(str(name), networks)}')
    return networks[name]


def show_preview(context: Context, values: tuple[Any, ...]) -> tuple[str, str]:
    """Return the signals of a request, and what to do next."""
    try:
        request = parse_request(context, values)
        with context.queue.take() as turn:
            rows = make_tiles(request, turn)
    except PprsError as error:
        return render_note(str(error), "error"), ""
    return render_images(rows, request.titles, SIGNAL), render_note(request.network.entry.hint, "empty")


def start(context: Context, *values: Any) -> jobs.Start:
    """Return the work that the values of the controls ask for."""

    def run(halt: threading.Event) -> Iterator[str]:
        request = parse_request(context, values)
        loaded = yield from jobs.show_loading(context, request.network, halt)
        if loaded is None:
            return
        complete = request.complete(loaded)
        for states in iter_states(complete, context.queue, halt, context.limits):
            yield render_states(complete, states)

    return run


def _build_sigma(entry: SignalEntry) -> Any:
    return gr.Slider(
        0.0, entry.scale.max_sigma, value=entry.scale.sigma, step=entry.scale.sigma / 50, elem_id=f"{PREFIX}sigma",
        label="Sigma (noise, unit of the signal)",
        info="Standard deviation. More noise allows larger radii, as long as the network still recognises the signal.",
    )  # fmt: skip


def build_tab(context: Context) -> dict[str, Any] | None:
    """Build the tab. Returns the event that draws it, or None if there are no signals."""
    if not context.signals:
        gr.HTML(render_note(MISSING, "empty"), elem_id=f"{PREFIX}missing", padding=False)
        return None
    entry, limits = context.signals[0].entry, context.limits
    with gr.Row():
        with gr.Column(scale=4, min_width=320):
            model = build_model(
                [network.entry.name for network in context.signals], PREFIX, "A classifier of signals, and its signals."
            )
            maximum = f"{limits.signal_bytes // 10**6} MB"
            example, upload = build_input("Example signal", entry.examples, maximum, list(SUFFIXES), PREFIX)
            canvas = gr.HTML(
                html_template=render("canvas.html"), js_on_load=CURVE_SCRIPT.read_text(encoding="utf-8"),
                elem_id=f"{PREFIX}canvas", padding=False,
            )  # fmt: skip
            sigma = _build_sigma(entry)
            buttons = build_buttons("Certify", PREFIX)
            dropdown = build_dropdown("A", RECOMMENDED, PREFIX, SIGNAL_FORMS)
            method = build_method("A", dropdown, (RECOMMENDED, {}), PREFIX, "slic1d:n_segments=40/soft/shifts:k=4")
            with gr.Accordion("Numbers, samples, confidence, seed", open=False):
                curve = gr.Textbox(
                    label="Curve (numbers in the unit of the signal)", elem_id=f"{PREFIX}curve", max_length=200_000,
                    lines=2, info="Separated by commas. It is resampled to the length that the network takes.",
                )  # fmt: skip
                index = gr.Number(
                    0, label="Index in the uploaded file", precision=0, minimum=0, maximum=MAX_INDEX,
                    elem_id=f"{PREFIX}index", info="If it holds several signals. The first one has the index 0.",
                )  # fmt: skip
                n = gr.Number(
                    N, label="Maximum samples (per method)", precision=0, minimum=100, maximum=limits.samples,
                    elem_id=f"{PREFIX}n", info="Noisy copies. More samples prove a larger radius.",
                )  # fmt: skip
                alpha = build_alpha()
                seed = build_seed(PREFIX)
        with gr.Column(scale=9, min_width=320):
            signals = gr.HTML(render_note("Loading the signal …", "empty"), elem_id=f"{PREFIX}preview", padding=False)
            output = gr.HTML("", elem_id=f"{PREFIX}result", padding=False)
    inputs = [model, example, upload, index, curve, sigma, n, alpha, seed, *method.inputs]

    def preview(visitor: gr.Request, *values: Any) -> tuple[str, str]:
        context.sessions.cancel(str(visitor.session_hash), TASK)
        return show_preview(context, values)

    def take_curve(model: str, event: gr.EventData) -> tuple[str, None, None]:  # and neither example nor upload
        return format_curve(event._data.get("curve"), find_network(context, model).entry.scale), None, None

    draw: dict[str, Any] = {
        "fn": preview, "inputs": inputs, "outputs": [signals, output], "api_visibility": "private",
        "show_progress": "hidden",
    }  # fmt: skip
    quiet: dict[str, Any] = {"api_visibility": "private", "show_progress": "hidden", "queue": False}
    changes = [
        model.select(partial(choose_network, context), [model], [example, upload, curve, sigma], **quiet),
        example.input(lambda: (None, ""), None, [upload, curve], **quiet),
        upload.upload(lambda: "", None, [curve], **quiet),
        canvas.input(take_curve, [model], [curve, example, upload], **quiet),
        method.partition.select(update_options, [method.partition], [*method.slots, method.text], **quiet),
    ]
    for event in changes:
        event.then(**draw)
    typed = [*method.slots, method.text, index, seed]
    triggers = [sigma.input, upload.clear, curve.input, *(box.submit for box in typed)]
    gr.on(triggers, **draw, trigger_mode="always_last")
    # Options that were typed but not submitted. This must not cancel the work that the same click starts.
    buttons[0].click(**draw | {"fn": lambda *values: show_preview(context, values)[0], "outputs": [signals]})
    jobs.connect(context, TASK, partial(start, context), inputs, output, buttons)
    return draw


def choose_network(context: Context, name: str) -> tuple[Any, None, str, Any]:
    """Return the examples of a network, no upload, no curve, and suitable noise."""
    entry = find_network(context, name).entry
    titles = [e.title for e in entry.examples]
    return gr.Radio(titles, value=titles[0]), None, "", _build_sigma(entry)
