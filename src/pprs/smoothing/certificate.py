"""Certificates and predictions. Nothing in this module has access to true labels."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass
from decimal import ROUND_DOWN, Context, Decimal
from fractions import Fraction
from typing import Any

import numpy as np
import numpy.typing as npt

from pprs._support.shown import Shown
from pprs.errors import PprsError
from pprs.inputs.domain import IMAGE
from pprs.inputs.space import describe_input, state_claim
from pprs.noise.quantised import EIGHT_BIT, NATIVE, ON_LEVEL, PCM, describe_levels
from pprs.partition import Superpixels, parse_partition

Counts = npt.NDArray[np.int64]
MAX_STEPS = 2**31  # levels by which a value may change, more than any radius allows
VERSION = 2  # of the schema of `Certificate.to_dict`. Version 1 lacks the fields from `arithmetic` on.
_EXACT = Context(prec=400)  # digits enough for 1 - alpha, since alpha is above 1e-300
_PERCENT_STEP = Decimal("1e-10")  # smallest step of a confidence in percent that is shown


def round_down(value: float, decimals: int = 3) -> str:
    """Format a radius, rounded down so that the text never exceeds it.

    >>> round_down(0.12999), round_down(0.3)
    ('0.129', '0.299')
    """
    return str(Decimal(value).quantize(Decimal(1).scaleb(-decimals), rounding=ROUND_DOWN))


def confidence(alpha: float) -> str:
    """Format 1 - alpha in percent: exactly, or as a bound from below if that takes too many digits to read.

    >>> confidence(0.5), confidence(0.001), confidence(1e-8)
    ('50%', '99.9%', '99.999999%')
    >>> confidence(1e-30), confidence(0.05 / 3)
    ('more than 99.9999999999%', 'more than 98.3333333333%')
    """
    # The default precision of 28 digits would round 1 - 1e-30 to 1.
    exact = _EXACT.multiply(_EXACT.subtract(Decimal(1), Decimal(str(alpha))), Decimal(100))
    shown = exact.quantize(_PERCENT_STEP, rounding=ROUND_DOWN)
    text = f"{shown:f}".rstrip("0").rstrip(".") + "%"
    return text if shown == exact else f"more than {text}"


def state_arithmetic(arithmetic: str, levels: int | None = None) -> str:
    """Return what must be added to a claim in this arithmetic.

    An image is classified on its own levels, so an exact claim is about changed images with the same levels.
    """
    if arithmetic != "exact":
        return ", disregarding rounding in floating point"
    if levels is None:
        return ", among images of the same bit depth"
    return f", among {describe_levels(levels)}"


def state_label_arithmetic(arithmetic: str, levels: int | None = None) -> str:
    """Return what must be added to a statement about the label of one image in this arithmetic."""
    if arithmetic != "exact":
        return state_arithmetic(arithmetic)
    if levels is None:
        return ", in exact arithmetic on 8-bit or 16-bit levels"
    if levels in NATIVE:
        return f", in exact arithmetic on {PCM.get(levels, 8)}-bit levels"
    return f", in exact arithmetic on the {describe_levels(levels).replace('s rounded', ' rounded')}"


def is_lost_to_rounding(prediction: int | None, p_lower: float, p_upper: float | None) -> bool:
    """Return whether these bounds prove a label, but rounding to 16 bits took off all of its radius."""
    return prediction is None and p_lower > (0.5 if p_upper is None else p_upper)


class _EqualByValue:
    """Equality by value for results whose counts are arrays."""

    def __eq__(self, other: object) -> bool:
        if type(other) is not type(self):
            return NotImplemented
        fields = dataclasses.fields(self)  # type: ignore[arg-type]
        return all(np.array_equal(getattr(self, f.name), getattr(other, f.name)) for f in fields)

    __hash__ = None  # type: ignore[assignment]


def _fixed_segments(partition: str) -> Superpixels | None:
    """Return the partition if its segments are the same for every image, else None."""
    parsed = parse_partition(partition)
    return parsed if parsed is not None and parsed.static and isinstance(parsed, Superpixels) else None


def _average_cells(labels: npt.NDArray[Any], image: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Replace every pixel of [C, H, W] by the mean of its segment, in double precision."""
    flat, sizes = labels.ravel(), np.bincount(labels.ravel())
    return np.stack([(np.bincount(flat, weights=plane.ravel()) / sizes)[labels] for plane in image])


