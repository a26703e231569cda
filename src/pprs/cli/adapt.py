"""`pprs adapt`"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from pprs import adaptation
from pprs.cli import options
from pprs.cli.console import progress, say
from pprs.cli.errors import guarded
from pprs.cli.options import Panel
from pprs.data import Selection
from pprs.noise import noise_of

Out = Annotated[
    Path,
    options.option(
        "--out", "FILE", Panel.OUTPUT, "File for the adaptation: A.safetensors. Repeat the command to continue it."
    ),
]
Method = Annotated[
    Literal["auto", "statistics", "bias", "denoiser", "distill"],
    options.option(
        "--method",
        "NAME",
        Panel.SAMPLING,
        "statistics (of batch normalisation), bias (of the output), denoiser, distill (the classifier's own clean "
        "predictions), or auto, which keeps what helps on held-back images.",
    ),
]
Budget = Annotated[str, options.option("--budget", "TIME", Panel.SAMPLING, "How long to adapt: 90s, 5m, 1h.")]
Split = Annotated[str | None, options.option("--split", "NAME", Panel.INPUT, "Split of the data. Default: train.")]
Limit = Annotated[
    int, options.option("--limit", "INT", Panel.IMAGES, "Maximum number of images, which are drawn at random.")
]


@guarded
def adapt(
    model: options.Model,
    data: options.Data,
    sigma: options.Sigma,
    out: Out,
    partition: options.PartitionText = "none",
    noise: options.NoiseText = "gaussian",
    method: Method = "auto",
    budget: Budget = adaptation.BUDGET,
    split: Split = None,
    limit: Limit = adaptation.LIMIT,
    seed: options.Seed = 0,
    threads: options.Threads = None,
) -> None:
    """Adapt a classifier to its noise and partition with unlabelled images.

    Labels, if there are any, are not read. Give images that you do not certify.

    Example: pprs adapt --model M.safetensors --data mnist --sigma 0.5 --partition slic/soft --out A.safetensors
    """
    images = Selection(limit=limit)
    options.set_threads(threads)
    adaptation.adapt(
        model, data, noise=noise_of(noise, sigma), partition=partition, out=out, method=method, budget=budget,
        images=images, seed=seed, progress=progress, split=split,
    )  # fmt: skip
    say(f"wrote {out}. Use it with: pprs certify --model {model} --adapted {out} ...")
