"""Partitions of a noisy picture: `Slic(n_segments=100).apply(noisy)`.

A new one is a frozen class in a file of its own, and a line in PARTITIONS. Some are made of another, which stands in
their field `of`.
"""

from __future__ import annotations

import re

from pprs import _text
from pprs.errors import ConfigurationError, suggest
from pprs.partition.base import Filter, Partition, Superpixels
from pprs.partition.blur import Blur
from pprs.partition.felzenszwalb import Felzenszwalb
from pprs.partition.gauss import Gauss
from pprs.partition.grid import Grid
from pprs.partition.mean import Mean
from pprs.partition.median import Median
from pprs.partition.non_local_means import NonLocalMeans
from pprs.partition.quickshift import Quickshift
from pprs.partition.shifts import Shifts
from pprs.partition.slic import Slic
from pprs.partition.soft import Soft
from pprs.partition.total_variation import TotalVariation

_KINDS = (
    Slic, Felzenszwalb, Quickshift, Grid, Blur, Gauss, Median, TotalVariation, NonLocalMeans, Soft, Shifts,
)  # fmt: skip
PARTITIONS: dict[str, type[Partition]] = {kind.name: kind for kind in _KINDS}
PLUS = re.compile(r"(?<!\d[eE])(?<!\d\.[eE])\+")  # but not that of a number such as 1e+16


def parse_partition(text: str) -> Partition | None:
    """The partition that a text such as `slic:n_segments=100` describes; `none` is plain smoothing.

    `/` makes one of another, and `+` is the mean of several.

    >>> parse_partition("grid:size=4")
    Grid(size=4)
    >>> parse_partition("grid:size=2 + blur")
    Mean(parts=(Grid(size=2), Blur(size=3)))
    >>> parse_partition("none")
    """
    if text.strip() == "none":
        return None
    parts = [_one(part, text.strip()) for part in PLUS.split(text)]
    return parts[0] if len(parts) == 1 else Mean(parts)


def _one(text: str, whole: str) -> Partition:
    for link in text.split("/"):
        name = link.strip().partition(":")[0]
        if not name and whole:
            raise ConfigurationError(
                f'a part is missing in "{whole}": "/" and "+" go between two partitions', parameter="partition"
            )
        if name == "none":
            raise ConfigurationError(
                f'"none" is plain smoothing, and cannot be combined with a partition as in "{whole}"',
                parameter="partition",
            )
        if name not in PARTITIONS:
            raise ConfigurationError(
                f'unknown partition "{name}". {suggest(name, [*PARTITIONS, "none"])}', parameter="partition"
            )
    return _text.from_text(text, PARTITIONS, "partition")


__all__ = [
    "PARTITIONS",
    "Blur",
    "Felzenszwalb",
    "Filter",
    "Gauss",
    "Grid",
    "Mean",
    "Median",
    "NonLocalMeans",
    "Partition",
    "Quickshift",
    "Shifts",
    "Slic",
    "Soft",
    "Superpixels",
    "TotalVariation",
    "parse_partition",
]
