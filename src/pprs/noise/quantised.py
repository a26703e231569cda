"""Gaussian noise on the levels of an image or a signal, drawn exactly.

In floating point, x + z is not the sum that the theorem speaks of: the low bits of the rounded sum can give x away, and
a classifier that reads them is certified falsely (Jin et al. 2022; Voracek and Hein 2023). The remedy is a base
classifier that first rounds its input to the levels of the image. Its input is then a vector of integers, whose
distribution is known exactly and is sampled in integers. See docs/theory.md.
"""

from __future__ import annotations

import functools
import hashlib
import math
import threading
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from mpmath import mp, mpf  # type: ignore[import-untyped]

from pprs.errors import ConfigurationError, PprsError
from pprs.inputs.domain import SIGNAL, domain_of
from pprs.kernels import quantised as kernel
from pprs.kernels import quantised_fine
from pprs.kernels.rng import STATE

EIGHT_BIT, SIXTEEN_BIT = 255, 65535  # levels
PCM = {2 ** (bits - 1): bits for bits in (8, 16, 24)}  # levels of audio -> bits, of values in [-1, 1]
NATIVE = (EIGHT_BIT, *PCM)  # levels of files: images and signals on them are vectors of integers, and are not moved
ROUNDING = 1e-4  # share of sigma that rounding a signal may take off its radius
ON_LEVEL = 1e-7  # distance from k / 255 up to which a value is the float32 form of it
MAX_INTEGER = 2**21  # of an image's values times the levels: with noise, float32 still represents it exactly
MAX_THRESHOLDS = 2**22
MAX_DIRECT = 2**16  # thresholds of a signal's noise, beyond which integers are drawn in blocks
MAX_BLOCKS = 2**13
MAX_BLOCK = 2**32 - 1  # integers of a block, one of which is drawn with 32 bits
MAX_FINE_INTEGER = 2**40  # of a signal's values times the levels, so that the product is exact to 2^-13
INEXACT = 2.0**-10  # of half a level, more than that product and the division back can add to a distance
# By how much the distribution within a block may differ, in total variation. Rounding changes the ratio by at most
# 4e-16, and the next term of the expansion by at most h^4 / 384, below 2e-17 with more than MAX_DIRECT integers.
WITHIN_BLOCK = 2.0**-50
REACH = 9.3  # standard deviations beyond which less than 2^-64 of the probability is left
DIGITS, FRACTION = 60, 136  # precision of the thresholds: decimal digits, and bits of fixed-point numbers
BLOCK_SIZE, BLOCK_WIDTH = 256, 0.02  # points of a Taylor expansion, at most, and standard deviations that they span


