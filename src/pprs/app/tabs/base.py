"""What all tabs that answer a request have in common: a form, the request that it describes, and an answer."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Generator, Iterator, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, Generic, TypeVar

import gradio as gr

from pprs.app.catalog import parse_labels
from pprs.app.images import choose_image
from pprs.app.networks import LoadedModel, Network, Networks
from pprs.app.render import render_note
from pprs.app.requests import ChosenInput, Request, SmoothingMethod, make_methods
from pprs.app.server.context import Context
from pprs.app.tabs import jobs
from pprs.app.tabs.fields import QUIET, Components, Field
from pprs.inputs.space import FILE, NETWORK
from pprs.noise import parse_noise

S = TypeVar("S")
Values = Mapping[str, Any]  # of the fields, parsed
METHODS = ("A", "B")  # the fields that are partitions
FOLD = (Path(__file__).parents[1] / "static" / "fold.js").read_text(encoding="utf-8")


class Tab(ABC, Generic[S]):
    """A tab. A subclass lists its fields, and says what they ask for and how it is answered.

    Fields that mean the same on every tab have the same name: `model`, `example`, `upload`, `noise`, `sigma`, `A`, `B`,
    `seed`, `labels`, `pixels`.
    """

    task: ClassVar[str]  # the kind of work; a newer one replaces it
    prefix: ClassVar[str]  # of the ids of its controls
    verb: ClassVar[str] = "Certify"
    intro: ClassVar[str] = ""

    def __init__(self, context: Context) -> None:
        self.context = context
        self.networks = self.find_networks()
        self.groups = self.list_fields()
        self.fields = {name: field for group in self.groups.values() for name, field in group.items()}
        self.controls: dict[str, Components] = {}  # by field, once the tab is built

    def find_networks(self) -> Networks[Any]:
        """Return the networks to choose from."""
        return self.context.images

    @abstractmethod
    def list_fields(self) -> dict[str, dict[str, Field]]:
        """Return the fields by title and name.

        Those without a title are essential. The others are folded away under their title in a narrow window, and in a
        wide one those of the first title are not.
        """

    @abstractmethod
    def read_settings(self, network: Network[Any], chosen: ChosenInput, values: Values) -> S:
        """Return the settings of the guarantee."""

    @abstractmethod
    def answer(self, request: Request[S], halt: threading.Event) -> Iterator[str]:
        """Yield what to show until the request is answered, or until `halt` is set."""

    def choose(self, network: Network[Any], loaded: LoadedModel | None, values: Values) -> ChosenInput:
        """Return the input that was chosen."""
        assert loaded is not None
        pixels = values.get("pixels", NETWORK)
        return choose_image(
            self.context.limits, loaded, network.entry.examples, values["example"], values["upload"], pixels
        )

    # ---- from the values of the controls to a request

    def parse(self, values: tuple[Any, ...]) -> tuple[Network[Any], Values]:
        """Check the values that the page sends, in the order of the fields."""
        parsed, rest = {}, list(values)
        for name, field in self.fields.items():
            parsed[name], rest = field.parse(*rest[: field.width]), rest[field.width :]
        return self.networks.get(parsed["model"]), parsed

    def read(self, values: tuple[Any, ...], halt: threading.Event) -> Generator[str, None, Request[S] | None]:
        """Yield the progress of loading the network, and return the request, or None if `halt` is set before."""
        network, parsed = self.parse(values)
        loaded = yield from jobs.show_loading(self.context, network, halt)
        return None if loaded is None else self.make_request(network, loaded, parsed)

    def make_request(self, network: Network[Any], loaded: LoadedModel | None, values: Values) -> Request[S]:
        """Return the request that the values of the fields describe."""
        pixels, label_choice = values.get("pixels", NETWORK), ""
        labels = parse_labels(values.get("labels", ""))
        if loaded is not None and labels:
            all_classes, loaded = loaded.num_classes, loaded.restrict(labels)
            label_choice = f"{loaded.num_classes} of {all_classes} labels" if loaded.num_classes < all_classes else ""
        chosen = self.choose(network, loaded, values)
        methods: tuple[SmoothingMethod, ...] = ()
        if "sigma" in values:
            noise = parse_noise(f"{values.get('noise', 'gaussian')}:sigma={values['sigma']!r}")
            recommend = partial(network.entry.recommend, loaded, noise, tuple(chosen.values.shape))
            methods = make_methods(noise, [values[name] for name in METHODS if name in values], recommend)
        return Request(
            loaded.take_files() if loaded is not None and pixels == FILE else loaded,
            replace(chosen, label=None) if labels else chosen,
            self.read_settings(network, chosen, values),
            methods,
            values.get("seed", 0),
            label_choice,
            pixels,
        )

    def start(self, *values: Any) -> jobs.Start:
        """Return the work that the values of the controls ask for."""

        def run(halt: threading.Event) -> Iterator[str]:
            request = yield from self.read(values, halt)
            if request is not None:
                yield from self.answer(request, halt)

        return run

    # ---- the page

    def build(self) -> None:
        """Build the tab: its fields on the left, and the answer on the right, or below them in a narrow window."""
        with gr.Row():
            with gr.Column(scale=4, min_width=320):
                buttons = self._build_form()
            with gr.Column(scale=9, min_width=320):
                outputs = self.build_output()
        self.connect(buttons, outputs, self._wire())

    def _build_form(self) -> tuple[Any, Any]:
        essential, *folded = self.groups
        self._place(self.groups[essential])
        with gr.Row():
            go = gr.Button(self.verb, variant="primary", elem_id=f"{self.prefix}go", min_width=100)
            stop = gr.Button("Stop", variant="stop", elem_id=f"{self.prefix}stop", min_width=100)
        for title in folded:
            with gr.Accordion(title, open=title == folded[0]):
                self._place(self.groups[title])
                if title == folded[0]:
                    gr.HTML("", js_on_load=FOLD, padding=False)
        return go, stop

    def _place(self, fields: Mapping[str, Field]) -> None:
        entry = self.networks.first.entry
        for name, field in fields.items():
            controls = self.controls[name] = field.make(entry, self.prefix)
            if field.folded:
                for control in controls[1:]:
                    control.unrender()
                with gr.Accordion(field.folded, open=False), gr.Row():
                    for control in controls[1:]:
                        control.render()

    def build_output(self) -> Components:
        """Build the place of the answer."""
        intro = render_note(self.networks.first.entry.hint or self.intro, "empty")
        return [gr.HTML(intro, elem_id=f"{self.prefix}result", padding=False)]

    def connect(self, buttons: tuple[Any, Any], outputs: Components, changes: list[Any]) -> None:
        """Let the buttons start and stop the work. `changes` are the events of controls that set others."""
        jobs.connect(self.context, self.task, self.start, self.inputs, outputs[0], buttons)

    @property
    def inputs(self) -> Components:
        """All controls, in the order of the fields."""
        return [control for name in self.fields for control in self.controls[name]]

    def update(self, entry: Any, **chosen: list[Any]) -> list[Any]:
        """Return the updates of all controls that suit a network, but for those that are given."""
        kept = {name: [gr.skip()] * field.width for name, field in self.fields.items() if not field.follows}
        made = {name: field.make(entry, self.prefix) for name, field in self.fields.items() if field.follows}
        updates = made | kept | chosen
        return [update for name in self.fields for update in updates[name]]

    def _wire(self) -> list[Any]:
        """Connect controls with each other: a model brings its examples, an example replaces an upload."""
        model, example = self.controls["model"], self.controls["example"]
        return [
            model[0].select(lambda name: self.update(self.networks.get(name).entry), model, self.inputs, **QUIET),
            example[0].input(self.replace_input, [*model, *example], self.list_replaced(), **QUIET),
            *(change for name, field in self.fields.items() for change in field.wire(self.controls[name])),
        ]

    def list_replaced(self) -> Components:
        """Return the controls that are set when an example is chosen."""
        return self.controls["upload"]

    def replace_input(self, model: str, example: str) -> Any:
        """Return the values of these controls: no upload."""
        return None
