"""The interface of all data sets: an image in [0, 1] and its label, by index."""

from __future__ import annotations

import contextlib
import copy
import hashlib
import io
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch
from PIL import Image, ImageOps, UnidentifiedImageError

from pprs._support.shown import Shown
from pprs.errors import ConfigurationError, PprsError


@dataclass(frozen=True)
class Example:
    """One image of a data set.

    Attributes:
        index: Its index in the data set.
        image: The image [C, H, W], float32 in [0, 1].
        label: Its class index, or None if it is unknown.
        file_shape: Its shape before it was prepared for a network, or None if it was not prepared.
        lost_depth: The channels of its file, such as "16 bits per channel", if they have more bits than were read.
    """

    index: int
    image: torch.Tensor
    label: int | None
    file_shape: tuple[int, ...] | None = None
    lost_depth: str | None = None

    @property
    def truth(self) -> Mapping[str, Any]:
        """What the data say about the image, by the column of a row that keeps it. No answer may depend on it."""
        return {"label": self.label}


class ImageSet(Shown, ABC):
    """Images and labels by index.

    `image_set[i]` is an `Example`. A subclass implements `__len__` and `_get`.

    Attributes:
        class_names: The names of the classes in label order, or None if they are unknown.
        source: The text from which `open_dataset` opened it, if any.
        split: The split that was requested, if any.
        in_model_order: Whether the user has put the classes in the model's order.
    """

    class_names: tuple[str, ...] | None = None
    source: str | None = None
    split: str | None = None
    in_model_order: bool = False

    def _facts(self) -> dict[str, Any]:
        return {
            "inputs": len(self),
            "classes": None if self.class_names is None else len(self.class_names),
            "source": self.source,
            "split": self.split,
        }

    @abstractmethod
    def __len__(self) -> int: ...

    @abstractmethod
    def _get(self, index: int) -> tuple[torch.Tensor, int | None]:
        """Return the image [C, H, W], float32 in [0, 1], and its label, if any."""

    def __getitem__(self, index: int) -> Example:
        if not 0 <= index < len(self):
            raise IndexError(index)
        image, label = self._get(index)
        return Example(index, image, label)

    def label_of(self, index: int) -> int | None:
        """Return the label of an image, without loading the image if possible.

        Args:
            index: The index of the image.

        Returns:
            The class index, or None if it is unknown.
        """
        return self[index].label

    def image_of(self, index: int) -> torch.Tensor:
        """Return an image, without reading its label if possible.

        Args:
            index: The index of the image.

        Returns:
            The image [C, H, W], float32 in [0, 1].
        """
        return self[index].image

    def lost_depth(self, index: int) -> str | None:
        """Describe the channels of an image's file if they have more bits than are read.

        Args:
            index: The index of the image, which has been read.

        Returns:
            A text such as "16 bits per channel", or None if the image is read as it is in its file.
        """
        return None

    def truth_of(self, index: int) -> Mapping[str, Any]:
        """Return what the data say about an image, without loading the image if possible.

        Args:
            index: The index of the image.

        Returns:
            The values by the columns of a row that keep them.
        """
        return {"label": self.label_of(index)}

    def name_of(self, index: int) -> str | None:
        """Return the name of an image in its data: its file, relative to the folder, or its key.

        Args:
            index: The index of the image.

        Returns:
            The name, which does not depend on where the data lie. None if the index is all that there is.
        """
        return None

    def fingerprint(self) -> str:
        """Return a digest of the labels and of the first, middle and last images, to detect changed data."""
        sha = hashlib.sha256(str(len(self)).encode())
        sha.update(self._labels_digest())
        for index in sorted({0, len(self) // 2, len(self) - 1}):
            try:
                example = self[index]
            except PprsError:  # one unreadable image must not make the data set unusable
                # Stored runs hold digests of this text: it must not change.
                sha.update(f"picture {index} cannot be read".encode())
                continue
            sha.update(repr((tuple(example.image.shape), example.label)).encode())
            sha.update(example.image.contiguous().numpy().tobytes())
        return sha.hexdigest()[:16]

    def _labels_digest(self) -> bytes:
        """Return the bytes of all labels, if they are known without reading the images."""
        return b""

    def stack(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Load the complete data set, for training.

        Returns:
            All images [N, C, H, W] and their labels [N].

        Raises:
            PprsError: If an image has no label, or if the images differ in shape.
        """
        images: list[torch.Tensor] = []
        labels: list[int] = []
        for index in range(len(self)):
            example = self[index]
            if example.label is None:
                raise ConfigurationError(
                    "training needs labels, but this data has none. Use a folder with one subfolder per class.",
                    parameter="data",
                )
            if images and example.image.shape != images[0].shape:
                raise PprsError(
                    f"its shape is {tuple(example.image.shape)}, but that of image 0 is {tuple(images[0].shape)}. "
                    "Training needs images of the same size: resize them first.",
                    parameter="data",
                    index=index,
                )
            images.append(example.image)
            labels.append(example.label)
        return torch.stack(images), torch.tensor(labels)


def name_file(path: str | Path, root: Path | None = None) -> str:
    """Return the name of a file: its path in a folder, or its last part if it lies elsewhere.

    >>> name_file("/data/cats/tom.png", Path("/data")), name_file("/elsewhere/tom.png", Path("/data"))
    ('cats/tom.png', 'tom.png')
    """
    path = Path(path)
    if root is not None and path.is_relative_to(root):
        return path.relative_to(root).as_posix()
    return path.name


def to_tensor(image: Any) -> torch.Tensor:
    """Convert a PIL image to float32 [C, H, W] in [0, 1], with one channel if it is grey and three otherwise."""
    image = ImageOps.exif_transpose(image)
    if image.mode in ("1", "L"):
        array = np.asarray(image.convert("L"))[None]
    elif image.mode.startswith("I"):  # 16 bits per pixel
        return torch.from_numpy(np.asarray(image).astype(np.float32)[None] / 65535)
    elif image.mode == "F":
        return torch.from_numpy(np.asarray(image, dtype=np.float32).copy()[None])
    else:
        array = np.asarray(image.convert("RGB")).transpose(2, 0, 1)
    return torch.from_numpy(array.astype(np.float32) / 255)


class PreparedSet(ImageSet):
    """A data set whose images are prepared for a network."""

    _prepare: Callable[[torch.Tensor], torch.Tensor]

    def checked(self, check: Callable[[torch.Tensor], torch.Tensor]) -> Self:
        """Return the same data, whose images, once prepared, also pass through `check`, which may raise an error."""
        view, prepare = copy.copy(self), self._prepare
        view._prepare = lambda image: check(prepare(image))
        return view


class View(PreparedSet):
    """A data set prepared for a network: images at its input size, labels as its class indices.

    `label_map[i]` is the network's index of the data's class i, or None for a class that the network does not have.
    Without a map, the labels stay as they are. With `exact`, images that are not read as they are in their files are
    refused.
    """

    def __init__(
        self,
        data: ImageSet,
        prepare: Callable[[torch.Tensor], torch.Tensor],
        label_map: Sequence[int | None] | None,
        class_names: tuple[str, ...] | None,
        *,
        exact: bool = False,
    ) -> None:
        self._data, self._prepare, self._label_map, self.class_names = data, prepare, label_map, class_names
        self._exact = exact
        self.source, self.split = data.source, data.split

    def __len__(self) -> int:
        return len(self._data)

    def _map_label(self, label: int | None, index: int) -> int | None:
        if label is None or self._label_map is None:
            return label
        if label >= len(self._label_map):
            raise PprsError(
                f"its label is {label}, but the data has only {len(self._label_map)} classes",
                parameter="data",
                index=index,
            )
        return self._label_map[label]

    def label_of(self, index: int) -> int | None:
        return self._map_label(self._data.label_of(index), index)

    def unprepared(self) -> View:
        """Return a view of the images as they are in their files, with the network's labels."""
        view = copy.copy(self)
        view._prepare, view._exact = lambda image: image, True
        return view

    def __getitem__(self, index: int) -> Example:
        example = self._data[index]
        try:
            image, label = self._prepare(example.image), self._map_label(example.label, index)
        except PprsError as error:
            raise PprsError(error.message, parameter=error.parameter, index=index) from error
        lost_depth = self.lost_depth(index)
        if lost_depth is None:
            return Example(index, image, label, tuple(example.image.shape))
        if self._exact:
            raise PprsError(describe_lost_depth(lost_depth), parameter="pixels", index=index)
        # Without the shape of the file, so that no claim about this image is stated as one about the file.
        return Example(index, image, label, lost_depth=lost_depth)

    def lost_depth(self, index: int) -> str | None:
        return self._data.lost_depth(index)

    def name_of(self, index: int) -> str | None:
        return self._data.name_of(index)

    def _get(self, index: int) -> tuple[torch.Tensor, int | None]:
        example = self[index]
        return example.image, example.label

    def fingerprint(self) -> str:
        return self._data.fingerprint()


def describe_lost_depth(lost_depth: str) -> str:
    """Say why an image cannot be certified as its file, and what to do about it."""
    return (
        f"its file has {lost_depth}, of which only 8 are read, so no certificate can be about the file. Convert it to "
        '8 bits per channel, or use `pixels` "network".'
    )


@contextlib.contextmanager
def refuse_bombs() -> Iterator[None]:
    """Turn Pillow's warning about decompression bombs into an error, raised before the image is decoded."""
    with warnings.catch_warnings():
        warnings.simplefilter("error", Image.DecompressionBombWarning)
        yield


UNREADABLE = (
    UnidentifiedImageError, OSError, ValueError, SyntaxError, TypeError, RuntimeError, NotImplementedError, EOFError,
    Image.DecompressionBombError, Image.DecompressionBombWarning,
)  # fmt: skip


def read_image(path: Path) -> torch.Tensor:
    """Read an image file as a tensor [C, H, W] in [0, 1]."""
    try:
        with refuse_bombs(), Image.open(path) as image:
            return to_tensor(image)
    except FileNotFoundError:
        raise PprsError(f"there is no image {path}", parameter="data") from None
    except UNREADABLE as error:
        raise PprsError(
            f"{path} cannot be read as an image ({error}). Check that it is complete and in an image format.",
            parameter="data",
        ) from error


def decode_png(content: bytes, max_pixels: int) -> torch.Tensor:
    """Decode a PNG file as a tensor [C, H, W] in [0, 1]. Its size is checked before any pixel is decoded."""
    try:
        with refuse_bombs(), Image.open(io.BytesIO(content), formats=("PNG",)) as image:
            if image.width * image.height > max_pixels:
                raise PprsError(f"it has {image.width}x{image.height} pixels, but at most {max_pixels} are decoded")
            return to_tensor(image)
    except UNREADABLE as error:
        raise PprsError(f"it cannot be decoded as PNG ({error})") from error
