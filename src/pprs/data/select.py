"""Which images of a data set, and in what order."""

from __future__ import annotations

import operator
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from pprs.errors import ConfigurationError


@dataclass(frozen=True)
class Selection:
    """Every stride-th image from `start` on, at most `limit` of them.

    >>> list(Selection(start=1, stride=3, limit=2).of(10))
    [1, 4]
    """

    start: int = 0
    stride: int = 1
    limit: int | None = None

    def __post_init__(self) -> None:
        for name, value, least in (("start", self.start, 0), ("stride", self.stride, 1), ("limit", self.limit, 1)):
            if value is not None and value < least:
                raise ConfigurationError(f"`{name}` must be at least {least}, not {value}", parameter=name)

    def of(self, total: int) -> Sequence[int]:
        """The indices among so many images."""
        return self.unlimited(total)[: self.limit]

    def unlimited(self, total: int) -> range:
        """The same without the limit, for data of which some images are left out first."""
        if self.start >= total:
            raise ConfigurationError(
                f"`start` {self.start} is past the data's last image, {total - 1}", parameter="start"
            )
        return range(self.start, total, self.stride)


def check_images(images: Iterable[int], total: int) -> Sequence[int]:
    """Indices that a caller gave, if each is one of so many images and none is given twice."""
    if isinstance(images, int | str):
        raise ConfigurationError(f"`images` must be indices, such as range(100), not {images!r}", parameter="images")
    try:
        chosen = [operator.index(i) for i in images]
    except TypeError as error:
        raise ConfigurationError(f"`images` must be whole numbers: {error}", parameter="images") from error
    if not chosen:
        raise ConfigurationError("`images` is empty: give one index or more", parameter="images")
    wrong = next((i for i in chosen if not 0 <= i < total), None)
    if wrong is not None:
        raise ConfigurationError(
            f"`images` has the index {wrong}, and the data has images 0 to {total - 1}", parameter="images"
        )
    if len(set(chosen)) < len(chosen):
        raise ConfigurationError("`images` has an index twice: give each image once", parameter="images")
    return chosen


def fair_order(images: Sequence[int], seed: int) -> list[int]:
    """The images shuffled, so that the first of them are a fair sample of all, however the data is sorted."""
    return [int(i) for i in np.random.default_rng([seed, 0x0DE5]).permutation(np.asarray(images))]
