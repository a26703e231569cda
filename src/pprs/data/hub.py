"""Pictures through Hugging Face `datasets`: a hub id, a folder of parquet files, a folder of pictures."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import torch

from pprs.data.base import UNREADABLE, ImageSet, no_bombs, to_tensor
from pprs.errors import ConfigurationError, PprsError, suggest

PICTURES = (".png", ".jpg", ".jpeg", ".bmp", ".gif", ".tif", ".tiff", ".webp", ".ppm", ".pgm")
SPLITS = ("test", "validation", "train")  # the one to take where the preferred one is not there, in this order
SPLIT_FOLDERS = {"train", "training", "test", "testing", "val", "valid", "validation", "dev"}


class HubSet(ImageSet):
    """One split of a `datasets` dataset; its image and label columns are found by their types."""

    def __init__(self, table: Any, where: str) -> None:
        import datasets

        features = table.features
        images = [name for name, kind in features.items() if isinstance(kind, datasets.Image)]
        if not images:
            raise ConfigurationError(
                f"{where} has no column of pictures; its columns are {', '.join(features)}", parameter="data"
            )
        labels = [name for name, kind in features.items() if isinstance(kind, datasets.ClassLabel)]
        if not labels:
            labels = [n for n in ("label", "labels", "fine_label") if n in features and "int" in str(features[n].dtype)]
        self._table, self._where, self._image = table, where, images[0]
        self._label = labels[0] if labels else None
        if self._label and isinstance(features[self._label], datasets.ClassLabel):
            self.class_names = tuple(features[self._label].names)

    def __len__(self) -> int:
        return len(self._table)

    def _get(self, index: int) -> tuple[torch.Tensor, int | None]:
        try:
            with no_bombs():
                row = self._table[index]
                image = to_tensor(row[self._image])
        except UNREADABLE as error:
            raise PprsError(
                f"this picture of {self._where} cannot be read ({error}). Is it complete?",
                parameter="data",
                index=index,
            ) from error
        return image, self.label_of(index)

    def label_of(self, index: int) -> int | None:
        label = None if self._label is None else self._all_labels[index]
        return None if label is None or label < 0 else int(label)

    @functools.cached_property
    def _all_labels(self) -> list[int | None]:
        return list(self._table[self._label])

    def _labels_digest(self) -> bytes:
        return b"" if self._label is None else repr(self._all_labels).encode()


def folder(path: Path, split: str | None, prefer: str) -> HubSet:
    """A local folder: of parquet files as a hub repository has them, or of pictures in a subfolder a class."""
    if any(path.glob("**/*.parquet")):
        return _load(str(path), split, prefer, str(path))
    found = [p for p in path.rglob("*") if p.suffix.lower() in PICTURES]
    if not found:
        raise ConfigurationError(
            f"{path} holds neither parquet files nor pictures ({', '.join(PICTURES)})", parameter="data"
        )
    tops = {p.relative_to(path).parts[0] for p in found if p.parent != path}
    if tops and tops <= SPLIT_FOLDERS:
        return _load("imagefolder", split, prefer, str(path), data_dir=str(path.resolve()))
    # Every file by name: left to itself the library takes words like "test" in a name for a split.
    files = {split or prefer: sorted(str(p.resolve()) for p in found)}
    return _load("imagefolder", split, prefer, str(path), data_files=files, drop_labels=not tops)


def hub(name: str, split: str | None, prefer: str) -> HubSet:
    """A dataset on the Hugging Face hub."""
    return _load(name, split, prefer, name)


def _load(name: str, split: str | None, prefer: str, where: str, **options: Any) -> HubSet:
    import datasets

    datasets.disable_progress_bars()
    try:
        tables = datasets.load_dataset(name, **options)
    except Exception as error:  # the library raises many kinds, from many layers
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise PprsError(
            f'cannot load the data "{where}": {reason}. If it is on the hub, check its name and that this machine '
            "can reach it; otherwise give a local folder, a .npz file or a picture.",
            parameter="data",
        ) from error
    if split is None:
        split = next((s for s in (prefer, *SPLITS) if s in tables), next(iter(tables)))
    if split not in tables:
        raise ConfigurationError(f'{where} has no split "{split}". {suggest(split, tables)}', parameter="split")
    return HubSet(tables[split], where)
