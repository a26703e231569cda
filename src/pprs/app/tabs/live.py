"""What Explore and Signal have in common: an input under noise, and certificates that grow while they are watched."""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator, Iterator
from functools import partial
from typing import Any, ClassVar

import gradio as gr

from pprs.app.certification import MethodState, iter_states, make_sampling, render_tiles
from pprs.app.networks import Network
from pprs.app.render import render_note
from pprs.app.requests import ChosenInput, Request
from pprs.app.tabs import jobs
from pprs.app.tabs.base import Tab, Values
from pprs.app.tabs.fields import QUIET, Components
from pprs.app.votes import render_states
from pprs.errors import PprsError
from pprs.smoothing.sampling import Sampling

REFUSED: tuple[Any, ...] = ()  # stored instead of the values of controls that were refused
Event = dict[str, Any]  # the arguments of a Gradio event


def silent_error(text: str) -> Any:
    """Return an error that ends the chain of events, without a message from Gradio: the page already shows one."""
    return gr.Error(text, visible=False, print_exception=False)


class LiveTab(Tab[Sampling]):
    """A tab that shows what the methods make of an input at once, and then their votes as they come in.

    Any change of a control shows the new input and starts again, unless the network would take long to load: then the
    button does.
    """

    waiting: ClassVar[str]  # shown until the input is there

    def read_settings(self, network: Network[Any], chosen: ChosenInput, values: Values) -> Sampling:
        return make_sampling(values["n"], values["alpha"])

    def answer(
        self,
        request: Request[Sampling],
        halt: threading.Event,
        remember: Callable[[list[MethodState]], None] = lambda states: None,
    ) -> Iterator[str]:
        for states in iter_states(request, self.context.queue, halt, self.context.limits):
            remember(states)
            yield render_states(request, states)

    # ---- the handlers of events

    def preview(self, visitor: gr.Request, *values: Any) -> Iterator[tuple[str, Any]]:
        """Show the input of a request, and cancel a certification in progress."""
        yield from self.show_preview(str(visitor.session_hash), values)

    def show_preview(self, session: str, values: tuple[Any, ...]) -> Iterator[tuple[str, Any]]:
        """Yield the input of a request, and what takes the place of the votes until they come in."""
        sessions, task = self.context.sessions, f"{self.task} preview"
        sessions.cancel(session, self.task)
        sessions.remember_values(session, self.task, values)
        halt = sessions.begin(session, task)
        try:
            request = yield from jobs.forward(self.read_input(values, halt), lambda page: (page, ""))
            if request is None or not sessions.is_current(session, task, halt):
                return
            with self.context.queue.take() as turn:
                tiles = render_tiles(request, turn)
        except PprsError as error:
            # Not raised: after an event that failed, Gradio drops the one that was waiting behind it.
            sessions.remember_values(session, self.task, REFUSED)
            yield render_note(str(error), "error"), ""
            return
        yield tiles, render_note("Starting with these settings …", "empty")

    def read_input(
        self, values: tuple[Any, ...], halt: threading.Event
    ) -> Generator[str, None, Request[Sampling] | None]:
        """Return the request, of which only the input and the methods are needed."""
        return self.read(values, halt)

    def certify(self, visitor: gr.Request, *values: Any) -> Iterator[str]:
        """Certify, and show the votes until the end. Does nothing after a preview that was refused."""
        yield from self.show_votes(str(visitor.session_hash), values, pressed=True)

    def certify_soon(self, visitor: gr.Request, *values: Any) -> Iterator[str]:
        """Certify, or ask for the button if the network would take long to load."""
        yield from self.show_votes(str(visitor.session_hash), values, pressed=False)

    def show_votes(self, session: str, values: tuple[Any, ...], *, pressed: bool) -> Iterator[str]:
        """Yield the votes as they come in. `pressed`: whether the visitor asked for them with the button."""
        if self.context.sessions.last_values(session, self.task) == REFUSED:
            yield ""
            return
        network, _ = self.parse(values)
        if not pressed and network.entry.hint and network.loaded is None:
            yield render_note(network.entry.hint, "empty")
            return
        yield from jobs.iter_pages(self.context, session, self.task, partial(self._certify, session, values))

    def _certify(self, session: str, values: tuple[Any, ...], halt: threading.Event) -> Iterator[str]:
        request = yield from self.read(values, halt)
        if request is None:
            return
        sessions, complete = self.context.sessions, request

        def remember(states: list[MethodState]) -> None:
            if sessions.is_current(session, self.task, halt):  # else it was replaced by a newer request
                sessions.remember_states(session, complete, states)

        yield from self.answer(request, halt, remember)

    def stop(self, visitor: gr.Request) -> None:
        """Stop the certification in progress."""
        self.context.sessions.stop(str(visitor.session_hash), self.task)

    def check_changed(self, visitor: gr.Request, *values: Any) -> None:
        """End the chain of events if a text box lost the focus without a change."""
        if self.context.sessions.last_values(str(visitor.session_hash), self.task) == values:
            raise silent_error("nothing has changed")

    # ---- the page

    def build_output(self) -> Components:
        """Build the places of the input and of the votes."""
        waiting = render_note(self.waiting, "empty")
        return [
            gr.HTML(waiting, elem_id=f"{self.prefix}preview", padding=False),
            gr.HTML("", elem_id=f"{self.prefix}results", padding=False),
        ]

    def connect(self, buttons: tuple[Any, Any], outputs: Components, changes: list[Any]) -> None:
        """Show the input and the votes whenever a control changes."""
        quiet: Event = {"api_visibility": "private", "show_progress": "hidden"}  # it would cover messages with "Error"
        inputs, (go, stop) = self.inputs, buttons
        self.drawing: Event = {"fn": self.preview, "inputs": inputs, "outputs": outputs, **quiet}
        self.certifying: Event = {
            "inputs": inputs, "outputs": outputs[1:], "concurrency_limit": self.context.limits.concurrent,
            "concurrency_id": jobs.CONCURRENCY, **quiet,
        }  # fmt: skip
        for event in changes:
            self.redraw(event)
        chosen, typed = self._list_triggers()
        triggers = [*chosen, *(box.submit for box in typed)]
        self.redraw_on(partial(gr.on, triggers, trigger_mode="always_last"))
        self.redraw(gr.on([box.blur for box in typed], self.check_changed, inputs, None, api_visibility="private"))
        go.click(**self.drawing).success(self.certify, **self.certifying)
        stop.click(self.stop, None, None, **QUIET)

    def redraw(self, event: Any) -> None:
        """Show the input and the votes after an event."""
        self.redraw_on(event.success)

    def redraw_on(self, trigger: Callable[..., Any]) -> Any:
        """Show the input and the votes whenever something happens."""
        return trigger(**self.drawing).success(self.certify_soon, **self.certifying)

    def _list_triggers(self) -> tuple[list[Callable[..., Any]], Components]:
        """Return the events of controls that are chosen, and the boxes for text. Fields of `wire` have their own."""
        own = {"model", "example", "upload", "A", "B"}
        rest = [c for name, controls in self.controls.items() if name not in own for c in controls]
        options = [c for name in ("A", "B") for c in self.controls.get(name, [])[1:]]
        typed = [c for c in (*rest, *options) if isinstance(c, gr.Textbox | gr.Number)]
        # A dropdown fires "input" whenever it loses the focus, and "select" only when something is chosen.
        chosen = [c.select for c in rest if isinstance(c, gr.Dropdown)]
        return [*chosen, *(c.input for c in rest if isinstance(c, gr.Slider | gr.Radio))], typed
