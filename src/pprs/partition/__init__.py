"""Partitions of a noisy picture: `Slic(n_segments=100).apply(noisy)`.

A new one is a frozen class in a file of its own, and a line in PARTITIONS.
"""

from __future__ import annotations

from pprs import spec
from pprs.errors import PprsError, nearest
from pprs.partition.base import Partition, Superpixels
from pprs.partition.blur import Blur
from pprs.partition.felzenszwalb import Felzenszwalb
from pprs.partition.grid import Grid
from pprs.partition.quickshift import Quickshift
from pprs.partition.slic import Slic

PARTITIONS: dict[str, type[Partition]] = {kind.name: kind for kind in (Slic, Felzenszwalb, Quickshift, Grid, Blur)}


def parse_partition(text: str) -> Partition | None:
    """The partition that a text such as `slic:n_segments=100` describes; `none` is plain smoothing.

    >>> parse_partition("grid:size=4")
    Grid(size=4)
    >>> parse_partition("none")
    """
    if text.strip() == "none":
        return None
    name = text.strip().partition(":")[0]
    if name not in PARTITIONS:
        raise PprsError(f'unknown partition "{name}". {nearest(name, [*PARTITIONS, "none"])}')
    return spec.from_text(text, PARTITIONS, "partition")


__all__ = [
    "PARTITIONS",
    "Blur",
    "Felzenszwalb",
    "Grid",
    "Partition",
    "Quickshift",
    "Slic",
    "Superpixels",
    "parse_partition",
]
