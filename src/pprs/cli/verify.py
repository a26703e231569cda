"""`pprs verify`"""

from __future__ import annotations

from typing import Annotated

import typer
from rich.console import Console

from pprs.cli import options
from pprs.cli.console import CommandProgress
from pprs.cli.errors import FAILED, guarded, with_flags
from pprs.cli.options import Panel
from pprs.errors import ConfigurationError
from pprs.patches import is_patch_run, verify_patches
from pprs.verification import Verification, verify_run


@guarded
def verify(
    run: Annotated[str, typer.Argument(metavar="RUN", help="Folder or url of the run, or rows exported from it.")],
    replay: Annotated[
        int, options.option("--replay", "INT", Panel.SAMPLING, "Rows, chosen at random, whose votes are drawn again.")
    ] = 0,
    rows: Annotated[
        str | None,
        options.option("--rows", "LIST", Panel.SAMPLING, "Images whose votes are drawn again, for example 3,7."),
    ] = None,
    images: Annotated[
        int | None,
        options.option(
            "--images",
            "INT",
            Panel.MASKS,
            "In a run of `pprs patch`: images, chosen at random, that are certified "
            "again. Default: all, or those of --rows.",
        ),
    ] = None,
    model: options.VerifiedModel = None,
    adapted: options.VerifiedAdapted = None,
    data: options.VerifiedData = None,
    classes: options.VerifiedClasses = None,
    denoiser: options.VerifiedDenoiser = None,
    seed: options.ReplaySeed = None,
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
    _check_options(run, replay, images)
    found: Verification
    if is_patch_run(run):
        found = verify_patches(
            run,
            model=model,
            adapted=adapted,
            data=data,
            classes=classes,
            images=images,
            rows=chosen,
            seed=seed,
            progress=progress,
        )
    else:
        found = verify_run(
            run, model=model, adapted=adapted, data=data, classes=classes, denoiser=denoiser, replay=replay,
            rows=chosen, seed=seed, progress=progress,
        )  # fmt: skip
    typer.echo(with_flags(str(found)))
    if not found.ok:
        raise typer.Exit(FAILED)


def _check_options(run: str, replay: int, images: int | None) -> None:
    """Refuse an option that this kind of run does not have."""
    if images is not None and not is_patch_run(run):
        raise ConfigurationError(
            "`images` is for runs of `pprs patch`. Draw votes again with `replay`.", parameter="images"
        )
    if replay and is_patch_run(run):
        raise ConfigurationError(
            "a run of `pprs patch` has no votes that could be drawn again. Give `images`, or `rows`.",
            parameter="replay",
        )
