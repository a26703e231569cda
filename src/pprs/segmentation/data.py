"""Data sets of images and masks: built-in scenes, folders, `.npz` files, and Hugging Face data with a mask column."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from PIL import Image

from pprs.data import ImageSet, open_dataset, read_image
from pprs.data.arrays import Arrays, from_arrays, list_names, read_npz
from pprs.data.base import UNREADABLE, refuse_bombs
from pprs.data.folder import IMAGE_SUFFIXES, SPLITS
from pprs.data.hub import HubSet
from pprs.errors import ConfigurationError, PprsError, suggest
from pprs.segmentation.masks import IGNORED, IGNORED_VALUE, MaskedSet, Unmasked
from pprs.segmentation.scenes import Scenes

SCENES = "builtin:scenes"
IMAGE_FOLDERS, MASK_FOLDERS = ("images", "image", "img"), ("masks", "mask", "annotations", "labels")
NPZ_NAMES = (("x", "images", "image"), ("masks", "mask", "m", "y", "labels"), ("class_names",))
MASK_COLUMNS = ("annotation", "mask", "masks", "segmentation", "segmentation_mask", "label", "labels", "seg")


def open_masked(spec: str, *, split: str | None = None, classes: Path | None = None, prefer: str = "test") -> MaskedSet:
    """Open the images and masks that a text names.

    Args:
        spec: One of the following:

            - `builtin:scenes`, scenes of several MNIST digits
            - a folder with the subfolders `images` and `masks`, or with such a folder for each split. A mask has the
              name of its image, up to the suffix, and the class number of each pixel as its value
            - a `.npz` file with images under `x` and masks [N, H, W] under `masks`
            - the id of a data set on the Hugging Face hub, or a folder of parquet files, with a column of masks
            - any other data that `open_dataset` opens, whose images have no masks
        split: The split to open. By default, `prefer` or else the first of test, validation and train that exists.
        classes: A file with one class name per line, in the order of the labels.
        prefer: The split to open if `split` is None and the data has such a split.

    Returns:
        The images and their masks, by index. The value 255 in a file marks a pixel that does not count.

    Raises:
        PprsError: If the data cannot be found or read, is empty, or does not have the split.
    """
    data = _open(spec, split, prefer)
    if len(data) == 0:
        raise ConfigurationError(f"{spec} has no images", parameter="data")
    if classes is not None:
        data.class_names = _read_classes(classes)
    data.source, data.split = spec, split
    return data


def _open(spec: str, split: str | None, prefer: str) -> MaskedSet:
    path = Path(spec)
    if spec == SCENES:
        return Scenes(split or prefer)
    if path.suffix == ".npz":
        if split is not None:
            raise ConfigurationError(f"{spec} is a file without splits: leave out `split` {split}", parameter="split")
        return _open_npz(path)
    if path.is_dir() and not any(path.glob("**/*.parquet")):
        folder = _find_split(path, split, prefer)
        if folder is not None:
            return MaskedFolder(folder)
    images = open_dataset(spec, split=split, prefer=prefer)
    masks = MaskedHub.find_masks(images)
    return Unmasked(images) if masks is None else MaskedHub(images, masks)


def as_masked_set(data: Any) -> MaskedSet:
    """Wrap `(images, masks)` as a `MaskedSet`, with images and masks as arrays. A `MaskedSet` is returned unchanged."""
    if isinstance(data, MaskedSet):
        return data
    if isinstance(data, ImageSet):
        return Unmasked(data)
    if isinstance(data, tuple) and len(data) == 2:
        return _from_arrays(np.asarray(data[0]), None if data[1] is None else np.asarray(data[1]), "`data`", None)
    raise ConfigurationError(
        f"`data` must be a text, a MaskedSet, or a pair (images, masks) of arrays, not a {type(data).__name__}",
        parameter="data",
    )


class MaskedArrays(MaskedSet):
    """Images in arrays, with masks [N, H, W]."""

    def __init__(self, images: Arrays, masks: npt.NDArray[Any], class_names: tuple[str, ...] | None) -> None:
        self._images, self._masks, self.class_names = images, masks, class_names

    def __len__(self) -> int:
        return len(self._images)

    def _get(self, index: int) -> tuple[torch.Tensor, int | None]:
        return self._images.image_of(index), None

    def mask_of(self, index: int) -> torch.Tensor:
        return _to_mask(self._masks[index])


def _open_npz(path: Path) -> MaskedSet:
    images, masks, names = read_npz(path, NPZ_NAMES)
    return _from_arrays(images, masks, str(path), list_names(names, str(path)))


def _from_arrays(images: Any, masks: Any, source: str, class_names: tuple[str, ...] | None) -> MaskedSet:
    arrays = from_arrays(images, None, source)
    if masks is None:
        return Unmasked(arrays)
    if masks.ndim != 3 or masks.dtype.kind not in "iu" or len(masks) != len(arrays):
        raise ConfigurationError(
            f"{source}: masks must be integers [N, H, W] for the {len(arrays)} images, not {masks.dtype} of shape "
            f"{masks.shape}",
            parameter="data",
        )
    return MaskedArrays(arrays, masks, class_names)


class MaskedFolder(MaskedSet):
    """A folder with the subfolders `images` and `masks`."""

    def __init__(self, folder: Path) -> None:
        images, masks = _subfolder(folder, IMAGE_FOLDERS), _subfolder(folder, MASK_FOLDERS)
        assert images is not None
        assert masks is not None
        by_stem = {path.stem: path for path in _list_images(masks)}
        self._files = _list_images(images)
        missing = next((path for path in self._files if path.stem not in by_stem), None)
        if missing is not None:
            raise ConfigurationError(
                f"the image {missing.name} has no mask: there is no {masks.name}/{missing.stem}.png in {folder}. A "
                "mask has the name of its image.",
                parameter="data",
            )
        self._masks = [by_stem[path.stem] for path in self._files]
        names = folder / "classes.txt"
        self.class_names = _read_classes(names) if names.is_file() else None

    def __len__(self) -> int:
        return len(self._files)

    def _get(self, index: int) -> tuple[torch.Tensor, int | None]:
        return read_image(self._files[index]), None

    def name_of(self, index: int) -> str | None:
        return self._files[index].name

    def mask_of(self, index: int) -> torch.Tensor:
        path = self._masks[index]
        try:
            with refuse_bombs(), Image.open(path) as image:
                return _to_mask(_read_values(image, str(path)))
        except UNREADABLE as error:
            raise PprsError(
                f"the mask {path} cannot be read ({error}). Check that it is complete.", parameter="data", index=index
            ) from error


class MaskedHub(MaskedSet):
    """Data of Hugging Face with a column of masks."""

    def __init__(self, images: ImageSet, column: str) -> None:
        assert isinstance(images, HubSet)
        self._images, self._column = images, column
        self._table = images.table.select_columns([column])

    @staticmethod
    def find_masks(images: ImageSet) -> str | None:
        """Return the name of the column of masks, or None if there is none."""
        if not isinstance(images, HubSet):
            return None
        others = [column for column in images.image_columns if column != images.image_columns[0]]
        return next((name for name in MASK_COLUMNS if name in others), others[0] if others else None)

    def __len__(self) -> int:
        return len(self._images)

    def _get(self, index: int) -> tuple[torch.Tensor, int | None]:
        return self._images.image_of(index), None

    def name_of(self, index: int) -> str | None:
        return self._images.name_of(index)

    def mask_of(self, index: int) -> torch.Tensor:
        try:
            with refuse_bombs():
                return _to_mask(_read_values(self._table[index][self._column], f'column "{self._column}"'))
        except UNREADABLE as error:
            raise PprsError(f"its mask cannot be read ({error})", parameter="data", index=index) from error


def _find_split(path: Path, split: str | None, prefer: str) -> Path | None:
    """Return the folder with images and masks, or None if the folder has no such structure."""
    splits = {entry.name: entry for entry in sorted(path.iterdir()) if _has_masks(entry)}
    if _has_masks(path):
        if split is not None:
            raise ConfigurationError(f"{path} has no splits: leave out `split` {split}", parameter="split")
        return path
    if not splits:
        return None
    chosen = split or next((name for name in (prefer, *SPLITS) if name in splits), next(iter(splits)))
    if chosen not in splits:
        raise ConfigurationError(f'{path} has no split "{chosen}". {suggest(chosen, splits)}', parameter="split")
    return splits[chosen]


def _has_masks(path: Path) -> bool:
    return path.is_dir() and None not in (_subfolder(path, IMAGE_FOLDERS), _subfolder(path, MASK_FOLDERS))


def _subfolder(path: Path, names: tuple[str, ...]) -> Path | None:
    return next((path / name for name in names if (path / name).is_dir()), None)


def _list_images(folder: Path) -> list[Path]:
    return sorted(p for p in folder.iterdir() if p.suffix.lower() in IMAGE_SUFFIXES and os.path.isfile(p))


def _read_values(image: Image.Image, name: str) -> npt.NDArray[Any]:
    """Return the class numbers of a mask, which for a palette are the numbers of the colours."""
    values = np.asarray(image)
    if values.ndim != 2:
        raise ConfigurationError(
            f"the mask {name} has {values.shape[-1]} channels, but a mask has one, with the class number of each "
            "pixel as its value. Convert colours to class numbers first.",
            parameter="data",
        )
    return values


def _to_mask(values: npt.NDArray[Any]) -> torch.Tensor:
    mask = torch.from_numpy(values.astype(np.int64))
    return torch.where(mask == IGNORED_VALUE, IGNORED, mask)


def _read_classes(path: Path) -> tuple[str, ...]:
    try:
        return tuple(line.strip() for line in path.read_text(encoding="utf-8").splitlines() if line.strip())
    except (OSError, UnicodeDecodeError) as error:
        raise PprsError(f"cannot read the `classes` in {path}: {error}", parameter="classes") from error
