"""The tab on which one picture is looked at."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gradio as gr

from pprs.app import schemes, show
from pprs.app.context import Context
from pprs.app.explore import NAMES, Asked, make_plan, pictures, watch
from pprs.app.limits import check_number, read_upload
from pprs.app.schemes import AS_TEXT, SCHEMES, SLOTS
from pprs.app.subjects import Subject, read_labels
from pprs.errors import PprsError, suggest
from pprs.noise import parse_noise

NOISES = ("gaussian", "exponential", "powerlaw")
ALPHAS = (0.05, 0.01, 0.001, 0.0001)
SIGMAS = (0.02, 2.0)
SEEDS = 2**31 - 1
RUN = "certify"


def refused(text: str) -> Any:
    """An error that the page has told already: what follows does not begin, and Gradio says no more of it."""
    return gr.Error(text, visible=False, print_exception=False)


@dataclass(frozen=True)
class Method:
    """The controls of one partition."""

    scheme: Any
    slots: tuple[Any, ...]
    text: Any

    @property
    def all(self) -> list[Any]:
        return [self.scheme, *self.slots, self.text]


@dataclass(frozen=True)
class Controls:
    """All that a request depends on, in the order in which handlers are given it."""

    model: Any
    example: Any
    upload: Any
    labels: Any
    noise: Any
    sigma: Any
    first: Method
    second: Method
    n: Any
    alpha: Any
    seed: Any

    @property
    def inputs(self) -> list[Any]:
        return [
            self.model, self.example, self.upload, self.labels, self.noise, self.sigma, *self.first.all,
            *self.second.all, self.n, self.alpha, self.seed,
        ]  # fmt: skip


def read(context: Context, values: tuple[Any, ...]) -> Asked:
    """What the controls ask for, checked."""
    model, example, upload, labels, noise, sigma, *rest = values
    width = SLOTS + 2
    first, second, (n, alpha, seed) = rest[:width], rest[width : 2 * width], rest[2 * width :]
    sigma = check_number(sigma, "sigma", *SIGMAS)
    if noise not in NOISES:
        raise PprsError(f'this page has no noise "{noise}". {suggest(str(noise), NOISES)}')
    n = int(check_number(n, "the number of samples", 100, context.limits.samples, whole=True))
    alpha = check_number(alpha, "alpha", min(ALPHAS), max(ALPHAS))
    seed = int(check_number(seed, "the seed", 0, SEEDS, whole=True))
    partitions = tuple(schemes.make(one[0], schemes.numbers(one[0], one[1:-1]), one[-1]) for one in (first, second))
    subject, loaded = context.shelf.subject(model), context.shelf.get(model)
    some = read_labels(labels)
    all_classes = loaded.num_classes
    loaded, truth, size = loaded.restricted(some), None, ""
    among = f"{loaded.num_classes} of {all_classes} labels" if loaded.num_classes < all_classes else ""
    if upload:
        picture, size = read_upload(Path(upload), context.limits)
        picture, index, title = loaded.prepare(picture), 0, "your picture"
    else:
        chosen = next((e for e in subject.examples if e.title == example), None)
        if chosen is None:
            raise PprsError("choose an example, or drop a picture of your own")
        found = chosen.pictures(loaded)[chosen.index]
        picture, index, title = found.image, chosen.index, chosen.title
        truth = None if some else found.label
    plan = make_plan(n, alpha)
    law = parse_noise(f"{noise}:sigma={sigma:g}")
    return Asked(loaded, picture, index, title, law, (None, *partitions), plan, seed, truth, among, size)


def _scheme(name: str, given: tuple[str, dict[str, float]]) -> Any:
    return gr.Dropdown(
        list(SCHEMES), value=given[0], label=f"Method {name}: partition", elem_id=f"scheme-{name}", min_width=140,
        info="How each noisy copy is averaged.",
    )  # fmt: skip


def _method(name: str, chosen: Any, given: tuple[str, dict[str, float]]) -> Method:
    """The options of a partition that was chosen."""
    scheme, values = given
    with gr.Accordion(f"Options of {name}", open=False):
        with gr.Row():
            slots = tuple(gr.Textbox(**_slot(scheme, i, values)) for i in range(SLOTS))
        text = gr.Textbox(
            label="Partition as text", visible=scheme == AS_TEXT, max_length=500, elem_id=f"text-{name}",
            info="As on the command line: slic:n_segments=50/soft/shifts:k=4, A+B for a mean, none.",
        )  # fmt: skip
    return Method(chosen, slots, text)


def _slot(scheme: str, i: int, values: dict[str, float]) -> dict[str, Any]:
    options = SCHEMES[scheme].options
    if i >= len(options):
        return {"label": "–", "value": "", "visible": False, "min_width": 130}
    option = options[i]
    start = values.get(option.name, option.start)
    return {
        "label": option.title, "info": option.about, "value": "" if start is None else f"{start:g}", "visible": True,
        "placeholder": "follows the noise", "max_length": 20, "min_width": 130,
    }  # fmt: skip


def _changed(scheme: str, given: dict[str, float] | None = None) -> list[Any]:
    if scheme not in SCHEMES:
        scheme = AS_TEXT
    slots = [gr.Textbox(**_slot(scheme, i, given or {})) for i in range(SLOTS)]
    return [*slots, gr.Textbox(visible=scheme == AS_TEXT)]


def controls(context: Context) -> tuple[Controls, Any, Any, Any]:
    """The left column, and its buttons."""
    subject = next(iter(context.shelf.subjects.values()))
    limits = context.limits
    model = gr.Dropdown(
        context.shelf.names, value=subject.name, label="Model", elem_id="model",
        info="The classifier that is smoothed.", interactive=len(context.shelf.names) > 1,
    )  # fmt: skip
    example = gr.Radio(
        [e.title for e in subject.examples], value=subject.examples[0].title, label="Example picture", elem_id="example"
    )
    most = f"{limits.upload_bytes // 10**6} MB, {limits.upload_pixels // 10**6} megapixels"
    upload = gr.File(
        label=f"or drop your own (at most {most})",
        file_types=["image"], type="filepath", height=150, elem_id="upload",
    )  # fmt: skip
    sigma = gr.Slider(
        0.05, 1.0, value=subject.sigma, step=0.01, label="Sigma (noise, 0–1 scale)", elem_id="sigma",
        info="Standard deviation. More noise allows larger radii, if the network still sees the picture.",
    )  # fmt: skip
    with gr.Row():
        go = gr.Button("Certify", variant="primary", elem_id="go", min_width=100)
        stop = gr.Button("Stop", variant="stop", elem_id="stop", min_width=100)
    chosen = [_scheme("A", subject.first), _scheme("B", subject.second)]
    first, second = _method("A", chosen[0], subject.first), _method("B", chosen[1], subject.second)
    with gr.Accordion("Noise, samples, confidence, labels", open=False):
        noise = gr.Dropdown(list(NOISES), value="gaussian", label="Noise", info="The law that sigma belongs to.")
        n = gr.Number(
            subject.samples, label="Samples at most (a method)", precision=0, minimum=100, maximum=limits.samples,
            elem_id="n", info=f"Noisy copies. More: a tighter radius. Up to {limits.samples:,}.",
        )  # fmt: skip
        alpha = gr.Dropdown(
            [(f"{a:g}", a) for a in ALPHAS], value=0.001, label="Alpha (probability)",
            info="A certificate is wrong with at most this probability.",
        )  # fmt: skip
        seed = gr.Number(
            0, label="Seed (whole number)", precision=0, minimum=0, maximum=SEEDS, elem_id="seed",
            info="Of all randomness: the same seed gives the same numbers.",
        )  # fmt: skip
        labels = gr.Textbox(
            subject.examples[0].labels, label="Labels to choose from", elem_id="labels", max_length=20_000,
            info="Names or numbers with commas; empty: all that the model knows.",
        )  # fmt: skip
    fresh = gr.Button("Another seed", size="sm", elem_id="fresh")
    return Controls(model, example, upload, labels, noise, sigma, first, second, n, alpha, seed), go, stop, fresh


def tab(context: Context) -> tuple[Controls, Any]:
    """Build the tab. Gives back its controls, and the event that fills it when the page opens."""
    with gr.Row():
        with gr.Column(scale=4, min_width=320):
            made, go, stop, fresh = controls(context)
        with gr.Column(scale=9, min_width=320):
            seen = gr.HTML(show.note("Loading the example …", "empty"), elem_id="seen", padding=False)
            live = gr.HTML("", elem_id="standing", padding=False)

    def preview(request: gr.Request, *values: Any) -> Iterator[Any]:
        context.sessions.end(_who(request), RUN)
        context.sessions.ask(_who(request), values)
        try:
            asked = read(context, values)
            with context.turns.take() as mine:
                rows = pictures(asked, mine)
        except PprsError as error:
            yield show.note(str(error), "error"), ""
            raise refused(str(error)) from None
        titles = [
            (name, "plain smoothing" if s is None else s.short) for name, s in zip(NAMES, asked.schemes, strict=True)
        ]
        yield show.columns(rows, titles), show.note("Starting anew with these settings …", "empty")

    def run(request: gr.Request, *values: Any) -> Iterator[Any]:
        halt = context.sessions.begin(_who(request), RUN)
        try:
            asked = read(context, values)
            for now in watch(asked, context.turns, halt, context.limits):
                if not context.sessions.is_current(_who(request), RUN, halt):
                    return  # newer settings took its place
                context.sessions.remember(_who(request), asked, now)
                yield show.standing(asked, now)
        except PprsError as error:
            yield show.note(str(error), "error")
        finally:
            halt.set()

    def halt(request: gr.Request) -> None:
        context.sessions.stop(_who(request), RUN)

    def choose(name: str) -> Any:
        return started(context.shelf.subject(name))

    def another(model: str, example: str) -> Any:
        return None, context.shelf.subject(model).labels(example)

    def left(request: gr.Request, *values: Any) -> None:
        """A box was left, and nothing follows unless something was written into it."""
        if context.sessions.asked(_who(request)) == values:
            raise refused("nothing was changed")

    load: dict[str, Any] = {
        "fn": preview, "inputs": made.inputs, "outputs": [seen, live], "api_visibility": "private",
        "show_progress": "hidden",  # which would lay "Error" over what is told
    }  # fmt: skip
    start: dict[str, Any] = {
        "fn": run, "inputs": made.inputs, "outputs": [live], "api_visibility": "private", "show_progress": "hidden",
        "concurrency_limit": context.limits.at_once, "concurrency_id": RUN,
    }  # fmt: skip
    quiet: dict[str, Any] = {"api_visibility": "private", "show_progress": "hidden", "queue": False}
    renewed = [  # a dropdown is "input" whenever it is left, and "select" when something is chosen
        made.model.select(choose, [made.model], made.inputs[1:], **quiet),
        made.example.input(another, [made.model, made.example], [made.upload, made.labels], **quiet),
        made.upload.upload(lambda: "", None, [made.labels], **quiet),
        made.upload.clear(lambda *chosen: another(*chosen)[1], [made.model, made.example], [made.labels], **quiet),
        fresh.click(lambda seed: (int(seed or 0) + 1) % SEEDS, [made.seed], [made.seed], **quiet),
    ]
    renewed += [m.scheme.select(_changed, [m.scheme], [*m.slots, m.text], **quiet) for m in (made.first, made.second)]
    for event in renewed:
        event.then(**load).success(**start)
    typed = [*made.first.slots, made.first.text, *made.second.slots, made.second.text, made.n, made.seed, made.labels]
    changed = [
        made.sigma.input, made.noise.select, made.alpha.select,
        *(box.submit for box in typed),
    ]  # fmt: skip
    gr.on(changed, **load, trigger_mode="always_last").success(**start)
    gone = gr.on([box.blur for box in typed], left, made.inputs, None, api_visibility="private")
    gone.success(**load).success(**start)
    go.click(**load).success(**start)
    stop.click(halt, None, None, **quiet)
    return made, (load, start)


def started(subject: Subject) -> list[Any]:
    """All controls but the model, as they suit it to begin with."""
    titles = [e.title for e in subject.examples]
    methods = [
        [gr.Dropdown(value=scheme), *_changed(scheme, given)] for scheme, given in (subject.first, subject.second)
    ]
    return [
        gr.Radio(titles, value=titles[0]), None, subject.examples[0].labels, "gaussian", subject.sigma, *methods[0],
        *methods[1], subject.samples, 0.001, 0,
    ]  # fmt: skip


def _who(request: gr.Request) -> str:
    return str(request.session_hash)
