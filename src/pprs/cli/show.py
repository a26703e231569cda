"""`pprs show`"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from pprs.cli import options
from pprs.cli.console import say
from pprs.cli.errors import guarded
from pprs.cli.options import Panel
from pprs.data import Example, open_dataset
from pprs.dither import check_unused, is_dither
from pprs.dither.choice import as_estimate
from pprs.dither.recovery import MEASURED, list_estimators, list_templates
from pprs.dither.thresholds import parse_dither
from pprs.errors import ConfigurationError
from pprs.inputs.domain import SIGNAL, domain_of
from pprs.noise import noise_of
from pprs.partition import AUTO, Slic, Slic1d, parse_request, recommend_partition
from pprs.report import write_image_rows


@guarded
def show(
    image: Annotated[
        str,
        typer.Argument(metavar="INPUT", help="A file of an image or a signal, or data as for `pprs certify --data`."),
    ],
    sigma: options.Sigma = None,
    noise: options.NoiseText = "gaussian",
    partition: Annotated[
        list[str] | None,
        options.option(
            "--partition",
            "TEXT",
            Panel.NOISE,
            "Partition, as for `pprs certify`. Repeat it to draw several. Default: slic, or slic1d for signals; auto "
            "with dither.",
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

    With thresholds: original, what is shown of it, and what is recovered, for each template unless one is named.

    Example: pprs show builtin:cat --sigma 0.25 --partition slic --partition blur:size=3

    Example: pprs show builtin:GunPoint --sigma 0.5 --partition auto --partition changepoint

    Example: pprs show builtin:cat --noise dither:levels=1020
    """
    names = partition or []
    options.check_figure(out, "out")
    if is_dither(noise):
        check_unused(noise, sigma=(sigma, None), seed=(seed, 0))
        parse_dither(noise)
        estimates = [as_estimate(text) for text in names or [AUTO]]
        sample = _read(image, index)
        shape = tuple(sample.image.shape)
        dithers = list_templates(noise, sample.image)
        write_image_rows(sample, dithers, list_estimators(estimates, shape), seed, out, parameter="out")
        count = min(MEASURED, dithers[0].levels)
        say(f"wrote {out}. The peak signal-to-noise ratios (dB) are over {count} of {dithers[0].levels} offsets.")
        return
    run_noise = noise_of(noise, sigma)
    requested = [parse_request(text) for text in names]
    sample = _read(image, index)
    shape = tuple(sample.image.shape)
    requested = requested or [Slic1d() if domain_of(shape) is SIGNAL else Slic()]
    partitions = [recommend_partition(run_noise.sigma, shape).partition if isinstance(p, str) else p for p in requested]
    write_image_rows(sample, run_noise, partitions, seed, out, parameter="out")
    say(f"wrote {out}")


def _read(source: str, index: int) -> Example:
    """Return an input of data, if it is one that can be classified."""
    data = open_dataset(source)
    if not 0 <= index < len(data):
        raise ConfigurationError(f"`index` must be 0 to {len(data) - 1} for {source}, not {index}", parameter="index")
    sample = data[index]
    domain_of(tuple(sample.image.shape)).check(sample.image)
    return sample
