"""The command: argv -> calls -> exit codes. 0 done, 1 some images failed, 2 something to put right, 130 Ctrl-C."""

from __future__ import annotations

from typing import Annotated

import typer

from pprs._version import __version__
from pprs.cli.app import app as page
from pprs.cli.certify import certify
from pprs.cli.demo import demo
from pprs.cli.predict import predict
from pprs.cli.report import export, report, show
from pprs.cli.reproduce import reproduce
from pprs.cli.train import train
from pprs.cli.tune import tune

app = typer.Typer(
    name="pprs",
    help="Certify image classifiers: a label, and a radius within which no change of the picture can alter it.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
for command in (demo, certify, predict, train, tune, report, export, show, reproduce):
    app.command()(command)
app.command("app")(page)


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"pprs {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version.")
    ] = False,
) -> None: ...


def main() -> None:
    app()
