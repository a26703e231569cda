"""Groups of pixels that share one label, so that far fewer hypotheses are tested.

The label of a group in a noisy sample is the most frequent label of its pixels. Network and groups together are one
base function of the noisy sample, so a group is certified like a pixel. The groups must be the same for every sample:
a grid, or superpixels of the mean of the selection samples, which share no noise with the estimation.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from pprs.errors import ConfigurationError
from pprs.partition import Partition, Superpixels

Labels = npt.NDArray[np.integer]


@dataclass(frozen=True, eq=False)
class Groups:
    """A division of the pixels of an image into groups.

    Attributes:
        cells: The group of each pixel [H, W], numbered from 0 without gaps.
        static: Whether the groups are the same for every image.
    """

    cells: npt.NDArray[np.int32]
    static: bool

    @property
    def count(self) -> int:
        """The number of groups."""
        return int(self.cells.max()) + 1

    def majority(self, labels: Labels, num_classes: int) -> Labels:
        """Return the most frequent label [B, G] of each group in label maps [B, H, W]. Ties go to the lower label.

        >>> Groups(np.array([[0, 0, 1]], np.int32), True).majority(np.array([[[2, 1, 3]]]), 4)
        array([[1, 3]])
        """
        batch, count = len(labels), self.count
        keys = np.arange(batch)[:, None] * count + self.cells.ravel()[None]
        keys = keys * num_classes + labels.reshape(batch, -1)
        votes = np.bincount(keys.ravel(), minlength=batch * count * num_classes)
        return votes.reshape(batch, count, num_classes).argmax(2)  # type: ignore[no-any-return]


def check_groups(partition: Partition | None) -> None:
    """Raise if a partition has no segments, so that it cannot group pixels."""
    if partition is not None and not isinstance(partition, Superpixels):
        raise ConfigurationError(
            f"`groups` cannot be {partition}, which has no segments. Use grid:size=4, or superpixels such as slic.",
            parameter="groups",
        )


def make_groups(partition: Partition, image: npt.NDArray[np.float32]) -> Groups:
    """Return the segments of an image [C, H, W] as groups."""
    return Groups(partition.labels(image[None])[0].astype(np.int32), partition.static)
