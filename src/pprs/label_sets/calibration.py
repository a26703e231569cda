"""The level at which label sets are calibrated, and the exact quantile of the calibration scores at that level.

A set that contains the true label with probability p under Gaussian noise still contains it with probability at least
G(p) = Phi(Phi^-1(p) - r / sigma) after a change of L2 norm r. G is convex, so a mean probability of b leaves at least
G(b). Therefore b = Phi(Phi^-1(1 - alpha) + r / sigma) keeps 1 - alpha. All of this is computed with 1 - b, which stays
accurate where b is close to 1. See docs/label-sets.md.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction

import numpy as np
from scipy.special import bdtr, betaincinv, ndtr, ndtri

from pprs.errors import ConfigurationError
from pprs.label_sets.scores import Floats
from pprs.noise import Gaussian, Noise, Quantisation
from pprs.noise.quantised import NATIVE
from pprs.smoothing.bounds import check_alpha

MARGIN = 1e-12  # relative, more than the error of the normal distribution and its inverse in double precision
SMALLEST_TAIL = Fraction(1, 2**53)  # below this, the level rounds to 1
POINTS = 2000  # at which chance is computed


@dataclass(frozen=True)
class Promise:
    """What label sets promise, for noise and images of one kind.

    Attributes:
        radius: L2 norm of the changes that the promise covers.
        alpha: Largest probability that a set does not contain the true label.
        noise: The noise, which is Gaussian.
        levels: In exact arithmetic, the values of the images are multiples of 1 / levels. None in real arithmetic.
        dim: The largest number of values in an image.
    """

    radius: float
    alpha: float
    noise: Noise
    levels: int | None
    dim: int

    @property
    def covered_radius(self) -> float:
        """The radius with what rounding can add to the distance of two images."""
        if self.levels is None or self.levels in NATIVE:
            return self.radius
        return (self.radius + 2 * Quantisation(self.levels).max_moved(self.dim)) * (1 + 1e-9)

    def tail(self, count: int) -> Fraction:
        """Return 1 minus the level b for this many calibration images, rounded down.

        In exact arithmetic, the probability that any draw differs from one of the exact distribution is taken off
        alpha: those of all calibration images, and that of the image whose set is asked for.
        """
        radius, alpha = self.covered_radius, self.alpha
        if self.levels is not None:
            alpha = _reduce_alpha(alpha, self.noise.sigma, count + 1, self.dim, self.levels)
        elif radius == 0:
            return Fraction(Decimal(str(alpha)))
        if radius == 0:
            return Fraction(alpha)
        sigma = min(self.noise.sigma, float(np.float32(self.noise.sigma)))  # as drawn, unless that is the larger
        return Fraction(max(0.0, float(ndtr(ndtri(alpha) - radius / sigma)) * (1 - MARGIN)))

    def level(self, count: int) -> float:
        """Return the level b, the share of calibration scores that must be at most the threshold."""
        return float(1 - self.tail(count))

    def rank(self, count: int) -> int:
        """Return k such that the k-th smallest of this many calibration scores is the threshold.

        That is ceil((count + 1) b), in exact fractions.

        Raises:
            ConfigurationError: If k would be larger than the number of scores, or if b rounds to 1.
        """
        tail = self.tail(count)
        if tail < SMALLEST_TAIL:
            raise ConfigurationError(
                f"`radius` {self.radius:g} is too large for `sigma` {self.noise.sigma:g}: at `alpha` {self.alpha:g} "
                f"the level of calibration rounds to 1. Use a radius of at most "
                f"{self.largest_radius(10_000):.3g} (for 10,000 calibration images), or more noise.",
                parameter="radius",
            )
        missed = math.floor((count + 1) * tail)
        if missed < 1:
            raise ConfigurationError(
                f"{count} calibration images are too few for `radius` {self.radius:g} and `alpha` {self.alpha:g} "
                f"under {self.noise}: the level of calibration is {format_level(tail)}. The smallest number that "
                f"would do is {self.smallest_count():,}. Give more images, a smaller `radius`, a larger `alpha` or "
                "more noise.",
                parameter="radius",
            )
        return count + 1 - missed

    def smallest_count(self) -> int:
        """Return the smallest number of calibration images with which the promise can be kept."""
        count = 0
        while (needed := math.ceil(1 / self.tail(count)) - 1) > count:  # the level depends on the number, very slightly
            count = needed
        return count

    def largest_radius(self, count: int) -> float:
        """Return the largest radius that this many calibration images allow, to four digits, rounded down."""
        tail = 1 / (count + 1)
        if tail >= self.alpha:
            return 0.0
        radius = self.noise.sigma * float(ndtri(self.alpha) - ndtri(tail)) - (self.covered_radius - self.radius)
        return max(0.0, math.floor(radius * 0.9999 * 1e4) / 1e4)

    def least_under_attack(self, coverage: Floats) -> Floats:
        """Return the least coverage after a change within the radius, for these coverages without one."""
        sigma = min(self.noise.sigma, float(np.float32(self.noise.sigma)))
        result: Floats = ndtr(ndtri(coverage) - self.covered_radius / sigma)
        return result

    def chance_of_fewer(self, covered: int, total: int, count: int) -> float:
        """Return the probability that at most `covered` of `total` attacked images are covered, if the promise holds.

        It counts the draw of the calibration images too: the coverage without an attack that they lead to follows a
        beta distribution, or one that is larger, and an attack leaves at least G of it. The result is rounded up.
        """
        rank = self.rank(count)
        quantiles = betaincinv(rank, count + 1 - rank, np.arange(POINTS) / POINTS)  # the lower end of each part
        return float(np.mean(bdtr(covered, total, self.least_under_attack(quantiles))))


def check_promise(radius: float, alpha: float, noise: Noise) -> None:
    """Raise an error if a promise of this kind cannot be made."""
    check_alpha(alpha)
    if not (isinstance(radius, int | float) and 0 <= radius < math.inf):
        raise ConfigurationError(f"`radius` must be a number of at least 0, not {radius!r}", parameter="radius")
    if not isinstance(noise, Gaussian):
        raise ConfigurationError(
            f"label sets need Gaussian noise, not {noise}: the level of calibration is known for no other. Use "
            f"gaussian:sigma={noise.sigma:g}.",
            parameter="noise",
        )


def find_threshold(scores: Sequence[float] | Floats, rank: int) -> float:
    """Return the rank-th smallest score.

    >>> find_threshold([0.3, 0.1, 0.2], 2)
    0.2
    """
    return float(np.partition(np.asarray(scores, np.float64), rank - 1)[rank - 1])


def format_level(tail: Fraction) -> str:
    """Format a level, given as 1 - level, with as many digits as tell it from 1.

    >>> format_level(Fraction(1, 10)), format_level(Fraction(113, 10000)), format_level(Fraction(1, 2 * 10**7))
    ('0.9', '0.9887', '0.99999995')
    """
    digits = max(4, 2 - math.floor(math.log10(tail))) if tail else 4
    return f"{1 - float(tail):.{digits}f}".rstrip("0")


def _reduce_alpha(alpha: float, sigma: float, samples: int, dim: int, levels: int) -> float:
    try:
        return Quantisation(levels).reduced_alpha(alpha, sigma, samples, dim)
    except ConfigurationError as error:
        raise ConfigurationError(
            f"exact arithmetic cannot keep `alpha` {alpha:g} with {samples - 1:,} calibration images of {dim:,} "
            'values. Increase `alpha`, use fewer images, or `arithmetic` "real".',
            parameter="alpha",
        ) from error
