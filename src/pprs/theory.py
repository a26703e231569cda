"""The paper's algebra: averaging as a matrix, and what its Theorem 2 would give under an assumption.

Certificates of this package need none of this: they hold for the partition of the *noisy* picture, whatever it is.
docs/theory.md has the argument.
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

from pprs.certificate import Certificate
from pprs.errors import PprsError, suggest
from pprs.partition import Superpixels

FORMS = ("proof", "theorem", "norms")


def averaging_matrix(labels: npt.ArrayLike) -> sparse.csr_array:
    """A_S of one channel: entry (i, j) is 1 / |S| where pixels i and j share the segment S, else 0.

    It is symmetric, A A = A, and its largest singular value is 1: the projection onto pictures that are flat in every
    segment.

    >>> averaging_matrix([[0, 0, 1]]).toarray().tolist()
    [[0.5, 0.5, 0.0], [0.5, 0.5, 0.0], [0.0, 0.0, 1.0]]
    """
    flat = np.unique(np.asarray(labels).ravel(), return_inverse=True)[1]
    sizes = np.bincount(flat)
    pixels, shape = np.arange(len(flat)), (len(flat), len(sizes))
    belongs = sparse.csr_array((np.ones(len(flat)), (pixels, flat)), shape=shape)
    shares = sparse.csr_array((1 / sizes[flat], (pixels, flat)), shape=shape)
    return sparse.csr_array(shares @ belongs.T)


def distance(labels: npt.ArrayLike, others: npt.ArrayLike) -> float:
    """|A_S - A_S'|, the largest singular value of the difference of two averagings: from 0 to 1."""
    gap = sparse.csr_array(averaging_matrix(labels) - averaging_matrix(others))
    if abs(gap).max() == 0:
        return 0.0
    if gap.shape[0] <= 400:
        return float(np.linalg.norm(gap.toarray(), 2))
    found = svds(
        LinearOperator(gap.shape, matvec=lambda v: gap @ v, rmatvec=lambda v: gap.T @ v, dtype=np.float64),
        k=1, return_singular_vectors=False, random_state=0, tol=1e-6,
    )  # fmt: skip
    return float(found[0])


@dataclass(frozen=True)
class Sensitivity:
    """How far averagings moved beside pictures, at one distance: an *estimate* of rho there, and no bound on it.

    Partitions jump, so no rho holds for all pairs of pictures: the nearer the pictures, the larger the ratio may be.
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
    """Estimate |A_S(x) - A_S(x')| / |x - x'| around a picture [C, H, W], at given distances in random directions."""
    if not isinstance(partition, Superpixels):
        raise PprsError(f"{partition} has no segments, so it has no averaging matrix", parameter="partition")
    if pairs < 1 or not all(d > 0 for d in distances):
        raise PprsError(f"need at least one pair and distances above 0, not {pairs} pairs at {list(distances)}")
    clean = np.asarray(x, dtype=np.float32)
    rng = np.random.default_rng(seed)
    here = partition.labels(clean[None])[0]
    made = []
    for far in distances:
        ratios = []
        for _ in range(pairs):
            direction = rng.standard_normal(clean.shape)
            moved = (clean + far * direction / np.linalg.norm(direction)).astype(np.float32)
            ratios.append(distance(here, partition.labels(moved[None])[0]) / far)
        made.append(Sensitivity(float(far), float(np.mean(ratios)), float(np.max(ratios)), pairs))
    return made


def radius_given_rho(radius: float, rho: float, form: str = "proof", *, norm_x: float | None = None) -> float:
    """The radius of Theorem 2, if |A_S(x) - A_S(x')| <= rho |x - x'| held for all pictures.

    The theorem states `radius (1 - rho)` ("theorem"); its proof ends at the smaller `radius / (1 + 3 rho)` ("proof"),
    for pictures and perturbations of norm at most 1. Pictures are longer than that: "norms" solves the proof's
    |d| + 2 rho |d|^2 + rho |d| |x| <= radius for the norm that the picture has.

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
        raise PprsError('form "norms" needs `norm_x`, the L2 norm of the picture', parameter="norm_x")
    slope = 1 + rho * norm_x
    return 2 * radius / (slope + math.sqrt(slope**2 + 8 * rho * radius))


def conditional(made: Certificate, rho: float, form: str = "proof", *, norm_x: float | None = None) -> Certificate:
    """The certificate of Theorem 2, which holds only if its assumption does, and says so wherever it is shown."""
    radius = radius_given_rho(made.radius, rho, form, norm_x=norm_x)
    return dataclasses.replace(made, radius=radius, assumes=f"|A_S(x) - A_S(x')| <= {rho:g} |x - x'| for all pictures")
