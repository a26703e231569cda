"""The command: argv -> calls -> exit codes. 0 done, 1 some images failed, 2 something to put right, 130 Ctrl-C."""

from __future__ import annotations

import importlib
from typing import Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup

from pprs._version import __version__

# Each command is a function of its own name in `pprs.cli.NAME`, which is imported when the command is used.
COMMANDS = {
    "demo": "From nothing to a report: train, certify with and without superpixels, draw the page.",
    "certify": "Certify pictures: a label each, and an L2 radius within which no change can alter it.",
    "predict": "Label pictures with the smoothed classifier, abstaining where the vote is too close.",
    "train": "Train a classifier: clean, with noise, or with noise and then a partition.",
    "tune": "Search for the partition that makes this classifier's certificates largest, if any does.",
    "report": "Draw runs together: curves, a table and pictures, on one page.",
    "export": "Rows out of a run, for other tools.",
    "show": "Draw what partitions make of a noisy picture.",
    "reproduce": "Rebuild the paper's tables and figures: train, certify what is missing, draw.",
    "app": "Open a page in the browser: see noise, superpixels and votes, and the radius as it grows.",
}


class LazyGroup(TyperGroup):
    """Lists commands without importing them, so that `pprs --help` does not wait for torch."""

    def list_commands(self, ctx: Any) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        return TyperCommand(cmd_name, help=COMMANDS[cmd_name]) if cmd_name in COMMANDS else None

    def resolve_command(self, ctx: Any, args: list[str]) -> tuple[str | None, Any, list[str]]:
        name, command, rest = super().resolve_command(ctx, args)
        return name, None if command is None else load_command(str(command.name)), rest


def load_command(name: str) -> Any:
    """The command of this name, imported now."""
    function = getattr(importlib.import_module(f"pprs.cli.{name}"), name)
    holder = typer.Typer(add_completion=False, rich_markup_mode="rich")
    holder.command(name)(function)
    return typer.main.get_command(holder)


app = typer.Typer(
    name="pprs",
    cls=LazyGroup,
    help="Certify image classifiers: a label, and a radius within which no change of the picture can alter it.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)


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
