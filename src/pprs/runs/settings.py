"""The settings of a certification run."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from pprs.errors import PprsError
from pprs.runs.columns import ArrowType
from pprs.runs.provenance import CERTIFY, Provenance, describe_labels, without_paths
from pprs.smoothing.sampling import Sampling, decided_radii


@dataclass(frozen=True)
class RunSettings(Provenance):
    """All settings that the rows of a certification run depend on. Unknown values, as in exported rows, are None.

    Attributes:
        n0: Samples that select a class.
        n: Samples that estimate its probability.
        alpha: Failure probability of a certificate.
        bound: "one-sided" or "two-sided".
        stop: Rule for ending an image's sampling before `n`.
    """

    kind: ClassVar[str] = CERTIFY
    ranges: ClassVar[Mapping[str, tuple[float, float]]] = {
        **Provenance.ranges, "n0": (1, 2**40), "n": (1, 2**40), "alpha": (0, 1),
    }  # fmt: skip
    exported: ClassVar[Mapping[str, ArrowType]] = {
        "model": "string", "data": "string", "noise": "string", "partition": "string", "n0": "int64", "n": "int64",
        "alpha": "double", "bound": "string", "stop": "string", "seed": "int64", "engine": "string",
        "preprocess": "string", "arithmetic": "string", "pixels": "string",
    }  # fmt: skip

    n0: int | None = None
    n: int | None = None
    alpha: float | None = None
    bound: str = "one-sided"
    stop: str | None = None

    @functools.cached_property
    def sampling(self) -> Sampling:
        """Sample sizes, failure probability, bound and stop rule."""
        if self.n0 is None or self.n is None or self.alpha is None:
            raise PprsError("the sample sizes and alpha of these rows are not recorded")
        return Sampling(self.n0, self.n, self.alpha, self.bound, self.stop)

    @property
    def decided_radii(self) -> tuple[float, ...] | None:
        """The radii at which images were decided, or None if sampling did not stop at given radii."""
        return decided_radii(self.stop)


__all__ = ["RunSettings", "describe_labels", "without_paths"]
