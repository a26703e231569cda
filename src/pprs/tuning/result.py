"""The result of a search, as numbers."""

from __future__ import annotations

import dataclasses
import functools
import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from pprs._support.files import atomic_write
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
    """The measurement of one candidate in one round.

    `score` is its estimated average radius, `error` half the width of the 95% interval of the score. `adapted` says
    that it was measured with the adapted network.
    """

    partition: str
    family: str
    round: int
    images: int
    samples: int
    score: float
    error: float
    seconds: float  # per sample
    adapted: bool = False


@dataclass(frozen=True)
class Final:
    """The best partition of a family, certified on images that the search has not used."""

    partition: str
    family: str
    radii: tuple[float, ...]  # one per image, 0 if it is not certified with the correct label
    tuned: float  # its score in the search
    adapted: bool = False  # whether it was certified with the adapted network

    @functools.cached_property
    def credited_radii(self) -> Floats:
        """The radii as `pprs.metrics` expects them: -inf for an image that is not certified with the correct label."""
        radii = np.array(self.radii)
        return np.where(radii > 0, radii, -np.inf)

    @property
    def average_radius(self) -> float:
        """Average certified radius over the held-out images."""
        return average_certified_radius(self.credited_radii)

    @property
    def average_radius_error(self) -> float:
        """Half the width of the 95% interval of the average radius."""
        return average_certified_radius_error(self.credited_radii)

    def accuracy(self, radius: float) -> tuple[float, float, float]:
        """Return the certified accuracy at this radius, and its exact 95% interval."""
        share = certified_accuracy(self.credited_radii, [radius])
        low, high = accuracy_interval(share, len(self.radii))
        return float(share[0]), float(low[0]), float(high[0])


@dataclass(frozen=True)
class Tuned:
    """The result of `tune`.

    Attributes:
        trials: All measurements, in order.
        finals: The best partition of each family, certified on held-out images; the winner of the search first.
        n: The number of samples per certificate in `finals`.
        labelled: Whether all images had labels. If not, the label assigned to the clean image stands in.
    """

    trials: tuple[Trial, ...]
    finals: tuple[Final, ...]
    n: int
    labelled: bool

    @property
    def best(self) -> Final:
        """The winner of the search. `best.partition` is a text that `certify_dataset` accepts.

        If `best.adapted`, it is to be used with the adapted network.
        """
        return self.finals[0]

    def of(self, family: str) -> Final | None:
        """Return the best partition of a family, or None if the family was not searched."""
        return next((f for f in self.finals if f.family == family), None)

    def compare(self, one: Final, other: Final) -> Difference:
        """Return the paired difference of average radii, `one` minus `other`."""
        return radius_difference(one.credited_radii, other.credited_radii)

    def write_json(self, path: Path) -> None:
        """Write all trials and results, unrounded."""
        content = {
            "trials": [dataclasses.asdict(t) for t in self.trials],
            "finals": [dataclasses.asdict(f) for f in self.finals],
            "n": self.n,
            "labelled": self.labelled,
        }
        with atomic_write(path) as part:
            part.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
