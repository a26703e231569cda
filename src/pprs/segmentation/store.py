"""A segmentation run on disk: its settings and one row per image, in RUN/segmentation.sqlite.

A row holds the selected labels and their counts, and no claim. What they prove is computed anew whenever a row is read,
so a run cannot hold a claim that does not follow from its counts. Rows are written in transactions. So a run that is
killed at any moment holds only complete rows, and the same call resumes it.
"""

from __future__ import annotations

import json
import math
import zlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from pprs._checks import validate
from pprs.engine import check_engine
from pprs.errors import ConfigurationError, DamagedError, PprsError, check_integer, describe_error
from pprs.noise import Noise, Quantisation, parse_noise
from pprs.noise.quantised import EIGHT_BIT, SIXTEEN_BIT
from pprs.partition import Partition, parse_partition
from pprs.runs.columns import quote_value
from pprs.runs.database import Database, DatabaseWriter
from pprs.runs.settings import without_paths
from pprs.segmentation.certificate import ABSTAINED, SegmentationCertificate
from pprs.segmentation.groups import Groups, make_groups
from pprs.segmentation.metrics import Confusion
from pprs.segmentation.segmenter import SegmentationSampling, conclude, resolve_groups
from pprs.voting import choose_arithmetic

FILE = "segmentation.sqlite"
DATABASE = Database(FILE, ".segmentation.lock", 1, "a segmentation run", "`pprs segment`")
MAX_PIXELS = 2**26  # of an image that is read from a run, which may come from somebody else
MAX_PICTURES, MAX_PICTURE_BYTES = 8, 2**23  # images that are stored for the report
_TABLES = (
    "CREATE TABLE settings (value TEXT NOT NULL)",
    "CREATE TABLE rows (idx INTEGER PRIMARY KEY, height INTEGER NOT NULL, width INTEGER NOT NULL, channels INTEGER NOT "
    "NULL, selected BLOB NOT NULL, counts BLOB NOT NULL, cells BLOB, mask BLOB, levels INTEGER, moved REAL NOT NULL, "
    "mean_segments REAL, image_digest TEXT NOT NULL, seconds REAL NOT NULL)",
    "CREATE TABLE failed (idx INTEGER PRIMARY KEY, error TEXT NOT NULL, height INTEGER, width INTEGER, mask BLOB)",
    "CREATE TABLE pictures (idx INTEGER PRIMARY KEY, png BLOB NOT NULL)",
)
Map = npt.NDArray[Any]


@dataclass(frozen=True)
class SegmentationSettings:
    """What the rows of a run depend on. A run is resumed only with the same settings."""

    model: str
    model_digest: str
    model_parts: dict[str, str]
    data: str
    split: str
    data_fingerprint: str
    num_classes: int
    class_names: tuple[str, ...]
    noise: str
    partition: str
    tau: float
    n0: int
    n: int
    alpha: float
    groups: str
    seed: int
    engine: str
    device: str
    arithmetic: str

    @property
    def sampling(self) -> SegmentationSampling:
        """How images are sampled, and what is proved about them."""
        return SegmentationSampling(self.tau, self.n0, self.n, self.alpha, parse_partition(self.groups))

    @property
    def parsed_partition(self) -> Partition | None:
        """The partition, or None for plain smoothing."""
        return parse_partition(self.partition)

    @property
    def parsed_noise(self) -> Noise:
        """The noise."""
        return parse_noise(self.noise)

    def check(self, where: str) -> None:
        """Check values, which nothing else does for a file that was written by others.

        Raises:
            DamagedError: If one of them is not valid.
        """
        checks: dict[str, Callable[[], object]] = {
            "noise": lambda: self.parsed_noise,
            "partition": lambda: self.parsed_partition,
            "tau, n0, n, alpha or groups": lambda: self.sampling,
            "num_classes": lambda: check_integer(self.num_classes, "num_classes", 2),
            "seed": lambda: check_integer(self.seed, "seed"),
            "arithmetic": lambda: choose_arithmetic(self.arithmetic, self.parsed_noise),
            "engine": lambda: check_engine(self.engine),
            "device": lambda: torch.device(self.device),
        }
        for name, check in checks.items():
            try:
                check()
            except (PprsError, RuntimeError) as error:
                raise DamagedError(f"the settings of {where}: {name} is not valid ({describe_error(error)})") from error

    def differences(self, other: SegmentationSettings) -> list[str]:
        """List the settings that differ, as lines such as "n: 100 -> 200". Where model and data lie does not matter."""
        ours, theirs = asdict(self), asdict(other)
        del ours["data"]
        if without_paths(self.model) == without_paths(other.model):
            del ours["model"]  # the digest identifies a file; code, as in module:factory, has only its name
        return [f"{name}: {ours[name]} -> {theirs[name]}" for name in ours if ours[name] != theirs[name]]


