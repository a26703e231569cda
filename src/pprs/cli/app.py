"""`pprs app`"""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Annotated

import typer

from pprs.app import serve
from pprs.app.catalog import DIGITS, make_catalog
from pprs.app.context import Context
from pprs.cli import options
from pprs.cli.console import progress
from pprs.cli.errors import guarded
from pprs.cli.options import Panel
from pprs.engine import check_engine
from pprs.errors import ConfigurationError, PprsError

PAGE = "Page"
Model = Annotated[
    str | None,
    typer.Option(
        "--model",
        metavar="MODEL",
        rich_help_panel=Panel.INPUT,
        help="A classifier of your own to begin with, as for `pprs certify`.",
    ),
]
Data = Annotated[
    str,
    typer.Option(
        "--data", metavar="DATA", rich_help_panel=Panel.INPUT, help="Images for --model, as for `pprs certify`."
    ),
]
Runs = Annotated[
    Path,
    typer.Option(
        "--runs",
        metavar="DIR",
        rich_help_panel=PAGE,
        help="The folder whose runs can be compared; no other folder is read.",
    ),
]
Port = Annotated[
    int | None,
    typer.Option(
        "--port",
        metavar="INT",
        min=0,
        max=65535,
        rich_help_panel=PAGE,
        help="The port on localhost; 7860 or the next free one unless given.",
    ),
]
Expose = Annotated[
    bool,
    typer.Option(
        "--expose",
        rich_help_panel=PAGE,
        help="Answer other machines too. Anyone who can reach this machine can then use the page.",
    ),
]


@guarded
def app(
    model: Model = None,
    data: Data = DIGITS,
    split: options.Split = None,
    classes: options.Classes = None,
    runs: Runs = Path("."),
    port: Port = None,
    expose: Expose = False,
    engine: options.Engine = "auto",
    threads: options.Threads = None,
) -> None:
    """Open a page in the browser: see noise, superpixels and votes, and the radius as it grows.

    It answers this machine only, stores nothing, and contacts no other machine.

    Example: pprs app --runs runs
    """
    if importlib.util.find_spec("gradio") is None:
        raise PprsError("the page needs Gradio. Get it with: pip install 'pprs[app]'")
    check_engine(engine)
    if not runs.is_dir():
        raise ConfigurationError(
            f"`runs` {runs} is not a folder. Give one that holds runs of `pprs certify --out`.", parameter="runs"
        )
    options.set_threads(threads)
    listener = serve.bind(port, serve.EVERYWHERE if expose else serve.LOCAL)
    catalog = make_catalog(model, data, split=split, classes=classes, engine=engine, progress=progress)
    if expose:
        progress.message(
            "WARNING: --expose. Anyone who can reach this machine can open this page, use its processors, and see the "
            f"runs in {runs.resolve()}. There is no password. Stop it with Ctrl-C as soon as you are done."
        )
    url = f"http://localhost:{listener.getsockname()[1]}"
    serve.serve(
        Context(catalog, runs),
        listener,
        local=not expose,
        ready=lambda: progress.message(f"open {url} in a browser; Ctrl-C ends it"),
    )
