"""The row of an image in a segmentation run, and the table of its columns.

A row holds the selected labels and their counts, and no claim. What they prove is computed anew whenever a row is read,
so a run cannot hold a claim that does not follow from its counts.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from pprs.errors import DamagedError, PprsError
from pprs.noise import Quantisation
from pprs.runs import Known
from pprs.runs.columns import INTEGERS, MAP, MAX_MAP, Column, Schema, quote_value
from pprs.segmentation.certificate import ABSTAINED, SegmentationCertificate
from pprs.segmentation.groups import Groups, make_groups
from pprs.segmentation.metrics import Confusion
from pprs.segmentation.segmenter import conclude, resolve_groups
from pprs.segmentation.settings import SegmentationSettings

Map = npt.NDArray[Any]
MAX_CHANNELS = 4


@dataclass(frozen=True, eq=False)
class SegmentationRow:
    """The row of one image. An image that failed has no counts, and its row promises nothing.

    Attributes:
        idx: Index of the image in its data set.
        shape: Shape (C, H, W) of the image that noise was added to.
        selected: The label of each pixel that the selection samples chose, int32 [H, W].
        counts: In how many of the estimation samples each pixel, or its group, had that label.
        cells: The group of each pixel, where the groups depend on the image. Other groups follow from the settings.
        mask: The true class of each pixel, -1 where it does not count. None if the image has no mask.
        levels: Levels of the image in exact arithmetic. None in real arithmetic.
        moved: How far rounding to these levels moved the image.
        mean_segments: Mean number of segments per noisy sample. None without superpixels.
        image_digest: Digest of the image as it was certified.
        seconds: Time that the image took.
        name: Name of the image in its data, such as its file.
    """

    idx: int
    shape: tuple[int, ...] | None = None
    selected: Map | None = None
    counts: Map | None = None
    cells: Map | None = None
    mask: Map | None = None
    levels: int | None = None
    moved: float = 0.0
    mean_segments: float | None = None
    image_digest: str | None = None
    seconds: float = 0.0
    name: str | None = None

    @classmethod
    def of(cls, idx: int, certificate: SegmentationCertificate, known: Known, seconds: float) -> SegmentationRow:
        """Return the row of an image with its certificate."""
        c = certificate
        row = cls(
            idx, c.shape, c.selected, c.counts, None if c.static_groups else c.cells, known.truth.get("mask"), c.levels,
            c.moved, c.mean_segments, c.image_digest, seconds, known.name,
        )  # fmt: skip
        return row.prove(certificate)

    def prove(self, certificate: SegmentationCertificate) -> SegmentationRow:
        """Return the row with what its counts prove, which is derived and not stored."""
        row = replace(self)
        object.__setattr__(row, "_certificate", certificate)
        return row

    @property
    def certificate(self) -> SegmentationCertificate:
        """What the counts prove."""
        found: SegmentationCertificate | None = self.__dict__.get("_certificate")
        if found is None:
            raise PprsError("the image failed, so it has no certificate", index=self.idx)
        return found

    @property
    def share(self) -> float:
        """The share of the pixels that have a certified label."""
        return 0.0 if self.counts is None else 1 - self.certificate.abstained_share

    def confusion(self, num_classes: int, *, selected: bool = False) -> Confusion | None:
        """Return the certified or selected labels against the mask, None without a mask. A failed image abstains."""
        if self.mask is None:
            return None
        if self.counts is None:
            return Confusion.of(np.full(self.mask.shape, ABSTAINED), self.mask, num_classes)
        labels = self.certificate.selected if selected else self.certificate.labels
        return Confusion.of(labels, self.mask, num_classes)

    def check_values(self) -> None:
        """Check what the types of the columns do not say. Raises ValueError."""
        shape, maps = self.shape, {name: getattr(self, name) for name in ("selected", "counts", "cells", "mask")}
        if shape is None or len(shape) != 3 or not 0 < shape[0] <= MAX_CHANNELS or math.prod(shape[1:]) > MAX_MAP:
            raise ValueError(f'"shape" is {quote_value(shape)}, which is not that of an image')
        for name, values in maps.items():
            if values is not None and values.shape != shape[1:]:
                raise ValueError(f'"{name}" has {values.shape} pixels, and "shape" is {shape}')


def _derived(read: Callable[[SegmentationCertificate], Any]) -> Callable[[SegmentationRow], Any]:
    """Return what exports a part of the certificate, None for an image that failed."""
    return lambda row: None if row.counts is None else read(row.certificate)


COLUMNS = (
    Column("idx", "int64", "INTEGER PRIMARY KEY"),
    Column("radius", "double", export=_derived(lambda c: c.radius)),
    Column("certified_share", "double", export=lambda row: row.share),
    Column("least_count", "int64", export=_derived(lambda c: c.least_count)),
    Column("hypotheses", "int64", export=_derived(lambda c: c.hypotheses)),
    Column("certified_labels", "binary", export=_derived(lambda c: MAP.store(c.labels)), codec=MAP),
    Column("selected", "binary", "BLOB NOT NULL", codec=MAP),
    Column("counts", "binary", "BLOB NOT NULL", codec=MAP),
    Column("cells", "binary", "BLOB", codec=MAP),
    Column("mask", "binary", "BLOB", codec=MAP),
    Column("mean_segments", "double", "REAL", least=0),
    Column("seconds", "double", "REAL NOT NULL", least=0),
    Column("shape", "string", "TEXT NOT NULL", codec=INTEGERS),
    Column("levels", "int64", "INTEGER"),
    Column("moved", "double", "REAL NOT NULL", least=0),
    Column("image_digest", "string", "TEXT NOT NULL"),
    Column("name", "string", "TEXT"),
)


def conclude_row(row: SegmentationRow, settings: SegmentationSettings) -> SegmentationRow:
    """Return a row that was read with what its counts prove. Raises ValueError if they are impossible."""
    assert row.selected is not None
    assert row.counts is not None
    assert row.shape is not None
    settings.check()
    sampling, classes, partition = settings.sampling, settings.num_classes or 0, settings.partition_text or "none"
    check_labels("selected", row.selected, 0, classes - 1)
    check_labels("counts", row.counts, 0, sampling.n)
    check_truth({"mask": row.mask}, settings)
    if row.mean_segments is not None and partition == "none":
        raise ValueError('"mean_segments" has a value, and the run has no partition')
    shape = (row.shape[0], row.shape[1], row.shape[2])
    groups = _find_groups(row, shape, settings)
    selected, counts = (_by_group(name, getattr(row, name), groups) for name in ("selected", "counts"))
    try:
        certificate = conclude(
            sampling, noise=settings.noise, partition=partition, num_classes=classes, shape=shape, groups=groups,
            quantisation=_read_quantisation(row, shape, settings), mean_segments=row.mean_segments,
            image_digest=row.image_digest, selected=selected, counts=counts,
        )  # fmt: skip
    except DamagedError:  # names the setting
        raise
    except PprsError as error:
        raise ValueError(f"its certificate is not valid ({error.message})") from error
    return row.prove(certificate)


def check_truth(truth: Mapping[str, Any], settings: SegmentationSettings) -> None:
    """Raise ValueError if a mask has labels that the network does not have."""
    if truth["mask"] is not None:
        check_labels("mask", truth["mask"], ABSTAINED, (settings.num_classes or 0) - 1)


def check_labels(name: str, values: Map, least: int, most: int) -> None:
    """Raise ValueError if a map has a value out of range."""
    low, high = int(values.min()), int(values.max())
    if low < least or high > most:
        raise ValueError(f'"{name}" must lie between {least} and {most}, and it lies between {low} and {high}')


def _read_quantisation(
    row: SegmentationRow, shape: tuple[int, int, int], settings: SegmentationSettings
) -> Quantisation | None:
    if settings.arithmetic == "real":
        if row.levels is not None or row.moved:
            raise ValueError('"levels" or "moved" has a value, but the run is in real arithmetic')
        return None
    if row.levels is None or row.levels != settings.levels:
        raise ValueError(f'"levels" is {quote_value(row.levels)}, but those of the run are {settings.levels}')
    quantisation = Quantisation(row.levels, row.moved)
    if row.moved > quantisation.max_moved(math.prod(shape)):
        raise ValueError(f'"moved" is {row.moved:g}, more than rounding can move the image')
    return quantisation


def _find_groups(row: SegmentationRow, shape: tuple[int, int, int], settings: SegmentationSettings) -> Groups | None:
    """Return the groups of pixels: those of the row, or those that follow from the settings for every image."""
    partition = settings.sampling.groups
    if (row.cells is not None) != (partition is not None and not partition.static):
        raise ValueError('"cells" does not match the groups of the run')
    if partition is None:
        return None
    if row.cells is None:
        resolved = resolve_groups(partition, settings.noise, shape)
        return make_groups(resolved, np.zeros(shape, np.float32))
    if row.cells.min() < 0 or not np.array_equal(np.unique(row.cells), np.arange(row.cells.max() + 1)):
        raise ValueError('"cells" is not numbered from 0 without gaps')
    return Groups(row.cells, False)


def _by_group(name: str, values: Map, groups: Groups | None) -> Map:
    """Return one value per pixel or, if there are groups, one per group of a map that is constant in each."""
    if groups is None:
        return values.ravel()
    by_group = np.zeros(groups.count, np.int32)
    by_group[groups.cells] = values
    if not np.array_equal(by_group[groups.cells], values):
        raise ValueError(f'"{name}" differs within a group of pixels')
    return by_group


SEGMENTATION_ROWS = Schema(SegmentationRow, COLUMNS, truth=("mask",), finish=conclude_row, check_truth=check_truth)

__all__ = ["SEGMENTATION_ROWS", "SegmentationRow", "check_truth", "conclude_row"]