@dataclass(frozen=True)
class SegmentationRow:
    """The result for one image of a run: what its counts prove, and its mask [H, W] or None."""

    idx: int
    certificate: SegmentationCertificate
    mask: Map | None
    seconds: float

    @property
    def confusion(self) -> Confusion | None:
        """The certified labels against the mask, or None without a mask."""
        if self.mask is None:
            return None
        return Confusion.of(self.certificate.labels, self.mask, self.certificate.num_classes)


@dataclass(frozen=True)
class SegmentationSummary:
    """Totals over the rows of a run.

    Attributes:
        images: Number of images, with failed ones.
        failed: Number of images that failed, and count as abstained.
        pixels: Number of pixels, without those of failed images whose masks are unknown.
        certified_share: Share of these pixels that have a certified label.
        radius: Smallest certified radius of an image, NaN if there is none.
        certified: The certified labels against the masks, or None without masks.
        selected: The selected labels against the masks, which are certified nowhere, or None without masks.
    """

    images: int
    failed: int
    pixels: int
    certified_share: float
    radius: float
    certified: Confusion | None
    selected: Confusion | None


class SegmentationRun:
    """A run of `segment_dataset`, for reading. It is not changed, and each call opens and closes its file.

    Args:
        folder: The folder of the run.
        keep: An object to keep as long as the run, such as its temporary folder.
    """

    def __init__(self, folder: str | Path, *, keep: object = None) -> None:
        self.folder, self._keep = Path(folder).absolute(), keep
        DATABASE.check(self.folder)
        self.settings = self._read_settings()

    def _read_settings(self) -> SegmentationSettings:
        with DATABASE.read(self.folder) as db:
            stored = db.execute("SELECT value FROM settings").fetchone()
        try:
            values = json.loads(stored[0])
        except (ValueError, TypeError, RecursionError) as error:
            raise DamagedError(f"the settings of {self.folder} are not JSON. The run is damaged.") from error
        try:
            settings = validate(SegmentationSettings, values, f"the settings of {self.folder}")
        except PprsError as error:
            raise DamagedError(error.message) from error
        settings.check(str(self.folder))
        return settings

    def iter_rows(self) -> Iterator[SegmentationRow]:
        """Iterate over the rows by index, and derive what their counts prove."""
        with DATABASE.read(self.folder) as db:
            cursor = db.execute("SELECT * FROM rows ORDER BY idx")
            names = [column[0] for column in cursor.description]
            for values in cursor:
                yield _read_row(dict(zip(names, values, strict=True)), self.settings, self.folder)

    def completed(self) -> dict[int, str]:
        """Return the digests of the images that have a row, by index."""
        with DATABASE.read(self.folder) as db:
            stored = dict(db.execute("SELECT idx, image_digest FROM rows"))
        for idx, digest in stored.items():
            where = f"the row of image {quote_value(idx)} of {self.folder}"
            if type(idx) is not int or idx < 0:
                raise DamagedError(f"{where}: idx is not an index")
            if not isinstance(digest, str):
                raise DamagedError(f"{where}: image_digest is not a text")
        return stored

    def failures(self) -> dict[int, str]:
        """Return why images failed that have no row, by index."""
        with DATABASE.read(self.folder) as db:
            stored = dict(
                db.execute("SELECT idx, error FROM failed WHERE idx NOT IN (SELECT idx FROM rows) ORDER BY idx")
            )
        for idx, error in stored.items():
            if type(idx) is not int or idx < 0 or not isinstance(error, str):
                raise DamagedError(
                    f"the failed image {quote_value((idx, error))} of {self.folder} is not an index and an error"
                )
        return stored

    def failed_masks(self) -> Iterator[tuple[int, Map]]:
        """Iterate over the indices and masks of images that failed, as far as the masks are known."""
        with DATABASE.read(self.folder) as db:
            for idx, height, width, data in db.execute("SELECT idx, height, width, mask FROM failed"):
                if data is not None:
                    where = f"failed image {idx} of {self.folder}"
                    _check_sizes(where, height=height, width=width)
                    yield idx, _read_mask(data, height, width, self.settings.num_classes, where)

    def pictures(self) -> dict[int, bytes]:
        """Return the images that are stored for the report, as PNG, by index."""
        with DATABASE.read(self.folder) as db:
            stored = (
                "SELECT idx, png FROM pictures WHERE typeof(idx) = 'integer' AND typeof(png) = 'blob' "
                "AND length(png) <= ? ORDER BY idx LIMIT ?"
            )
            return dict(db.execute(stored, (MAX_PICTURE_BYTES, MAX_PICTURES)))

    def summary(self, images: set[int] | None = None) -> SegmentationSummary:
        """Return totals over the rows, or over those of some images.

        Args:
            images: The indices of the images. All by default.

        Returns:
            The totals. Certified accuracy and mean IoU are those of `certified`.
        """
        failed = [i for i in self.failures() if images is None or i in images]
        count, pixels, claimed, radius, num_classes = 0, 0, 0, math.inf, self.settings.num_classes
        certified = selected = Confusion.none(num_classes)
        for index, mask in self.failed_masks():
            if index not in failed:
                continue
            pixels += mask.size
            certified += Confusion.of(np.full(mask.shape, ABSTAINED), mask, num_classes)
            selected += Confusion.of(np.full(mask.shape, ABSTAINED), mask, num_classes)
        for row in self.iter_rows():
            if images is not None and row.idx not in images:
                continue
            count, pixels = count + 1, pixels + row.certificate.labels.size
            claimed += int(row.certificate.certified.sum())
            radius = min(radius, row.certificate.radius)
            if row.mask is not None and row.confusion is not None:
                certified += row.confusion
                selected += Confusion.of(row.certificate.selected, row.mask, num_classes)
        scored = certified.pixels > 0
        return SegmentationSummary(
            count + len(failed), len(failed), pixels, claimed / max(pixels, 1), radius if count else math.nan,
            certified if scored else None, selected if scored else None,
        )  # fmt: skip


