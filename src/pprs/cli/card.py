"""`pprs card`"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from pprs._support.files import atomic_write
from pprs.cli import options
from pprs.cli.console import CommandProgress, say
from pprs.cli.errors import guarded
from pprs.cli.own import Own, open_own
from pprs.cli.report import parse_radii
from pprs.integrations.card import make_card, push_card


@guarded
def card(
    runs: Annotated[
        list[str],
        typer.Argument(
            metavar="RUN...", help="Folders or urls of runs of one model, or rows exported from them as json."
        ),
    ],
    path: Annotated[
        Path, typer.Option("--out", metavar="FILE", help="Model card to write, or to add to. Default: card.md.")
    ] = Path("card.md"),
    radii: Annotated[
        str | None, typer.Option("--radii", metavar="LIST", help="Radii of the table, for example 0,0.25,0.5.")
    ] = None,
    replay: Annotated[
        int,
        typer.Option(
            "--replay",
            metavar="INT",
            min=0,
            help="Rows of each run, chosen at random, whose votes are drawn again. Without it, the card is marked as "
            "not verified.",
        ),
    ] = 0,
    model: options.VerifiedModel = None,
    adapted: options.VerifiedAdapted = None,
    data: options.VerifiedData = None,
    classes: options.VerifiedClasses = None,
    denoiser: options.VerifiedDenoiser = None,
    seed: options.ReplaySeed = None,
    guarantee: Own = None,
    threads: options.Threads = None,
    push: Annotated[
        str | None,
        typer.Option("--push", metavar="REPO", help="Model on the Hugging Face hub whose card to add to, as well."),
    ] = None,
) -> None:
    """Write a section of a model card, and `model-index` results, with certified accuracies and their settings.

    A card that exists is kept, except for the section and the results of an earlier call.

    Example: pprs card runs/slic --replay 10 --out README.md
    """
    options.set_threads(threads)
    made = make_card(
        [open_own(run, guarantee) for run in runs], radii=parse_radii(radii), replay=replay, model=model,
        adapted=adapted, data=data, classes=classes, denoiser=denoiser, seed=seed,
        progress=CommandProgress(Console(stderr=True)),
    )  # fmt: skip
    content = path.read_text(encoding="utf-8") if path.is_file() else ""
    text = made.add_to(content)
    with atomic_write(path) as part:
        part.write_text(text, encoding="utf-8")
    say(f"wrote {path}")
    if push is not None:
        say(f"pushed: {push_card(made, push)}")
