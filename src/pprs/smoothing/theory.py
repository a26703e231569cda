"""The paper's algebra: averaging as a matrix, and the radius of its Theorem 2 under an assumption.

The certificates of this package do not need it, because they hold for any partition of the *noisy* image. See
docs/theory.md for the argument.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy import sparse
from scipy.sparse.linalg import LinearOperator, svds

from pprs.errors import PprsError, suggest
from pprs.partition import Superpixels
from pprs.smoothing.certificate import Certificate

FORMS = ("proof", "theorem", "norms")


def averaging_matrix(labels: npt.ArrayLike) -> sparse.csr_array:
    """Return A_S of one channel, whose entry (i, j) is 1 / |S| if pixels i and j share the segment S, else 0.

    It is symmetric with A A = A and largest singular value 1: the projection onto images that are constant in every
    segment.

    >>> averaging_matrix([[0, 0, 1]]).toarray().tolist()
    [[0.5, 0.5, 0.0], [0.5, 0.5, 0.0], [0.0, 0.0, 1.0]]
    """
    flat = np.unique(np.asarray(labels).ravel(), return_inverse=True)[1]
    sizes = np.bincount(flat)
    pixels, shape = np.arange(len(flat)), (len(flat), len(sizes))
    membership = sparse.csr_array((np.ones(len(flat)), (pixels, flat)), shape=shape)
    shares = sparse.csr_array((1 / sizes[flat], (pixels, flat)), shape=shape)
    return sparse.csr_array(shares @ membership.T)


def partition_distance(labels: npt.ArrayLike, others: npt.ArrayLike) -> float:
    """Return |A_S - A_S'|, the largest singular value of the difference of two averaging matrices, from 0 to 1."""
    difference = sparse.csr_array(averaging_matrix(labels) - averaging_matrix(others))
    if abs(difference).max() == 0:
        return 0.0
    if difference.shape[0] <= 400:
        return float(np.linalg.norm(difference.toarray(), 2))
    operator = LinearOperator(
        difference.shape, matvec=lambda v: difference @ v, rmatvec=lambda v: difference.T @ v, dtype=np.float64
    )
    singular_values = svds(operator, k=1, return_singular_vectors=False, random_state=0, tol=1e-6)
    return float(singular_values[0])


@dataclass(frozen=True)
class Sensitivity:
    """How much averaging matrices change relative to images at one distance: an *estimate* of rho, not a bound.

    Partitions are discontinuous, so no rho holds for all pairs of images. The closer the images, the larger the ratio
    may be.
    """

    distance: float
    mean: float
    largest: float
    pairs: int

    def __str__(self) -> str:
        return (
            f"at distance {self.distance:g}: |A - A'| / |x - x'| was {self.mean:.3g} on average and {self.largest:.3g} "
            f"at most over {self.pairs} random directions; an estimate, not a bound"
        )


def partition_sensitivity(
    partition: Superpixels, x: Any, distances: Sequence[float] = (0.01, 0.1, 1.0), *, pairs: int = 8, seed: int = 0
) -> list[Sensitivity]:
    """Estimate |A_S(x) - A_S(x')| / |x - x'| around an image [C, H, W], at given distances in random directions."""
    if not isinstance(partition, Superpixels):
        raise PprsError(f"{partition} has no segments, so it has no averaging matrix", parameter="partition")
    if pairs < 1 or not all(d > 0 for d in distances):
        raise PprsError(f"need at least one pair and distances above 0, not {pairs} pairs at {list(distances)}")
    clean = np.asarray(x, dtype=np.float32)
    rng = np.random.default_rng(seed)
    labels = partition.labels(clean[None])[0]
    estimates = []
    for step in distances:
        ratios = []
        for _ in range(pairs):
            direction = rng.standard_normal(clean.shape)
            moved = (clean + step * direction / np.linalg.norm(direction)).astype(np.float32)
            ratios.append(partition_distance(labels, partition.labels(moved[None])[0]) / step)
        estimates.append(Sensitivity(float(step), float(np.mean(ratios)), float(np.max(ratios)), pairs))
    return estimates


def radius_given_rho(radius: float, rho: float, form: str = "proof", *, norm_x: float | None = None) -> float:
    """Return the radius of Theorem 2, which assumes |A_S(x) - A_S(x')| <= rho |x - x'| for all images.

    The theorem states `radius (1 - rho)` ("theorem"). Its proof gives the smaller `radius / (1 + 3 rho)` ("proof"),
    for images and perturbations of norm at most 1. Real images have larger norms, for which "norms" solves the proof's
    |d| + 2 rho |d|^2 + rho |d| |x| <= radius.

    >>> [round(radius_given_rho(1.0, 0.1, form), 4) for form in ("proof", "theorem")]
    [0.7692, 0.9]
    """
    if not (radius >= 0 and rho >= 0 and math.isfinite(rho)):
        raise PprsError(f"`radius` and `rho` must be 0 or above, not {radius} and {rho}")
    if form == "proof":
        return radius / (1 + 3 * rho)
    if form == "theorem":
        return radius * max(0.0, 1 - rho)
    if form != "norms":
        raise PprsError(f'unknown form "{form}". {suggest(form, FORMS)}', parameter="form")
    if norm_x is None or norm_x < 0:
        raise PprsError('form "norms" needs `norm_x`, the L2 norm of the image', parameter="norm_x")
    slope = 1 + rho * norm_x
    return 2 * radius / (slope + math.sqrt(slope**2 + 8 * rho * radius))


def conditional_certificate(
    certificate: Certificate, rho: float, form: str = "proof", *, norm_x: float | None = None
) -> Certificate:
    """Return the certificate of Theorem 2, which is conditional on its assumption and says so wherever it is shown."""
    radius = radius_given_rho(certificate.radius, rho, form, norm_x=norm_x)
    assumption = f"|A_S(x) - A_S(x')| <= {rho:g} |x - x'| for all images"
    return dataclasses.replace(certificate, radius=radius, assumes=assumption)