class SegmentationWriter:
    """Writes a run. Only one process may write a run at a time."""

    def __init__(self, folder: Path, settings: SegmentationSettings) -> None:
        self.folder = folder
        self._writer = DatabaseWriter(DATABASE, folder)
        try:
            self._prepare(settings)
        except BaseException:
            self._writer.close()
            raise

    def _prepare(self, settings: SegmentationSettings) -> None:
        if self._writer.is_new:
            with self._writer.transaction():
                self._writer.create(_TABLES, [("INSERT INTO settings VALUES (?)", (json.dumps(asdict(settings)),))])
            return
        differences = SegmentationRun(self.folder).settings.differences(settings)
        if differences:
            raise ConfigurationError(
                f"{self.folder} holds a run with other settings:\n  " + "\n  ".join(differences) + "\nNothing was "
                "changed. Repeat the call with the settings of the run, or give another `out`.",
                parameter="out",
            )

    def __enter__(self) -> SegmentationWriter:
        return self

    def __exit__(self, *exception: object) -> None:
        self._writer.close()

    def write(self, idx: int, certificate: SegmentationCertificate, mask: Map | None, seconds: float) -> None:
        """Write the row of an image, and forget that it failed."""
        c, (channels, height, width) = certificate, certificate.shape
        values = {
            "idx": idx, "height": height, "width": width, "channels": channels, "selected": _pack(c.selected),
            "counts": _pack(c.counts), "cells": None if c.cells is None else _pack(c.cells),
            "mask": None if mask is None else _pack(mask), "levels": c.levels, "moved": c.moved,
            "mean_segments": c.mean_segments, "image_digest": c.image_digest, "seconds": seconds,
        }  # fmt: skip
        with self._writer.transaction() as db:
            db.execute("DELETE FROM failed WHERE idx = ?", (idx,))
            db.execute(
                f"INSERT INTO rows ({', '.join(values)}) VALUES ({', '.join('?' * len(values))})", list(values.values())
            )

    def write_failure(self, idx: int, error: str, mask: Map | None) -> None:
        """Record why an image failed, and its mask, all of whose pixels count as abstained."""
        stored = (None, None, None) if mask is None else (*mask.shape, _pack(mask))
        with self._writer.transaction() as db:
            db.execute("INSERT OR REPLACE INTO failed VALUES (?, ?, ?, ?, ?)", (idx, error, *stored))

    def write_picture(self, idx: int, png: bytes) -> None:
        """Store an image for the report, unless there are enough already."""
        with self._writer.transaction() as db:
            (stored,) = db.execute("SELECT count(*) FROM pictures").fetchone()
            if stored < MAX_PICTURES:
                db.execute("INSERT OR REPLACE INTO pictures VALUES (?, ?)", (idx, png))


