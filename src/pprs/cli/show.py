"""`pprs show`"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from pprs.cli import options
from pprs.cli.console import say
from pprs.cli.errors import guarded
from pprs.cli.options import Panel
from pprs.data import open_dataset
from pprs.errors import ConfigurationError
from pprs.inputs.domain import SIGNAL, domain_of
from pprs.noise import noise_of
from pprs.partition import Slic, Slic1d, parse_request, recommend_partition
from pprs.report import write_image_rows


@guarded
def show(
    image: Annotated[
        str,
        typer.Argument(metavar="INPUT", help="A file of an image or a signal, or data as for `pprs certify --data`."),
    ],
    sigma: options.Sigma,
    noise: options.NoiseText = "gaussian",
    partition: Annotated[
        list[str] | None,
        options.option(
            "--partition",
            "TEXT",
            Panel.NOISE,
            "Partition, as for `pprs certify`. Repeat it to draw several. Default: slic, or slic1d for signals.",
        ),
    ] = None,
    index: Annotated[
        int, options.option("--index", "INT", Panel.IMAGES, "Index of the image or signal in the data.")
    ] = 0,
    seed: options.Seed = 0,
    out: Annotated[Path, options.option("--out", "FILE", Panel.OUTPUT, "Figure to write (.png, .svg or .pdf).")] = Path(
        "show.png"
    ),
) -> None:
    """Draw what noise and partitions do to an image or a signal: original, noisy, borders of segments, averaged.

    Example: pprs show builtin:cat --sigma 0.25 --partition slic --partition blur:size=3

    Example: pprs show builtin:GunPoint --sigma 0.5 --partition auto --partition changepoint
    """
    run_noise = noise_of(noise, sigma)
    requested = [parse_request(text) for text in partition or []]
    options.check_figure(out, "out")
    data = open_dataset(image)
    if not 0 <= index < len(data):
        raise ConfigurationError(f"`index` must be 0 to {len(data) - 1} for {image}, not {index}", parameter="index")
    sample = data[index]
    shape = tuple(sample.image.shape)
    domain = domain_of(shape)
    domain.check(sample.image)
    requested = requested or [Slic1d() if domain is SIGNAL else Slic()]
    partitions = [recommend_partition(sigma, shape).partition if isinstance(p, str) else p for p in requested]
    write_image_rows(sample, run_noise, partitions, seed, out, parameter="out")
    say(f"wrote {out}")
