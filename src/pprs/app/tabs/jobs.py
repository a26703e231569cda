"""How a tab runs a visitor's work and shows it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator, Iterator
from typing import Any, TypeVar

import gradio as gr

from pprs.app.networks import LoadedModel, Network
from pprs.app.render import render_job, render_note
from pprs.app.server.context import Context
from pprs.app.server.jobs import BackgroundJob
from pprs.errors import PprsError

T = TypeVar("T")
CONCURRENCY = "certify"  # all certifications together, those of Explore included, are limited in number
Start = Callable[[threading.Event], Iterator[str]]


def iter_pages(context: Context, session: str, task: str, start: Start) -> Iterator[str]:
    """Yield what the page shows while a visitor's work runs. A newer task of the same kind replaces it.

    Args:
        context: What the tabs share.
        session: The visitor.
        task: The kind of work.
        start: Begins the work, and yields what to show. It receives the event that is set when the work should end.
    """
    halt = context.sessions.begin(session, task)
    try:
        for page in start(halt):
            if not context.sessions.is_current(session, task, halt):
                return
            yield page
    except PprsError as error:
        yield render_note(str(error), "error")
    finally:
        halt.set()


def show_job(job: BackgroundJob[T], show: Callable[[T], str]) -> Iterator[str]:
    """Yield the progress of a job, then its result."""
    for state in job.iter_states():
        yield render_job(state) if state.result is None else show(state.result)


def show_work(
    context: Context, work: Callable[[BackgroundJob[T]], T], show: Callable[[T], str], halt: threading.Event
) -> Iterator[str]:
    """Start work, and yield its progress and its result."""
    yield from show_job(BackgroundJob(work, context.queue, halt, context.limits.seconds), show)


def show_loading(
    context: Context, network: Network[Any], halt: threading.Event
) -> Generator[str, None, LoadedModel | None]:
    """Yield the progress of loading a network, and return it, or None if the visitor stopped waiting for it."""
    loaded: LoadedModel | None = None
    for state in network.iter_loading(context.queue, halt):
        loaded = state.result
        if loaded is None:
            yield render_job(state, network.entry.loading)
    if loaded is None:
        yield render_note("Stopped. The network is still being loaded: press the button again to wait for it.", "empty")
    return loaded


def forward(pages: Generator[str, None, T], wrap: Callable[[str], Any]) -> Generator[Any, None, T]:
    """Yield each page in a wrapping, and return what the generator returns."""
    while True:
        try:
            page = next(pages)
        except StopIteration as end:
            result: T = end.value
            return result
        yield wrap(page)


def connect(
    context: Context, task: str, start: Callable[..., Start], inputs: list[Any], output: Any, buttons: tuple[Any, Any]
) -> None:
    """Let one button start the work that `start` returns for the values of the inputs, and the other one stop it."""

    def run(visitor: gr.Request, *values: Any) -> Iterator[str]:
        yield from iter_pages(context, str(visitor.session_hash), task, start(*values))

    def halt(visitor: gr.Request) -> None:
        context.sessions.stop(str(visitor.session_hash), task)

    quiet: dict[str, Any] = {"api_visibility": "private", "show_progress": "hidden"}
    go, stop = buttons
    go.click(
        run, inputs, [output], **quiet, concurrency_limit=context.limits.concurrent, concurrency_id=CONCURRENCY,
        trigger_mode="multiple",
    )  # fmt: skip
    stop.click(halt, None, None, **quiet, queue=False)
