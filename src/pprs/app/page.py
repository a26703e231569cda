"""The page, put together from its tabs."""

from __future__ import annotations

from typing import Any

import gradio as gr

from pprs._version import __version__
from pprs.app import tab_compare, tab_explore, tab_radius, tab_tune
from pprs.app.context import Context
from pprs.app.rendering import render

TITLE = "pprs: certificates that one can see"


def build(context: Context) -> Any:
    """The page as Gradio's Blocks."""
    with gr.Blocks(title=TITLE, analytics_enabled=False, delete_cache=(600, 3600)) as page:
        gr.HTML(render("header.html", version=__version__), padding=False)
        with gr.Tabs(elem_id="tabs"):
            with gr.Tab("Explore", id="explore"):
                made, (load, start) = tab_explore.tab(context)
            with gr.Tab("See a radius", id="radius") as radius:
                _, draw = tab_radius.tab(context, made)
            with gr.Tab("Compare", id="compare") as compare:
                runs = tab_compare.tab(context)
            with gr.Tab("Tune", id="tune"):
                tab_tune.tab(context, made, load, start)
        page.load(**load).success(**start)
        radius.select(**draw)
        compare.select(**runs["look"]).then(**runs["draw"])
    page.queue(max_size=context.limits.waiting, default_concurrency_limit=context.limits.at_once, api_open=False)
    return page