def is_segmentation_run(folder: str | Path) -> bool:
    """Return whether a folder holds a segmentation run."""
    return (Path(folder) / FILE).is_file()  # false for a url


def _pack(values: Map) -> bytes:
    """Return a map of small integers in compressed form, as little-endian int32."""
    return zlib.compress(np.ascontiguousarray(values, "<i4").tobytes(), 6)


def _unpack(data: Any, pixels: int, name: str) -> npt.NDArray[np.int32]:
    """Return a map [pixels]. No more is expanded than it may have."""
    size = 4 * pixels
    try:
        content = zlib.decompressobj().decompress(data, size + 1)
    except (zlib.error, TypeError) as error:
        raise DamagedError(f"{name} is damaged ({error})") from error
    if len(content) != size:
        raise DamagedError(f"{name} holds {len(content)} bytes instead of {size}")
    return np.frombuffer(content, "<i4").astype(np.int32)


def _read_row(values: Mapping[str, Any], settings: SegmentationSettings, folder: Path) -> SegmentationRow:
    """Return a row with what its counts prove."""
    idx, shape = values["idx"], (values["channels"], values["height"], values["width"])
    where = f"the row of image {quote_value(idx)} of {folder}"
    _check_scalars(values, settings, where)
    pixels = shape[1] * shape[2]
    maps = {name: _unpack(values[name], pixels, f"{where}: {name}") for name in ("selected", "counts")}
    mask = values["mask"]
    mask = None if mask is None else _read_mask(mask, shape[1], shape[2], settings.num_classes, where)
    sampling = settings.sampling
    for name, most in {"selected": settings.num_classes - 1, "counts": sampling.n}.items():
        if maps[name].min() < 0 or maps[name].max() > most:
            raise DamagedError(f"{where}: {name} must lie between 0 and {most}")
    groups = _read_groups(values["cells"], shape, settings, where)
    if groups is not None:
        maps = _by_group(maps, groups, where)
    try:
        certificate = conclude(
            sampling, noise=settings.parsed_noise, partition=settings.partition, num_classes=settings.num_classes,
            shape=shape, groups=groups, quantisation=_read_quantisation(values, settings, where),
            mean_segments=values["mean_segments"], image_digest=values["image_digest"], selected=maps["selected"],
            counts=maps["counts"],
        )  # fmt: skip
    except PprsError as error:
        raise DamagedError(f"{where}: its certificate is not valid ({error.message})") from error
    return SegmentationRow(idx, certificate, mask, values["seconds"])


