"""A segmentation run on disk: its settings and one row per image, in RUN/segmentation.sqlite.

A row holds the selected labels and their counts, and no claim. What they prove is computed anew whenever a row is read,
so a run cannot hold a claim that does not follow from its counts. Rows are written in transactions. So a run that is
killed at any moment holds only complete rows, and the same call resumes it.
"""

from __future__ import annotations

import contextlib
import json
import math
import sqlite3
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

import numpy as np
import numpy.typing as npt
from filelock import FileLock, Timeout

from pprs._checks import validate
from pprs._files import cannot_write
from pprs.errors import ConfigurationError, PprsError
from pprs.noise import Noise, Quantisation, parse_noise
from pprs.partition import parse_partition
from pprs.segmentation.certificate import ABSTAINED, SegmentationCertificate
from pprs.segmentation.groups import Groups
from pprs.segmentation.metrics import Confusion
from pprs.segmentation.segmenter import SegmentationSampling, conclude

FILE, LOCK, VERSION = "segmentation.sqlite", ".segmentation.lock", 1
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
    def parsed_noise(self) -> Noise:
        """The noise."""
        return parse_noise(self.noise)

    def differences(self, other: SegmentationSettings) -> list[str]:
        """List the settings that differ, as lines such as "n: 100 -> 200"."""
        ours, theirs = asdict(self), asdict(other)
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
        if not is_segmentation_run(self.folder):
            raise ConfigurationError(
                f"{folder} is not a segmentation run: it has no {FILE}. `pprs segment` writes such a folder."
            )
        self.settings = self._read_settings()

    @contextlib.contextmanager
    def _open(self) -> Iterator[sqlite3.Connection]:
        with _explained(self.folder):
            db = sqlite3.connect(f"file:{quote((self.folder / FILE).as_posix())}?mode=ro", uri=True)
            try:
                yield db
            finally:
                db.close()

    def _read_settings(self) -> SegmentationSettings:
        with self._open() as db:
            (version,) = db.execute("PRAGMA user_version").fetchone()
            if version != VERSION:
                raise PprsError(f"{self.folder} has version {version}, and this version of pprs reads {VERSION}")
            (text,) = db.execute("SELECT value FROM settings").fetchone()
        try:
            return validate(SegmentationSettings, json.loads(text), f"the settings of {self.folder}")
        except ValueError as error:
            raise PprsError(f"the settings of {self.folder} are not JSON ({error})") from error

    def iter_rows(self) -> Iterator[SegmentationRow]:
        """Iterate over the rows by index, and derive what their counts prove."""
        with self._open() as db:
            cursor = db.execute("SELECT * FROM rows ORDER BY idx")
            names = [column[0] for column in cursor.description]
            for values in cursor:
                yield _read_row(dict(zip(names, values, strict=True)), self.settings, self.folder)

    def completed(self) -> dict[int, str]:
        """Return the digests of the images that have a row, by index."""
        with self._open() as db:
            return dict(db.execute("SELECT idx, image_digest FROM rows"))

    def failures(self) -> dict[int, str]:
        """Return why images failed that have no row, by index."""
        with self._open() as db:
            return dict(
                db.execute("SELECT idx, error FROM failed WHERE idx NOT IN (SELECT idx FROM rows) ORDER BY idx")
            )

    def _failed_masks(self, indices: Sequence[int]) -> Iterator[Map]:
        """Iterate over the masks of images that failed, as far as they are known."""
        with self._open() as db:
            for idx, height, width, data in db.execute("SELECT idx, height, width, mask FROM failed"):
                if idx in indices and data is not None:
                    yield _read_mask(data, height, width, self.settings.num_classes, f"image {idx} of {self.folder}")

    def pictures(self) -> dict[int, bytes]:
        """Return the images that are stored for the report, as PNG, by index."""
        with self._open() as db:
            stored = "SELECT idx, png FROM pictures WHERE length(png) <= ? ORDER BY idx LIMIT ?"
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
        for mask in self._failed_masks(failed):
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
        try:
            folder.mkdir(parents=True, exist_ok=True)
            self._lock = FileLock(folder / LOCK)
            self._lock.acquire(timeout=0)
        except Timeout:
            raise ConfigurationError(
                f"another process is writing {folder}. Wait for it, or give another `out`.", parameter="out"
            ) from None
        except OSError as error:
            raise cannot_write(folder, error) from error
        try:
            self._db = self._create(settings)
        except BaseException:
            self._lock.release()
            raise

    def _create(self, settings: SegmentationSettings) -> sqlite3.Connection:
        if is_segmentation_run(self.folder):
            differences = SegmentationRun(self.folder).settings.differences(settings)
            if differences:
                raise ConfigurationError(
                    f"{self.folder} holds a run with other settings:\n  " + "\n  ".join(differences) + "\nNothing was "
                    "changed. Repeat the call with the settings of the run, or give another `out`.",
                    parameter="out",
                )
            return sqlite3.connect(self.folder / FILE)
        if any(entry.name not in (LOCK, FILE) for entry in self.folder.iterdir()):
            raise ConfigurationError(
                f"{self.folder} holds other files and no segmentation run. Give an empty or a new folder as `out`.",
                parameter="out",
            )
        with _explained(self.folder):
            db = sqlite3.connect(self.folder / FILE)
            with db:
                for table in _TABLES:
                    db.execute(table)
                db.execute("INSERT INTO settings VALUES (?)", (json.dumps(asdict(settings)),))
                db.execute(f"PRAGMA user_version = {VERSION}")
        return db

    def __enter__(self) -> SegmentationWriter:
        return self

    def __exit__(self, *exception: object) -> None:
        self._db.close()
        self._lock.release()

    def write(self, idx: int, certificate: SegmentationCertificate, mask: Map | None, seconds: float) -> None:
        """Write the row of an image, and forget that it failed."""
        c, (channels, height, width) = certificate, certificate.shape
        values = {
            "idx": idx, "height": height, "width": width, "channels": channels, "selected": _pack(c.selected),
            "counts": _pack(c.counts), "cells": None if c.cells is None else _pack(c.cells),
            "mask": None if mask is None else _pack(mask), "levels": c.levels, "moved": c.moved,
            "mean_segments": c.mean_segments, "image_digest": c.image_digest, "seconds": seconds,
        }  # fmt: skip
        with _explained(self.folder), self._db:
            self._db.execute(
                f"INSERT INTO rows ({', '.join(values)}) VALUES ({', '.join('?' * len(values))})", list(values.values())
            )
            self._db.execute("DELETE FROM failed WHERE idx = ?", (idx,))

    def write_failure(self, idx: int, error: str, mask: Map | None) -> None:
        """Record why an image failed, and its mask, all of whose pixels count as abstained."""
        stored = (None, None, None) if mask is None else (*mask.shape, _pack(mask))
        with _explained(self.folder), self._db:
            self._db.execute("INSERT OR REPLACE INTO failed VALUES (?, ?, ?, ?, ?)", (idx, error, *stored))

    def write_picture(self, idx: int, png: bytes) -> None:
        """Store an image for the report, unless there are enough already."""
        with _explained(self.folder), self._db:
            (stored,) = self._db.execute("SELECT count(*) FROM pictures").fetchone()
            if stored < MAX_PICTURES:
                self._db.execute("INSERT OR REPLACE INTO pictures VALUES (?, ?)", (idx, png))


