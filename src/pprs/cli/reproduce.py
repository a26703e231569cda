"""`pprs reproduce`"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from pprs._files import atomic_write
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
            help="table1, curves, methods, segments, sigma, gallery, noises, training, or all; several with commas."
        ),
    ],
    out: Annotated[
        Path, typer.Option("--out", metavar="DIR", help="A folder. The same command again resumes there.")
    ] = Path("reproduction"),
    data_root: Annotated[
        Path | None,
        typer.Option(
            "--data-root",
            metavar="DIR",
            help="Holds mnist, fashion-mnist, cifar10, imagenet-sample; otherwise they come from the hub.",
        ),
    ] = None,
    data: Annotated[
        str | None,
        typer.Option("--data", metavar="LIST", help="Only these data sets of the plan: mnist,cifar10."),
    ] = None,
    quick: Annotated[bool, typer.Option("--quick", help="On the built-in digits, in minutes.")] = False,
    plan: Annotated[
        Path | None,
        typer.Option("--plan", metavar="FILE", help="Another plan; --write-plan FILE gives you this one to edit."),
    ] = None,
    write_plan: Annotated[
        Path | None, typer.Option("--write-plan", metavar="FILE", help="Write the plan there, and stop.")
    ] = None,
    draw_only: Annotated[
        bool, typer.Option("--draw-only", help="Draw again from the rows in OUT/rows; no classifier is needed.")
    ] = False,
    threads: options.Threads = None,
) -> None:
    """Rebuild the paper's tables and figures: train, certify what is missing, draw.

    Example: pprs reproduce all --quick
    """
    if write_plan is not None:
        with atomic_write(write_plan) as part:
            part.write_bytes(PLANS[quick].read_bytes())
        say(f"wrote {write_plan}")
        return
    options.set_threads(threads)
    run_plan(
        [name.strip() for name in experiment.split(",")], out=out, data_root=data_root,
        data=None if data is None else [name.strip() for name in data.split(",")], quick=quick, plan=plan,
        draw_only=draw_only, progress=progress,
    )  # fmt: skip
