"""`pprs verify`"""

from __future__ import annotations

from typing import Annotated

import typer
from rich.console import Console

from pprs.cli import options
from pprs.cli.console import CommandProgress
from pprs.cli.errors import FAILED, guarded, with_flags
from pprs.cli.options import Panel
from pprs.cli.own import Own, open_own
from pprs.verification import verify_run


@guarded
def verify(
    run: Annotated[str, typer.Argument(metavar="RUN", help="Folder or url of the run, or rows exported from it.")],
    replay: Annotated[
        int | None,
        options.option(
            "--replay",
            "INT",
            Panel.SAMPLING,
            "Images, chosen at random, whose votes are drawn again. Claims that are exact, of `pprs patch` and of "
            "counted votes, are derived again. Default: none, but all or those of --rows if claims are exact.",
        ),
    ] = None,
    rows: Annotated[
        str | None,
        options.option(
            "--rows", "LIST", Panel.SAMPLING, "Images that are drawn or derived again in any case, for example 3,7."
        ),
    ] = None,
    images: Annotated[int | None, typer.Option("--images", hidden=True, help="Another name of --replay.")] = None,
    model: options.VerifiedModel = None,
    adapted: options.VerifiedAdapted = None,
    data: options.VerifiedData = None,
    classes: options.VerifiedClasses = None,
    denoiser: options.VerifiedDenoiser = None,
    seed: options.ReplaySeed = None,
    guarantee: Own = None,
    threads: options.Threads = None,
) -> None:
    """Check that the bounds and radii of a run follow from its counts, and its votes from its model and images.

    The claims of a run of `pprs patch` have no votes: its images are certified again.

    Prints what was checked, what was not, and what does not follow. The exit code is 1 if anything does not.

    Example: pprs verify runs/slic --replay 10
    """
    chosen = options.parse_indices(rows, "rows")
    options.set_threads(threads)
    progress = CommandProgress(Console(stderr=True))
    replay = images if replay is None else replay
    found = verify_run(
        open_own(run, guarantee), model=model, adapted=adapted, data=data, classes=classes, denoiser=denoiser,
        replay=replay, rows=chosen, seed=seed, progress=progress,
    )  # fmt: skip
    typer.echo(with_flags(str(found)))
    if not found.ok:
        raise typer.Exit(FAILED)