def _check_scalars(values: Mapping[str, Any], settings: SegmentationSettings, where: str) -> None:
    """Check types and ranges, which nothing else does for a file that was written by others."""
    if type(values["idx"]) is not int or values["idx"] < 0:
        raise DamagedError(f"{where}: idx is not an index")
    _check_sizes(where, **{name: values[name] for name in ("channels", "height", "width")})
    if not 0 < values["channels"] <= 4:
        raise DamagedError(f"{where}: channels are {values['channels']}, which is not an image")
    for name in ("seconds", "moved", "mean_segments"):
        value = values[name]
        is_number = isinstance(value, int | float) and 0 <= value < math.inf
        if not is_number and not (value is None and name == "mean_segments"):
            raise DamagedError(f"{where}: {name} is {quote_value(value)}, which is not a non-negative number")
    if not isinstance(values["image_digest"], str):
        raise DamagedError(f"{where}: image_digest is not a text")
    if (values["mean_segments"] is None) != (settings.parsed_partition is None) and values["mean_segments"] is not None:
        raise DamagedError(f"{where}: it has mean_segments, and the run has no partition")


def _check_sizes(where: str, **sizes: Any) -> None:
    for name, size in sizes.items():
        if type(size) is not int or not 0 < size <= MAX_PIXELS:
            raise DamagedError(f"{where}: {name} is {quote_value(size)}, which is not the size of an image")
    if math.prod(sizes.values()) > 4 * MAX_PIXELS:
        raise DamagedError(f"{where} claims the height and width {sizes}, which is not the size of an image")


def _read_quantisation(values: Mapping[str, Any], settings: SegmentationSettings, where: str) -> Quantisation | None:
    levels, moved = values["levels"], values["moved"]
    if settings.arithmetic == "real":
        if levels is not None or moved:
            raise DamagedError(f"{where}: it has levels, but the run is in real arithmetic")
        return None
    if levels not in (EIGHT_BIT, SIXTEEN_BIT):
        raise DamagedError(f"{where}: levels are {quote_value(levels)}, which cannot occur in exact arithmetic")
    quantisation = Quantisation(levels, moved)
    if moved > quantisation.max_moved(values["channels"] * values["height"] * values["width"]):
        raise DamagedError(f"{where}: moved is {moved:g}, more than rounding can move it")
    return quantisation


def _read_groups(cells: Any, shape: tuple[int, int, int], settings: SegmentationSettings, where: str) -> Groups | None:
    """Return the groups of pixels. Those that are the same for every image follow from the settings."""
    partition = settings.sampling.groups
    if (partition is None) != (cells is None):
        raise DamagedError(f"{where}: its cells do not match the groups of the run")
    if partition is None:
        return None
    stored = Groups(_unpack(cells, shape[1] * shape[2], f"{where}: cells").reshape(shape[1:]), partition.static)
    if partition.static:
        resolved = resolve_groups(partition, settings.parsed_noise, shape)
        if not np.array_equal(make_groups(resolved, np.zeros(shape, np.float32)).cells, stored.cells):
            raise DamagedError(f"{where}: its cells are not the groups that follow from the settings")
    return stored


def _read_mask(data: Any, height: int, width: int, num_classes: int, where: str) -> npt.NDArray[np.int32]:
    """Return a mask [height, width]."""
    mask = _unpack(data, height * width, f"{where}: mask").reshape(height, width)
    if mask.min() < ABSTAINED or mask.max() >= num_classes:
        raise DamagedError(f"{where}: the mask has labels that the network does not have")
    return mask


def _by_group(maps: Mapping[str, npt.NDArray[np.int32]], groups: Groups, where: str) -> dict[str, Any]:
    """Return one value per group of maps [pixels] that are constant in each group."""
    cells = groups.cells.ravel()
    if cells.min() < 0 or not np.array_equal(np.unique(cells), np.arange(cells.max() + 1)):
        raise DamagedError(f"{where}: its cells are not numbered from 0 without gaps")
    by_group = {}
    for name, values in maps.items():
        by_group[name] = np.zeros(groups.count, np.int32)
        by_group[name][cells] = values
        if not np.array_equal(by_group[name][cells], values):
            raise DamagedError(f"{where}: {name} differ within a group")
    return by_group
