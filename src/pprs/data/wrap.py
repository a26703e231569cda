"""Data in memory as an `ImageSet`: arrays, or a map-style data set of PyTorch or Hugging Face."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image

from pprs.data.arrays import from_arrays
from pprs.data.base import ImageSet, name_file, to_tensor
from pprs.data.depth import lost_depth
from pprs.errors import ConfigurationError, PprsError, describe_error

IMAGE_KEYS, LABEL_KEYS = ("image", "img", "pixel_values", "x"), ("label", "labels", "fine_label", "y")


def as_image_set(data: Any) -> ImageSet:
    """Wrap `(images, labels)`, an array of images or a map-style data set as an `ImageSet`.

    An `ImageSet` is returned unchanged.
    """
    if isinstance(data, ImageSet):
        return data
    if isinstance(data, tuple) and len(data) == 2:
        return from_arrays(_to_numpy(data[0]), None if data[1] is None else _to_numpy(data[1]), "`data`")
    if isinstance(data, np.ndarray | torch.Tensor):
        return from_arrays(_to_numpy(data), None, "`data`")
    if not (hasattr(data, "__getitem__") and hasattr(data, "__len__")):
        raise ConfigurationError(
            f"`data` is a {type(data).__name__}, whose items cannot be addressed by index. The index keys the noise of "
            "an image, so give a map-style Dataset (with __getitem__ and __len__), (images, labels), or a text for "
            "open_dataset, not a generator or a DataLoader.",
            parameter="data",
        )
    if len(data) == 0:
        raise ConfigurationError("`data` is empty", parameter="data")
    return MapDataset(data)


def _to_numpy(values: Any) -> Any:
    return values.detach().cpu().numpy() if isinstance(values, torch.Tensor) else np.asarray(values)


class MapDataset(ImageSet):
    """A data set whose items are `(image, label)`, an image, or a mapping with an image and an optional label."""

    def __init__(self, data: Any) -> None:
        self._data, self._lost_depth = data, dict[int, str | None]()
        names = getattr(data, "classes", None)
        if names is None:
            features = getattr(data, "features", None)
            labels = [features[k] for k in LABEL_KEYS if k in features] if isinstance(features, Mapping) else []
            names = getattr(labels[0], "names", None) if labels else None
        self.class_names = tuple(str(n) for n in names) if isinstance(names, list | tuple) and names else None
        self.source = f"{type(data).__module__}.{type(data).__qualname__}"

    def __len__(self) -> int:
        return len(self._data)

    def _get(self, index: int) -> tuple[torch.Tensor, int | None]:
        with _name_image(index):
            item = self._data[index]
            return self._read(index, item), _to_label(_find_label(item))

    def image_of(self, index: int) -> torch.Tensor:
        with _name_image(index):
            return self._read(index, self._data[index])

    def name_of(self, index: int) -> str | None:
        samples = getattr(self._data, "samples", None)  # (file, label), as torchvision lists them
        if not isinstance(samples, list) or not isinstance(samples[index], tuple):
            return None
        path, root = samples[index][0], getattr(self._data, "root", None)
        return name_file(path, None if root is None else Path(root)) if isinstance(path, str) else None

    def _read(self, index: int, item: Any) -> torch.Tensor:
        image = _find_image(item)
        if isinstance(image, Image.Image):
            # Kept, since a data set may return the same object again, which is decoded then.
            self._lost_depth[index] = self._lost_depth.get(index) or lost_depth(image)
        return _to_image(image)

    def lost_depth(self, index: int) -> str | None:
        return self._lost_depth.get(index)

    def _labels_digest(self) -> bytes:
        for name in ("targets", "labels"):
            labels = getattr(self._data, name, None)
            if isinstance(labels, list | tuple | np.ndarray | torch.Tensor) and len(labels) == len(self):
                return np.asarray(labels).tobytes()
        return b""


@contextlib.contextmanager
def _name_image(index: int) -> Iterator[None]:
    """Add the index of an image to errors about it."""
    try:
        yield
    except PprsError as error:
        raise PprsError(error.message, parameter="data", index=index) from error
    except Exception as error:  # a user's Dataset may raise anything
        raise PprsError(describe_error(error), parameter="data", index=index) from error


def _find_image(item: Any) -> Any:
    if isinstance(item, Mapping):
        image = next((item[k] for k in IMAGE_KEYS if k in item), None)
        if image is None:
            raise PprsError(f"an item of `data` has no image, only: {', '.join(map(str, item))}", parameter="data")
        return image
    return item[0] if isinstance(item, tuple | list) else item


def _find_label(item: Any) -> Any:
    if isinstance(item, Mapping):
        return next((item[k] for k in LABEL_KEYS if k in item), None)
    return item[1] if isinstance(item, tuple | list) and len(item) > 1 else None


def _to_label(label: Any) -> int | None:
    """Convert a label to an integer. None, and Hugging Face's negative labels, mean that it is unknown."""
    if label is None:
        return None
    number = label.item() if hasattr(label, "item") else label
    if isinstance(number, bool | str) or number != int(number):
        raise PprsError(f"labels must be integers, not {label!r}")
    return None if number < 0 else int(number)


def _to_image(image: Any) -> torch.Tensor:
    if isinstance(image, Image.Image):
        return to_tensor(image)
    array = torch.as_tensor(image)
    if array.ndim not in (2, 3):
        raise PprsError(f"an image must be [C, H, W], [H, W, C] or [H, W], not of shape {tuple(array.shape)}")
    if array.ndim == 2:
        array = array[None]
    if array.ndim == 3 and array.shape[0] not in (1, 3) and array.shape[2] in (1, 3):
        array = array.permute(2, 0, 1)
    return array.float() / 255 if array.dtype == torch.uint8 else array.float()
