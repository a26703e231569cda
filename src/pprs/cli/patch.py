"""`pprs patch`"""

from __future__ import annotations

from typing import Annotated, Literal

from pprs.cli import options
from pprs.cli.console import console, exit_if_failed, print_run, progress
from pprs.cli.errors import guarded
from pprs.cli.options import Panel
from pprs.data import Selection
from pprs.patches import FILL, MASKS, certify_patches
from pprs.patches.report import make_section
from pprs.runs import Failure, Run

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
    str,
    options.option(
        "--out",
        "RUN",
        Panel.OUTPUT,
        "Folder or url (s3://bucket/run) to write the run to. Repeat the command to resume it, or to add images and "
        "patch sizes.",
    ),
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
    out: Out = "pprs-patch",
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
    autocast: options.Autocast = False,
    channels_last: options.ChannelsLast = False,
    runner: options.RunnerName = "local",
    workers: options.Workers = None,
    address: options.Address = None,
    gpus_per_worker: options.Gpus = None,
) -> None:
    """Certify that no change inside any one square patch can alter a label.

    The claim is exact: there is no noise and no failure probability. It is about the double-masked classifier, whose
    clean accuracy is reported too.

    Example: pprs patch --model M.safetensors --data builtin:mnist5k --patch 2 --limit 100 --out runs/patch
    """
    sides = options.parse_indices(patch, "patch") or []
    run_on = options.make_runner(runner, workers, address, gpus_per_worker, False, threads, device)
    options.set_threads(threads)
    run = certify_patches(
        model, data, patch=sides, masks=masks, fill=fill, images=Selection(start, stride, limit), out=out,
        runner=run_on, progress=progress, split=split, classes=classes, labels=labels, engine=engine, device=device,
        batch_size=batch_size, autocast=autocast, channels_last=channels_last, pixels=pixels, adapted=adapted,
    )  # fmt: skip
    console.print(make_section([run]).table.to_rich())
    print_run(run, out)
    exit_if_failed(_list_failures(run))


def _list_failures(run: Run) -> list[Failure]:
    """Return the failures among the images that the command was called for."""
    chosen = set(run.images or ())
    return [failure for failure in run.failures() if failure.idx in chosen]
