"""`pprs tune`"""

from __future__ import annotations

import shlex
from dataclasses import replace
from pathlib import Path
from typing import Annotated

from pprs import tuning
from pprs.cli import options
from pprs.cli.console import console, progress, say
from pprs.cli.errors import guarded, with_flags
from pprs.cli.options import Panel
from pprs.data import Selection
from pprs.noise import noise_of

Budget = Annotated[str, options.option("--budget", "TIME", Panel.SAMPLING, "How long to search: 90s, 5m, 1h.")]
Families = Annotated[
    str | None,
    options.option(
        "--families",
        "LIST",
        Panel.NOISE,
        f"What to try: any of {','.join(tuning.ALL_FAMILIES)}. Default: the first four, and denoiser and adapted if "
        "--denoiser and --adapted are given.",
    ),
]
Adapted = Annotated[
    Path | None,
    options.option(
        "--adapted",
        "FILE",
        Panel.INPUT,
        "Adaptation of the classifier, written by `pprs adapt`. The search compares the adapted classifier, with any "
        "partition, with the classifier as it is.",
    ),
]
DenoiserFile = Annotated[
    str | None,
    options.option(
        "--denoiser",
        "FILE",
        Panel.NOISE,
        "Denoiser to try alone and with superpixels: D.safetensors, D.onnx, or with options D.onnx,kind=epsilon.",
    ),
]
Out = Annotated[
    Path,
    options.option(
        "--out", "DIR", Panel.OUTPUT, "Folder for the chart and the measurements. Repeat the command to resume."
    ),
]


@guarded
def tune(
    model: options.Model,
    data: options.Data,
    sigma: options.Sigma = None,
    adapted: Adapted = None,
    noise: options.NoiseText = "gaussian",
    pixels: options.PixelsName = "network",
    budget: Budget = "5m",
    families: Families = None,
    denoiser: DenoiserFile = None,
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
    """Search for the partition that gives a classifier the largest certified radii.

    Also tells whether a denoiser or an adaptation of the classifier makes them larger, if given.

    Searches on half of the images and compares the best partition of each family on the other half.

    An image without a label counts with the label that the classifier gives it without noise.

    Example: pprs tune --model M.safetensors --data builtin:mnist5k --split train --sigma 0.25 --budget 5m
    """
    run_noise, images = noise_of(noise, sigma), Selection(start, stride, limit)
    options.set_threads(threads)
    tuned = tuning.tune(
        model, data, noise=run_noise, budget=budget, families=families, images=images, out=out, seed=seed,
        progress=progress, split=split, classes=classes, labels=labels, engine=engine, device=device,
        pixels=pixels, adapted=adapted, denoiser=denoiser,
    )  # fmt: skip
    table = tuning.make_table(tuned, (0.0, run_noise.sigma / 2, run_noise.sigma))
    console.print(replace(table, title=with_flags(table.title)).to_rich())
    for final in tuned.finals:
        say(f"  {final.family}: {tuning.shorten(final.partition)}")
    for note in tuning.list_notes(tuned):
        say(note)
    say(with_flags(tuning.summarize(tuned)))
    say(f"wrote {out / tuning.CHART} and {out / tuning.RESULT}")
    used = f" --adapted {shlex.quote(str(adapted))}" if tuned.best.adapted else ""
    say(f"\n--partition {tuned.best.partition}{used}{' --pixels file' if pixels == 'file' else ''}")
