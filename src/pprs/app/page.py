"""The page, assembled from its tabs."""

from __future__ import annotations

from typing import Any

import gradio as gr

from pprs._version import __version__
from pprs.app.render import render
from pprs.app.server.context import Context
from pprs.app.tabs import radius
from pprs.app.tabs.certain import Certain
from pprs.app.tabs.compare import Compare
from pprs.app.tabs.explore import Explore
from pprs.app.tabs.label_set import LabelSet
from pprs.app.tabs.patch import Patch
from pprs.app.tabs.segment import Segment
from pprs.app.tabs.signal import Signal
from pprs.app.tabs.tune import Tune

TITLE = "pprs: certified robustness you can see"


def build_page(context: Context) -> Any:
    """Build the page as Gradio Blocks."""
    with gr.Blocks(title=TITLE, analytics_enabled=False, delete_cache=(600, 3600)) as page:
        gr.HTML(render("header.html", version=__version__), padding=False)
        explore, signal = Explore(context), Signal(context)
        with gr.Tabs(elem_id="tabs", selected=_choose_first(context)):
            with gr.Tab("Explore", id="explore"):
                explore.build()
            with gr.Tab("See a radius", id="radius") as radius_tab:
                draw = radius.build_tab(explore)
            with gr.Tab("Compare", id="compare") as compare_tab:
                list_runs, draw_runs = Compare(context).build()
            with gr.Tab("Tune", id="tune"):
                Tune(explore).build()
            with gr.Tab("Segment", id="segment"):
                Segment(context).build()
            with gr.Tab("Label set", id="set"):
                LabelSet(context).build()
            with gr.Tab("Patch", id="patch"):
                Patch(context).build()
            with gr.Tab("Certain", id="certain"):
                Certain(context).build()
            with gr.Tab("Signal", id="signal") as signal_tab:
                signal.build()
        explore.redraw_on(page.load)
        if context.signals:
            signal.redraw_on(signal_tab.select)
        radius_tab.select(**draw)
        compare_tab.select(**list_runs).then(**draw_runs)
    page.queue(max_size=context.limits.queue_size, default_concurrency_limit=context.limits.concurrent, api_open=False)
    return page


def _choose_first(context: Context) -> str:
    """Return the tab of the user's own network, or else Explore."""
    if context.signals and context.signals.first.entry.own:
        return "signal"
    return "segment" if context.segmenters.first.entry.own else "explore"