def _least_energy(steps: npt.NDArray[np.float64], cells: npt.NDArray[Any] | None) -> int:
    """Return the least sum of squares of an integer change [C, H, W] with the same sum in every cell.

    A sum s is spread over m pixels as evenly as integers allow: r = s mod m of them change by floor(s / m) + 1, and the
    others by floor(s / m).
    """
    energy = 0
    for plane in steps.astype(np.int64):
        if cells is None:
            high, low = np.divmod(plane, 2**16)  # of a square, which may not fit in 64 bits
            squares = int(np.square(high).sum()), int((high * low).sum()), int(np.square(low).sum())
            energy += squares[0] * 2**32 + squares[1] * 2**17 + squares[2]
            continue
        sums, sizes = np.zeros(int(cells.max()) + 1, np.int64), np.bincount(cells.ravel())
        np.add.at(sums, cells.ravel(), plane.ravel())
        for total, size in zip(sums.tolist(), sizes.tolist(), strict=True):
            each, rest = divmod(total, size)
            energy += rest * (each + 1) ** 2 + (size - rest) * each**2
    return energy


@dataclass(frozen=True, eq=False, repr=False)
class Certificate(Shown, _EqualByValue):
    """The claim that no perturbation of L2 norm up to `radius` changes the smoothed classifier's prediction.

    The claim is wrong with probability at most `alpha` over the noise that was drawn. If the classifier abstains,
    `prediction` is None, `radius` is 0, and nothing is claimed.

    Attributes:
        prediction: The certified class, or None for an abstention.
        radius: The certified L2 radius.
        p_lower: Lower bound on the probability of the selected class.
        counts: Vote counts of the n estimation samples, one entry per class.
        selected: The class that the n0 selection samples chose, whether or not it was certified.
        n0: Number of selection samples.
        n: Number of estimation samples that were drawn.
        alpha: Failure probability.
        shape: Shape of the image, (C, H, W), or of the signal, (C, T).
        noise: The noise as text.
        partition: The partition as text, "none" for plain smoothing.
        mean_segments: Mean number of superpixels of a noisy image, or None for a partition without segments.
        bound: "one-sided" or "two-sided".
        p_upper: Upper bound on the probability of every other class, or None for 1 - p_lower.
        assumes: The unproved assumption that the claim depends on, or None if there is none.
        n_max: Maximum number of estimation samples, or None for n.
        stop: The stop rule as text, or None if there was none.
        stopped: Why sampling ended: "n" (all n_max samples were drawn), "decided", "width", "hopeless" or "budget".
        arithmetic: "exact" if noise was drawn in integers on the levels of the image, so that the claim holds as it
            stands. "real" if it was added in floating point, so that the claim disregards rounding.
        levels: In exact arithmetic, the values of the certified image are multiples of 1 / levels, else None.
        moved: How far, at most, the image was moved when it was rounded to these levels. The radius takes it into
            account.
        image_digest: Digest of the image as it was certified, or None if unknown.
    """

    prediction: int | None
    radius: float
    p_lower: float
    counts: Counts
    selected: int
    n0: int
    n: int
    alpha: float
    shape: tuple[int, ...]
    noise: str
    partition: str
    mean_segments: float | None = None
    bound: str = "one-sided"
    p_upper: float | None = None
    assumes: str | None = None
    n_max: int | None = None
    stop: str | None = None
    stopped: str = "n"
    arithmetic: str = "real"
    levels: int | None = None
    moved: float = 0.0
    image_digest: str | None = None

    def to_dict(self) -> dict[str, Any]:
        """Return all fields as values that JSON can represent, with the `version` of the schema."""
        values = {f.name: getattr(self, f.name) for f in dataclasses.fields(self)}
        return {"version": VERSION, **values, "counts": [int(c) for c in self.counts], "shape": list(self.shape)}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Certificate:
        """Return the certificate that `to_dict` was called on.

        Args:
            values: The dictionary that `to_dict` returned.

        Raises:
            PprsError: If the version is unknown, or if fields are missing or unknown.

        >>> noise, votes = "gaussian:sigma=0.5", np.array([5, 95])
        >>> certificate = Certificate(1, 0.5, 0.9, votes, 1, 10, 100, 0.001, (1, 8, 8), noise, "none")
        >>> Certificate.from_dict(certificate.to_dict()) == certificate
        True
        """
        version = values.get("version")
        if version not in (1, VERSION):
            raise PprsError(
                f"cannot read a certificate of version {version}: this version of pprs reads versions up to {VERSION}"
            )
        names = {f.name for f in dataclasses.fields(cls)}
        needed = {f.name for f in dataclasses.fields(cls) if f.default is dataclasses.MISSING}
        keys = values.keys() - {"version"}
        if keys - names or needed - keys:
            wrong = sorted(keys - names) or sorted(needed - keys)
            raise PprsError(f'these are not the fields of a certificate: see "{wrong[0]}"')
        shape = tuple(int(side) for side in values["shape"])
        counts = np.array(values["counts"], np.int64)
        return cls(**{**{k: values[k] for k in keys}, "counts": counts, "shape": shape})

    @property
    def region(self) -> str:
        """The certified set: the "ball" |delta| <= radius, or the larger "cylinder" |A delta| <= radius.

        Averaging over fixed segments is a matrix A, and averaging twice equals averaging once (A A = A). The averaged
        image is therefore the same for delta and A delta, and the part of delta that A removes is harmless, however
        large it is. In exact arithmetic, delta is an integer number of levels, and |A delta| is replaced by the least
        norm of an integer change with the same sum in every segment.
        """
        if self.arithmetic == "exact" and self.levels != EIGHT_BIT:
            return "ball"
        return "cylinder" if _fixed_segments(self.partition) is not None and self.assumes is None else "ball"

    @property
    def abstained(self) -> bool:
        """Whether the classifier abstained, so that nothing is claimed."""
        return self.prediction is None

    @property
    def lost_to_rounding(self) -> bool:
        """Whether the classifier abstained only because rounding the image to 16 bits used up the radius."""
        return is_lost_to_rounding(self.prediction, self.p_lower, self.p_upper)

    @property
    def dim(self) -> int:
        """Number of values in the image, C * H * W, or in the signal, C * T."""
        return math.prod(self.shape)

    @property
    def radius_linf(self) -> float:
        """The largest max-norm radius that is contained in the certified L2 ball."""
        return self.radius / math.sqrt(self.dim)

    @property
    def mean_segment_size(self) -> float | None:
        """Mean pixels per superpixel: the pixels of the image divided by the mean number of superpixels."""
        return None if self.mean_segments is None else math.prod(self.shape[1:]) / self.mean_segments

    def covers(self, delta: Any) -> bool:
        """Return whether the claim covers this perturbation.

        In exact arithmetic, the claim about an 8-bit image covers changes to other 8-bit images only, which is decided
        in integers. The claim about any other image is one of the classifier that rounds to 16 bits.

        Args:
            delta: The perturbation, an array or tensor of the image's shape.

        Raises:
            PprsError: If the shape differs from the image's.
        """
        flat = np.asarray(delta, dtype=np.float64)
        if flat.shape != self.shape:
            raise PprsError(f"delta has shape {flat.shape}, the certified image {self.shape}: they must agree")
        if self.abstained or not np.isfinite(flat).all():
            return False
        cells = self._cells()
        if self.arithmetic == "exact":
            if self.levels is not None and self.levels in NATIVE:
                return self._covers_levels(flat, self.levels, cells if self.levels == EIGHT_BIT else None)
            cells = None  # rounding does not commute with averaging, so only the ball is certified
        rounding = 0.0
        if cells is not None:
            rounding = float(np.abs(flat).max()) * self.dim * 1e-15  # error of the cells' sums
            flat = _average_cells(cells, flat)
        # The margin absorbs the rounding error of the norm, so that a borderline case is never wrongly covered.
        return float(np.linalg.norm(flat.ravel())) * (1 + 1e-12) + rounding <= self.radius

    def _covers_levels(self, delta: npt.NDArray[np.float64], levels: int, cells: npt.NDArray[Any] | None) -> bool:
        """Return whether the claim about an image or signal on the levels of a file covers a change, in integers.

        An image or signal off these levels is classified on others, so nothing is certified about it.
        """
        scaled = delta * levels
        steps = np.round(scaled)
        # The levels of audio are powers of two, which floating point holds exactly. Multiples of 1/255 are rounded.
        allowed = ON_LEVEL * levels if levels == EIGHT_BIT else 0.0
        if np.abs(scaled - steps).max() > allowed or np.abs(steps).max() > MAX_STEPS:
            return False
        return _least_energy(steps, cells) <= (levels * Fraction(self.radius)) ** 2

    def _cells(self) -> npt.NDArray[Any] | None:
        """The cell of each pixel, if the certified set is a cylinder."""
        fixed = _fixed_segments(self.partition) if self.assumes is None else None
        return None if fixed is None else fixed.labels(np.zeros((1, *self.shape), np.float32))[0]

    @property
    def _rounding(self) -> str:
        return "rounding to 16 bits" if len(self.shape) == IMAGE.ndim else "rounding"

    @property
    def _samples(self) -> str:
        return "" if self.stop is None else f", after {self.n} of at most {self.n_max} samples"

    def _facts(self) -> dict[str, Any]:
        claimed = not self.abstained
        return {
            "class": self.prediction if claimed else "abstained",
            "L2 radius": round_down(self.radius) if claimed else None,
            "confidence": confidence(self.alpha) if claimed else None,
            "input": describe_input(self.shape),
            "noise": self.noise,
            "partition": self.partition,
            "samples": self.n,
            "assuming that": self.assumes,
        }

    def __str__(self) -> str:
        if self.abstained:
            if self.stopped == "hopeless":
                return f"abstained (given up as hopeless{self._samples})"
            if self.lost_to_rounding:
                lower = round_down(self.p_lower)
                return f"abstained ({self._rounding} used up the radius of p_lower {lower}{self._samples})"
            other = "1/2" if self.p_upper is None else f"every other class's {self.p_upper:.3f}"
            return f"abstained (p_lower {round_down(self.p_lower)} is not above {other}{self._samples})"
        image = f"this {describe_input(self.shape)}"
        claim = (
            f"class {self.prediction}: {state_claim(round_down(self.radius), image)}, "
            f"with {confidence(self.alpha)} confidence{self._samples}{state_arithmetic(self.arithmetic, self.levels)}"
        )
        return claim if self.assumes is None else f"{claim}, ASSUMING that {self.assumes}, which is not proved"