@dataclass(frozen=True)
class Quantisation:
    """The levels to which an image or a signal was rounded.

    Attributes:
        levels: The values of the rounded image are multiples of 1 / levels.
        moved: An upper bound on the L2 distance that rounding moved the image. 0 if it was on the levels.
    """

    levels: int
    moved: float = 0.0

    def radius_loss(self, dim: int) -> float:
        """Return what rounding takes off the radius: this image's own part, and the most for another image.

        8-bit images and PCM audio are vectors of integers, so none of them is moved. Anything else is rounded before
        it is classified, by at most half a level per value.
        """
        return 0.0 if self.levels in NATIVE else self.moved + self.max_moved(dim)

    def max_moved(self, dim: int) -> float:
        """Bound the L2 distance that rounding moves any image of `dim` values: half a level for each.

        The product with the levels, which is rounded to the nearest integer, is computed in double precision. It is
        exact to 1e-9 of a level for images, and to 2^-13 for signals, whose integers may be as large as 2^40.
        """
        if self.levels in NATIVE:
            return 0.0
        inexact = 1e-9 if self.levels == SIXTEEN_BIT else INEXACT
        return math.sqrt(dim) / (2 * self.levels) * (1 + inexact)

    def check_thresholds(self, sigma: float) -> None:
        """Raise if noise on these levels would need too many thresholds, or cannot be drawn exactly."""
        if _block_size(sigma, self.levels) > MAX_BLOCK:
            raise ConfigurationError(
                f"noise with `sigma` {sigma:g} cannot be drawn exactly on {self.levels:,} levels. The largest number "
                f'of levels at this `sigma` is {largest_grid(sigma):,}. Use `arithmetic` "rounded" for a number that '
                'suits the noise, or "real".',
                parameter="arithmetic",
            )
        count = 2 * _reach(sigma, self.levels, _block_size(sigma, self.levels))
        if count > MAX_THRESHOLDS:
            raise ConfigurationError(
                f"`sigma` {sigma:g} is too large for exact arithmetic on {self.levels + 1} levels, which would need "
                f'{count:,} thresholds. Use a smaller `sigma`, or `arithmetic` "real".',
                parameter="sigma",
            )

    def reduced_alpha(self, alpha: float, sigma: float, samples: int, dim: int) -> float:
        """Return alpha without the probability that a draw differs from one of the exact distribution."""
        self.check_thresholds(sigma)
        error = samples * self._error_per_sample(sigma, dim)
        if samples > self.max_samples(alpha, sigma, dim):
            raise ConfigurationError(
                f"exact arithmetic cannot keep alpha={alpha:g}: {samples} samples of {dim} values, drawn with 64 bits "
                f'each, already use up {error:.1g}. Increase `alpha`, reduce `n`, or use `arithmetic` "real".',
                parameter="alpha",
            )
        return math.nextafter(alpha - error, 0)

    def max_samples(self, alpha: float, sigma: float, dim: int) -> int:
        """Return the number of samples that use up half of alpha, beyond which exact arithmetic is refused."""
        return int(alpha / 2 / self._error_per_sample(sigma, dim))

    def _error_per_sample(self, sigma: float, dim: int) -> float:
        """Bound the probability that one sample differs from its exact counterpart with the same uniform numbers.

        A value differs if its uniform number falls between a threshold and its exact value, which is within 2^-64.
        Within a block of a fine grid, it differs with a probability of at most WITHIN_BLOCK.
        """
        block = _block_size(sigma, self.levels)
        within = WITHIN_BLOCK if block > 1 else 0.0
        return dim * ((2 * _reach(sigma, self.levels, block) + 1) * 2.0**-64 + within) * (1 + 1e-9)


@dataclass(frozen=True, eq=False)
class QuantisedImage:
    """An image or a signal as integers k. Its values are k / levels. `original` is what it was before rounding.

    The integers of an image are int32 [C, H, W], those of a signal int64 [C, T].
    """

    k: torch.Tensor
    quantisation: Quantisation
    original: torch.Tensor

    @property
    def levels(self) -> int:
        return self.quantisation.levels

    @property
    def shape(self) -> torch.Size:
        return self.k.shape

    @property
    def device(self) -> torch.device:
        return self.k.device

    def numel(self) -> int:
        return self.k.numel()


def quantise(image: torch.Tensor, *, levels: int | None = None, may_move: bool = True) -> QuantisedImage:
    """Return the integers of an image [C, H, W].

    Args:
        image: The image, float32.
        levels: 255 or 65535. By default, 255 if the values of the image are multiples of 1/255, else 65535.
        may_move: Round an image that is not on the levels. If false, refuse it.

    Raises:
        PprsError: If the image would have to be moved and may not be, or if its values are too large.
    """
    exact = image.cpu().double()
    for number in (EIGHT_BIT, SIXTEEN_BIT) if levels is None else (levels,):
        k = (exact * number).round_()
        distance = (exact - k / number).abs_()
        if bool((distance <= ON_LEVEL * exact.abs().clamp_(min=1)).all()):
            moved = 0.0 if number == EIGHT_BIT else float(distance.norm()) * (1 + 1e-9)
            return QuantisedImage(_to_integers(k, number, image.device), Quantisation(number, moved), image)
    if not may_move:
        multiples = "1/255 or 1/65535" if levels is None else f"1/{levels}"
        raise PprsError(
            f'its values are not multiples of {multiples}, as this arithmetic requires. Use `arithmetic` "rounded" '
            'to round every image to 16 bits and take the distance off the radius, or "real".',
            parameter="arithmetic",
        )
    moved = float(distance.norm()) * (1 + 1e-9)
    return QuantisedImage(_to_integers(k, number, image.device), Quantisation(number, moved), image)


