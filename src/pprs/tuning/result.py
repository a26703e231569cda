"""What a search found, as numbers."""

from __future__ import annotations

import dataclasses
import functools
import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from pprs._files import atomic_write
from pprs.metrics import (
    Difference,
    accuracy_interval,
    average_certified_radius,
    average_certified_radius_error,
    certified_accuracy,
    radius_difference,
)

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Trial:
    """A candidate's score in a round: its estimated average radius, and half the width of the 95% interval of that."""

    partition: str
    family: str
    round: int
    images: int
    samples: int
    score: float
    error: float
    seconds: float  # per sample


@dataclass(frozen=True)
class Final:
    """The best of a family, certified on pictures that the search did not see."""

    partition: str
    family: str
    radii: tuple[float, ...]  # one per picture, 0 where it is not certified with the correct label
    tuned: float  # its score in the search

    @functools.cached_property
    def credited_radii(self) -> Floats:
        """The radii as `pprs.metrics` takes them: -inf where a picture is not certified with the correct label."""
        radii = np.array(self.radii)
        return np.where(radii > 0, radii, -np.inf)

    @property
    def average_radius(self) -> float:
        return average_certified_radius(self.credited_radii)

    @property
    def average_radius_error(self) -> float:
        """Half the width of the 95% interval of the average radius."""
        return average_certified_radius_error(self.credited_radii)

    def accuracy(self, radius: float) -> tuple[float, float, float]:
        """Certified accuracy at this radius, and its exact 95% interval."""
        share = certified_accuracy(self.credited_radii, [radius])
        low, high = accuracy_interval(share, len(self.radii))
        return float(share[0]), float(low[0]), float(high[0])


@dataclass(frozen=True)
class Tuned:
    """What a search found. `best.partition` is the text of a partition, as every function here takes it."""

    trials: tuple[Trial, ...]
    finals: tuple[Final, ...]  # the best of each family, the best of all first
    n: int  # samples of the certificates of `finals`
    labelled: bool

    @property
    def best(self) -> Final:
        return self.finals[0]

    def of(self, family: str) -> Final | None:
        return next((f for f in self.finals if f.family == family), None)

    def ahead(self, one: Final, other: Final) -> Difference:
        """By how much the average radius of one is above the other's, picture by picture."""
        return radius_difference(one.credited_radii, other.credited_radii)

    def write_json(self, path: Path) -> None:
        """Everything that was tried, unrounded."""
        content = {
            "trials": [dataclasses.asdict(t) for t in self.trials],
            "finals": [dataclasses.asdict(f) for f in self.finals],
            "n": self.n,
            "labelled": self.labelled,
        }
        with atomic_write(path) as part:
            part.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
