"""The page, assembled from its tabs."""

from __future__ import annotations

from typing import Any

import gradio as gr

from pprs._version import __version__
from pprs.app.render import render
from pprs.app.server.context import Context
from pprs.app.tabs import compare, explore, label_set, patch, radius, segment, signal, tune

TITLE = "pprs: certified robustness you can see"


def build_page(context: Context) -> Any:
    """Build the page as Gradio Blocks."""
    with gr.Blocks(title=TITLE, analytics_enabled=False, delete_cache=(600, 3600)) as page:
        gr.HTML(render("header.html", version=__version__), padding=False)
        own_signals = any(network.entry.own for network in context.signals)
        first = "signal" if own_signals else "segment" if context.segmenter.entry.own else "explore"
        with gr.Tabs(elem_id="tabs", selected=first):
            with gr.Tab("Explore", id="explore"):
                controls, (preview, certify) = explore.build_tab(context)
            with gr.Tab("See a radius", id="radius") as radius_tab:
                draw = radius.build_tab(context, controls)
            with gr.Tab("Compare", id="compare") as compare_tab:
                list_runs, draw_runs = compare.build_tab(context)
            with gr.Tab("Tune", id="tune"):
                tune.build_tab(context, controls, preview, certify)
            with gr.Tab("Segment", id="segment"):
                segment.build_tab(context)
            with gr.Tab("Label set", id="set"):
                label_set.build_tab(context)
            with gr.Tab("Patch", id="patch"):
                patch.build_tab(context)
            with gr.Tab("Signal", id="signal") as signal_tab:
                draw_signal = signal.build_tab(context)
        page.load(**preview).success(**certify)
        radius_tab.select(**draw)
        if draw_signal is not None:
            signal_tab.select(**draw_signal)
        compare_tab.select(**list_runs).then(**draw_runs)
    page.queue(max_size=context.limits.queue_size, default_concurrency_limit=context.limits.concurrent, api_open=False)
    return page
