"""Why pixels of a segmentation run abstain, and what more samples or a smaller share may certify."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from pprs.doctor.examination import ESTIMATE_NOTE
from pprs.errors import ConfigurationError, PprsError
from pprs.noise import Noise, Quantisation
from pprs.progress import duration
from pprs.runs import Run, open_run
from pprs.segmentation.certificate import SegmentationCertificate
from pprs.segmentation.holm import MAX_SAMPLES, least_significant_count
from pprs.segmentation.row import SegmentationRow
from pprs.segmentation.settings import SegmentationSettings
from pprs.smoothing.certificate import round_down

MORE_SAMPLES = (2, 4, 10)  # times those of the run
SMALLER_SHARES = (0.8, 0.6, 0.4)  # of the distance of tau from 1/2
LARGER_SHARES = (0.25, 0.5)  # of its distance from 1
Counts = npt.NDArray[Any]


@dataclass(frozen=True)
class Prospect:
    """What another run may certify, if all shares of the votes stay the same.

    Attributes:
        n: Number of samples that test the labels.
        tau: Share of the samples that a label needs.
        radius: The radius that this share gives.
        certified: Pixels that have a certified label then.
    """

    n: int
    tau: float
    radius: float
    certified: int = 0


@dataclass(frozen=True)
class SegmentationExamination:
    """Why pixels of a run abstain, and what may help.

    Attributes:
        path: Folder, file or url of the run.
        settings: The settings of the run.
        here: What the run itself certifies at the radius that is wanted. Its tau is that of this radius.
        pixels: Pixels of the images that did not fail.
        no_majority: Pixels whose selected label has at most the share tau of the votes.
        unproven: Pixels whose selected label has a larger share, which so few samples do not prove.
        more_samples: Runs with more samples.
        smaller_shares: Runs with a smaller tau and so a smaller radius.
        larger_shares: Runs with a larger tau and so a larger radius.
        images: Images that did not fail.
        failed: Images that failed.
        seconds_per_sample: Speed of the run, None if it is not recorded.
    """

    path: str
    settings: SegmentationSettings
    here: Prospect
    pixels: int
    no_majority: int
    unproven: int
    more_samples: tuple[Prospect, ...]
    smaller_shares: tuple[Prospect, ...]
    larger_shares: tuple[Prospect, ...]
    images: int
    failed: int
    seconds_per_sample: float | None

    def __str__(self) -> str:
        here, tau = self.here, f"tau {self.here.tau:.3g}"
        verb = "are" if here.tau == self.settings.tau else "may be"  # with the samples of this run
        lines = [
            f"{self.path}: {self._share(here.certified)} of {self.pixels:,} pixels {verb} certified at radius "
            f"{round_down(here.radius)} ({tau}, n {here.n})"
        ]
        lines += [
            f"{self._share(count):>6}  {cause}"
            for count, cause in (
                (
                    self.no_majority,
                    f"the selected label has at most the share {tau}, so that more samples prove nothing",
                ),
                (self.unproven, f"the selected label has a larger share, which n {here.n} does not prove"),
            )
            if count
        ]
        if self.unproven:
            lines.append("more samples may certify, if all shares of the votes stay, in one process:")
            lines += [f"        `n` {p.n}: {self._share(p.certified)}{self._cost(p.n)}" for p in self.more_samples]
        abstains = self.no_majority or self.unproven
        word, others = ("smaller", self.smaller_shares) if abstains else ("larger", self.larger_shares)
        lines.append(f"a {word} share may certify, with as many samples and a {word} radius:")
        lines += [
            f"        `tau` {p.tau:.3g}: {self._share(p.certified)} at radius {round_down(p.radius)}" for p in others
        ]
        lines += [f"advice: {text}" for text in self._advise()]
        return "\n".join([*lines, ESTIMATE_NOTE])

    def _share(self, pixels: int) -> str:
        return f"{pixels / self.pixels:.1%}"

    def _cost(self, n: int) -> str:
        if self.seconds_per_sample is None:
            return ""
        seconds = self.images * ((self.settings.n0 or 0) + n) * self.seconds_per_sample
        return f" (about {duration(seconds)})" if seconds >= 1 else " (less than 1 s)"

    def _advise(self) -> Iterator[str]:
        if self.failed:
            failed = "1 image" if self.failed == 1 else f"{self.failed} images"
            yield f"{failed} failed. Repeat the command of the run, which tries again."
        if not self.no_majority:
            return
        if self.settings.partition_text == "none":
            yield "Clean up the noisy image first, for example with `partition` slic/soft."
        if self.settings.groups == "none":
            yield "Test `groups` of pixels, whose majority is steadier than a pixel: grid:size=4, for example."
        yield "Prepare the network for noise: `pprs adapt` (unlabelled images), or training with noise."


def examine_segmentation(run: Run | str | Path, *, radius: float = 0.0) -> SegmentationExamination:
    """Say why pixels of a segmentation run abstain, and what more samples or a smaller share may certify.

    The counts are extrapolated, so all answers are estimates. Certificates come from a new run only, with another seed.

    Args:
        run: The run, its folder or url, or rows exported from it.
        radius: The radius that is wanted. With 0, that of the run.

    Returns:
        The causes, and what other runs may certify.

    Raises:
        PprsError: If the run has no rows.
        ConfigurationError: If there is no run, or if no share gives this radius.
    """
    if not 0 <= radius < math.inf:
        raise ConfigurationError(f"`radius` must be at least 0, not {radius}", parameter="radius")
    opened = run if isinstance(run, Run) else open_run(run)
    settings: SegmentationSettings = opened.settings
    first: SegmentationRow | None = next(opened.iter_rows(), None)
    if first is None:
        raise PprsError(f"{opened.path} has no rows yet. Let it finish at least one image.")
    dim, n = math.prod(first.certificate.shape), settings.sampling.n
    tau = _find_tau(settings.noise, dim, radius) if radius else settings.sampling.tau
    tried = [
        *((min(factor * n, MAX_SAMPLES), tau) for factor in MORE_SAMPLES),
        *((n, 0.5 + factor * (tau - 0.5)) for factor in SMALLER_SHARES),
        *((n, tau + factor * (1 - tau)) for factor in LARGER_SHARES),
    ]
    here, *prospects = (Prospect(n, share, settings.noise.radius(share, dim)) for n, share in ((n, tau), *tried))
    pixels = no_majority = images = 0
    seconds = 0.0
    for row in opened.iter_rows():
        counts, sizes = _list_units(row.certificate)
        here, *prospects = (
            _add(prospect, row.certificate, settings.noise.sigma, counts, sizes) for prospect in (here, *prospects)
        )
        pixels, images, seconds = pixels + int(sizes.sum()), images + 1, seconds + row.seconds
        no_majority += int(sizes[counts <= tau * n].sum())
    samples = images * (settings.sampling.n0 + n)
    first_tau, first_larger = len(MORE_SAMPLES), len(MORE_SAMPLES) + len(SMALLER_SHARES)
    return SegmentationExamination(
        opened.path, settings, here, pixels, no_majority, pixels - no_majority - here.certified,
        tuple(prospects[:first_tau]), tuple(prospects[first_tau:first_larger]), tuple(prospects[first_larger:]),
        images, len(opened.failures()),
        seconds / samples if seconds > 0 else None,
    )  # fmt: skip


def _find_tau(noise: Noise, dim: int, radius: float) -> float:
    """Return about the smallest share that gives a radius."""
    low, high = 0.5, math.nextafter(1.0, 0)
    if noise.radius(high, dim) < radius:
        raise ConfigurationError(f"no share gives the `radius` {radius:g} under {noise}", parameter="radius")
    while (middle := (low + high) / 2) not in (low, high):
        low, high = (low, middle) if noise.radius(middle, dim) >= radius else (middle, high)
    return high


def _list_units(certificate: SegmentationCertificate) -> tuple[Counts, Counts]:
    """Return the count of each pixel or group, and the number of its pixels."""
    counts = certificate.counts.ravel()
    if certificate.cells is None:
        return counts, np.ones_like(counts)
    _, places, sizes = np.unique(certificate.cells.ravel(), return_index=True, return_counts=True)
    return counts[places], sizes


def _add(
    prospect: Prospect, certificate: SegmentationCertificate, sigma: float, counts: Counts, sizes: Counts
) -> Prospect:
    """Add the pixels of an image that another run may certify."""
    alpha, n = certificate.alpha, prospect.n
    if certificate.levels is not None:
        quantisation, dim = Quantisation(certificate.levels, certificate.moved), math.prod(certificate.shape)
        if n > quantisation.max_samples(alpha, sigma, dim):  # which are refused
            return prospect
        alpha = quantisation.reduced_alpha(alpha, sigma, n, dim)
    expected = counts.astype(np.int64) * n // certificate.n
    least = least_significant_count(expected, n, prospect.tau, alpha)
    return replace(prospect, certified=prospect.certified + int(sizes[expected >= least].sum()))
