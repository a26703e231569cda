"""`pprs app`"""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Annotated

import typer

from pprs._support.extras import missing_package
from pprs.app.models import make_models
from pprs.app.server import serve
from pprs.app.server.context import Context
from pprs.cli import options
from pprs.cli.compilation import compile_ahead
from pprs.cli.console import progress
from pprs.cli.errors import guarded
from pprs.cli.options import Panel
from pprs.data import check_place
from pprs.errors import ConfigurationError, MissingPackageError

APP = "App"
Model = Annotated[
    str | None,
    options.option(
        "--model",
        "MODEL",
        Panel.INPUT,
        "Your own network: a classifier of images or signals as for `pprs certify`, or one that labels pixels as for "
        "`pprs segment`. Default: a small classifier of digits.",
    ),
]
Data = Annotated[
    str | None,
    options.option(
        "--data",
        "DATA",
        Panel.INPUT,
        "Images or signals for the model, as for `pprs certify` or `pprs segment`. Default: built-in digits, or scenes "
        "of them.",
    ),
]
Runs = Annotated[
    Path, options.option("--runs", "DIR", APP, "Folder with the runs to compare. No other folder is read.")
]
Port = Annotated[
    int | None,
    options.option("--port", "INT", APP, "Port on localhost. Default: 7860 or the next free port.", min=0, max=65535),
]
Expose = Annotated[
    bool,
    typer.Option(
        "--expose",
        rich_help_panel=APP,
        help="Accept connections from other machines. Anyone who can reach this one can then use the app.",
    ),
]


@guarded
def app(
    model: Model = None,
    adapted: options.Adapted = None,
    data: Data = None,
    split: options.Split = None,
    classes: options.Classes = None,
    runs: Runs = Path("."),
    port: Port = None,
    expose: Expose = False,
    engine: options.Engine = "auto",
    threads: options.Threads = None,
) -> None:
    """Open the interactive app in a browser: noise, superpixels, votes and the growing radius.

    Unless --expose is given, only this machine can connect. The app keeps no uploads and contacts no other machine.

    Example: pprs app --runs runs
    """
    if importlib.util.find_spec("gradio") is None:
        raise MissingPackageError(missing_package("gradio"))
    if not runs.is_dir():
        raise ConfigurationError(
            f"`runs` {runs} is not a folder. Give one with runs written by `pprs certify --out`.", parameter="runs"
        )
    if adapted is not None and model is None:
        raise ConfigurationError("`adapted` needs the classifier that was adapted as `model`", parameter="adapted")
    if data is not None:
        check_place(data)  # what can be opened is opened when the page is up
    options.set_threads(threads)
    compile_ahead(channels=1 if model is None else 3)
    listener = serve.bind(port, serve.ALL_INTERFACES if expose else serve.LOCALHOST)
    models = make_models(model, data, split=split, classes=classes, adapted=adapted, engine=engine)
    if expose:
        progress.message(
            "WARNING: --expose. Anyone who can reach this machine can open the app, use its processors, and see the "
            f"runs in {runs.resolve()}. There is no password. Stop the app with Ctrl-C as soon as you are done."
        )
    url = f"http://localhost:{listener.getsockname()[1]}"
    serve.serve(
        Context(models.images, runs, models.segmenters, models.signals),
        listener,
        local=not expose,
        ready=lambda: progress.message(f"open {url} in a browser, and stop the app with Ctrl-C"),
    )
