"""`pprs demo`"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from pprs.cli import options
from pprs.cli.demos import CertifyDemo, Demo, PatchesDemo, SegmentDemo, SetsDemo
from pprs.cli.errors import guarded
from pprs.errors import ConfigurationError


@guarded
def demo(
    out: Annotated[Path, typer.Option("--out", metavar="DIR", help="Folder for the runs and the report.")] = Path(
        "pprs-demo"
    ),
    patch: Annotated[bool, typer.Option("--patch", help="Show certificates against patches instead.")] = False,
    segment: Annotated[
        bool, typer.Option("--segment", help="Certify label maps of scenes with several digits instead.")
    ] = False,
    sets: Annotated[bool, typer.Option("--sets", help="Show label sets that hold under attack instead.")] = False,
    train: Annotated[
        bool,
        typer.Option(
            "--train", help="Train the network first, and adapt it, instead of using the one that comes with pprs."
        ),
    ] = False,
    threads: options.Threads = None,
) -> None:
    """Certify a small classifier with and without superpixels, and write a report.

    It uses a network and images of digits that come with pprs, and takes a minute or two. Repeat the command to resume.
    """
    chosen = [kind for kind, wanted in _kinds(patch, segment, sets) if wanted]
    if len(chosen) > 1:
        raise ConfigurationError("give one of `patch`, `segment` and `sets`")
    options.set_threads(threads)
    shown = chosen[0]() if chosen else CertifyDemo()
    shown.show(out, train=train)


def _kinds(patch: bool, segment: bool, sets: bool) -> tuple[tuple[type[Demo], bool], ...]:
    return (PatchesDemo, patch), (SegmentDemo, segment), (SetsDemo, sets)