@dataclass(frozen=True, eq=False, repr=False)
class Prediction(Shown, _EqualByValue):
    """The smoothed classifier's prediction, which is wrong with probability at most alpha.

    Attributes:
        prediction: The predicted class, or None for an abstention.
        counts: Vote counts of the n samples, one entry per class.
        p_value: p-value of the test that the two leading classes are equally likely.
        n: Number of noisy samples.
        alpha: Failure probability.
        arithmetic: "exact" if noise was drawn in integers on the levels of the image, "real" if it was added in
            floating point, so that the statement disregards rounding.
        levels: In exact arithmetic, the values of the image are multiples of 1 / levels, else None.
        shape: Shape of the image that noise was added to.
        moved: How far rounding to the levels moved the image.
        image_digest: Digest of the image as it was classified.
    """

    prediction: int | None
    counts: Counts
    p_value: float
    n: int
    alpha: float
    arithmetic: str = "real"
    levels: int | None = None
    shape: tuple[int, ...] | None = None
    moved: float = 0.0
    image_digest: str | None = None

    @property
    def abstained(self) -> bool:
        """Whether the classifier abstained."""
        return self.prediction is None

    def _facts(self) -> dict[str, Any]:
        return {
            "class": "abstained" if self.abstained else self.prediction,
            "confidence": None if self.abstained else confidence(self.alpha),
            "samples": self.n,
        }

    def __str__(self) -> str:
        if self.abstained:
            return (
                f"abstained (the p-value {self.p_value:.3g} of the two leading classes does not separate them at alpha "
                f"{self.alpha:g})"
            )
        return (
            f"class {self.prediction} is the smoothed classifier's label for this image, with "
            f"{confidence(self.alpha)} confidence{state_label_arithmetic(self.arithmetic, self.levels)}"
        )
