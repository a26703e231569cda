"""The command line. Exit codes: 0 success, 1 failed images or audit, 2 an error to correct, 130 interrupted."""

from __future__ import annotations

import importlib
import importlib.metadata
import platform
from typing import Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup

from pprs._version import __version__
from pprs.errors import MissingPackageError

# Each command is the function of the same name in `pprs.cli.NAME`, which is imported when the command is used. A hyphen
# in a command is an underscore there.
COMMANDS = {
    "demo": "Certify a small classifier with and without superpixels, and write a report.",
    "certify": "Certify images: each gets a label, and an L2 radius within which it cannot change.",
    "patch": "Certify that no change inside any one square patch can alter a label.",
    "predict": "Predict labels with the smoothed classifier, abstaining where the vote is too close.",
    "calibrate": "Calibrate sets of labels that contain the true one with a promised probability, also under attack.",
    "predict-set": "Predict a set of labels for each image, from one noisy pass.",
    "segment": "Certify label maps: every pixel gets a label that no small change can alter, or abstains.",
    "train": "Train a classifier on clean images, with noise, or with noise and a partition.",
    "adapt": "Adapt a classifier to its noise and partition, with unlabelled images.",
    "tune": "Search for the partition that gives a classifier the largest certified radii.",
    "audit": "Attack the certified images of a run, to see how much of each radius is real.",
    "doctor": "Say why images of a run abstain, which settings may help, and what that would cost.",
    "report": "Write a report that compares runs: curves, a table and example images.",
    "export": "Export the rows of a run as tsv, csv, parquet or json.",
    "card": "Write a section of a model card, with certified accuracies and their settings.",
    "verify": "Check that the radii of a run follow from its votes, and its votes from its model and images.",
    "show": "Draw what noise and partitions do to an image.",
    "reproduce": "Reproduce the paper's tables and figures.",
    "app": "Open the interactive app in a browser.",
}


class LazyGroup(TyperGroup):
    """Lists commands without importing them, so that `pprs --help` does not wait for torch."""

    def list_commands(self, ctx: Any) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        return TyperCommand(cmd_name, help=COMMANDS[cmd_name]) if cmd_name in COMMANDS else None

    def resolve_command(self, ctx: Any, args: list[str]) -> tuple[str | None, Any, list[str]]:
        name, command, rest = super().resolve_command(ctx, args)
        try:
            return name, None if command is None else load_command(str(command.name)), rest
        except MissingPackageError as error:  # a command as a whole needs it
            typer.echo(f"pprs: {error}", err=True)
            raise typer.Exit(2) from None


def load_command(name: str) -> Any:
    """Import a command."""
    module = name.replace("-", "_")
    function = getattr(importlib.import_module(f"pprs.cli.{module}"), module)
    single = typer.Typer(add_completion=False, rich_markup_mode="rich")
    single.command(name)(function)
    return typer.main.get_command(single)


root = typer.Typer(  # not `app`: that is the module of a command
    name="pprs",
    cls=LazyGroup,
    help="Certified robustness of image classifiers by partition-based randomized smoothing.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)


# What runs a network, by the extra that installs it. Versions are read from the installed metadata, so that nothing is
# imported.
ENGINES = {"torch": None, "onnxruntime": "onnx"}
OTHER_PACKAGES = {"numba": None, "ray": "ray", "gradio": "app"}


def describe_versions() -> str:
    """Describe this version of pprs, Python, the engines and what else a run depends on."""
    lines = [
        f"pprs {__version__}, Python {platform.python_version()}, {platform.system()} {platform.machine()}",
        f"engines: {', '.join(_describe_package(name, extra) for name, extra in ENGINES.items())}",
        f"other: {', '.join(_describe_package(name, extra) for name, extra in OTHER_PACKAGES.items())}",
    ]
    return "\n".join(lines)


def _describe_package(name: str, extra: str | None) -> str:
    try:
        return f"{name} {importlib.metadata.version(name)}"
    except importlib.metadata.PackageNotFoundError:
        remedy = f"pprs[{extra}]" if extra else name
        return f"{name} not installed (pip install '{remedy}')"


def _print_version(requested: bool) -> None:
    if requested:
        typer.echo(describe_versions())
        raise typer.Exit


@root.callback()
def _options(
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_print_version, is_eager=True, help="Print the versions of pprs and its engines."
        ),
    ] = False,
) -> None: ...


def main() -> None:
    root()
