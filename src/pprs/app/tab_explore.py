"""The tab that explores one picture."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gradio as gr

from pprs.app import show
from pprs.app.catalog import CatalogEntry, read_labels
from pprs.app.context import Context
from pprs.app.explore import NAMES, Request, make_sampling, pictures, watch
from pprs.app.limits import check_number, read_upload
from pprs.app.partition_forms import AS_TEXT, FORMS, SLOTS, make_partition, read_numbers
from pprs.errors import PprsError, suggest
from pprs.noise import parse_noise
from pprs.partition import Partition

NOISES = ("gaussian", "exponential", "powerlaw")
ALPHAS = (0.05, 0.01, 0.001, 0.0001)
SIGMAS = (0.02, 2.0)
SEEDS = 2**31 - 1
RUN = "certify"


def refused(text: str) -> Any:
    """An error that the page already shows: it ends the chain of events, and Gradio adds no message of its own."""
    return gr.Error(text, visible=False, print_exception=False)


@dataclass(frozen=True)
class MethodControls:
    """The controls of one partition."""

    partition: Any
    slots: tuple[Any, ...]
    text: Any

    @property
    def all(self) -> list[Any]:
        return [self.partition, *self.slots, self.text]


@dataclass(frozen=True)
class Controls:
    """Everything that a request depends on, in the order in which handlers receive it."""

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

    @property
    def inputs(self) -> list[Any]:
        return [
            self.model, self.example, self.upload, self.labels, self.noise, self.sigma, *self.first.all,
            *self.second.all, self.n, self.alpha, self.seed,
        ]  # fmt: skip


def read(context: Context, values: tuple[Any, ...]) -> Request:
    """The request that the controls describe, checked."""
    model, example, upload, labels, noise, sigma, *rest = values
    width = SLOTS + 2
    first, second, (n, alpha, seed) = rest[:width], rest[width : 2 * width], rest[2 * width :]
    sigma = check_number(sigma, "sigma", *SIGMAS)
    if noise not in NOISES:
        raise PprsError(f'this page has no noise "{noise}". {suggest(str(noise), NOISES)}')
    n = int(check_number(n, "the number of samples", 100, context.limits.samples, whole=True))
    alpha = check_number(alpha, "alpha", min(ALPHAS), max(ALPHAS))
    seed = int(check_number(seed, "the seed", 0, SEEDS, whole=True))
    partitions = (_partition(*first), _partition(*second))
    entry, loaded = context.catalog.entry(model), context.catalog.load(model)
    some = read_labels(labels)
    all_classes = loaded.num_classes
    loaded, truth, size = loaded.restricted(some), None, ""
    among = f"{loaded.num_classes} of {all_classes} labels" if loaded.num_classes < all_classes else ""
    if upload:
        uploaded, size = read_upload(Path(upload), context.limits)
        image, index, title = loaded.prepare(uploaded), 0, "your picture"
    else:
        chosen = next((e for e in entry.examples if e.title == example), None)
        if chosen is None:
            raise PprsError("choose an example, or drop a picture of your own")
        found = chosen.dataset(loaded)[chosen.index]
        image, index, title = found.image, chosen.index, chosen.title
        truth = None if some else found.label
    law = parse_noise(f"{noise}:sigma={sigma:g}")
    return Request(
        loaded, image, index, title, law, (None, *partitions), make_sampling(n, alpha), seed, truth, among, size
    )


def _partition(form: str, *rest: Any) -> Partition | None:
    *slots, text = rest
    return make_partition(form, read_numbers(form, slots), text)


def _dropdown(name: str, given: tuple[str, dict[str, float]]) -> Any:
    return gr.Dropdown(
        list(FORMS), value=given[0], label=f"Method {name}: partition", elem_id=f"scheme-{name}", min_width=140,
        info="How each noisy copy is averaged.",
    )  # fmt: skip


def _method(name: str, chosen: Any, given: tuple[str, dict[str, float]]) -> MethodControls:
    """The controls for the options of a partition."""
    form, values = given
    with gr.Accordion(f"Options of {name}", open=False):
        with gr.Row():
            slots = tuple(gr.Textbox(**_slot(form, i, values)) for i in range(SLOTS))
        text = gr.Textbox(
            label="Partition as text", visible=form == AS_TEXT, max_length=500, elem_id=f"text-{name}",
            info="As on the command line: slic:n_segments=50/soft/shifts:k=4, A+B for a mean, none.",
        )  # fmt: skip
    return MethodControls(chosen, slots, text)


def _slot(form: str, i: int, values: dict[str, float]) -> dict[str, Any]:
    options = FORMS[form].options
    if i >= len(options):
        return {"label": "–", "value": "", "visible": False, "min_width": 130}
    option = options[i]
    start = values.get(option.name, option.start)
    return {
        "label": option.title, "info": option.about, "value": "" if start is None else f"{start:g}", "visible": True,
        "placeholder": "follows the noise", "max_length": 20, "min_width": 130,
    }  # fmt: skip


def _changed(form: str, given: dict[str, float] | None = None) -> list[Any]:
    if form not in FORMS:
        form = AS_TEXT
    slots = [gr.Textbox(**_slot(form, i, given or {})) for i in range(SLOTS)]
    return [*slots, gr.Textbox(visible=form == AS_TEXT)]


def controls(context: Context) -> tuple[Controls, Any, Any, Any]:
    """The left column, and its buttons."""
    entry = next(iter(context.catalog.entries.values()))
    limits = context.limits
    model = gr.Dropdown(
        context.catalog.names, value=entry.name, label="Model", elem_id="model",
        info="The classifier that is smoothed.", interactive=len(context.catalog.names) > 1,
    )  # fmt: skip
    example = gr.Radio(
        [e.title for e in entry.examples], value=entry.examples[0].title, label="Example picture", elem_id="example"
    )
    most = f"{limits.upload_bytes // 10**6} MB, {limits.upload_pixels // 10**6} megapixels"
    upload = gr.File(
        label=f"or drop your own (at most {most})",
        file_types=["image"], type="filepath", height=150, elem_id="upload",
    )  # fmt: skip
    sigma = gr.Slider(
        0.05, 1.0, value=entry.sigma, step=0.01, label="Sigma (noise, 0–1 scale)", elem_id="sigma",
        info="Standard deviation. More noise allows larger radii, if the network still sees the picture.",
    )  # fmt: skip
    with gr.Row():
        go = gr.Button("Certify", variant="primary", elem_id="go", min_width=100)
        stop = gr.Button("Stop", variant="stop", elem_id="stop", min_width=100)
    chosen = [_dropdown("A", entry.first), _dropdown("B", entry.second)]
    first, second = _method("A", chosen[0], entry.first), _method("B", chosen[1], entry.second)
    with gr.Accordion("Noise, samples, confidence, labels", open=False):
        noise = gr.Dropdown(list(NOISES), value="gaussian", label="Noise", info="The law that sigma belongs to.")
        n = gr.Number(
            entry.samples, label="Samples at most (a method)", precision=0, minimum=100, maximum=limits.samples,
            elem_id="n", info=f"Noisy copies. More: a tighter radius. Up to {limits.samples:,}.",
        )  # fmt: skip
        alpha = gr.Dropdown(
            [(f"{a:g}", a) for a in ALPHAS], value=0.001, label="Alpha (probability)",
            info="A certificate is wrong with at most this probability.",
        )  # fmt: skip
        seed = gr.Number(
            0, label="Seed (whole number)", precision=0, minimum=0, maximum=SEEDS, elem_id="seed",
            info="Random seed: the same seed gives the same numbers.",
        )  # fmt: skip
        labels = gr.Textbox(
            entry.examples[0].labels, label="Labels to choose from", elem_id="labels", max_length=20_000,
            info="Names or numbers with commas; empty: all that the model knows.",
        )  # fmt: skip
    fresh = gr.Button("Another seed", size="sm", elem_id="fresh")
    return Controls(model, example, upload, labels, noise, sigma, first, second, n, alpha, seed), go, stop, fresh


class _Handlers:
    """What happens when a visitor uses the controls."""

    def __init__(self, context: Context) -> None:
        self._context, self._sessions = context, context.sessions

    def preview(self, visitor: gr.Request, *values: Any) -> Iterator[Any]:
        """The pictures of a request; a certification that was under way ends."""
        self._sessions.end(_who(visitor), RUN)
        self._sessions.remember_values(_who(visitor), values)
        try:
            request = read(self._context, values)
            with self._context.queue.take() as turn:
                rows = pictures(request, turn)
        except PprsError as error:
            yield show.note(str(error), "error"), ""
            raise refused(str(error)) from None
        titles = [
            (name, "plain smoothing" if partition is None else partition.short)
            for name, partition in zip(NAMES, request.partitions, strict=True)
        ]
        yield show.columns(rows, titles), show.note("Starting anew with these settings …", "empty")

    def run(self, visitor: gr.Request, *values: Any) -> Iterator[Any]:
        """Certify, and show the states until the end."""
        halt = self._sessions.begin(_who(visitor), RUN)
        try:
            request = read(self._context, values)
            for states in watch(request, self._context.queue, halt, self._context.limits):
                if not self._sessions.is_current(_who(visitor), RUN, halt):
                    return  # newer settings took its place
                self._sessions.remember(_who(visitor), request, states)
                yield show.states(request, states)
        except PprsError as error:
            yield show.note(str(error), "error")
        finally:
            halt.set()

    def stop(self, visitor: gr.Request) -> None:
        self._sessions.stop(_who(visitor), RUN)

    def check_changed(self, visitor: gr.Request, *values: Any) -> None:
        """Nothing follows when a box loses the focus without having been changed."""
        if self._sessions.last_values(_who(visitor)) == values:
            raise refused("nothing was changed")

    def choose_model(self, model: str) -> list[Any]:
        return started(self._context.catalog.entry(model))

    def choose_example(self, model: str, example: str) -> tuple[None, str]:
        """No upload, and the example's labels."""
        return None, self.example_labels(model, example)

    def example_labels(self, model: str, example: str) -> str:
        return self._context.catalog.entry(model).labels(example)


