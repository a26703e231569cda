"""The settings and the rows of a run against patches, and the table of their columns."""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from pprs.errors import ConfigurationError, DamagedError, PprsError
from pprs.patches.fills import Fill, parse_fill
from pprs.patches.masks import MAX_MASKS, MIN_MASKS, Box, MaskGrid, Span
from pprs.runs.columns import INTEGERS, TRUTH, ArrowType, Codec, Column, Schema, quote_value
from pprs.runs.provenance import Provenance

Corners = tuple[int, int, int, int]  # of a box: top, bottom, left, right
MAX_SIDE = 2**20  # pixels


@dataclass(frozen=True)
class PatchSettings(Provenance):
    """What the rows of a run against patches depend on, except for the patch size, which each row has.

    Attributes:
        masks: The number of masks along each axis.
        fill_text: What stands in the place of hidden pixels, as text. `fill` is the object.
    """

    kind: ClassVar[str] = "patch"
    texts: ClassVar[Mapping[str, str]] = {**Provenance.texts, "fill": "fill_text"}
    ranges: ClassVar[Mapping[str, tuple[float, float]]] = {**Provenance.ranges, "masks": (MIN_MASKS, MAX_MASKS)}
    exported: ClassVar[Mapping[str, ArrowType]] = {
        "model": "string", "data": "string", "masks": "int64", "fill": "string", "engine": "string",
        "preprocess": "string", "pixels": "string",
    }  # fmt: skip

    masks: int | None = None
    fill_text: str | None = None

    @functools.cached_property
    def fill(self) -> Fill:
        """What stands in the place of hidden pixels."""
        return self.make_fill()

    def make_fill(self) -> Fill:
        """Return what stands in the place of hidden pixels, or raise an error if it is not recorded, or is none."""
        if self.masks is None or self.fill_text is None:
            raise PprsError("the masks and the fill of these rows are not recorded")
        try:
            return parse_fill(self.fill_text)
        except PprsError as error:
            raise DamagedError(f"the setting fill is not valid ({error.message})") from error


@dataclass(frozen=True)
class PatchRow:
    """The result for one image and one patch size.

    Attributes:
        idx: The index of the image.
        patch: The side of the patch in pixels.
        label: The true label, if the image has one.
        prediction: The label of the double-masked classifier, None if the image failed.
        certified: Whether no patch can change it.
        plain: The label of the base classifier for the image without masks.
        worst: The boxes of the worst pair of masks, each (top, bottom, left, right).
        worst_label: What the base classifier predicts under that pair.
        passes: The number of masked images that this rests on.
        seconds: Time that the image took.
        shape: Shape (C, H, W) of the image whose pixels are masked. None in runs of earlier versions.
        file_shape: Shape of the image before it was prepared for the network.
        image_digest: Digest of the image.
        name: Name of the image in its data, such as its file.
    """

    idx: int
    patch: int
    label: int | None = None
    prediction: int | None = None
    certified: bool = False
    plain: int | None = None
    worst: tuple[Corners, ...] | None = None
    worst_label: int | None = None
    passes: int = 0
    seconds: float = 0.0
    shape: tuple[int, ...] | None = None
    file_shape: tuple[int, ...] | None = None
    image_digest: str | None = None
    name: str | None = None

    @property
    def failed(self) -> bool:
        """Whether the image failed. It counts as not certified, and is tried again when the run is resumed."""
        return self.prediction is None

    @property
    def correct(self) -> bool:
        """Whether the label of the double-masked classifier is the true one."""
        return self.prediction is not None and self.prediction == self.label

    @property
    def boxes(self) -> list[Box]:
        """What the worst pair of masks hides."""
        return [Box(Span(top, bottom), Span(left, right)) for top, bottom, left, right in self.worst or ()]

    def check_values(self) -> None:
        """Check what the types of the columns do not say. Raises ValueError."""
        if self.shape is not None and (len(self.shape) != 3 or not all(0 < side <= MAX_SIDE for side in self.shape)):
            raise ValueError(f'"shape" is {quote_value(self.shape)}, which is not that of an image')

    def find_grid(self, settings: PatchSettings) -> MaskGrid | None:
        """Return the masks of the image, or None if the run does not record its shape.

        Raises:
            ConfigurationError: If there are none for this patch size.
        """
        if self.shape is None or settings.masks is None:
            return None
        return MaskGrid(self.shape[1], self.shape[2], self.patch, settings.masks)

    def list_mismatches(self, settings: PatchSettings) -> list[str]:
        """Return what does not follow from the row and the settings alone."""
        found = []
        if self.certified and self.worst_label != self.prediction:
            found.append("it is certified, but its worst pair of masks has another label")
        try:
            grid = self.find_grid(settings)
        except ConfigurationError as error:
            return [*found, error.message]
        if grid is not None and not set(self.boxes) <= set(grid.boxes):
            found.append("its worst pair of masks is not one of the grid")
        if grid is not None and self.certified and self.passes != (most := count_pairs(len(grid))):
            found.append(f"passes are {self.passes}, and a certificate takes {most}")
        return found


def count_pairs(masks: int) -> int:
    """Return the number of pairs of masks, each with itself and with every other one.

    >>> count_pairs(36)
    666
    """
    return masks * (masks + 1) // 2


class Boxes(Codec):
    """A pair of boxes, as JSON."""

    def store(self, value: tuple[Corners, ...]) -> str:
        return json.dumps(value)

    def read(self, stored: Any, name: str) -> tuple[Corners, ...]:
        try:
            values = json.loads(stored)
        except (ValueError, RecursionError):
            values = None
        if not isinstance(values, list) or len(values) != 2 or not all(map(_is_box, values)):
            raise ValueError(f'"{name}" is {quote_value(stored)}, which is not a pair of boxes')
        return tuple((top, bottom, left, right) for top, bottom, left, right in values)


def _is_box(value: Any) -> bool:
    if not isinstance(value, list) or not all(type(edge) is int and 0 <= edge <= MAX_SIDE for edge in value):
        return False
    return len(value) == 4 and value[0] < value[1] and value[2] < value[3]


def _finish(row: PatchRow, settings: PatchSettings) -> PatchRow:
    """Check what depends on the settings of the run. Raises ValueError."""
    for name in ("label", "prediction", "plain", "worst_label"):
        value = getattr(row, name)
        if value is not None and settings.num_classes is not None and value >= settings.num_classes:
            raise ValueError(f'"{name}" is {value}, which is not one of {settings.num_classes} classes')
    return row


COLUMNS = (
    Column("idx", "int64", "INTEGER NOT NULL"),
    Column("patch", "int64", "INTEGER NOT NULL", least=1),
    Column("label", "int64", "INTEGER", least=0),
    Column("prediction", "int64", "INTEGER NOT NULL", least=0),
    Column("certified", "int64", "INTEGER NOT NULL", codec=TRUTH),
    Column("correct", "int64", export=lambda row: int(row.correct)),
    Column("plain", "int64", "INTEGER NOT NULL", least=0),
    Column("worst", "string", "TEXT NOT NULL", codec=Boxes()),
    Column("worst_label", "int64", "INTEGER NOT NULL", least=0),
    Column("passes", "int64", "INTEGER NOT NULL", least=1),
    Column("seconds", "double", "REAL NOT NULL", least=0),
    Column("shape", "string", "TEXT", codec=INTEGERS),
    Column("file_shape", "string", "TEXT", codec=INTEGERS),
    Column("image_digest", "string", "TEXT"),
    Column("name", "string", "TEXT"),
)
SCHEMA = Schema(PatchRow, COLUMNS, keys=("idx", "patch"), finish=_finish)
