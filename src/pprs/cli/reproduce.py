from __future__ import annotations

import contextlib
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from pprs.cli import common
from pprs.cli.common import guarded
from pprs.errors import PprsError

if TYPE_CHECKING:
    from pprs.cli.workshop import Workshop
    from pprs.data import ImageSet
    from pprs.reproduce import Drawn, Experiment, Plan

ALL = "all"


@guarded
def reproduce(
    experiment: Annotated[
        str,
        typer.Argument(
            help="table1, curves, methods, segments, sigma, gallery, noises, training, or all; several with commas."
        ),
    ],
    out: Annotated[Path, typer.Option("--out", help="A folder. The same command again goes on there.")] = Path(
        "reproduction"
    ),
    data_root: Annotated[
        Path | None,
        typer.Option("--data-root", help="Holds mnist, fashion-mnist, cifar10, imagenet-sample; else from the hub."),
    ] = None,
    data: Annotated[str | None, typer.Option("--data", help="Only these data sets of the plan: mnist,cifar10.")] = None,
    quick: Annotated[bool, typer.Option("--quick", help="On the built-in digits, in minutes.")] = False,
    plan: Annotated[
        Path | None, typer.Option("--plan", help="Another plan; --write-plan FILE gives you this one to edit.")
    ] = None,
    write_plan: Annotated[Path | None, typer.Option("--write-plan", help="Write the plan there, and stop.")] = None,
    draw_only: Annotated[
        bool, typer.Option("--draw-only", help="Draw anew from the rows in OUT/rows; no classifier is needed.")
    ] = False,
    threads: common.Threads = None,
) -> None:
    """Rebuild the paper's tables and figures: train, certify what is missing, draw.

    Example: pprs reproduce all --quick
    """
    from pprs.cli.progress import duration, say
    from pprs.cli.workshop import Workshop
    from pprs.errors import nearest
    from pprs.files import written_whole
    from pprs.reproduce import page, read_models, read_plan
    from pprs.reproduce.read import PLANS

    if write_plan is not None:
        with written_whole(write_plan) as part:
            part.write_bytes(PLANS[quick].read_bytes())
        say(f"wrote {write_plan}")
        return
    whole = read_plan(plan, quick=quick)
    names = list(whole.experiments) if experiment == ALL else [n.strip() for n in experiment.split(",")]
    for name in names:
        if name not in whole.experiments:
            raise PprsError(f'no experiment is called "{name}". {nearest(name, [*whole.experiments, ALL])}')
    wanted = None if data is None else [d.strip() for d in data.split(",")]
    for d in wanted or ():
        if d not in whole.data:
            raise PprsError(f'--data: no data set of the plan is called "{d}". {nearest(d, whole.data)}')
    if data_root is not None and not data_root.is_dir():
        raise PprsError(f"--data-root {data_root} is not a folder")
    todo = [
        (whole.experiments[n], d) for n in names for d in whole.experiments[n].data if wanted is None or d in wanted
    ]
    if not todo:
        about = ", ".join(dict.fromkeys(d for n in names for d in whole.experiments[n].data))
        raise PprsError(f"--data {data}: {experiment} is about {about}")
    common.set_threads(threads)
    began, workshop = time.monotonic(), Workshop(whole, out, data_root, draw_only=draw_only, threads=threads)
    drawn, missing = _all(whole, todo, workshop)
    if drawn:
        with written_whole(out / "README.md") as part:
            part.write_text(page(whole, _with_earlier(whole, drawn, workshop), read_models(out)), encoding="utf-8")
        say(f"{len(drawn)} figures and tables in {duration(time.monotonic() - began)}: {out / 'README.md'}")
    if missing:
        raise PprsError(
            f"{len(missing)} could not be made:\n  " + "\n  ".join(missing) + "\nWhat was finished is kept: put this "
            "right and repeat the command, or name the others with --data."
        )


def _all(plan: Plan, todo: list[tuple[Experiment, str]], workshop: Workshop) -> tuple[list[Drawn], list[str]]:
    """Draw each; what cannot be made does not stop the others."""
    from pprs.cli.progress import say
    from pprs.cli.workshop import Retrained
    from pprs.reproduce import draw

    drawn, missing = [], []
    for i, (experiment, data) in enumerate(todo, 1):
        say(f"[{i}/{len(todo)}] {experiment.name}, {data}")
        try:
            pictures = _pictures(workshop, data) if experiment.draw == "gallery" else None
            try:
                drawn.append(draw(plan, experiment, data, workshop.rows, workshop.out, pictures))
            except Retrained:
                say("  a network was trained anew: what was made with the former one is certified again")
                drawn.append(draw(plan, experiment, data, workshop.rows, workshop.out, pictures))
        except PprsError as error:
            missing.append(f"{experiment.name}, {data}: {error}")
            say(f"  not made: {error}")
    return drawn, missing


def _pictures(workshop: Workshop, data: str) -> ImageSet | None:
    """What a gallery shows. Where it only is to be drawn anew and they are not there, its figure stays as it is."""
    from pprs.cli.progress import say

    try:
        return workshop.seen(data)
    except PprsError as error:
        if not workshop.draw_only:
            raise
        say(f"  its figure stays as it is: {error}")
        return None


def _with_earlier(plan: Plan, drawn: list[Drawn], workshop: Workshop) -> list[Drawn]:
    """What was drawn now and what earlier commands drew from rows that still hold, in the plan's order."""
    from pprs.cli.workshop import Workshop
    from pprs.reproduce import tell

    now = {d.name: d for d in drawn}
    earlier = Workshop(plan, workshop.out, None, draw_only=True, threads=None)
    found = []
    for experiment in plan.experiments.values():
        for data in experiment.data:
            name = f"{experiment.name}-{data}"
            if name in now:
                found.append(now[name])
            elif (workshop.out / "tables" / f"{name}.md").is_file():
                with contextlib.suppress(PprsError):
                    found.append(tell(plan, experiment, data, earlier.rows)[0])
    return found
