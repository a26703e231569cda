"""Partitions of a noisy image or signal, as in `Slic(n_segments=100).apply(noisy)`.

A new partition is a frozen dataclass and an entry in PARTITIONS. Partitions that build on another one hold it in their
field `of`. Those that read a file name it in their field `file`.
"""

from __future__ import annotations

import re
from typing import Any, Literal, TypeAlias, overload

from pprs._support import text as _text
from pprs.errors import ConfigurationError, check_type, suggest
from pprs.partition.base import Filter, Partition, Superpixels
from pprs.partition.chain import Chain
from pprs.partition.changepoint import Changepoint
from pprs.partition.denoiser import Denoiser
from pprs.partition.felzenszwalb import Felzenszwalb
from pprs.partition.felzenszwalb1d import Felzenszwalb1d
from pprs.partition.filters import Blur, GaussianFilter, Median, NonLocalMeans, TotalVariation
from pprs.partition.filters1d import Blur1d, GaussianFilter1d, Median1d, TotalVariation1d, Wavelet
from pprs.partition.grid import Grid
from pprs.partition.mean import Mean
from pprs.partition.quickshift import Quickshift
from pprs.partition.recommendation import AUTO, Auto, Recommendation, recommend_partition
from pprs.partition.shifts import Shifts
from pprs.partition.signals import SignalFilter, SignalSegments
from pprs.partition.slic import Slic
from pprs.partition.slic1d import Slic1d
from pprs.partition.soft import Soft

_CLASSES = (
    Slic, Felzenszwalb, Quickshift, Grid, Blur, GaussianFilter, Median, TotalVariation, NonLocalMeans, Soft, Shifts,
    Denoiser, Slic1d, Felzenszwalb1d, Changepoint, Blur1d, GaussianFilter1d, Median1d, TotalVariation1d, Wavelet,
)  # fmt: skip
PARTITIONS: dict[str, type[Partition]] = {kind.name: kind for kind in _CLASSES}
AnyPartition: TypeAlias = Partition | str | None
PLUS = re.compile(r"(?<!\d[eE])(?<!\d\.[eE])\+")  # except in a number such as 1e+16


def parse_partition(text: str) -> Partition | None:
    """Return the partition that a text such as `slic:n_segments=100` describes, or None for `none` (plain smoothing).

    `/` builds one partition on another, or puts a denoiser before or after one. `+` takes the mean of several.

    >>> parse_partition("grid:size=4")
    Grid(size=4)
    >>> parse_partition("grid:size=2 + blur")
    Mean(parts=(Grid(size=2), Blur(size=3)))
    >>> parse_partition("denoiser:d.safetensors/blur")
    Chain(stages=(Denoiser(file='d.safetensors', sigma='auto', kind=None, digest=None), Blur(size=3)))
    >>> parse_partition("none")
    """
    if text.strip() == "none":
        return None
    parts = [_parse_part(links, text.strip()) for links in split_text(text)]
    return parts[0] if len(parts) == 1 else Mean(parts)


def parse_request(text: str) -> Partition | Auto | None:
    """Like `parse_partition`, but "auto" stays "auto" until the noise and the image size are known.

    >>> parse_request("auto"), parse_request("none")
    ('auto', None)
    """
    return AUTO if text.strip() == AUTO else parse_partition(text)


@overload
def as_partition(value: Any, parameter: str = "partition", *, auto: Literal[False] = False) -> Partition | None: ...


@overload
def as_partition(value: Any, parameter: str = "partition", *, auto: Literal[True]) -> Partition | Auto | None: ...


def as_partition(value: Any, parameter: str = "partition", *, auto: bool = False) -> Partition | Auto | None:
    """Return the partition that an argument gives: as an object, as text, or None for plain smoothing.

    With `auto`, "auto" stays "auto" until the noise and the image size are known.

    >>> as_partition("grid:size=4"), as_partition(Grid(4)), as_partition(None)
    (Grid(size=4), Grid(size=4), None)
    """
    if isinstance(value, str):
        try:
            return parse_request(value) if auto else parse_partition(value)
        except ConfigurationError as error:
            if error.parameter == parameter:
                raise
            raise ConfigurationError(f"`{parameter}`: {error.message}", parameter=parameter) from error
    example = "pprs.Grid(4)" if parameter != "partition" else 'pprs.Slic() or "slic:n_segments=100"'
    check_type(value, Partition | None, parameter, example)
    return value  # type: ignore[no-any-return]


def split_text(text: str) -> list[list[str]]:
    """Split the text of a partition into the parts of a mean, and these into the links of a chain.

    File names are decoded only by `_text.decode_file`, since they may hold the characters that separate links.
    """
    return [part.split("/") for part in PLUS.split(_text.encode_files(text))]


def _parse_part(links: list[str], full_text: str) -> Partition:
    stages: list[str] = []
    for link in links:
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
        if stages and _text.builds_on_another(PARTITIONS[name]):
            stages[-1] += f"/{link}"
        else:
            stages.append(link)
    partitions = [_text.from_text(stage, PARTITIONS, "partition") for stage in stages]
    return partitions[0] if len(partitions) == 1 else Chain(partitions)


def _explain_auto(full_text: str) -> str:
    if full_text == AUTO:
        return '"auto" depends on the noise and the images, and is not available here. Name a partition, such as slic.'
    return f'"auto" chooses an entire partition, and cannot be part of one or take options as in "{full_text}"'


__all__ = [
    "AUTO",
    "PARTITIONS",
    "AnyPartition",
    "Auto",
    "Blur",
    "Blur1d",
    "Chain",
    "Changepoint",
    "Denoiser",
    "Felzenszwalb",
    "Felzenszwalb1d",
    "Filter",
    "GaussianFilter",
    "GaussianFilter1d",
    "Grid",
    "Mean",
    "Median",
    "Median1d",
    "NonLocalMeans",
    "Partition",
    "Quickshift",
    "Recommendation",
    "Shifts",
    "SignalFilter",
    "SignalSegments",
    "Slic",
    "Slic1d",
    "Soft",
    "Superpixels",
    "TotalVariation",
    "TotalVariation1d",
    "Wavelet",
    "as_partition",
    "parse_partition",
    "parse_request",
    "recommend_partition",
    "split_text",
]


def __dir__() -> list[str]:
    return __all__