def quantise_signal(
    signal: torch.Tensor, sigma: float, *, levels: int | None = None, may_move: bool = True
) -> QuantisedImage:
    """Return the integers of a signal [C, T].

    Args:
        signal: The signal, float32.
        sigma: The standard deviation of the noise, which decides how fine a grid is needed.
        levels: The levels of the grid. By default, those of 8-bit, 16-bit or 24-bit audio if the signal is on them, and
            else a grid of decimals: see `choose_grid`.
        may_move: Round a signal that is not on the levels. If false, refuse it.

    Raises:
        PprsError: If the signal would have to be moved and may not be, or if its values are too large.
    """
    exact = signal.cpu().double()
    largest = float(exact.abs().max())
    candidates = (*(PCM if largest <= 1 else ()), choose_grid(sigma, exact.numel())) if levels is None else (levels,)
    for number in candidates:
        k = (exact * number).round_()
        distance = (exact - k / number).abs_()
        if number in PCM and not bool(distance.any()):  # float32 holds these levels exactly
            return QuantisedImage(_to_fine_integers(k, number, signal.device), Quantisation(number), signal)
    if not may_move or number in PCM:
        wanted = "8, 16 or 24 bits" if levels not in PCM else f"{PCM[number]} bits"
        raise PprsError(
            f'its values are not those of audio with {wanted}, as this arithmetic requires. Use `arithmetic` "rounded" '
            'to round every signal and take the distance off the radius, or "real".',
            parameter="arithmetic",
        )
    # k / number is rounded by at most one part in 2^53.
    moved = (float(distance.norm()) + math.sqrt(exact.numel()) * largest * 2.0**-52) * (1 + 1e-9)
    return QuantisedImage(_to_fine_integers(k, number, signal.device), Quantisation(number, moved), signal)


def choose_grid(sigma: float, dim: int) -> int:
    """Return the levels to which signals of `dim` values are rounded, a power of ten.

    Rounding two signals takes at most about sqrt(dim) / levels off a radius, which is at most ROUNDING times sigma.

    >>> choose_grid(0.5, 100)
    1000000
    """
    return int(10 ** max(0, math.ceil(math.log10(math.sqrt(dim) * (1 + INEXACT) / (ROUNDING * sigma)))))


def largest_grid(sigma: float) -> int:
    """Return the largest power of ten that can be the levels of signals, so that noise is drawn exactly.

    >>> largest_grid(0.25), largest_grid(25)
    (1000000000000, 10000000000)
    """
    return max((10**i for i in range(19) if _block_size(sigma, 10**i) <= MAX_BLOCK), default=1)


def describe_levels(levels: int) -> str:
    """Name the images or signals whose values are multiples of 1 / levels.

    >>> [describe_levels(levels) for levels in (255, 65535, 32768, 10**6)]
    ['8-bit images', 'images rounded to 16 bits', '16-bit signals', 'signals rounded to 6 decimals']
    """
    if levels in (EIGHT_BIT, SIXTEEN_BIT):
        return "8-bit images" if levels == EIGHT_BIT else "images rounded to 16 bits"
    if levels in PCM:
        return f"{PCM[levels]}-bit signals"
    return f"signals rounded to {len(str(levels)) - 1} decimals"


def are_levels(levels: int, shape: tuple[int, ...]) -> bool:
    """Return whether inputs of this shape can have these levels in exact arithmetic."""
    if domain_of(shape) is not SIGNAL:
        return levels in (EIGHT_BIT, SIXTEEN_BIT)
    return levels in PCM or (1 <= levels <= 10**18 and 10 ** (len(str(levels)) - 1) == levels)


