"""What is claimed, and on what grounds. Nothing here ever sees a true label."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass
from decimal import ROUND_DOWN, Decimal
from typing import Any

import numpy as np
import numpy.typing as npt

from pprs.errors import PprsError
from pprs.partition import Superpixels, parse_partition

Counts = npt.NDArray[np.int64]
VERSION = 1  # of the dictionaries that certificates become


def round_down(value: float, decimals: int = 3) -> str:
    """A radius as text, never larger than the radius.

    >>> round_down(0.12999), round_down(0.3)
    ('0.129', '0.299')
    """
    return str(Decimal(value).quantize(Decimal(1).scaleb(-decimals), rounding=ROUND_DOWN))


def confidence(alpha: float) -> str:
    """1 - alpha in percent, exactly.

    >>> confidence(0.001), confidence(1e-8)
    ('99.9%', '99.999999%')
    """
    return f"{(1 - Decimal(str(alpha))) * 100:f}".rstrip("0").rstrip(".") + "%"


class _Frozen:
    """Equality by value for the frozen results below, whose counts are arrays."""

    def __eq__(self, other: object) -> bool:
        if type(other) is not type(self):
            return NotImplemented
        fields = dataclasses.fields(self)  # type: ignore[arg-type]
        return all(np.array_equal(getattr(self, f.name), getattr(other, f.name)) for f in fields)

    __hash__ = None  # type: ignore[assignment]


def _fixed(partition: str) -> Superpixels | None:
    """The partition, if its segments are the same for every picture."""
    made = parse_partition(partition)
    return made if made is not None and made.static and isinstance(made, Superpixels) else None


def _cell_means(labels: npt.NDArray[Any], picture: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Every pixel of [C, H, W] replaced by the mean of its segment, in double precision."""
    flat, sizes = labels.ravel(), np.bincount(labels.ravel())
    return np.stack([(np.bincount(flat, weights=plane.ravel()) / sizes)[labels] for plane in picture])


@dataclass(frozen=True, eq=False)
class Certificate(_Frozen):
    """No perturbation of L2 norm up to `radius` changes the smoothed classifier's label `prediction`.

    The claim is wrong with probability at most `alpha` over the noise that was drawn. An abstention claims
    nothing: its `prediction` is None and its `radius` 0.
    """

    prediction: int | None
    radius: float
    p_lower: float
    counts: Counts  # votes of the n estimation samples, one entry a class
    selected: int  # the class that the n0 selection samples chose, whether or not it was certified
    n0: int
    n: int
    alpha: float
    shape: tuple[int, int, int]
    noise: str
    partition: str
    mean_segments: float | None = None  # superpixels a noisy picture, on average; None where there are none
    bound: str = "one-sided"
    p_upper: float | None = None  # above every other class's share; None: 1 - p_lower
    assumes: str | None = None  # what the claim takes for granted and nobody has proved; None: nothing
    n_max: int | None = None  # the most samples that could have been drawn; None: n
    stop: str | None = None  # the rule that could end sampling before n_max; None: there was none
    stopped: str = "n"  # why sampling ended: all n_max are drawn, "decided", "width", "hopeless" or "budget"

    def to_dict(self) -> dict[str, Any]:
        """Everything it says, as plain values that JSON can hold; `version` is that of this schema."""
        values = {f.name: getattr(self, f.name) for f in dataclasses.fields(self)}
        return {"version": VERSION, **values, "counts": [int(c) for c in self.counts], "shape": list(self.shape)}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Certificate:
        """The certificate that `to_dict` described.

        >>> noise, votes = "gaussian:sigma=0.5", np.array([5, 95])
        >>> certificate = Certificate(1, 0.5, 0.9, votes, 1, 10, 100, 0.001, (1, 8, 8), noise, "none")
        >>> Certificate.from_dict(certificate.to_dict()) == certificate
        True
        """
        version = values.get("version")
        if version != VERSION:
            raise PprsError(
                f"a certificate of version {version} cannot be read: this version of pprs knows version {VERSION}"
            )
        names = {f.name for f in dataclasses.fields(cls)}
        needed = {f.name for f in dataclasses.fields(cls) if f.default is dataclasses.MISSING}
        given = values.keys() - {"version"}
        if given - names or needed - given:
            wrong = sorted(given - names) or sorted(needed - given)
            raise PprsError(f'these are not the values of a certificate: see "{wrong[0]}"')
        shape = tuple(int(side) for side in values["shape"])
        counts = np.array(values["counts"], np.int64)
        return cls(**{**{k: values[k] for k in given}, "counts": counts, "shape": shape})

    @property
    def region(self) -> str:
        """What is certified: the "ball" |delta| <= radius, or the larger "cylinder" |A delta| <= radius.

        A partition into fixed segments is one matrix A, and averaging twice is averaging once (A A = A). So the
        averaged picture cannot tell delta from A delta, and what A removes is harmless however large it is.
        """
        return "cylinder" if _fixed(self.partition) is not None and self.assumes is None else "ball"

    @property
    def abstained(self) -> bool:
        return self.prediction is None

    @property
    def dim(self) -> int:
        return math.prod(self.shape)

    @property
    def radius_linf(self) -> float:
        """Every perturbation of max norm up to this lies in the certified L2 ball."""
        return self.radius / math.sqrt(self.dim)

    @property
    def mean_segment_size(self) -> float | None:
        """Pixels a superpixel: pixels of the picture over the mean number of superpixels."""
        return None if self.mean_segments is None else self.shape[1] * self.shape[2] / self.mean_segments

    def covers(self, delta: Any) -> bool:
        """Whether the claim holds for this perturbation (an array or tensor of the image's shape)."""
        flat = np.asarray(delta, dtype=np.float64)
        if flat.shape != self.shape:
            raise PprsError(f"delta has shape {flat.shape}, the certified image {self.shape}: they must agree")
        fixed = _fixed(self.partition)
        rounding = 0.0
        if fixed is not None and self.assumes is None:
            rounding = float(np.abs(flat).max()) * self.dim * 1e-15  # of the cells' sums
            flat = _cell_means(fixed.labels(np.zeros((1, *self.shape), np.float32))[0], flat)
        # The margin absorbs the rounding of the norm, so that a borderline case is never claimed wrongly.
        return not self.abstained and float(np.linalg.norm(flat.ravel())) * (1 + 1e-12) + rounding <= self.radius

    @property
    def _samples(self) -> str:
        return "" if self.stop is None else f", after {self.n} of at most {self.n_max} samples"

    def __str__(self) -> str:
        if self.abstained:
            if self.stopped == "hopeless":
                return f"abstained (given up as hopeless{self._samples})"
            other = "1/2" if self.p_upper is None else f"every other class's {self.p_upper:.3f}"
            return f"abstained (p_lower {round_down(self.p_lower)} is not above {other}{self._samples})"
        told = (
            f"class {self.prediction}: no change of L2 norm up to {round_down(self.radius)} can alter this label, "
            f"with {confidence(self.alpha)} confidence{self._samples}"
        )
        return told if self.assumes is None else f"{told}, ASSUMING that {self.assumes}, which is not proved"


@dataclass(frozen=True, eq=False)
class Prediction(_Frozen):
    """The smoothed classifier's label, wrong with probability at most alpha; None where it abstains."""

    prediction: int | None
    counts: Counts
    p_value: float
    n: int
    alpha: float

    @property
    def abstained(self) -> bool:
        return self.prediction is None