def tab(context: Context) -> tuple[Controls, Any]:
    """Build the tab. Returns its controls, and the events that fill it when the page opens."""
    with gr.Row():
        with gr.Column(scale=4, min_width=320):
            made, go, stop, fresh = controls(context)
        with gr.Column(scale=9, min_width=320):
            seen = gr.HTML(show.note("Loading the example …", "empty"), elem_id="seen", padding=False)
            live = gr.HTML("", elem_id="standing", padding=False)
    on = _Handlers(context)
    load: dict[str, Any] = {
        "fn": on.preview, "inputs": made.inputs, "outputs": [seen, live], "api_visibility": "private",
        "show_progress": "hidden",  # which would cover the message with "Error"
    }  # fmt: skip
    start: dict[str, Any] = {
        "fn": on.run, "inputs": made.inputs, "outputs": [live], "api_visibility": "private", "show_progress": "hidden",
        "concurrency_limit": context.limits.at_once, "concurrency_id": RUN,
    }  # fmt: skip
    quiet: dict[str, Any] = {"api_visibility": "private", "show_progress": "hidden", "queue": False}
    image = [made.model, made.example]
    renewed = [  # a dropdown is "input" whenever it is left, and "select" when something is chosen
        made.model.select(on.choose_model, [made.model], made.inputs[1:], **quiet),
        made.example.input(on.choose_example, image, [made.upload, made.labels], **quiet),
        made.upload.upload(lambda: "", None, [made.labels], **quiet),
        made.upload.clear(on.example_labels, image, [made.labels], **quiet),
        fresh.click(lambda seed: (int(seed or 0) + 1) % SEEDS, [made.seed], [made.seed], **quiet),
    ]
    renewed += [
        m.partition.select(_changed, [m.partition], [*m.slots, m.text], **quiet) for m in (made.first, made.second)
    ]
    for event in renewed:
        event.then(**load).success(**start)
    typed = [*made.first.slots, made.first.text, *made.second.slots, made.second.text, made.n, made.seed, made.labels]
    changed = [made.sigma.input, made.noise.select, made.alpha.select, *(box.submit for box in typed)]
    gr.on(changed, **load, trigger_mode="always_last").success(**start)
    gone = gr.on([box.blur for box in typed], on.check_changed, made.inputs, None, api_visibility="private")
    gone.success(**load).success(**start)
    go.click(**load).success(**start)
    stop.click(on.stop, None, None, **quiet)
    return made, (load, start)


def started(entry: CatalogEntry) -> list[Any]:
    """The initial values of all controls but the model itself."""
    titles = [e.title for e in entry.examples]
    methods = [[gr.Dropdown(value=form), *_changed(form, given)] for form, given in (entry.first, entry.second)]
    return [
        gr.Radio(titles, value=titles[0]), None, entry.examples[0].labels, "gaussian", entry.sigma, *methods[0],
        *methods[1], entry.samples, 0.001, 0,
    ]  # fmt: skip


def _who(visitor: gr.Request) -> str:
    return str(visitor.session_hash)
