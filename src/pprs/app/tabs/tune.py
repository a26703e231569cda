"""The Tune tab: a search for the best partition."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import gradio as gr

from pprs.app import search
from pprs.app.partition_forms import AS_TEXT
from pprs.app.render import render_chart, render_note
from pprs.app.server.limits import check_number
from pprs.app.tabs import jobs
from pprs.app.tabs.explore import Explore
from pprs.app.tabs.fields import QUIET, SIGMAS, choose_model, choose_sigma, slide, update_options
from pprs.errors import PprsError
from pprs.noise import Gaussian
from pprs.tuning import FAMILIES, shorten

TASK = "search"
INTRO = (
    "Which partition, if any, gives this classifier the largest certificates? The search measures many on half of the "
    "images and certifies the best of each family on the other half."
)
Best = tuple[str, str, float]  # a partition, and the model and the noise that it was found with


class Tune:
    """The search for a partition."""

    def __init__(self, explore: Explore) -> None:
        self._explore, self._context = explore, explore.context

    def build(self) -> None:
        """Build the tab."""
        with gr.Row():
            with gr.Column(scale=4, min_width=320):
                inputs = self._build_form()
                with gr.Row():
                    go = gr.Button("Search", variant="primary", elem_id="search-go", min_width=100)
                    stop = gr.Button("Stop", variant="stop", elem_id="search-stop", min_width=100)
                use = gr.Button("Use the best in Explore as B", size="sm", interactive=False, elem_id="use")
            with gr.Column(scale=9, min_width=320):
                state = gr.HTML(render_note(INTRO, "empty"), elem_id="search-state", padding=False)
                chart = gr.HTML("", elem_id="search-chart", padding=False)
                result = gr.HTML("", elem_id="search-result", padding=False)
        best = gr.State(None)
        quiet: dict[str, Any] = {"api_visibility": "private", "show_progress": "hidden"}
        go.click(
            self.run, inputs, [state, chart, result, best, use], **quiet,
            concurrency_limit=2, concurrency_id=TASK, trigger_mode="multiple",
        )  # fmt: skip
        stop.click(self.stop, None, None, **QUIET)
        model = self._explore.controls["model"]
        self._explore.redraw(use.click(self.use, [best, *model], self._explore.inputs, **QUIET))

    def _build_form(self) -> list[Any]:
        names, entry = self._explore.networks.names, self._explore.networks.first.entry
        max_seconds = int(self._context.limits.search_seconds)
        fields = (
            choose_model(names, "With the images that the page was started with."),
            choose_sigma(),
            slide(
                "budget", "the time", "Time for the search (s)",
                "More time: more partitions, and more images for each.", min(40, max_seconds), (10, max_seconds, 5),
            ),
        )  # fmt: skip
        controls = [control for field in fields for control in field.make(entry, "search-")]
        families = gr.CheckboxGroup(
            list(FAMILIES), value=list(FAMILIES), label="Families", elem_id="families",
            info="none is plain smoothing; blur and filter are baselines for superpixels.",
        )  # fmt: skip
        return [*controls, families]

    def run(self, model: str, sigma: Any, seconds: Any, families: list[str], visitor: gr.Request) -> Iterator[Any]:
        """Search, and show the progress and the result."""
        session, sessions = str(visitor.session_hash), self._context.sessions
        halt = sessions.begin(session, TASK)
        try:
            noise = Gaussian(check_number(sigma, "sigma", *SIGMAS))
            time = check_number(seconds, "the time", 5, self._context.limits.search_seconds)
            for outputs in self._iter_search(model, noise, time, families, halt):
                if not sessions.is_current(session, TASK, halt):
                    return
                yield outputs
        except PprsError as error:
            yield render_note(str(error), "error"), gr.skip(), "", None, gr.Button(interactive=False)
        finally:
            halt.set()

    def _iter_search(
        self, model: str, noise: Gaussian, seconds: float, families: list[str], halt: threading.Event
    ) -> Iterator[Any]:
        network, drawn = self._explore.networks.get(model), -1
        waiting = gr.skip(), "", None, gr.Button(interactive=False)
        loaded = yield from jobs.forward(jobs.show_loading(self._context, network, halt), lambda page: (page, *waiting))
        if loaded is None:
            return
        for state in search.iter_search(loaded, noise, seconds, families, 0, self._context.queue, halt):
            png = search.draw_state(state, noise) if len(state.trials) != drawn or state.result else None
            drawn, tuned = len(state.trials), state.result
            yield (
                search.render_progress(state, seconds),
                gr.skip() if png is None else render_chart(png, "Estimated average radius against time per sample"),
                "" if tuned is None else search.render_result(tuned),
                None if tuned is None else (tuned.best.partition, model, noise.sigma),
                gr.Button(interactive=tuned is not None),
            )

    def stop(self, visitor: gr.Request) -> None:
        """Stop the search."""
        self._context.sessions.stop(str(visitor.session_hash), TASK)

    def use(self, best: Best | None, model: str) -> Any:
        """Send the best partition to Explore."""
        if best is None:
            raise gr.Error("the search has no result yet")
        gr.Info(f"B on the Explore tab is now {shorten(best[0])}")
        return update_controls(self._explore, best, model)


def update_controls(explore: Explore, best: Best, model: str) -> list[Any]:
    """Return the values of Explore's controls: the best partition as B, with the noise and the model of the search."""
    text, searched, sigma = best
    found: dict[str, list[Any]] = {
        "model": [searched], "noise": ["gaussian"], "sigma": [sigma],
        "B": [AS_TEXT, *update_options(AS_TEXT)[:-1], gr.Textbox(text, visible=True)],
    }  # fmt: skip
    if searched != model:
        return explore.update(explore.networks.get(searched).entry, **found)
    kept = {name: [gr.skip()] * field.width for name, field in explore.fields.items()}
    return [value for values in (kept | found).values() for value in values]
