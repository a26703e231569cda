"""`pprs patch`"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Literal

import typer

from pprs.cli import options
from pprs.cli.console import console, progress, say
from pprs.cli.errors import FAILED, guarded
from pprs.cli.options import Panel
from pprs.data import Selection
from pprs.patches import FILL, MASKS, PatchRun, certify_patches
from pprs.patches.report import make_table, write_patch_report
from pprs.patches.store import PAGE

LISTED = 5  # failures

Patch = Annotated[
    str, options.option("--patch", "LIST", Panel.MASKS, "Side of the patch in pixels, or several, such as 1,2,3.")
]
PixelsName = Annotated[
    Literal["network", "file"],
    options.option(
        "--pixels",
        "NAME",
        Panel.MASKS,
        "Where a patch lies: network (in the network's input, after resizing) or file (in the pixels of the file).",
    ),
]
Out = Annotated[
    Path,
    options.option("--out", "DIR", Panel.OUTPUT, "Folder for the rows and the report. Repeat the command to resume."),
]


@guarded
def patch(
    model: options.Model,
    data: options.Data,
    patch: Patch,
    masks: options.Masks = MASKS,
    fill: options.FillText = FILL,
    adapted: options.Adapted = None,
    pixels: PixelsName = "network",
    out: Out = Path("pprs-patch"),
    split: options.Split = None,
    classes: options.Classes = None,
    labels: options.Labels = None,
    start: options.Start = 0,
    stride: options.Stride = 1,
    limit: options.Limit = None,
    engine: options.Engine = "auto",
    batch_size: options.BatchSize = None,
    threads: options.Threads = None,
    device: options.Device = "cpu",
) -> None:
    """Certify that no change inside any one square patch can alter a label.

    The claim is exact: there is no noise and no failure probability. It is about the double-masked classifier, whose
    clean accuracy is reported too.

    Example: pprs patch --model M.safetensors --data builtin:mnist5k --patch 2 --limit 100 --out runs/patch
    """
    sides = options.parse_indices(patch, "patch") or []
    options.set_threads(threads)
    run = certify_patches(
        model, data, patch=sides, masks=masks, fill=fill, out=out, images=Selection(start, stride, limit), split=split,
        classes=classes, labels=labels, adapted=adapted, pixels=pixels, engine=engine, device=device,
        batch_size=batch_size, progress=progress,
    )  # fmt: skip
    print_patch_run(run, out)
    exit_if_failed(run)


def print_patch_run(run: PatchRun, out: Path) -> None:
    """Print the table of a run, and write its report."""
    console.print(make_table([run]).to_rich())
    for line in list_claims(run):
        say(line)
    write_patch_report([run], out / PAGE)
    say(f"wrote {out / PAGE}. Compare runs with: pprs report {out} OTHER --out report.html")


def list_claims(run: PatchRun) -> Sequence[str]:
    """State how many images are certified at each patch size."""
    where = "the network's input" if run.settings.pixels == "network" else "the file"
    return [
        f"{sum(row.certified for row in run.of(side))} of {len(run.of(side))} images: no change inside any one "
        f"{side}x{side} patch of {where} can alter the label"
        for side in run.patches
    ]


def exit_if_failed(run: PatchRun) -> None:
    """If images failed, list them and exit with code 1."""
    if run.failures:
        typer.echo(f"pprs: failed: {len(run.failures)} rows, counted as not certified. Repeat to try again.", err=True)
        for row in run.failures[:LISTED]:
            typer.echo(f"  image {row.idx}: {row.error}", err=True)
        raise typer.Exit(FAILED)
