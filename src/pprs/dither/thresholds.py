"""What a base classifier is shown of an input: on which side of its threshold each value lies."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, TypeGuard

import numpy as np
import numpy.typing as npt
import torch

from pprs._support import text as _text
from pprs.dither.scale import STEP, find_step, list_thresholds, measure_rounding, to_grey_levels, to_levels
from pprs.dither.templates import CHANNELS, SHARED, Levels, make_template, read_template
from pprs.errors import ConfigurationError, check_type
from pprs.inputs.domain import SIGNAL
from pprs.kernels import thresholds as kernels
from pprs.kernels.thresholds import GREY

MOST_LEVELS = 2**20
DIGITS = 16  # of the digest of a file
TAKES = (
    "This noise takes levels=1020 (the number of passes), template=r2, blue or random (which has a seed), "
    "channels=shared or own, low and high for signals, or a file with a template."
)


@dataclass(frozen=True)
class Dither:
    """Thresholds that hide the values of an input.

    Attributes:
        levels: The number of thresholds T, which is also the number of passes that a certificate takes. With more of
            them, less is shown at a time and larger changes can be certified, up to T / 2 levels in total.
        template: How thresholds are spread over an input: "r2", "blue" or "random".
        channels: "shared" if all channels of a pixel have one threshold, else "own".
        seed: The seed of a random template.
        low: The lowest threshold, for signals. Images have theirs at the grey levels.
        high: 255 steps above the lowest threshold, for signals. A value beyond is taken as this one.
        file: A file of numpy (.npy) with a template of your own: integers from 0 to levels - 1, [H, W] or [C, H, W].
        digest: The digest of that file. If given, it must be right.
    """

    name: ClassVar[str] = "dither"

    levels: int = 1020
    template: str = "r2"
    channels: str = SHARED
    seed: int = 0
    low: float | None = None
    high: float | None = None
    file: str | None = None
    digest: str | None = None

    def __post_init__(self) -> None:
        if isinstance(self.levels, bool) or not (isinstance(self.levels, int) and 1 <= self.levels <= MOST_LEVELS):
            raise ConfigurationError(
                f"`levels` must be an integer from 1 to {MOST_LEVELS}, not {self.levels!r}. A certificate takes as "
                "many passes.",
                parameter="levels",
            )
        if self.channels not in CHANNELS:
            raise ConfigurationError(
                f'`channels` must be "shared" or "own", not "{self.channels}"', parameter="channels"
            )
        if isinstance(self.seed, bool) or not (isinstance(self.seed, int) and self.seed >= 0):
            raise ConfigurationError(
                f"the seed of a template must be an integer of at least 0, not {self.seed!r}", parameter="noise"
            )
        if self.file is not None and self.template != Dither.template:
            raise ConfigurationError(
                f'the template is that of the file {self.file}, and "{self.template}" is another one: give one of them',
                parameter="template",
            )
        if (self.low is None) != (self.high is None):
            raise ConfigurationError(
                "`low` and `high` are the range of signals: give both, as in dither:low=-2,high=2", parameter="noise"
            )
        if self.low is not None and self.high is not None:
            list_thresholds(self.low, self.high)
        make_template(self.template, 1, (1, 1, 1), seed=self.seed)

    def __str__(self) -> str:
        return _text.to_text(self.name, self)

    def bind_file(self) -> Dither:
        """Return a copy with the digest of its file, so that it is used with no other."""
        if self.file is None:
            return self
        return replace(self, digest=self._read_file()[1])

    def thresholds(self, shape: tuple[int, ...]) -> Levels:
        """Return the thresholds for images [C, H, W] or signals [C, T] at offset 0.

        Raises:
            ConfigurationError: If they come from a file that is not the one it was, or has another shape.
        """
        if self.file is None:
            return make_template(self.template, self.levels, shape, channels=self.channels, seed=self.seed)
        return read_template(self._read_file()[0], self.file, self.levels, shape, channels=self.channels)

    def _read_file(self) -> tuple[bytes, str]:
        path = Path(str(self.file))
        try:
            content = path.read_bytes()
        except OSError as error:
            raise ConfigurationError(
                f"the template {path} cannot be read ({error.strerror}). Give the path of a .npy file.",
                parameter="noise",
            ) from error
        digest = hashlib.sha256(content).hexdigest()[:DIGITS]
        if self.digest not in (None, digest):
            raise ConfigurationError(
                f"the template {path} is not the one that these thresholds had: its content has changed. Restore it. A "
                "new one needs a name and a run of its own.",
                parameter="noise",
            )
        return content, digest

    def quantise(self, x: torch.Tensor) -> tuple[torch.Tensor, int]:
        """Return the levels of an input, int32, and by how many levels in total it was moved, rounded up.

        Raises:
            ConfigurationError: If it is a signal and there is no range, or an image and there is one.
        """
        self.check_domain(tuple(x.shape))
        return self.find_levels(x), 0 if self.low is not None else measure_rounding(x)

    def find_levels(self, x: torch.Tensor) -> torch.Tensor:
        """Return the levels of an input, or of several, int32."""
        return to_grey_levels(x) if self.low is None or self.high is None else to_levels(x, self.low, self.high)

    def check_domain(self, shape: tuple[int, ...]) -> None:
        """Raise an error unless inputs of this shape have levels."""
        is_signal = len(shape) == SIGNAL.ndim
        if is_signal and self.low is None:
            raise ConfigurationError(
                "values of signals have no bounds: say between which thresholds lie, such as dither:low=-2,high=2. "
                "Values beyond are taken as the nearest of these.",
                parameter="noise",
            )
        if not is_signal and self.low is not None:
            raise ConfigurationError(
                "`low` and `high` are the range of signals, and images have grey levels. Leave them out.",
                parameter="noise",
            )

    def restore(self, estimated: torch.Tensor) -> torch.Tensor:
        """Return estimates in [0, 1] on the scale of the inputs."""
        if self.low is None or self.high is None:
            return estimated
        first, step = find_step(self.low, self.high)
        return estimated * (GREY * step) + first

    @property
    def step(self) -> float:
        """The change of a value that passes one threshold."""
        return STEP if self.low is None or self.high is None else find_step(self.low, self.high)[1]

    @property
    def template_text(self) -> str:
        """The name of the template, or its file."""
        return self.template if self.file is None else self.file

    def offsets_per_pixel(self, num_channels: int) -> int:
        """Return at how many offsets at most a pixel is shown differently, however much it changes."""
        return min(GREY, self.levels) * (1 if self.channels == SHARED else num_channels)

    def order(self) -> npt.NDArray[np.int64]:
        """Return all offsets, each once, so that those of any stretch are spread evenly."""
        step = max(1, round(self.levels * 0.6180339887498949))
        while np.gcd(step, self.levels) != 1:
            step += 1
        return np.arange(self.levels, dtype=np.int64) * step % self.levels


def as_dither(value: Any) -> Dither:
    """Return the thresholds that an argument gives, as an object or as text."""
    if isinstance(value, str):
        return parse_dither(value)
    check_type(value, Dither, "noise", 'pprs.Dither(1020) or "dither:levels=1020"')
    return value  # type: ignore[no-any-return]


def parse_dither(text: str) -> Dither:
    """Return the thresholds that a text such as "dither:levels=1020" describes."""
    return _text.from_text(_text.encode_files(text), {Dither.name: Dither}, "noise")


def is_dither(noise: object) -> TypeGuard[str | Dither]:
    """Return whether a noise, or the text of one, is thresholds instead."""
    if isinstance(noise, str):
        return noise.strip().partition(":")[0] == Dither.name
    return isinstance(noise, Dither)


@dataclass(frozen=True, eq=False)
class ShownLevels:
    """What is shown of inputs at some offsets. A base classifier is a function of this and of nothing else.

    Attributes:
        lowest: The smallest levels [B, C, H, W] (or [B, C, T]) that the values can have, uint8.
        highest: The largest.
        levels: The number of thresholds.
        shared: Whether all channels of a pixel have the same thresholds.
    """

    lowest: torch.Tensor
    highest: torch.Tensor
    levels: int
    shared: bool = False

    @property
    def is_known(self) -> torch.Tensor:
        """Which values are known to be in less than the whole range."""
        return (self.lowest > 0) | (self.highest < GREY)


def show(
    values: torch.Tensor, thresholds: torch.Tensor, offsets: torch.Tensor, levels: int, *, shared: bool = False
) -> ShownLevels:
    """Return what is shown of an input at some offsets, or of several inputs at one offset each.

    At offset t, the thresholds of a value are s, s + T, s + 2T and so on, where s is (template + t) modulo T. Shown is
    between which of them the value lies, that is how many of them it exceeds.

    Args:
        values: The levels [C, H, W], integers from 0 to 255, or those of B inputs [B, C, H, W].
        thresholds: The template [C, H, W].
        offsets: The offsets [B].
        levels: The number of thresholds T.
        shared: Whether all channels have the same thresholds.

    >>> shown = show(torch.tensor([[[100, 200]]]), torch.tensor([[[150, 150]]]), torch.tensor([0, 20]), 255)
    >>> shown.lowest.flatten().tolist(), shown.highest.flatten().tolist()
    ([0, 151, 0, 171], [150, 255, 170, 255])
    """
    batch = values if values.ndim > thresholds.ndim else values[None]
    if batch.shape[1:] != thresholds.shape or len(batch) not in (1, len(offsets)):
        raise ValueError(f"levels {list(values.shape)}, template {list(thresholds.shape)}, {len(offsets)} offsets")
    if values.device.type != "cpu":
        return _show_on_device(batch, thresholds, offsets, levels, shared)
    which = np.arange(len(offsets)) if len(batch) > 1 else np.zeros(len(offsets), np.int64)
    shape = (len(offsets), *thresholds.shape)
    lowest, highest = np.empty(shape, np.uint8), np.empty(shape, np.uint8)
    kernels.show_levels(
        to_planes(_to_array(batch)), which, to_planes(_to_array(thresholds)[None])[0], offsets.long().numpy(), levels,
        to_planes(lowest), to_planes(highest),
    )  # fmt: skip
    return ShownLevels(torch.from_numpy(lowest), torch.from_numpy(highest), levels, shared)


def _to_array(levels: torch.Tensor) -> npt.NDArray[np.int32]:
    return np.ascontiguousarray(levels.int().numpy())


def to_planes(array: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Return signals [B, C, T] as images of one row [B, C, 1, T], and images as they are."""
    return array[:, :, None] if array.ndim == 3 else array


def _show_on_device(
    values: torch.Tensor, thresholds: torch.Tensor, offsets: torch.Tensor, levels: int, shared: bool
) -> ShownLevels:
    """Return the same by operations of torch."""
    values = values.long()
    first = (thresholds.long() + offsets.view(-1, *[1] * thresholds.ndim)) % levels
    exceeded = torch.div(values - first + levels - 1, levels, rounding_mode="floor").clamp_min(0)
    top = first + exceeded * levels
    lowest = torch.where(exceeded == 0, 0, top - levels + 1)
    return ShownLevels(lowest.to(torch.uint8), top.clamp_max(GREY).to(torch.uint8), levels, shared)