def is_segmentation_run(folder: str | Path) -> bool:
    """Return whether a folder holds a segmentation run."""
    file = Path(folder) / FILE
    return file.is_file() and file.stat().st_size > 0


@contextlib.contextmanager
def _explained(folder: Path) -> Iterator[None]:
    """Turn errors of SQLite into errors that name the run."""
    try:
        yield
    except (sqlite3.Error, TypeError) as error:
        raise PprsError(f"{folder / FILE} cannot be read or written ({error}). Check the disk and the file.") from error


def _pack(values: Map) -> bytes:
    """Return a map of small integers in compressed form, as little-endian int32."""
    return zlib.compress(np.ascontiguousarray(values, "<i4").tobytes(), 6)


def _unpack(data: bytes, pixels: int, name: str) -> npt.NDArray[np.int32]:
    """Return a map [pixels]. No more is expanded than it may have."""
    size = 4 * pixels
    unpacker = zlib.decompressobj()
    try:
        content = unpacker.decompress(data, size + 1)
    except zlib.error as error:
        raise PprsError(f"{name} is damaged ({error})") from error
    if len(content) != size:
        raise PprsError(f"{name} holds {len(content)} bytes instead of {size}")
    return np.frombuffer(content, "<i4").astype(np.int32)


def _read_row(values: Mapping[str, Any], settings: SegmentationSettings, folder: Path) -> SegmentationRow:
    """Return a row with what its counts prove."""
    idx, shape = values["idx"], (values["channels"], values["height"], values["width"])
    pixels, where = shape[1] * shape[2], f"image {idx} of {folder}"
    if not (0 < pixels <= MAX_PIXELS and 0 < shape[0] <= 4):
        raise PprsError(f"{where} claims the shape {shape}, which is not that of an image")
    maps = {name: _unpack(values[name], pixels, f"{where}: {name}") for name in ("selected", "counts")}
    mask = values["mask"]
    mask = None if mask is None else _read_mask(mask, shape[1], shape[2], settings.num_classes, where)
    sampling, groups = settings.sampling, None
    in_range = {"selected": settings.num_classes - 1, "counts": sampling.n}
    for name, most in in_range.items():
        if maps[name].min() < 0 or maps[name].max() > most:
            raise PprsError(f"{where}: {name} must lie between 0 and {most}")
    if (sampling.groups is None) != (values["cells"] is None):
        raise PprsError(f"{where}: its groups do not match the settings of the run")
    if sampling.groups is not None:
        groups = Groups(_unpack(values["cells"], pixels, f"{where}: cells").reshape(shape[1:]), sampling.groups.static)
        maps = _by_group(maps, groups, where)
    quantisation = None
    if values["levels"] is not None:
        if settings.arithmetic == "real" or values["levels"] not in (255, 65535) or not values["moved"] >= 0:
            raise PprsError(f"{where}: its levels do not match the settings of the run")
        quantisation = Quantisation(values["levels"], values["moved"])
    elif settings.arithmetic != "real":
        raise PprsError(f"{where}: its levels do not match the settings of the run")
    certificate = conclude(
        sampling, noise=settings.parsed_noise, partition=settings.partition, num_classes=settings.num_classes,
        shape=shape, groups=groups, quantisation=quantisation, mean_segments=values["mean_segments"],
        image_digest=values["image_digest"], selected=maps["selected"], counts=maps["counts"],
    )  # fmt: skip
    return SegmentationRow(idx, certificate, mask, values["seconds"])


def _read_mask(data: bytes, height: int, width: int, num_classes: int, where: str) -> npt.NDArray[np.int32]:
    """Return a mask [height, width]."""
    if not 0 < height * width <= MAX_PIXELS:
        raise PprsError(f"{where} claims {height}x{width} pixels, which is not the size of an image")
    mask = _unpack(data, height * width, f"{where}: mask").reshape(height, width)
    if mask.min() < ABSTAINED or mask.max() >= num_classes:
        raise PprsError(f"{where}: the mask has labels that the network does not have")
    return mask


def _by_group(maps: Mapping[str, npt.NDArray[np.int32]], groups: Groups, where: str) -> dict[str, Any]:
    """Return one value per group of maps [pixels] that are constant in each group."""
    cells = groups.cells.ravel()
    if cells.min() < 0 or not np.array_equal(np.unique(cells), np.arange(cells.max() + 1)):
        raise PprsError(f"{where}: its groups are not numbered from 0 without gaps")
    by_group = {}
    for name, values in maps.items():
        by_group[name] = np.zeros(groups.count, np.int32)
        by_group[name][cells] = values
        if not np.array_equal(by_group[name][cells], values):
            raise PprsError(f"{where}: {name} differ within a group")
    return by_group
