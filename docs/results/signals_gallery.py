"""Draw the gallery of signals.md: signals, noisy, segmented and averaged, by several methods.

python docs/results/signals_gallery.py [FILE]

The figure is the same in every run: signals, noise and options are fixed.
"""

from __future__ import annotations

import sys
from pathlib import Path

from pprs.data import open_dataset
from pprs.noise import Gaussian
from pprs.partition import parse_partition
from pprs.report.figures import GalleryExample, plot_gallery, to_bytes
from pprs.smoothing.arithmetic import prepare_image
from pprs.smoothing.voting import noisy_chunk

OUT = Path(__file__).parent / "signals-gallery.png"
EXAMPLES = {"GunPoint": (0, 0.5), "ItalyPowerDemand": (1, 0.5), "BasicMotions": (30, 2.0)}  # index and sigma
METHODS = ("slic1d", "slic1d/soft/shifts:k=4", "felzenszwalb1d", "changepoint", "blur1d:size=5", "tv1d")


def make_example(name: str, index: int, sigma: float) -> GalleryExample:
    """Return a signal of a built-in data set with its first noisy copy."""
    clean, noise = open_dataset(f"builtin:{name}")[index].image, Gaussian(sigma)
    noisy = noisy_chunk(prepare_image(clean, noise), noise, 0, index)[0]
    return GalleryExample(f"{name}, signal {index}", clean.numpy(), noisy.numpy(), noise)


def main(out: Path = OUT) -> None:
    examples = [make_example(name, index, sigma) for name, (index, sigma) in EXAMPLES.items()]
    partitions = [partition for text in METHODS if (partition := parse_partition(text)) is not None]
    out.write_bytes(to_bytes(plot_gallery(examples, partitions), out.suffix.lstrip(".")))


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
