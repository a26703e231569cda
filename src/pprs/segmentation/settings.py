"""The settings of a segmentation run."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from pprs.errors import DamagedError, PprsError
from pprs.partition import parse_partition
from pprs.runs import Provenance
from pprs.runs.columns import ArrowType, quote_value
from pprs.segmentation.holm import MAX_SAMPLES
from pprs.segmentation.segmenter import SegmentationSampling


@dataclass(frozen=True)
class SegmentationSettings(Provenance):
    """All settings that the rows of a segmentation run depend on.

    Attributes:
        tau: Share of the noisy samples in which a certified label is proved to occur.
        n0: Samples that select the labels.
        n: Samples that test them.
        alpha: Failure probability of the map of an image.
        groups: The partition that groups pixels as text, "none" if every pixel is tested.
    """

    kind: ClassVar[str] = "segment"
    ranges: ClassVar[Mapping[str, tuple[float, float]]] = {
        **Provenance.ranges, "tau": (0.5, 1), "n0": (1, 2**40), "n": (1, MAX_SAMPLES), "alpha": (0, 1),
    }  # fmt: skip
    exported: ClassVar[Mapping[str, ArrowType]] = {
        "model": "string", "data": "string", "num_classes": "int64", "noise": "string", "partition": "string",
        "tau": "double", "n0": "int64", "n": "int64", "alpha": "double", "groups": "string", "seed": "int64",
        "engine": "string", "preprocess": "string", "arithmetic": "string", "bit_depth": "int64",
    }  # fmt: skip

    tau: float | None = None
    n0: int | None = None
    n: int | None = None
    alpha: float | None = None
    groups: str = "none"

    @functools.cached_property
    def sampling(self) -> SegmentationSampling:
        """How images are sampled, and what is proved about them. Raises DamagedError if that is not valid."""
        return self.check_sampling()

    def check_sampling(self) -> SegmentationSampling:
        """Return how images are sampled, or raise DamagedError if that is not valid."""
        try:
            return self.make_sampling()
        except PprsError as error:
            raise DamagedError(f"the settings of the sampling are not valid together ({error.message})") from error

    def make_sampling(self) -> SegmentationSampling:
        """Return how images are sampled, or raise an error that names the argument that is not valid."""
        if self.tau is None or self.n0 is None or self.n is None or self.alpha is None:
            raise PprsError("tau, n0, n or alpha are not recorded")
        return SegmentationSampling(self.tau, self.n0, self.n, self.alpha, parse_partition(self.groups))

    def check(self) -> None:
        """Check what the types and ranges of the settings do not say, and no claim can do without.

        Raises:
            DamagedError: If the sampling, the number of classes, the partition or the arithmetic is not valid.
        """
        self.check_sampling()
        if self.num_classes is None or self.num_classes < 2:
            raise DamagedError(f'the setting "num_classes" is {self.num_classes}, but must be at least 2')
        if self.noise_text is None or self.partition_text is None:
            raise DamagedError("the settings noise or partition are not recorded")
        if (self.arithmetic, self.bit_depth) not in (("real", None), ("exact", 8), ("exact", 16)):
            raise DamagedError(
                f'the settings "arithmetic" and "bit_depth" are {quote_value(self.arithmetic)} and {self.bit_depth}, '
                "which no run has together"
            )
        if self.signal_levels is not None:
            raise DamagedError(f'the setting "signal_levels" is {self.signal_levels}, and label maps are of images')
        if self.arithmetic == "exact" and not self.noise.exact:
            raise DamagedError(f'the setting "arithmetic" is "exact", which is not possible with {self.noise}')


__all__ = ["SegmentationSettings"]
