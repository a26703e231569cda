"""Which rows of a run are drawn again: chosen at random when they are, so that nobody could prepare for the choice."""

from __future__ import annotations

import math
import secrets
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from pprs.errors import ConfigurationError, check_integer

SEED_BITS = 48  # short enough to be copied, and far too many values to prepare for
SHARES = (0.1, 0.5)  # of the rows, for which a forger's chance is stated


@dataclass(frozen=True)
class Replay:
    """The images whose rows are drawn again.

    Attributes:
        indices: Indices of the images, ascending. Some may be named by the caller, the others are chosen at random.
        random: How many of them were chosen at random.
        total: The number of images that have a row.
        seed: The seed that chooses them again. None if none was chosen at random.
        unit: "rows", or "images" if an image may have several, all of which are then drawn again.
    """

    indices: tuple[int, ...]
    random: int
    total: int
    seed: int | None
    unit: str = "rows"

    def __str__(self) -> str:
        rows = f"{len(self.indices)} of {self.total} {self.unit}"
        return rows if self.seed is None else f"{rows}, {self.random} of them chosen at random with `seed` {self.seed}"


def choose_rows(
    stored: Iterable[int], replay: int = 0, rows: Iterable[int] | None = None, seed: int | None = None
) -> Replay:
    """Choose which rows are drawn again: those of `rows`, and `replay` others at random.

    >>> str(choose_rows([0, 1, 2], 1, seed=7)), str(choose_rows([0, 0, 1, 1], rows=[1]))
    ('1 of 3 rows, 1 of them chosen at random with `seed` 7', '1 of 2 images')

    Args:
        stored: The index of the image of each row.
        replay: How many rows to choose at random.
        rows: Indices of images whose rows are drawn again in any case.
        seed: The seed of an earlier choice, to repeat it. By default nobody can know the choice in advance.

    Returns:
        The chosen rows, with the seed that chooses them again.

    Raises:
        ConfigurationError: If there is no row of an index in `rows`.
    """
    indices = list(stored)
    replay, known = check_integer(replay, "replay", 0), sorted(set(indices))
    unit = "rows" if len(known) == len(indices) else "images"
    named = sorted({check_integer(index, "rows", 0) for index in rows or ()})
    for index in named:
        if index not in known:
            raise ConfigurationError(f"the run has no row of image {index}", parameter="rows")
    others = [index for index in known if index not in named]
    count = min(replay, len(others))
    if seed is not None:
        seed = check_integer(seed, "seed", 0)
    if not count:
        return Replay(tuple(named), 0, len(known), None, unit)
    seed = secrets.randbits(SEED_BITS) if seed is None else seed
    drawn = np.random.default_rng(seed).choice(others, count, replace=False).tolist()
    return Replay(tuple(sorted({*named, *drawn})), count, len(known), seed, unit)


def chance_unnoticed(total: int, forged: int, replayed: int) -> float:
    """Return the probability that none of the forged rows is among those replayed: C(N - m, K) / C(N, K).

    >>> chance_unnoticed(200, 190, 10) < 1e-15, chance_unnoticed(200, 1, 10), chance_unnoticed(4, 3, 2)
    (True, 0.95, 0.0)
    """
    return math.comb(total - forged, replayed) / math.comb(total, replayed)


def describe_chance(total: int, replayed: int, unit: str = "rows") -> str:
    """State a forger's chances for a few numbers of forged rows.

    >>> describe_chance(200, 10)
    'a forger of 1, 20 or 100 of the 200 rows passes with probability 0.95, 0.34 or 0.00077'
    >>> describe_chance(4, 4)
    'a forger of 1 of the 4 rows passes with probability 0'
    """
    counts = [1] if replayed >= total else sorted({1, *(max(1, round(share * total)) for share in SHARES)})
    chances = [f"{chance_unnoticed(total, count, replayed):.2g}" for count in counts]
    return f"a forger of {_join(counts)} of the {total} {unit} passes with probability {_join(chances)}"


def _join(values: Sequence[object]) -> str:
    *most, last = map(str, values)
    return f"{', '.join(most)} or {last}" if most else last
