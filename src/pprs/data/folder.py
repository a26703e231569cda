"""A folder of image files, with one subfolder for each class, perhaps in a folder for each split."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch
from PIL import Image

from pprs.data.base import UNREADABLE, ImageSet, name_file, refuse_bombs, to_tensor
from pprs.data.depth import find_lost_depth
from pprs.errors import ConfigurationError, PprsError, suggest

IMAGE_SUFFIXES = (".png", ".jpg", ".jpeg", ".bmp", ".gif", ".tif", ".tiff", ".webp", ".ppm", ".pgm")
SPLITS = ("test", "validation", "train")  # tried in this order if the preferred split is missing
# the name of a folder -> its split
SPLIT_FOLDERS = {
    "train": "train", "training": "train", "test": "test", "testing": "test", "val": "validation",
    "valid": "validation", "validation": "validation", "dev": "validation",
}  # fmt: skip


class ImageFolder(ImageSet):
    """Image files in a given order, which are read when they are needed.

    Args:
        files: The files.
        root: The folder relative to which they are named.
        class_names: The names of the classes, each the folder of its files. None if the files have no labels.
        name: The name of the folder in messages.
    """

    def __init__(self, files: Sequence[Path], root: Path, class_names: tuple[str, ...] | None, name: str) -> None:
        self._files, self._root, self.class_names, self._name = files, root, class_names, name
        numbers = {label: number for number, label in enumerate(class_names or ())}
        self._labels = None if class_names is None else [numbers[file.parent.name] for file in files]

    def __len__(self) -> int:
        return len(self._files)

    def _get(self, index: int) -> tuple[torch.Tensor, int | None]:
        return self.image_of(index), self.label_of(index)

    def image_of(self, index: int) -> torch.Tensor:
        try:
            with refuse_bombs(), Image.open(self._files[index]) as image:
                return to_tensor(image)
        except UNREADABLE as error:
            raise PprsError(
                f"this image of {self._name} cannot be read ({error}). Check that it is complete.",
                parameter="data",
                index=index,
            ) from error

    def lost_depth(self, index: int) -> str | None:
        return find_lost_depth(self._files[index])

    def name_of(self, index: int) -> str | None:
        return name_file(self._files[index], self._root)

    def label_of(self, index: int) -> int | None:
        return None if self._labels is None else self._labels[index]

    def _labels_digest(self) -> bytes:
        return b"" if self._labels is None else repr(self._labels).encode()


def open_image_folder(path: Path, images: Sequence[Path], split: str | None, prefer: str) -> ImageFolder | None:
    """Open the images in a folder, or return None if splits must be found by rules that are not known here.

    The order of the images and the numbers of the classes are those of the `imagefolder` of Hugging Face `datasets`.
    """
    subfolders = {file.relative_to(path).parts[0] for file in images if file.parent != path}
    if subfolders and subfolders <= SPLIT_FOLDERS.keys():
        return _open_split(path, images, split, prefer)
    files = sorted((file.resolve() for file in images), key=str)
    names = tuple(sorted({file.parent.name for file in files})) if subfolders else None
    return ImageFolder(files, path.resolve(), names, str(path))


def _open_split(path: Path, images: Sequence[Path], split: str | None, prefer: str) -> ImageFolder | None:
    """Open a split of images that all lie in SPLIT/CLASS/FILE, of two classes or more. Return None for others."""
    parts = [file.relative_to(path).parts for file in images]
    folders = {part[0] for part in parts}
    classes = {folder: {part[1] for part in parts if part[0] == folder} for folder in folders}
    names = sorted(set[str]().union(*classes.values()))
    if not _is_plain(path, parts) or len({SPLIT_FOLDERS[folder] for folder in folders}) < len(folders):
        return None
    if any(len(found) < 2 for found in classes.values()) or any(_resembles_split(name) for name in names):
        return None
    by_split = {SPLIT_FOLDERS[folder]: folder for folder in folders}
    chosen = split or next(name for name in (prefer, *SPLITS) if name in by_split)
    if chosen not in by_split:
        raise ConfigurationError(f'{path} has no split "{chosen}". {suggest(chosen, by_split)}', parameter="split")
    root = path.resolve()
    files = sorted((root.joinpath(*part) for part in parts if part[0] == by_split[chosen]), key=str)
    return ImageFolder(files, root, tuple(names), str(path))


def _is_plain(path: Path, parts: Sequence[tuple[str, ...]]) -> bool:
    """Whether all images lie in SPLIT/CLASS/FILE, none of them hidden, and nothing else lies among them."""
    hidden = any(name.startswith((".", "__")) for part in parts for name in part)
    files = sum(1 for entry in path.rglob("*") if entry.is_file())
    return not hidden and files == len(parts) and all(len(part) == 3 for part in parts)


def _resembles_split(name: str) -> bool:
    return name.lower().startswith((*SPLIT_FOLDERS, "eval"))
