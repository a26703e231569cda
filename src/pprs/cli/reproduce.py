"""`pprs reproduce`"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from pprs._support.files import atomic_write
from pprs.cli import options
from pprs.cli.console import progress, say
from pprs.cli.errors import guarded
from pprs.reproduction import PLANS
from pprs.reproduction import reproduce as run_plan


@guarded
def reproduce(
    experiment: Annotated[
        str,
        typer.Argument(
            metavar="EXPERIMENT",
            help="table1, curves, methods, segments, sigma, gallery, noises, training, adapt, signals, or all. "
            "Separate several by commas.",
        ),
    ],
    out: Annotated[
        Path, typer.Option("--out", metavar="DIR", help="Folder for the results. Repeat the command to resume.")
    ] = Path("reproduction"),
    data_root: Annotated[
        Path | None,
        typer.Option(
            "--data-root",
            metavar="DIR",
            help="Folder with mnist, fashion-mnist, cifar10 and imagenet-sample. Default: download them.",
        ),
    ] = None,
    data: Annotated[
        str | None,
        typer.Option("--data", metavar="LIST", help="Only these data sets of the plan, for example mnist,cifar10."),
    ] = None,
    quick: Annotated[
        bool, typer.Option("--quick", help="A small version on the built-in digits, which takes minutes.")
    ] = False,
    plan: Annotated[
        Path | None,
        typer.Option("--plan", metavar="FILE", help="Your own plan. Start from the one that --write-plan writes."),
    ] = None,
    write_plan: Annotated[
        Path | None, typer.Option("--write-plan", metavar="FILE", help="Write the default plan to this file and exit.")
    ] = None,
    draw_only: Annotated[
        bool, typer.Option("--draw-only", help="Draw again from the rows in OUT; no classifier is needed.")
    ] = False,
    threads: options.Threads = None,
) -> None:
    """Reproduce the paper's tables and figures.

    Trains the classifiers and certifies the images that are missing in --out, then draws everything.

    Example: pprs reproduce all --quick
    """
    if write_plan is not None:
        with atomic_write(write_plan, "write_plan") as part:
            part.write_bytes(PLANS[quick].read_bytes())
        say(f"wrote {write_plan}")
        return
    options.set_threads(threads)
    run_plan(
        [name.strip() for name in experiment.split(",")], out=out, data_root=data_root,
        data=None if data is None else [name.strip() for name in data.split(",")], quick=quick, plan=plan,
        draw_only=draw_only, progress=progress,
    )  # fmt: skip
