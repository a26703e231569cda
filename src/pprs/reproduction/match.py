"""Find the noise at which plain smoothing has a given certified accuracy."""

from __future__ import annotations

import math
from collections.abc import Callable

LEAST, MOST, STEPS = 0.01, 4.0, 9


def matching_sigma(accuracy: Callable[[float], float], target: float, within: float = 0.0) -> float:
    """The sigma at which the accuracy is closest to the target, found by bisection in at most nine steps.

    The search assumes that accuracy falls with sigma, which holds up to sampling error. It ends early at an accuracy
    `within` this distance of the target, since few images allow no closer one.

    >>> matching_sigma(lambda sigma: 1 / (1 + sigma), 0.8)
    0.25
    """
    low, high = LEAST, MOST
    accuracies: dict[float, float] = {}
    for _ in range(STEPS):
        sigma = float(f"{math.sqrt(low * high):.3g}")
        if sigma in accuracies:
            break
        accuracies[sigma] = accuracy(sigma)
        if abs(accuracies[sigma] - target) <= within:
            break
        low, high = (sigma, high) if accuracies[sigma] > target else (low, sigma)
    return min(accuracies, key=lambda sigma: (abs(accuracies[sigma] - target), sigma))
