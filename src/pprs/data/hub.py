"""Data sets read with Hugging Face `datasets`: a hub id, a folder of parquet files, or a folder of images."""

from __future__ import annotations

import functools
import io
from pathlib import Path
from typing import Any

import numpy as np
import torch

from pprs._support.extras import extra
from pprs.data.base import UNREADABLE, ImageSet, name_file, refuse_bombs, to_tensor
from pprs.data.depth import find_lost_depth
from pprs.data.folder import IMAGE_SUFFIXES, SPLITS, ImageFolder, open_image_folder
from pprs.data.signals import AUDIO_SUFFIXES, Signals, open_audio_folder, read_audio
from pprs.errors import ConfigurationError, PprsError, suggest


class HubSet(ImageSet):
    """One split of a `datasets` data set. The image and label columns are found by their types.

    Attributes:
        root: The folder of the files, relative to which they are named. None if they come from elsewhere.
    """

    root: Path | None = None

    def __init__(self, table: Any, name: str) -> None:
        datasets = import_datasets()
        features = table.features
        images = [column for column, feature in features.items() if isinstance(feature, datasets.Image)]
        if not images:
            raise ConfigurationError(
                f"{name} has no column of images or audio. Its columns are: {', '.join(features)}.", parameter="data"
            )
        labels = find_label_columns(features)
        self._table, self._name, self._image_column, self.image_columns = table, name, images[0], images
        self._files = table.select_columns(images[0]).cast_column(images[0], datasets.Image(decode=False))
        self._label_column = labels[0] if labels else None
        if self._label_column and isinstance(features[self._label_column], datasets.ClassLabel):
            self.class_names = tuple(features[self._label_column].names)

    @property
    def table(self) -> Any:
        """The data set of the library."""
        return self._table

    def __len__(self) -> int:
        return len(self._table)

    def _get(self, index: int) -> tuple[torch.Tensor, int | None]:
        return self.image_of(index), self.label_of(index)

    def image_of(self, index: int) -> torch.Tensor:
        try:
            with refuse_bombs():
                return to_tensor(self._images[index][self._image_column])
        except UNREADABLE as error:
            raise PprsError(
                f"this image of {self._name} cannot be read ({error}). Check that it is complete.",
                parameter="data",
                index=index,
            ) from error

    @functools.cached_property
    def _images(self) -> Any:
        """The table without its other columns."""
        return self._table.select_columns([self._image_column])

    def lost_depth(self, index: int) -> str | None:
        file = self._files[index][self._image_column]
        return find_lost_depth(file["path"] if file["bytes"] is None else io.BytesIO(file["bytes"]))

    def name_of(self, index: int) -> str | None:
        path = self._files[index][self._image_column]["path"]
        return None if not path else name_file(path, self.root)

    def label_of(self, index: int) -> int | None:
        label = None if self._label_column is None else self._all_labels[index]
        return None if label is None or label < 0 else int(label)

    @functools.cached_property
    def _all_labels(self) -> list[int | None]:
        return list(self._table[self._label_column])

    def _labels_digest(self) -> bytes:
        return b"" if self._label_column is None else repr(self._all_labels).encode()


def find_label_columns(features: Any) -> list[str]:
    """Return the columns that hold class indices."""
    datasets = import_datasets()
    labels = [column for column, feature in features.items() if isinstance(feature, datasets.ClassLabel)]
    named = (column for column in ("label", "labels", "fine_label") if column in features)
    return labels or [column for column in named if "int" in str(features[column].dtype)]


class AudioHubSet(Signals):
    """One split of a `datasets` data set with a column of audio, whose files are decoded when they are needed."""

    def __init__(self, table: Any, name: str, column: str) -> None:
        datasets = import_datasets()
        labels = find_label_columns(table.features)
        values = np.array(table[labels[0]], np.int64) if labels else None
        feature = table.features[labels[0]] if labels else None
        names = tuple(feature.names) if isinstance(feature, datasets.ClassLabel) else None
        super().__init__([], values, names)
        self._files = table.select_columns([column]).cast_column(column, datasets.Audio(decode=False))
        self._column, self._name = column, name
        first, self.sample_rate = self._read(0)
        self._shape = first.shape

    def __len__(self) -> int:
        return len(self._files)

    def name_of(self, index: int) -> str | None:
        path = self._files[index][self._column]["path"]
        return None if not path else name_file(path)

    def _read(self, index: int) -> tuple[Any, int]:
        file = self._files[index][self._column]
        return read_audio(Path(file["path"]) if file["bytes"] is None else io.BytesIO(file["bytes"]))

    def image_of(self, index: int) -> torch.Tensor:
        signal, rate = self._read(index)
        if (signal.shape, rate) != (self._shape, self.sample_rate):
            raise PprsError(
                f"this audio of {self._name} has shape {signal.shape} and {rate} Hz, and the first has {self._shape} "
                f"and {self.sample_rate} Hz. Bring all to one length, rate and number of channels first.",
                parameter="data",
                index=index,
            )
        return torch.from_numpy(signal)


def _wrap_table(table: Any, name: str) -> HubSet | AudioHubSet:
    datasets = import_datasets()
    columns = table.features.items()
    audio = [column for column, feature in columns if isinstance(feature, datasets.Audio)]
    if audio and not any(isinstance(feature, datasets.Image) for _, feature in columns):
        return AudioHubSet(table, name, audio[0])
    return HubSet(table, name)


def open_folder(path: Path, split: str | None, prefer: str) -> ImageFolder | HubSet | Signals:
    """Open a local folder of parquet files, as in a hub repository, or of images or audio, by class in subfolders."""
    if any(path.glob("**/*.parquet")):
        return _load(str(path), split, prefer, str(path))
    files = [(p, p.suffix.lower()) for p in path.rglob("*")]
    images = [p for p, suffix in files if suffix in IMAGE_SUFFIXES]
    if not images and any(suffix in AUDIO_SUFFIXES for _, suffix in files):
        return open_audio_folder(path, split, prefer, "refuse")
    if not images:
        raise ConfigurationError(
            f"{path} contains neither parquet files nor images ({', '.join(IMAGE_SUFFIXES)}) nor audio "
            f"({', '.join(AUDIO_SUFFIXES)})",
            parameter="data",
        )
    opened = open_image_folder(path, images, split, prefer)
    if opened is not None:
        return opened
    other = _load("imagefolder", split, prefer, str(path), data_dir=str(path.resolve()))
    if isinstance(other, HubSet):
        other.root = path.resolve()
    return other


def open_hub(name: str, split: str | None, prefer: str) -> HubSet | AudioHubSet:
    """Open a data set on the Hugging Face hub."""
    return _load(name, split, prefer, name)


def import_datasets() -> Any:
    """Import `datasets`, which takes seconds."""
    with extra(parameter="data"):
        import datasets
    return datasets


def _load(path: str, split: str | None, prefer: str, name: str, **options: Any) -> HubSet | AudioHubSet:
    datasets = import_datasets()
    datasets.disable_progress_bars()
    try:
        tables = datasets.load_dataset(path, **options)
    except Exception as error:  # the library raises many kinds of errors
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise PprsError(
            f'cannot load the data "{name}": {reason}. If it is on the hub, check its name and that this machine '
            "can reach the hub. Otherwise give a local folder, a .npz file or an image file.",
            parameter="data",
        ) from error
    if split is None:
        split = next((s for s in (prefer, *SPLITS) if s in tables), next(iter(tables)))
    if split not in tables:
        raise ConfigurationError(f'{name} has no split "{split}". {suggest(split, tables)}', parameter="split")
    return _wrap_table(tables[split], name)
