"""`pprs tune`"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from pprs import tuning
from pprs.cli import options
from pprs.cli.console import console, progress, say
from pprs.cli.errors import guarded, with_flags
from pprs.cli.options import Panel
from pprs.data import Selection
from pprs.noise import noise_of

ALL_FAMILIES = ",".join(tuning.FAMILIES)

Budget = Annotated[
    str,
    typer.Option("--budget", metavar="TIME", rich_help_panel=Panel.SAMPLING, help="How long to search: 90s, 5m, 1h."),
]
Families = Annotated[
    str,
    typer.Option(
        "--families",
        metavar="LIST",
        rich_help_panel=Panel.NOISE,
        help="What to try: some of none,blur,filter,superpixels.",
    ),
]
Out = Annotated[
    Path,
    typer.Option(
        "--out",
        metavar="FOLDER",
        rich_help_panel=Panel.OUTPUT,
        help="A folder for the chart and all that was tried. The same command again resumes it.",
    ),
]


@guarded
def tune(
    model: options.Model,
    data: options.Data,
    sigma: options.Sigma,
    noise: options.NoiseText = "gaussian",
    budget: Budget = "5m",
    families: Families = ALL_FAMILIES,
    out: Out = Path("pprs-tune"),
    split: options.Split = None,
    classes: options.Classes = None,
    labels: options.Labels = None,
    start: options.Start = 0,
    stride: options.Stride = 1,
    limit: options.Limit = tuning.LIMIT,
    seed: options.Seed = 0,
    engine: options.Engine = "auto",
    threads: options.Threads = None,
    device: options.Device = "cpu",
) -> None:
    """Search for the partition that makes this classifier's certificates largest, if any does.

    Searches on half of the pictures and judges the best of each family on the other half. Pictures without labels
    count with the label that the classifier gives them when they are clean.

    Example: pprs tune --model M.safetensors --data builtin:mnist5k --split train --sigma 0.25 --budget 5m
    """
    law, images = noise_of(noise, sigma), Selection(start, stride, limit)
    options.set_threads(threads)
    tuned = tuning.tune(
        model, data, noise=law, budget=budget, families=families, images=images, out=out, seed=seed,
        progress=progress, split=split, classes=classes, labels=labels, engine=engine, device=device,
    )  # fmt: skip
    console.print(tuning.results_table(tuned, (0.0, sigma / 2, sigma)).to_rich())
    for final in tuned.finals:
        say(f"  {final.family}: {tuning.short(final.partition)}")
    for note in tuning.notes(tuned):
        say(note)
    say(with_flags(tuning.verdict(tuned)))
    say(f"wrote {out / tuning.CHART} and {out / tuning.RESULT}")
    say(f"\n--partition {tuned.best.partition}")