def _to_fine_integers(k: torch.Tensor, levels: int, device: torch.device) -> torch.Tensor:
    if float(k.abs().max()) > MAX_FINE_INTEGER:
        raise PprsError(
            f"its values reach {float(k.abs().max()) / levels:g}, too large for exact arithmetic with this `sigma`. "
            'Use a larger `sigma`, or `arithmetic` "real".',
            parameter="arithmetic",
        )
    return k.to(torch.int64).to(device)


def _to_integers(k: torch.Tensor, levels: int, device: torch.device) -> torch.Tensor:
    if float(k.abs().max()) > MAX_INTEGER:
        raise PprsError(
            f"its values reach {float(k.abs().max()) / levels:g}, too large for exact arithmetic, which expects values "
            'in about [0, 1]. Rescale the image, or use `arithmetic` "real".',
            parameter="arithmetic",
        )
    return k.to(torch.int32).to(device)


def digest_image(image: torch.Tensor | QuantisedImage) -> str:
    """Return a digest of an image as it was certified: its integers or, in real arithmetic, its float32 values."""
    kind, values = ("float32", image) if isinstance(image, torch.Tensor) else (f"levels {image.levels}", image.k)
    sha = hashlib.sha256(f"{kind} {tuple(image.shape)}".encode())
    sha.update(values.cpu().contiguous().numpy().tobytes())
    return sha.hexdigest()[:32]


@dataclass(frozen=True, eq=False)
class QuantisedGaussian:
    """N(0, sigma^2) per value, rounded to multiples of 1 / levels.

    `thresholds[i]` is floor(2^64 P(J <= first + i)). On a fine grid, J counts blocks of `block` levels, and `rate` is
    that of `pprs.kernels.quantised_fine`.
    """

    levels: int
    first: int
    thresholds: npt.NDArray[np.uint64]
    table: npt.NDArray[np.int32]
    starts: npt.NDArray[np.int32]
    block: int = 1
    rate: float = 0.0

    def sample(
        self, image: QuantisedImage, batch: int, rng: np.random.Generator, out: torch.Tensor | None = None
    ) -> torch.Tensor:
        """Draw `batch` noisy copies of an image.

        The integers are drawn on the host and sent to the image's device, so that they are the same on every device.

        Returns:
            float32 [batch, ...] with values (k + J) / levels, on the image's device.
        """
        if image.device.type == "cpu":
            return self._sample_host(image.k, batch, rng, out)
        noisy = self._sample_host(image.k.cpu(), batch, rng, None)
        return noisy.to(image.device) if out is None else out.copy_(noisy)

    def _sample_host(
        self, k: torch.Tensor, batch: int, rng: np.random.Generator, out: torch.Tensor | None
    ) -> torch.Tensor:
        out = torch.empty((batch, *k.shape)) if out is None else out
        is_signal = k.ndim == SIGNAL.ndim
        add_noise = quantised_fine.add_fine_noise if is_signal else kernel.add_rounded_noise
        arguments: tuple[Any, ...] = (
            rng.integers(0, 2**32, STATE, dtype=np.uint32), rng.integers(0, 2**32, STATE, dtype=np.uint32), self.table,
            self.starts, self.thresholds, self.first, *((self.block, self.rate) if is_signal else ()),
            k.numpy().reshape(-1), self.levels, out.numpy().reshape(batch, -1),
        )  # fmt: skip
        add_noise(*arguments)
        return out


_lock = threading.Lock()  # mpmath's precision is shared by all threads


def quantised_gaussian(sigma: float, levels: int = EIGHT_BIT) -> QuantisedGaussian:
    """Return the noise of this level, prepared once for all threads.

    Raises:
        ConfigurationError: If sigma is too large for these levels.
    """
    with _lock:
        return _prepare_noise(sigma, levels)


