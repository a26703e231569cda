"""A run against patches on disk: its settings and one line per image and patch size, in RUN/patches.jsonl.

Each line is written at once. A line that was cut off when the run was killed is dropped, and its image certified again.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from filelock import FileLock, Timeout

from pprs._checks import validate
from pprs._files import append_line, atomic_write, cannot_write
from pprs.engine import check_engine
from pprs.errors import ConfigurationError, DamagedError, PprsError, check_integer, describe_error
from pprs.patches.fills import parse_fill
from pprs.patches.masks import MIN_MASKS, Box, Span
from pprs.space import check_pixels

FILE, LOCK, FORMAT = "patches.jsonl", ".lock", 1
PICTURES, PAGE = "pictures", "report.html"  # what stands next to the rows
MAX_SETTINGS = 2**24  # bytes of the first line
EXAMPLES = 3  # pictures of certified images, and as many of others, for each patch size


@dataclass(frozen=True)
class PatchSettings:
    """What the rows of a run depend on, except for the patch size, which each row has.

    Attributes:
        model: The text that names the model, with its adaptation if it has one.
        model_digest: Digest of the model's weights.
        identity: What else its scores depend on, from `pprs.model.identity.identify`.
        data: The text that names the data, or what it is.
        split: Split of the data.
        num_classes: The number of classes.
        masks: The number of masks along each axis.
        fill: The fill, as text.
        pixels: Which pixels a patch changes: "network" for the network's input, "file" for those of the file.
        engine: The engine that ran the network.
        device: The torch device.
        labels: The labels that the classifier chooses among, if not all.
        class_names: The names of the classes, if known.
        data_fingerprint: Digest of the data. Runs of earlier versions do not record it.
    """

    model: str
    model_digest: str
    identity: Mapping[str, str]
    data: str
    split: str
    num_classes: int
    masks: int
    fill: str
    pixels: str
    engine: str
    device: str
    labels: tuple[str, ...] | None = None
    class_names: tuple[str, ...] | None = None
    data_fingerprint: str | None = None

    def differences(self, other: PatchSettings) -> list[str]:
        """Describe each setting in which another run differs. Where the model and the data lie does not matter."""
        lines = []
        for name in ("model_digest", "num_classes", "masks", "fill", "pixels", "engine", "device", "labels", "split"):
            old, new = getattr(self, name), getattr(other, name)
            if old != new:
                lines.append(f"{name}: {old} -> {new}")
        if self.data_fingerprint not in (None, other.data_fingerprint):
            lines.append(f"data_fingerprint: {self.data_fingerprint} -> {other.data_fingerprint}")
        for part in dict.fromkeys([*self.identity, *other.identity]):
            old, new = self.identity.get(part, "none"), other.identity.get(part, "none")
            if old != new:
                lines.append(f"{part}: {old} -> {new}")
        return lines


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
        passes: The number of masked images that were classified.
        image_digest: Digest of the image.
        error: Why the image failed. It counts as not certified, and is tried again when the run is resumed.
    """

    idx: int
    patch: int
    label: int | None = None
    prediction: int | None = None
    certified: bool = False
    plain: int | None = None
    worst: tuple[tuple[int, int, int, int], ...] = ()
    worst_label: int | None = None
    passes: int = 0
    image_digest: str | None = None
    error: str | None = None

    @property
    def correct(self) -> bool:
        """Whether the label of the double-masked classifier is the true one."""
        return self.prediction is not None and self.prediction == self.label

    @property
    def boxes(self) -> list[Box]:
        """What the worst pair of masks hides."""
        return [Box(Span(top, bottom), Span(left, right)) for top, bottom, left, right in self.worst]


@dataclass(frozen=True)
class PatchRun:
    """The rows of a run against patches, by image and patch size.

    Attributes:
        settings: What the rows depend on.
        rows: The rows, sorted by patch size and image.
        path: The folder of the run, if it has one.
    """

    settings: PatchSettings
    rows: tuple[PatchRow, ...]
    path: str | None = None

    @property
    def patches(self) -> list[int]:
        """The patch sizes, ascending."""
        return sorted({row.patch for row in self.rows})

    def of(self, patch: int) -> list[PatchRow]:
        """Return the rows for a patch size."""
        return [row for row in self.rows if row.patch == patch]

    @property
    def failures(self) -> list[PatchRow]:
        """The rows of images that failed."""
        return [row for row in self.rows if row.error is not None]


