"""What every source of pictures gives: a picture in [0, 1] and its label, by position."""

from __future__ import annotations

import contextlib
import hashlib
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image, ImageOps, UnidentifiedImageError

from pprs.errors import ConfigurationError, PprsError


@dataclass(frozen=True)
class Example:
    """One picture [C, H, W], float32 in [0, 1]; label None where there is none."""

    index: int
    image: torch.Tensor
    label: int | None


class ImageSet(ABC):
    """Pictures by position. `class_names` in label order, None where not known.

    `source` and `split` are the text and the split that `open_dataset` was given.
    """

    class_names: tuple[str, ...] | None = None
    source: str | None = None
    split: str | None = None
    in_model_order: bool = False  # the user has put its classes in the model's order

    @abstractmethod
    def __len__(self) -> int: ...

    @abstractmethod
    def _get(self, index: int) -> tuple[torch.Tensor, int | None]: ...

    def __getitem__(self, index: int) -> Example:
        if not 0 <= index < len(self):
            raise IndexError(index)
        image, label = self._get(index)
        return Example(index, image, label)

    def label_of(self, index: int) -> int | None:
        """The label alone, where that is cheaper than the picture."""
        return self[index].label

    def fingerprint(self) -> str:
        """Changes when the data does: over the labels, and the first, middle and last pictures."""
        sha = hashlib.sha256(str(len(self)).encode())
        sha.update(self._labels_digest())
        for index in sorted({0, len(self) // 2, len(self) - 1}):
            try:
                example = self[index]
            except PprsError:  # one bad picture does not make all of them useless
                sha.update(f"picture {index} cannot be read".encode())
                continue
            sha.update(repr((tuple(example.image.shape), example.label)).encode())
            sha.update(example.image.contiguous().numpy().tobytes())
        return sha.hexdigest()[:16]

    def _labels_digest(self) -> bytes:
        """All labels, where they are at hand without reading the pictures."""
        return b""

    def stacked(self) -> tuple[torch.Tensor, torch.Tensor]:
        """All pictures [N, C, H, W] and labels [N], for training."""
        images: list[torch.Tensor] = []
        labels: list[int] = []
        for index in range(len(self)):
            example = self[index]
            if example.label is None:
                raise ConfigurationError(
                    "training needs labels, and this data has none. Use a folder with a subfolder for each class.",
                    parameter="data",
                )
            if images and example.image.shape != images[0].shape:
                raise PprsError(
                    f"its shape is {tuple(example.image.shape)}, that of image 0 {tuple(images[0].shape)}: training "
                    "needs pictures of one size. Resize them first.",
                    parameter="data",
                    index=index,
                )
            images.append(example.image)
            labels.append(example.label)
        return torch.stack(images), torch.tensor(labels)


def to_tensor(picture: Any) -> torch.Tensor:
    """A PIL picture as float32 [C, H, W] in [0, 1]: one channel for grey, three for everything else."""
    picture = ImageOps.exif_transpose(picture)
    if picture.mode in ("1", "L"):
        array = np.asarray(picture.convert("L"))[None]
    elif picture.mode.startswith("I"):  # 16 bits a pixel
        return torch.from_numpy(np.asarray(picture).astype(np.float32)[None] / 65535)
    elif picture.mode == "F":
        return torch.from_numpy(np.asarray(picture, dtype=np.float32).copy()[None])
    else:
        array = np.asarray(picture.convert("RGB")).transpose(2, 0, 1)
    return torch.from_numpy(array.astype(np.float32) / 255)


class View(ImageSet):
    """The same pictures as a network takes them, with the network's labels.

    `labels[i]` is the network's number for the data's class i, None for a class that it does not have.
    """

    def __init__(
        self,
        data: ImageSet,
        prepare: Callable[[torch.Tensor], torch.Tensor],
        labels: Sequence[int | None] | None,
        class_names: tuple[str, ...] | None,
    ) -> None:
        self._data, self._prepare, self._map, self.class_names = data, prepare, labels, class_names
        self.source, self.split = data.source, data.split

    def __len__(self) -> int:
        return len(self._data)

    def _mapped(self, label: int | None, index: int) -> int | None:
        if label is None or self._map is None:
            return label
        if label >= len(self._map):
            raise PprsError(
                f"its label is {label}, but the data has {len(self._map)} classes only", parameter="data", index=index
            )
        return self._map[label]

    def label_of(self, index: int) -> int | None:
        return self._mapped(self._data.label_of(index), index)

    def _get(self, index: int) -> tuple[torch.Tensor, int | None]:
        example = self._data[index]
        try:
            return self._prepare(example.image), self._mapped(example.label, index)
        except PprsError as error:
            raise PprsError(error.message, parameter=error.parameter, index=index) from error

    def fingerprint(self) -> str:
        return self._data.fingerprint()


@contextlib.contextmanager
def no_bombs() -> Iterator[None]:
    """A picture of more pixels than a picture has is refused before it is unpacked."""
    with warnings.catch_warnings():
        warnings.simplefilter("error", Image.DecompressionBombWarning)
        yield


UNREADABLE = (
    UnidentifiedImageError, OSError, ValueError, SyntaxError, TypeError, RuntimeError, NotImplementedError, EOFError,
    Image.DecompressionBombError, Image.DecompressionBombWarning,
)  # fmt: skip


def read_image(path: Path) -> torch.Tensor:
    """A picture file as [C, H, W] in [0, 1]."""
    try:
        with no_bombs(), Image.open(path) as picture:
            return to_tensor(picture)
    except FileNotFoundError:
        raise PprsError(f"there is no picture {path}", parameter="data") from None
    except UNREADABLE as error:
        raise PprsError(
            f"{path} cannot be read as a picture ({error}). Is it complete, and really an image?", parameter="data"
        ) from error
