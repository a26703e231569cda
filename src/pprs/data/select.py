"""The choice of images from a data set, and their order."""

from __future__ import annotations

import operator
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from pprs.errors import ConfigurationError


@dataclass(frozen=True)
class Selection:
    """Every stride-th image from index `start` on, up to `limit` images.

    >>> list(Selection(start=1, stride=3, limit=2).of(10))
    [1, 4]
    """

    start: int = 0
    stride: int = 1
    limit: int | None = None

    def __post_init__(self) -> None:
        for name, value, minimum in (("start", self.start, 0), ("stride", self.stride, 1), ("limit", self.limit, 1)):
            if value is not None and value < minimum:
                raise ConfigurationError(f"`{name}` must be at least {minimum}, not {value}", parameter=name)

    def of(self, total: int) -> Sequence[int]:
        """Return the chosen indices of a data set of `total` images."""
        return self.without_limit(total)[: self.limit]

    def without_limit(self, total: int) -> range:
        """Return the indices before `limit` is applied, for use when some images are left out first."""
        if self.start >= total:
            raise ConfigurationError(
                f"`start` {self.start} is past the data's last image, {total - 1}", parameter="start"
            )
        return range(self.start, total, self.stride)


def check_indices(indices: Iterable[int], total: int) -> Sequence[int]:
    """Validate a caller's image indices: integers from 0 to `total` - 1, without duplicates."""
    if isinstance(indices, int | str):
        raise ConfigurationError(f"`images` must be indices, such as range(100), not {indices!r}", parameter="images")
    try:
        checked = [operator.index(i) for i in indices]
    except TypeError as error:
        raise ConfigurationError(f"`images` must be integers: {error}", parameter="images") from error
    if not checked:
        raise ConfigurationError("`images` is empty: give at least one index", parameter="images")
    outside = next((i for i in checked if not 0 <= i < total), None)
    if outside is not None:
        raise ConfigurationError(
            f"`images` contains the index {outside}, but the data has images 0 to {total - 1}", parameter="images"
        )
    if len(set(checked)) < len(checked):
        raise ConfigurationError("`images` contains an index twice: give each image once", parameter="images")
    return checked


def fair_order(images: Sequence[int], seed: int) -> list[int]:
    """Shuffle the images, so that any first part of them is a random sample even if the data is sorted."""
    return [int(i) for i in np.random.default_rng([seed, 0x0DE5]).permutation(np.asarray(images))]
