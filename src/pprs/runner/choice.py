"""Which images, and in what order."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from pprs.bound import interval
from pprs.errors import PprsError
from pprs.record import Row


def choose(total: int, *, start: int = 0, stride: int = 1, limit: int | None = None) -> Sequence[int]:
    """The images to certify: every stride-th from start on, at most limit of them.

    >>> list(choose(10, start=1, stride=3, limit=2))
    [1, 4]
    """
    if start < 0 or stride < 1 or (limit is not None and limit < 1):
        raise PprsError(f"need start >= 0, stride >= 1 and limit >= 1, not {start}, {stride} and {limit}")
    if start >= total:
        raise PprsError(f"--start {start} is past the data's last image, {total - 1}")
    return range(start, total, stride)[: limit if limit is not None else total]


def fair_order(images: Sequence[int], seed: int) -> list[int]:
    """The images shuffled, so that the first of them are a fair sample of all, however the data is sorted."""
    return [int(i) for i in np.random.default_rng([seed, 0x0DE5]).permutation(np.asarray(images))]


def accuracy_error(rows: Iterable[Row], radii: Sequence[float] | None, *, failed: int = 0) -> float:
    """Half the width of the widest interval on the curve of certified accuracy, or at these radii of it.

    Who takes images until the interval is narrow, stops a little more often when it errs. An interval of 97% then still
    covers the truth 95% of the time. `failed`: images without a row, which count as not certified.
    """
    rows = list(rows)
    images = len(rows) + failed
    if not images:
        return 0.5
    labelled = any(row.label is not None for row in rows)
    held = [row.radius for row in rows if row.prediction is not None and (row.correct or not labelled)]
    # The interval is widest for the share nearest to one half; a whole curve passes through all below its first.
    hits = [sum(r >= radius for r in held) for radius in radii] if radii else [min(len(held), images // 2)]
    low, high = interval(np.array(hits), images, 0.97)
    return float(np.max(high - low)) / 2
