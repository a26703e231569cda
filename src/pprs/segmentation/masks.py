"""Images with masks: a class for every pixel, or none where a pixel does not count."""

from __future__ import annotations

import hashlib
from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from pprs.data import Example, ImageSet
from pprs.data.base import PreparedSet
from pprs.errors import ConfigurationError, PprsError
from pprs.model import Model

IGNORED = -1  # the label of a pixel that does not count
IGNORED_VALUE = 255  # of such a pixel in a file


@dataclass(frozen=True)
class MaskedExample(Example):
    """One image of a data set with its mask.

    Attributes:
        mask: The class of each pixel, int64 [H, W] with -1 where a pixel does not count. None if it is unknown.
    """

    mask: torch.Tensor | None = None

    @property
    def truth(self) -> Mapping[str, Any]:
        """The mask as an array."""
        return {"mask": _to_array(self.mask)}


class MaskedSet(ImageSet):
    """Images and masks by index. A subclass implements `__len__`, `_get` and `mask_of`."""

    @abstractmethod
    def mask_of(self, index: int) -> torch.Tensor | None:
        """Return the mask of an image, int64 [H, W] with -1 where a pixel does not count, or None if it has none.

        Args:
            index: The index of the image.

        Returns:
            The class of each pixel, or None.
        """

    def masked(self, index: int) -> MaskedExample:
        """Return an image with its mask.

        Args:
            index: The index of the image.

        Returns:
            The image and its mask, which have the same size.

        Raises:
            PprsError: If one of them cannot be read.
            ConfigurationError: If their sizes differ.
        """
        image, mask = self.image_of(index), self.mask_of(index)
        if mask is not None and mask.shape != image.shape[1:]:
            raise ConfigurationError(
                f"image {index} has {_size(image)} pixels, but its mask has {_size(mask)}. A mask needs one value for "
                "each pixel: resize it to the image without interpolation.",
                parameter="data",
            )
        return MaskedExample(index, image, None, mask=mask)

    def fingerprint(self) -> str:
        sha = hashlib.sha256(super().fingerprint().encode())
        for index in sorted({0, len(self) // 2, len(self) - 1}):
            try:
                mask = self.mask_of(index)
            except PprsError:
                continue
            sha.update(b"none" if mask is None else mask.contiguous().numpy().tobytes())
        return sha.hexdigest()[:16]


class Unmasked(MaskedSet):
    """Images without masks, whose label maps can be certified but not scored."""

    def __init__(self, images: ImageSet) -> None:
        self._images = images
        self.source, self.split = images.source, images.split

    def __len__(self) -> int:
        return len(self._images)

    def _get(self, index: int) -> tuple[torch.Tensor, int | None]:
        return self._images.image_of(index), None

    def mask_of(self, index: int) -> torch.Tensor | None:
        return None

    def name_of(self, index: int) -> str | None:
        return self._images.name_of(index)


class Prepared(PreparedSet, MaskedSet):
    """Images and masks at the input size of a network, with masks checked against its number of classes."""

    def __init__(self, data: MaskedSet, model: Model, num_classes: int) -> None:
        self._data, self._model, self._num_classes = data, model, num_classes
        self._prepare = model.prepare
        self.class_names, self.source, self.split = data.class_names, data.source, data.split

    @property
    def original(self) -> MaskedSet:
        """The images and masks before they are brought to the input size."""
        return self._data

    def __len__(self) -> int:
        return len(self._data)

    def _get(self, index: int) -> tuple[torch.Tensor, int | None]:
        try:
            return self._prepare(self._data.image_of(index)), None
        except PprsError as error:
            raise type(error)(error.message, parameter=error.parameter, index=index) from error

    def __getitem__(self, index: int) -> MaskedExample:
        if not 0 <= index < len(self):
            raise IndexError(index)
        return self.masked(index)

    def image_of(self, index: int) -> torch.Tensor:
        return self._get(index)[0]

    def truth_of(self, index: int) -> Mapping[str, Any]:
        return {"mask": _to_array(self.mask_alone(index))}

    def mask_of(self, index: int) -> torch.Tensor | None:
        return self._prepare_mask(self._data.masked(index).mask, index)

    def mask_alone(self, index: int) -> torch.Tensor | None:
        """Return the mask of an image that cannot be used, or None if there is no mask that can be read."""
        try:
            return self._prepare_mask(self._data.mask_of(index), index)
        except PprsError:
            return None

    def _prepare_mask(self, mask: torch.Tensor | None, index: int) -> torch.Tensor | None:
        if mask is None:
            return None
        check_mask(mask, self._num_classes, index)
        return self._model.prepare_mask(mask)

    def fingerprint(self) -> str:
        return self._data.fingerprint()

    def name_of(self, index: int) -> str | None:
        return self._data.name_of(index)


def _to_array(mask: torch.Tensor | None) -> Any:
    return None if mask is None else mask.numpy().astype(np.int32)


def check_mask(mask: torch.Tensor, num_classes: int, index: int) -> None:
    """Raise if a mask has a label that the network does not know."""
    largest, smallest = int(mask.max()), int(mask.min())
    if largest >= num_classes or smallest < IGNORED:
        wrong = largest if largest >= num_classes else smallest
        raise ConfigurationError(
            f"the mask of image {index} has the label {wrong}, but the network has the classes 0 to {num_classes - 1}. "
            f"Number the classes as the network does. In files, {IGNORED_VALUE} marks pixels that do not count.",
            parameter="data",
        )


def _size(image: torch.Tensor) -> str:
    return f"{image.shape[-1]}x{image.shape[-2]}"
