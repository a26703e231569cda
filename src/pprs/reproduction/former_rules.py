"""The rules by which options followed the noise when the committed results were certified.

They were fitted to the error of the averaged image. The present ones, `for_noise` of each partition, are fitted to
certified radius. A plan with `rules = "psnr"` uses the former ones, so that its rows can be certified again.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from pprs.partition import Felzenszwalb, Mean, Partition, Quickshift, Slic, Soft
from pprs.partition.base import clip_and_round, nearest_odd

FORMER, PRESENT = "psnr", "radius"
RULES = (FORMER, PRESENT)


def resolve_by(rules: str, partition: Partition | None, sigma: float, shape: tuple[int, ...]) -> Partition | None:
    """Return the partition with every "auto" option resolved by the former or the present rules."""
    if partition is None:
        return None
    return (_resolve_formerly(partition, sigma, shape) if rules == FORMER else partition).resolve(sigma, shape)


def _resolve_formerly(partition: Partition, sigma: float, shape: tuple[int, ...]) -> Partition:
    """Return the partition with those options resolved whose rules have changed."""
    if isinstance(partition, Mean):
        return Mean([_resolve_formerly(part, sigma, shape) for part in partition.parts])
    if isinstance(partition, Soft):  # its rule has not changed, and applies to the SLIC in it too
        return partition
    partition = partition._map_inner(lambda part: _resolve_formerly(part, sigma, shape))
    rule = _FORMER_RULES.get(type(partition))
    if rule is None:
        return partition
    options = rule(sigma, round(math.sqrt(shape[-2] * shape[-1])))
    return partition._replace({name: getattr(options, name) for name in partition._auto_options()})


def _slic(sigma: float, side: int) -> Slic:
    small = side / 224
    spacing = 11 * small**0.36
    n_segments = min(max(1, round(side * side / spacing**2)), side * side)
    blur = nearest_odd(10 * sigma**0.5 * small**0.25, 3, 255)
    return Slic(n_segments, clip_and_round(0.3 * sigma**0.5, 1e-4, 1e3), blur)


def _felzenszwalb(sigma: float, side: int) -> Felzenszwalb:
    small = side / 224
    min_size = min(max(110 * sigma**1.4 * small**0.25, 1), side * side)
    blur = nearest_odd(13 * sigma**0.7 * small**0.25, 3, 255)
    return Felzenszwalb(clip_and_round(30 * small**0.5, 1, 1e3), round(min_size), blur)


def _quickshift(sigma: float, side: int) -> Quickshift:
    small = side / 224
    blur = nearest_odd(14 * sigma**0.7 * small**0.12, 3, 255)
    kernel_size = clip_and_round(4 * sigma**0.3 * small**0.1, 1, 20)
    max_dist = clip_and_round(9 * max(1, 2 * sigma) ** 0.5, 1, 1e3)
    return Quickshift(kernel_size, max_dist, clip_and_round(0.04 * blur / sigma, 1e-6, 1), blur)


_FORMER_RULES: dict[type[Partition], Callable[[float, int], Partition]] = {
    Slic: _slic,
    Felzenszwalb: _felzenszwalb,
    Quickshift: _quickshift,
}
