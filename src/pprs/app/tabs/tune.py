"""The Tune tab: a search for the best partition."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import gradio as gr

from pprs.app import search
from pprs.app.partition_forms import AS_TEXT, SLOTS
from pprs.app.render import render_chart, render_note
from pprs.app.server.context import Context
from pprs.app.server.limits import check_number
from pprs.app.tabs.controls import SIGMAS, update_options
from pprs.app.tabs.explore import Controls, initial_values
from pprs.errors import PprsError
from pprs.noise import Gaussian
from pprs.tuning import FAMILIES, shorten

TASK = "search"


def build_tab(context: Context, controls: Controls, preview: dict[str, Any], certify: dict[str, Any]) -> None:
    """Build the tab. `preview` and `certify` are the events that update Explore."""
    entry = next(iter(context.catalog.entries.values()))
    max_seconds = int(context.limits.search_seconds)
    with gr.Row():
        with gr.Column(scale=4, min_width=320):
            model = gr.Dropdown(
                context.catalog.names, value=entry.name, label="Model", interactive=len(context.catalog.names) > 1,
                info="With the images that the page was started with.",
            )  # fmt: skip
            sigma = gr.Slider(0.0, 1.0, value=entry.sigma, step=0.01, label="Sigma (noise, 0–1 scale)")
            seconds = gr.Slider(
                10, max_seconds, value=min(40, max_seconds), step=5, label="Time for the search (s)", elem_id="budget",
                info="More time: more partitions, and more images for each.",
            )  # fmt: skip
            families = gr.CheckboxGroup(
                list(FAMILIES), value=list(FAMILIES), label="Families", elem_id="families",
                info="none is plain smoothing; blur and filter are baselines for superpixels.",
            )  # fmt: skip
            with gr.Row():
                go = gr.Button("Search", variant="primary", elem_id="search-go", min_width=100)
                stop = gr.Button("Stop", variant="stop", elem_id="search-stop", min_width=100)
            use = gr.Button("Use the best in Explore as B", size="sm", interactive=False, elem_id="use")
        with gr.Column(scale=9, min_width=320):
            state = gr.HTML(
                render_note(
                    "Which partition, if any, gives this classifier the largest certificates? The search measures many "
                    "on half of the images and certifies the best of each family on the other half.",
                    "empty",
                ),
                elem_id="search-state", padding=False,
            )  # fmt: skip
            chart = gr.HTML("", elem_id="search-chart", padding=False)
            result = gr.HTML("", elem_id="search-result", padding=False)
    best = gr.State(None)

    def run(model: str, sigma: Any, seconds: Any, families: list[str], request: gr.Request) -> Iterator[Any]:
        halt = context.sessions.begin(str(request.session_hash), TASK)
        try:
            noise = Gaussian(check_number(sigma, "sigma", *SIGMAS))
            time = check_number(seconds, "the time", 5, context.limits.search_seconds)
            loaded, drawn = context.catalog.load(model), -1
            for current in search.iter_search(loaded, noise, time, families, 0, context.queue, halt):
                if not context.sessions.is_current(str(request.session_hash), TASK, halt):
                    return
                png = search.draw_state(current, noise) if len(current.trials) != drawn or current.result else None
                drawn = len(current.trials)
                image = (
                    gr.skip() if png is None else render_chart(png, "Estimated average radius against time per sample")
                )
                tuned = current.result
                yield (
                    search.render_progress(current, time), image, "" if tuned is None else search.render_result(tuned),
                    None if tuned is None else (tuned.best.partition, model, noise.sigma),
                    gr.Button(interactive=tuned is not None),
                )  # fmt: skip
        except PprsError as error:
            yield render_note(str(error), "error"), gr.skip(), "", None, gr.Button(interactive=False)
        finally:
            halt.set()

    def stop_search(request: gr.Request) -> None:
        context.sessions.stop(str(request.session_hash), TASK)

    def use_best(best: tuple[str, str, float] | None, model: str) -> Any:
        if best is None:
            raise gr.Error("the search has no result yet")
        text, searched, sigma = best
        gr.Info(f"B on the Explore tab is now {shorten(text)}")
        return update_controls(context, text, searched, sigma, model)

    quiet: dict[str, Any] = {"api_visibility": "private", "show_progress": "hidden"}
    go.click(
        run, [model, sigma, seconds, families], [state, chart, result, best, use], **quiet,
        concurrency_limit=2, concurrency_id=TASK, trigger_mode="multiple",
    )  # fmt: skip
    stop.click(stop_search, None, None, **quiet, queue=False)
    used = use.click(use_best, [best, controls.model], controls.inputs, **quiet, queue=False)
    used.success(**preview).success(**certify)


def update_controls(context: Context, text: str, searched: str, sigma: float, model: str) -> list[Any]:
    """Return the values of Explore's controls: the best partition as B, with the noise and the model of the search."""
    entry = context.catalog.get(searched)
    width = SLOTS + 2
    values = initial_values(entry) if searched != model else [gr.skip() for _ in range(9 + 2 * width)]
    values[3:5] = "gaussian", sigma  # after example, upload and labels
    values[5 + width : 5 + 2 * width] = [AS_TEXT, *update_options(AS_TEXT)[:-1], gr.Textbox(text, visible=True)]
    return [searched, *values]