def certified_accuracy(rows: Sequence[PatchRow]) -> float:
    """Return the share of images that are certified with the correct label. Images that failed are not."""
    return sum(row.certified and row.correct for row in rows) / len(rows) if rows else float("nan")


def clean_accuracy(rows: Sequence[PatchRow]) -> float:
    """Return the share of images whose label by the double-masked classifier is correct."""
    return sum(row.correct for row in rows) / len(rows) if rows else float("nan")


def plain_accuracy(rows: Sequence[PatchRow]) -> float:
    """Return the share of images that the base classifier labels correctly without masks."""
    right = sum(row.plain is not None and row.plain == row.label for row in rows)
    return right / len(rows) if rows else float("nan")


def open_patch_run(folder: str | Path) -> PatchRun:
    """Read a run against patches.

    Raises:
        PprsError: If there is no such run in the folder, or if it is damaged.
    """
    path = Path(folder) / FILE
    if not path.is_file():
        raise ConfigurationError(f"{folder} is not a run against patches: it has no {FILE}. `pprs patch` writes one.")
    settings, rows = _read(path)
    return PatchRun(settings, _sort(rows.values()), str(folder))


def picture_path(folder: str | Path, row: PatchRow) -> Path:
    """Return the path of the picture of a row, whether it exists or not."""
    return Path(folder) / PICTURES / f"{row.idx}-{row.patch}.png"


def is_patch_run(folder: str | Path) -> bool:
    """Return whether a folder holds a run against patches."""
    return (Path(folder) / FILE).is_file()  # false for a url


@dataclass
class PatchWriter:
    """Exclusive write access to a run: a new one, or one with the same settings. Without a folder, rows stay in memory.

    Use it as a context manager.
    """

    folder: Path | None
    settings: PatchSettings
    rows: dict[tuple[int, int], PatchRow] = field(default_factory=dict)
    is_unbound: bool = False  # whether the rows so far are of an earlier version, which did not record the data

    def __enter__(self) -> PatchWriter:
        self._stack = contextlib.ExitStack()
        with self._stack:
            if self.folder is not None:
                self._open(self.folder)
            self._stack = self._stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def _open(self, folder: Path) -> None:
        path = folder / FILE
        if folder.exists() and not path.exists() and (not folder.is_dir() or _has_other_files(folder)):
            raise ConfigurationError(
                f"{folder} exists and is not a run against patches. Nothing was changed. Give another `out`.",
                parameter="out",
            )
        try:
            folder.mkdir(parents=True, exist_ok=True)
            self._stack.enter_context(FileLock(folder / LOCK, timeout=0))
        except Timeout:
            raise ConfigurationError(
                f"another process is writing the run {folder}. Wait for it, or give another `out`.", parameter="out"
            ) from None
        except OSError as error:
            raise cannot_write(folder, error) from error
        if has_settings(path):
            self._resume(path)
        try:
            if path.exists() and not has_settings(path):
                os.truncate(path, 0)  # its creation was interrupted
            self._file = self._stack.enter_context(path.open("ab", buffering=0))
        except OSError as error:
            raise cannot_write(path, error) from error
        if not self._file.tell():
            self._write({"format": FORMAT, "settings": _to_dict(self.settings)})

    def _resume(self, path: Path) -> None:
        """Read the rows so far, if the settings are the same, and cut off a line that is not complete."""
        settings, self.rows = _read(path)
        self.is_unbound = settings.data_fingerprint is None
        differences = settings.differences(self.settings)
        if differences:
            raise ConfigurationError(
                f"{path.parent} was made with other settings, and nothing was changed. Give another `out`, or the same "
                "settings:\n  " + "\n  ".join(differences),
                parameter="out",
            )
        content = path.read_bytes()
        complete = content.rfind(b"\n") + 1
        if complete < len(content):
            os.truncate(path, complete)

    def add(self, row: PatchRow) -> None:
        """Write a row. It replaces an earlier one of the same image and patch size, which failed."""
        self.rows[row.idx, row.patch] = row
        if self.folder is not None:
            self._write(_to_dict(row))

    def _write(self, content: Mapping[str, Any]) -> None:
        append_line(self._file, json.dumps(content))

    def wants_picture(self, row: PatchRow) -> bool:
        """Return whether there are too few pictures of rows like this one."""
        alike = [other for other in self.rows.values() if (other.patch, other.certified) == (row.patch, row.certified)]
        return self.folder is not None and row.error is None and len(alike) <= EXAMPLES

    def add_picture(self, row: PatchRow, png: bytes) -> None:
        """Write the picture of a row."""
        assert self.folder is not None
        with atomic_write(picture_path(self.folder, row)) as part:
            part.write_bytes(png)

    def finish(self, wanted: Sequence[tuple[int, int]]) -> PatchRun:
        """Return the run with the rows of these images and patch sizes."""
        rows = [self.rows[key] for key in wanted if key in self.rows]
        return PatchRun(self.settings, _sort(rows), None if self.folder is None else str(self.folder))


