"""`pprs show`"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from pprs.cli import options
from pprs.cli.console import say
from pprs.cli.errors import guarded
from pprs.data import open_dataset
from pprs.errors import ConfigurationError
from pprs.noise import noise_of
from pprs.partition import parse_partition
from pprs.partition.base import check_image_shape
from pprs.report import write_image_rows


@guarded
def show(
    image: Annotated[str, typer.Argument(help="A picture, or data as for --data (with --index).")],
    sigma: options.Sigma,
    noise: options.NoiseText = "gaussian",
    partition: Annotated[
        list[str] | None, typer.Option("--partition", metavar="TEXT", help="May be given several times.")
    ] = None,
    index: Annotated[int, typer.Option("--index", metavar="INT", help="Which picture of the data.")] = 0,
    seed: options.Seed = 0,
    out: Annotated[Path, typer.Option("--out", metavar="FILE", help="The picture to write.")] = Path("show.png"),
) -> None:
    """Draw what partitions make of a noisy picture: original, noisy, superpixel borders, averaged."""
    law = noise_of(noise, sigma)
    methods = [parse_partition(text) for text in partition or ["slic"]]
    options.check_figure(out, "out")
    pictures = open_dataset(image)
    if not 0 <= index < len(pictures):
        raise ConfigurationError(f"`index` {index}: {image} has pictures 0 to {len(pictures) - 1}", parameter="index")
    example = pictures[index]
    check_image_shape(tuple(example.image.shape))
    write_image_rows(example, law, methods, seed, out)
    say(f"wrote {out}")
