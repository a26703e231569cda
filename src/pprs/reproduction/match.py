"""The noise at which plain smoothing has a certified accuracy that was asked for."""

from __future__ import annotations

import math
from collections.abc import Callable

LEAST, MOST, STEPS = 0.01, 4.0, 9


def matching_sigma(accuracy: Callable[[float], float], target: float, within: float = 0.0) -> float:
    """The sigma, of those tried, at which the accuracy is nearest to the target: by halving, nine times at most.

    It is near enough `within` that: with few images no accuracy is nearer.

    Accuracy falls with the noise, up to the luck of the draw.

    >>> matching_sigma(lambda sigma: 1 / (1 + sigma), 0.8)
    0.25
    """
    low, high = LEAST, MOST
    found: dict[float, float] = {}
    for _ in range(STEPS):
        sigma = float(f"{math.sqrt(low * high):.3g}")
        if sigma in found:
            break
        found[sigma] = accuracy(sigma)
        if abs(found[sigma] - target) <= within:
            break
        low, high = (sigma, high) if found[sigma] > target else (low, sigma)
    return min(found, key=lambda sigma: (abs(found[sigma] - target), sigma))
