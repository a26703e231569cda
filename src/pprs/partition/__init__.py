"""Partitions of a noisy image, as in `Slic(n_segments=100).apply(noisy)`.

A new partition is a frozen dataclass and an entry in PARTITIONS. Partitions that build on another one hold it in their
field `of`.
"""

from __future__ import annotations

import re

from pprs import _text
from pprs.errors import ConfigurationError, suggest
from pprs.partition.base import Filter, Partition, Superpixels
from pprs.partition.felzenszwalb import Felzenszwalb
from pprs.partition.filters import Blur, GaussianFilter, Median, NonLocalMeans, TotalVariation
from pprs.partition.grid import Grid
from pprs.partition.mean import Mean
from pprs.partition.quickshift import Quickshift
from pprs.partition.recommendation import AUTO, Auto, Recommendation, recommend_partition
from pprs.partition.shifts import Shifts
from pprs.partition.slic import Slic
from pprs.partition.soft import Soft

_CLASSES = (
    Slic, Felzenszwalb, Quickshift, Grid, Blur, GaussianFilter, Median, TotalVariation, NonLocalMeans, Soft, Shifts,
)  # fmt: skip
PARTITIONS: dict[str, type[Partition]] = {kind.name: kind for kind in _CLASSES}
PLUS = re.compile(r"(?<!\d[eE])(?<!\d\.[eE])\+")  # except in a number such as 1e+16


def parse_partition(text: str) -> Partition | None:
    """Return the partition that a text such as `slic:n_segments=100` describes, or None for `none` (plain smoothing).

    `/` builds one partition on another, and `+` takes the mean of several.

    >>> parse_partition("grid:size=4")
    Grid(size=4)
    >>> parse_partition("grid:size=2 + blur")
    Mean(parts=(Grid(size=2), Blur(size=3)))
    >>> parse_partition("none")
    """
    if text.strip() == "none":
        return None
    parts = [_parse_part(part, text.strip()) for part in PLUS.split(text)]
    return parts[0] if len(parts) == 1 else Mean(parts)


def parse_request(text: str) -> Partition | Auto | None:
    """Like `parse_partition`, but "auto" stays "auto" until the noise and the image size are known.

    >>> parse_request("auto"), parse_request("none")
    ('auto', None)
    """
    return AUTO if text.strip() == AUTO else parse_partition(text)


def _parse_part(text: str, full_text: str) -> Partition:
    for link in text.split("/"):
        name = link.strip().partition(":")[0]
        if not name and full_text:
            raise ConfigurationError(
                f'a part is missing in "{full_text}": "/" and "+" go between two partitions', parameter="partition"
            )
        if name == "none":
            raise ConfigurationError(
                f'"none" is plain smoothing, and cannot be combined with a partition as in "{full_text}"',
                parameter="partition",
            )
        if name == AUTO:
            raise ConfigurationError(_explain_auto(full_text), parameter="partition")
        if name not in PARTITIONS:
            raise ConfigurationError(
                f'unknown partition "{name}". {suggest(name, [*PARTITIONS, "none"])}', parameter="partition"
            )
    return _text.from_text(text, PARTITIONS, "partition")


def _explain_auto(full_text: str) -> str:
    if full_text == AUTO:
        return '"auto" depends on the noise and the images, and is not available here. Name a partition, such as slic.'
    return f'"auto" chooses an entire partition, and cannot be part of one or take options as in "{full_text}"'


__all__ = [
    "AUTO",
    "PARTITIONS",
    "Auto",
    "Blur",
    "Felzenszwalb",
    "Filter",
    "GaussianFilter",
    "Grid",
    "Mean",
    "Median",
    "NonLocalMeans",
    "Partition",
    "Quickshift",
    "Recommendation",
    "Shifts",
    "Slic",
    "Soft",
    "Superpixels",
    "TotalVariation",
    "parse_partition",
    "parse_request",
    "recommend_partition",
]