@functools.lru_cache(maxsize=8)
def _prepare_noise(sigma: float, levels: int) -> QuantisedGaussian:
    """Compute the thresholds and their table."""
    Quantisation(levels).check_thresholds(sigma)
    block = _block_size(sigma, levels)
    reach = _reach(sigma, levels, block)
    # P(J <= i) for i = 0, 1, ..., reach - 1. P(J <= -1 - i) is the rest of 1.
    upper = _fixed_point_cdf(sigma, levels, reach, block)
    one, shift = 1 << FRACTION, FRACTION - 64
    below = [(one - p) >> shift for p in reversed(upper)]
    above = [min(p >> shift, 2**64 - 1) for p in upper]
    thresholds = np.array([*below, *above], dtype=np.uint64)
    zeros = int(np.searchsorted(thresholds, 0, side="right"))  # U is never below 0, so these only move `first`
    thresholds, first = thresholds[zeros:], zeros - reach
    table, starts = _lookup(thresholds, first)
    step = 1 / (levels * sigma)
    return QuantisedGaussian(levels, first, thresholds, table, starts, block, step**2 * (0.5 - step**2 / 24))


def _block_size(sigma: float, levels: int) -> int:
    """Return the number of levels that are drawn together, an odd number. It is 1 for the levels of images."""
    count = 2 * REACH * sigma * levels
    if levels in (EIGHT_BIT, SIXTEEN_BIT) or count <= MAX_DIRECT:
        return 1
    return 2 * (math.ceil(count / MAX_BLOCKS) // 2) + 1


def _reach(sigma: float, levels: int, block: int) -> int:
    return math.ceil(REACH * sigma * levels / block) + 1


def _lookup(thresholds: npt.NDArray[np.uint64], first: int) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.int32]]:
    """Return J for each value of the leading bits that decides it, and the number of thresholds up to its first U."""
    shift = np.uint64(64 - kernel.LEADING)
    lowest = np.arange(2**kernel.LEADING, dtype=np.uint64) << shift
    highest = lowest | ((np.uint64(1) << shift) - np.uint64(1))
    low = np.searchsorted(thresholds, lowest, side="right")
    high = np.searchsorted(thresholds, highest, side="right")
    table = np.where(low == high, low + first, kernel.UNDECIDED)
    # The kernel searches up to the next value's count. That may include a threshold equal to the next value's first U,
    # which is above every U of this value and so is never counted.
    return table.astype(np.int32), np.append(low, len(thresholds)).astype(np.int32)


def _fixed_point_cdf(sigma: float, levels: int, count: int, per_block: int) -> list[int]:
    """Return 2^FRACTION Phi((2 i + 1) per_block / (2 levels sigma)) for 0 <= i < count, to within a few units.

    Each block of points is expanded around its middle m. The derivatives of Phi are the density times Hermite
    polynomials: Phi(m + t) = Phi(m) + phi(m) sum over j >= 0 of (-1)^j He_j(m) t^(j + 1) / (j + 1)!.
    """
    values: list[int] = []
    with mp.workdps(DIGITS):
        step = per_block / (levels * mpf(sigma))
        block = min(BLOCK_SIZE, max(1, int(BLOCK_WIDTH / step)))
        terms = _count_terms(float(step) * block / 2)
        half_step = int(mp.ldexp(step / 2, FRACTION))
        for start in range(0, count, block):
            stop = min(start + block, count)
            middle = mpf(start + stop) / 2 * step
            value, density = int(mp.ldexp(mp.ncdf(middle), FRACTION)), mp.npdf(middle)
            coefficients, before, hermite, factor = [], mpf(0), mpf(1), density
            for j in range(terms):
                factor /= -(j + 1) if j else 1
                coefficients.append(int(mp.ldexp(hermite * factor, FRACTION)))
                before, hermite = hermite, middle * hermite - j * before
            coefficients.reverse()
            for i in range(start, stop):
                t = (2 * i + 1 - start - stop) * half_step
                total = 0
                for coefficient in coefficients:
                    total = (total + coefficient) * t >> FRACTION
                values.append(value + total)
    return values


def _count_terms(half_width: float) -> int:
    """Return how many terms of the expansion reach 2^-100 at this distance from the middle, for any middle."""
    terms, size = 1, 1.0
    while size > 2.0**-100:
        # |He_j(m)| phi(m) is below sqrt(j!), so the terms decrease at least as fast as t^j / sqrt(j!).
        size *= half_width / math.sqrt(terms)
        terms += 1
    return terms