def has_settings(path: Path) -> bool:
    """Return whether a file has a complete first line. It has none if its creation was interrupted."""
    if not path.is_file():
        return False
    with path.open("rb") as file:
        return b"\n" in file.readline(MAX_SETTINGS)


def _has_other_files(folder: Path) -> bool:
    return any(entry.name not in (FILE, LOCK, PICTURES, PAGE) for entry in folder.iterdir())


def _to_dict(value: Any) -> dict[str, Any]:
    """Return a dataclass without its empty values, as `validate` expects it."""
    return {key: part for key, part in dataclasses.asdict(value).items() if part is not None}


def _read(path: Path) -> tuple[PatchSettings, dict[tuple[int, int], PatchRow]]:
    """Return the settings and the rows of a file. The last line may be incomplete."""
    try:
        lines = path.read_text(encoding="utf-8", errors="strict").split("\n")[:-1]
    except (OSError, UnicodeDecodeError) as error:
        raise DamagedError(f"{path} cannot be read ({error}). The run is damaged: give another `out`.") from error
    values = [_parse(line, path, number) for number, line in enumerate(lines, 1)]
    if not values:
        raise ConfigurationError(
            f"{path.parent} holds no rows yet: its creation was interrupted. Repeat the command that writes it."
        )
    if values[0].get("format") != FORMAT:
        raise ConfigurationError(
            f"the run {path.parent} has format {values[0].get('format')!r}, and this version of pprs supports format "
            f"{FORMAT}. Nothing was changed. Upgrade pprs to open it."
        )
    try:
        settings = validate(PatchSettings, values[0].get("settings"), f"{path}, line 1")
        rows = [validate(PatchRow, value, f"{path}, line {number}") for number, value in enumerate(values[1:], 2)]
    except PprsError as error:
        raise DamagedError(f"{error.message}. The run is damaged.") from error
    _check_settings(settings, f"{path}, line 1")
    known: dict[tuple[int, int], PatchRow] = {}
    for number, row in enumerate(rows, 2):
        _check_row(row, settings, f"{path}, line {number}")
        if (row.idx, row.patch) in known and known[row.idx, row.patch].error is None:
            raise DamagedError(f"{path}, line {number}: there is a row with this idx and patch already")
        known[row.idx, row.patch] = row
    return settings, known


def _check_settings(settings: PatchSettings, where: str) -> None:
    """Check ranges, which nothing else does for a file that was written by others."""
    checks: dict[str, Callable[[], object]] = {
        "fill": lambda: parse_fill(settings.fill),
        "pixels": lambda: check_pixels(settings.pixels),
        "engine": lambda: check_engine(settings.engine),
        "device": lambda: torch.device(settings.device),
        "num_classes": lambda: check_integer(settings.num_classes, "num_classes", 2),
        "masks": lambda: check_integer(settings.masks, "masks", MIN_MASKS),
    }
    for name, check in checks.items():
        try:
            check()
        except (PprsError, RuntimeError) as error:
            raise DamagedError(f"{where}: the setting {name} is not valid ({describe_error(error)})") from error


def _check_row(row: PatchRow, settings: PatchSettings, where: str) -> None:
    for name in ("idx", "patch", "passes"):
        if getattr(row, name) < (name == "patch"):
            raise DamagedError(f"{where}: {name} is {getattr(row, name)}, which is too small")
    for name in ("label", "prediction", "plain", "worst_label"):
        value = getattr(row, name)
        if value is not None and not 0 <= value < settings.num_classes:
            raise DamagedError(f"{where}: {name} is {value}, which is not a class")


def _parse(line: str, path: Path, number: int) -> dict[str, Any]:
    try:
        value = json.loads(line)
    except (ValueError, RecursionError):
        value = None
    if not isinstance(value, dict):
        raise DamagedError(f"{path}, line {number}: this is not a row. The run is damaged: give another `out`.")
    return value


def _sort(rows: Any) -> tuple[PatchRow, ...]:
    return tuple(sorted(rows, key=lambda row: (row.patch, row.idx)))
