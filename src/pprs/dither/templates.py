"""Templates: which threshold each value of an image or signal gets at offset 0.

Every template gives certificates. With thresholds that are spread evenly in every neighbourhood, a mean over a few
values is known far better, as in the halftones of a printed image: the error of a mean over S values falls like 1/S,
and with random thresholds like 1/sqrt(S).
"""

from __future__ import annotations

import functools
import io
from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from pprs.data.arrays import check_claim
from pprs.dither.blue_noise import FILE
from pprs.errors import ConfigurationError, suggest
from pprs.inputs.domain import IMAGE
from pprs.noise import host_rng

Levels = npt.NDArray[np.int32]
SHARED, OWN, BLUE = "shared", "own", "blue"
CHANNELS = (SHARED, OWN)

# The inverses of the plastic number and of its square, the least resonant pair of steps in the plane, and the inverse
# of the golden ratio for a line, as fractions of 2^64: with integers the template is the same on every machine.
STEP_ROW, STEP_COLUMN = 0xC13FA9A902A6328F, 0x91E10DA5C79E7B1C
STEP_LINE = 0x9E3779B97F4A7C15


def make_template(name: str, levels: int, shape: tuple[int, ...], *, channels: str = SHARED, seed: int = 0) -> Levels:
    """Return the thresholds of an image [C, H, W] or a signal [C, T] at offset 0, each from 0 to levels - 1.

    Args:
        name: "r2" spreads thresholds evenly by steps of the plastic number, "blue" as void-and-cluster does, without
            the regular pattern, and "random" draws each by itself. Signals have no "blue".
        levels: The number of different thresholds.
        shape: The shape of the image or signal.
        channels: Whether all channels of a pixel have the same threshold ("shared") or each its own ("own").
        seed: The seed of a random template.

    Raises:
        ConfigurationError: If there is no template of this name.

    >>> make_template("r2", 8, (1, 2, 4)).tolist()
    [[[0, 4, 1, 5], [6, 2, 7, 3]]]
    """
    if name not in TEMPLATES:
        raise ConfigurationError(
            f'there is no template "{name}". {suggest(name, tuple(TEMPLATES))}', parameter="template"
        )
    count = 1 if channels == SHARED else shape[0]
    template = TEMPLATES[name](levels, (count, *shape[1:]), seed)
    return np.array(np.broadcast_to(template, shape), np.int32)


def read_template(content: bytes, name: str, levels: int, shape: tuple[int, ...], *, channels: str = SHARED) -> Levels:
    """Return the thresholds that a file of numpy holds, for inputs of this shape.

    Raises:
        ConfigurationError: If it does not hold integers from 0 to levels - 1, or has another shape.
    """
    file = io.BytesIO(content)
    try:
        check_claim(file, name, len(content))  # before memory for it is allocated
        file.seek(0)
        template = np.load(file, allow_pickle=False)
    except (ValueError, OSError, EOFError, SyntaxError) as error:
        raise ConfigurationError(
            f"the template {name} is not a .npy file of numbers. Write it with numpy.save.", parameter="noise"
        ) from error
    if not np.issubdtype(template.dtype, np.integer) or not template.size:
        raise ConfigurationError(
            f"the template {name} must hold integers, not {template.dtype} of shape {template.shape}", parameter="noise"
        )
    if template.min() < 0 or template.max() >= levels:
        raise ConfigurationError(
            f"the template {name} has values from {template.min()} to {template.max()}, and with {levels} levels they "
            f"lie from 0 to {levels - 1}. Give the `levels` that it was made for.",
            parameter="noise",
        )
    expected = shape[1:] if channels == SHARED else shape
    if template.shape != expected:
        raise ConfigurationError(
            f"the template {name} has the shape {list(template.shape)}, and for inputs {list(shape)} with {channels} "
            f"channels it must be {list(expected)}",
            parameter="noise",
        )
    return np.array(np.broadcast_to(template, shape), np.int32)


def _make_random(levels: int, shape: tuple[int, ...], seed: int) -> Levels:
    return host_rng(seed).integers(levels, size=shape, dtype=np.int32)


def _make_r2(levels: int, shape: tuple[int, ...], seed: int) -> Levels:
    """Spread thresholds evenly over lines and planes. Channels of their own are shifted against each other."""
    count, *size = shape
    steps = (STEP_ROW, STEP_COLUMN) if len(size) == 2 else (STEP_LINE,)
    phase = np.zeros(size, np.uint64)
    for axis, step in enumerate(steps):
        along = np.arange(size[axis], dtype=np.uint64) * np.uint64(step)
        phase = phase + along.reshape([-1 if i == axis else 1 for i in range(len(size))])
    shifts = (np.arange(count, dtype=np.uint64) * np.uint64((2**64 - 1) // count)).reshape(-1, *[1] * len(size))
    parts = (shifts + phase) >> np.uint64(44)  # 20 bits, which times 2^20 levels fit in 64
    return np.asarray((parts * np.uint64(levels)) >> np.uint64(20), np.int32)


def _make_blue(levels: int, shape: tuple[int, ...], seed: int) -> Levels:
    """Repeat the tile of blue noise. Channels of their own are shifted against each other."""
    if len(shape) != IMAGE.ndim:
        raise ConfigurationError('there is no blue noise for signals. Use the template "r2".', parameter="template")
    ranks = _read_ranks()
    side, (count, height, width) = len(ranks), shape
    tiles = [
        np.roll(ranks, channel * side // count, (0, 1))[np.arange(height)[:, None] % side, np.arange(width) % side]
        for channel in range(count)
    ]
    return np.asarray(np.stack(tiles) * levels // ranks.size, np.int32)


def list_names(shape: tuple[int, ...]) -> list[str]:
    """Return the names of the templates that there are for inputs of this shape."""
    return [name for name in TEMPLATES if name != BLUE or len(shape) == IMAGE.ndim]


@functools.cache
def _read_ranks() -> npt.NDArray[np.int64]:
    ranks: npt.NDArray[np.int64] = np.load(FILE).astype(np.int64)
    return ranks


TEMPLATES: dict[str, Callable[[int, tuple[int, ...], int], Levels]] = {
    "random": _make_random,
    "r2": _make_r2,
    BLUE: _make_blue,
}
