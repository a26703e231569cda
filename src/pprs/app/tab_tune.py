"""The tab on which a partition is searched for."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import gradio as gr

from pprs.app import show, tuning
from pprs.app.context import Context
from pprs.app.limits import check_number
from pprs.app.partition_forms import AS_TEXT, SLOTS
from pprs.app.tab_explore import SIGMAS, Controls, _changed, started
from pprs.errors import PprsError
from pprs.noise import Gaussian
from pprs.tuning import FAMILIES, short

SEARCH = "search"


def tab(context: Context, made: Controls, load: dict[str, Any], start: dict[str, Any]) -> None:
    """Build the tab; `load` and `start` fill Explore."""
    entry = next(iter(context.catalog.entries.values()))
    most = int(context.limits.search_seconds)
    with gr.Row():
        with gr.Column(scale=4, min_width=320):
            model = gr.Dropdown(
                context.catalog.names, value=entry.name, label="Model", interactive=len(context.catalog.names) > 1,
                info="With the pictures that the page was started with.",
            )  # fmt: skip
            sigma = gr.Slider(0.05, 1.0, value=entry.sigma, step=0.01, label="Sigma (noise, 0–1 scale)")
            seconds = gr.Slider(
                10, most, value=min(40, most), step=5, label="Time for the search (s)", elem_id="budget",
                info="More: more partitions, more pictures each.",
            )  # fmt: skip
            families = gr.CheckboxGroup(
                list(FAMILIES), value=list(FAMILIES), label="Families", elem_id="families",
                info="none is plain smoothing; blur and filter are what superpixels have to beat.",
            )  # fmt: skip
            with gr.Row():
                go = gr.Button("Search", variant="primary", elem_id="search-go", min_width=100)
                stop = gr.Button("Stop", variant="stop", elem_id="search-stop", min_width=100)
            use = gr.Button("Use the best in Explore as B", size="sm", interactive=False, elem_id="use")
        with gr.Column(scale=9, min_width=320):
            state = gr.HTML(
                show.note(
                    "Which partition makes this classifier's certificates largest, if any does? The search measures "
                    "many on one half of the pictures, and certifies the best of each family on the other half.",
                    "empty",
                ),
                elem_id="search-state", padding=False,
            )  # fmt: skip
            chart = gr.HTML("", elem_id="search-chart", padding=False)
            result = gr.HTML("", elem_id="search-result", padding=False)
    best = gr.State(None)

    def run(model: str, sigma: Any, seconds: Any, families: list[str], request: gr.Request) -> Iterator[Any]:
        halt = context.sessions.begin(str(request.session_hash), SEARCH)
        try:
            noise = Gaussian(check_number(sigma, "sigma", *SIGMAS))
            time = check_number(seconds, "the time", 5, context.limits.search_seconds)
            loaded, drawn = context.catalog.load(model), -1
            for seen in tuning.search(loaded, noise, time, families, 0, context.queue, halt):
                if not context.sessions.is_current(str(request.session_hash), SEARCH, halt):
                    return
                png = tuning.chart_png(seen, noise) if len(seen.trials) != drawn or seen.found else None
                drawn = len(seen.trials)
                shown = gr.skip() if png is None else show.chart(png, "Average radius promised against time a sample")
                found = seen.found
                yield (
                    tuning.progress(seen, time), shown, "" if found is None else tuning.result(found),
                    None if found is None else (found.best.partition, model, noise.sigma),
                    gr.Button(interactive=found is not None),
                )  # fmt: skip
        except PprsError as error:
            yield show.note(str(error), "error"), gr.skip(), "", None, gr.Button(interactive=False)
        finally:
            halt.set()

    def halt(request: gr.Request) -> None:
        context.sessions.stop(str(request.session_hash), SEARCH)

    def take(best: tuple[str, str, float] | None, model: str) -> Any:
        if best is None:
            raise gr.Error("nothing was found yet")
        text, searched, sigma = best
        gr.Info(f"B on the Explore tab is now {short(text)}")
        return taken(context, text, searched, sigma, model)

    quiet: dict[str, Any] = {"api_visibility": "private", "show_progress": "hidden"}
    go.click(
        run, [model, sigma, seconds, families], [state, chart, result, best, use], **quiet,
        concurrency_limit=2, concurrency_id=SEARCH, trigger_mode="multiple",
    )  # fmt: skip
    stop.click(halt, None, None, **quiet, queue=False)
    chosen = use.click(take, [best, made.model], made.inputs, **quiet, queue=False)
    chosen.success(**load).success(**start)


def taken(context: Context, text: str, searched: str, sigma: float, model: str) -> list[Any]:
    """All controls of Explore with what was found as B, under the noise and for the model that it was found with."""
    entry = context.catalog.entry(searched)
    width = SLOTS + 2
    values = started(entry) if searched != model else [gr.skip() for _ in range(8 + 2 * width)]
    values[3:5] = "gaussian", sigma  # after example, upload and labels
    values[5 + width : 5 + 2 * width] = [AS_TEXT, *_changed(AS_TEXT)[:-1], gr.Textbox(text, visible=True)]
    return [searched, *values]
