"""What a classifier classifies: images [C, H, W] or signals [C, T].

Smoothing needs vectors and nothing else. Noise, votes, bounds, runs and reports do not look at the shape of an input. A
`Domain` holds the little that depends on it: which shapes and values are valid, and what an input is called.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Iterable
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
import torch

from pprs.errors import ConfigurationError, PprsError, suggest

Shape = tuple[int, ...]
MIN_SIDE = 8  # pixels
MIN_LENGTH = 8  # values of a channel
_IMAGES = re.compile(r"(?<![\w/.`-])(?:([Aa])n )?([Ii])mage(s?)(?![\w/`-]|\.\w)")
MAX_ABS_VALUE = 1e5  # beyond this, distances in single precision are meaningless


class Domain(ABC):
    """A kind of input.

    Attributes:
        name: Its name in records, "image" or "signal".
        one: One of these inputs, in words.
        plural: Several of these inputs, in words.
        axes: The axes of one input, in words.
        ndim: The number of its axes.
        values: The values of an input, in words.
        remedy: What to do about values that are not floating point numbers.
    """

    name: ClassVar[str]
    one: ClassVar[str]
    plural: ClassVar[str]
    axes: ClassVar[str]
    ndim: ClassVar[int]
    values: ClassVar[str]
    remedy: ClassVar[str]

    @abstractmethod
    def check_shape(self, shape: Shape) -> None:
        """Raise an error unless inputs may have this shape, which has `ndim` axes."""

    @abstractmethod
    def check_range(self, low: float, high: float) -> None:
        """Raise an error unless a clean input may have values from `low` to `high`."""

    @abstractmethod
    def describe_shape(self, shape: Shape) -> str:
        """Describe an input of this shape in words."""

    def rename(self, text: str) -> str:
        """Call the inputs by their name in a text about images. Paths, options and code keep theirs.

        Code that knows the domain writes `name`, `one` and `plural` instead. Code that does not know it writes "image",
        and its text passes through here where it leaves: as a message of progress, as an error about an input, as what
        a verification found, or as what a command prints.

        >>> SIGNAL.rename("An image of 5 images. See images/x.csv, image.csv, `images` and --images.")
        'A signal of 5 signals. See images/x.csv, image.csv, `images` and --images.'
        """
        return text

    def check(self, x: torch.Tensor) -> None:
        """Raise an error unless a tensor is a valid clean input."""
        if x.ndim != self.ndim:
            shape = tuple(x.shape)
            raise PprsError(f"expected one {self.name} {self.axes}, got shape {shape}.{_hint(shape)}", noun="input")
        self.check_shape(tuple(x.shape))
        self.check_values(x)

    def check_values(self, x: torch.Tensor) -> None:
        """Raise an error unless a clean input is floating point, finite and in range."""
        if not x.is_floating_point():
            raise PprsError(f"the {self.name} must be floating point{self._in_range}, not {x.dtype}. {self.remedy}")
        if not x.numel():
            raise PprsError(
                f"the {self.name} is empty (shape {tuple(x.shape)}). Leave it out, or check how its file was written."
            )
        if not bool(x.isfinite().all()):
            raise PprsError(self._not_finite)
        self.check_range(float(x.min()), float(x.max()))

    def check_batch(self, noisy: torch.Tensor | npt.NDArray[Any]) -> torch.Tensor:
        """Return a batch of noisy inputs as a float32 tensor, after checking that they are valid."""
        try:
            tensor = torch.as_tensor(noisy if isinstance(noisy, torch.Tensor) else np.ascontiguousarray(noisy)).detach()
        except (TypeError, ValueError) as error:
            raise PprsError(
                f"{self.plural} must be a tensor or an array of floating point numbers ({error})"
            ) from error
        if tensor.ndim != self.ndim + 1:
            raise PprsError(
                f"expected a batch of {self.plural} [B, {self.axes[1:]}, got shape {tuple(tensor.shape)}. "
                f"For a single {self.name} {self.axes} pass x[None]."
            )
        self.check_shape(tuple(tensor.shape[1:]))
        if not tensor.is_floating_point():
            raise PprsError(f"{self.plural} must be floating point, not {tensor.dtype}. {self.remedy}")
        if not len(tensor):
            raise PprsError(f"the batch has no {self.plural}. Pass at least one.")
        tensor = tensor.to(torch.float32)
        # numpy where possible: torch would wake its OpenMP threads, which then spin and slow down the kernels.
        values = tensor.numpy() if tensor.device.type == "cpu" else tensor
        low, high = float(values.min()), float(values.max())
        if not (np.isfinite(low) and np.isfinite(high)):
            raise PprsError(self._not_finite)
        if max(-low, high) > MAX_ABS_VALUE:
            raise PprsError(self._too_large(low, high))
        return tensor

    @property
    def _in_range(self) -> str:
        return ""

    @property
    @abstractmethod
    def _not_finite(self) -> str: ...

    @abstractmethod
    def _too_large(self, low: float, high: float) -> str: ...


class ImageDomain(Domain):
    """Images [C, H, W] with 1 or 3 channels and values in [0, 1]."""

    name, one, plural, axes, ndim, values = "image", "an image", "images", "[C, H, W]", 3, "pixels"
    remedy = "Divide 0..255 images by 255."

    def check_shape(self, shape: Shape) -> None:
        channels, height, width = shape
        if channels not in (1, 3):
            raise PprsError(
                f"an image must have 1 or 3 channels, not {channels} (shape {tuple(shape)}). "
                "Channels come first: move the last axis to the front with x.permute(2, 0, 1)."
            )
        if min(height, width) < MIN_SIDE:
            raise PprsError(
                f"an image must be at least {MIN_SIDE}x{MIN_SIDE} pixels, not {height}x{width}. Enlarge it."
            )

    def check_range(self, low: float, high: float) -> None:
        if low < -1e-3 or high > 1 + 1e-3:
            scale = "Divide 0..255 images by 255." if high > 8 else "Do not normalise it: that belongs to the model."
            raise PprsError(f"the image's values range from {low:.3g} to {high:.3g}, but must lie in [0, 1]. {scale}")

    def describe_shape(self, shape: Shape) -> str:
        """Describe a shape [C, H, W] as width x height and kind.

        >>> IMAGE.describe_shape((3, 480, 640)), IMAGE.describe_shape((1, 28, 28))
        ('640x480 RGB', '28x28 grey')
        """
        channels, height, width = shape
        return f"{width}x{height} " + {1: "grey", 3: "RGB"}.get(channels, f"{channels}-channel")

    @property
    def _in_range(self) -> str:
        return " in [0, 1]"

    @property
    def _not_finite(self) -> str:
        return "the image has NaN or infinite pixels. Look for a division by zero in its preprocessing."

    def _too_large(self, low: float, high: float) -> str:
        return (
            f"the image's values range from {low:.3g} to {high:.3g}, but a noisy image lies around [0, 1]. Rescale it."
        )


class SignalDomain(Domain):
    """Signals [C, T], such as time series and audio, with any number of channels and values in any unit."""

    name, one, plural, axes, ndim, values = "signal", "a signal", "signals", "[C, T]", 2, "values"
    remedy = "Convert it with .float(). Divide 16-bit audio by 32768."

    def rename(self, text: str) -> str:
        def name(found: re.Match[str]) -> str:
            article = f"{found[1]} " if found[1] else ""
            return f"{article}{'S' if found[2] == 'I' else 's'}ignal{found[3]}"

        return _IMAGES.sub(name, text)

    def check_shape(self, shape: Shape) -> None:
        channels, length = shape
        if not channels:
            raise PprsError(f"a signal must have at least one channel (shape {tuple(shape)})")
        if length < MIN_LENGTH:
            raise PprsError(
                f"a signal must have at least {MIN_LENGTH} values per channel, not {length} (shape {tuple(shape)}). "
                "Time is the last axis, as in [C, T]. Pad or resample signals that are shorter."
            )

    def check_range(self, low: float, high: float) -> None:
        if max(-low, high) > MAX_ABS_VALUE:
            raise PprsError(self._too_large(low, high))

    def describe_shape(self, shape: Shape) -> str:
        """Describe a shape [C, T] as length and number of channels.

        >>> SIGNAL.describe_shape((1, 150)), SIGNAL.describe_shape((6, 100))
        ('150-sample', '6-channel 100-sample')
        """
        channels, length = shape
        return f"{length}-sample" if channels == 1 else f"{channels}-channel {length}-sample"

    @property
    def _not_finite(self) -> str:
        return "the signal has NaN or infinite values. Fill gaps before it is certified, or leave the signal out."

    def _too_large(self, low: float, high: float) -> str:
        return (
            f"the signal's values range from {low:.3g} to {high:.3g}, too large for single precision. "
            "Express it in a larger unit, or standardise it with constants of the training set."
        )


IMAGE, SIGNAL = ImageDomain(), SignalDomain()
DOMAINS: dict[str, Domain] = {domain.name: domain for domain in (IMAGE, SIGNAL)}


def domain_of(shape: Shape) -> Domain:
    """Return the domain of inputs of this shape: images have three axes and signals have two.

    >>> domain_of((1, 28, 28)).name, domain_of((1, 150)).name
    ('image', 'signal')
    """
    for domain in DOMAINS.values():
        if len(shape) == domain.ndim:
            return domain
    raise PprsError(
        f"expected one image [C, H, W] or one signal [C, T], got shape {tuple(shape)}.{_hint(shape)}", noun="input"
    )


def _hint(shape: Shape) -> str:
    """Say what may be missing or too much in the shape of one input, as a further sentence."""
    if len(shape) == IMAGE.ndim - 1 and min(shape) >= MIN_SIDE:
        return " Pass x[None] if this is a grey image without its channel axis."
    if len(shape) == SIGNAL.ndim - 1:
        return " Pass x[None] if this is a signal of one channel."
    return " Pass one input at a time, as in x[0]." if len(shape) > IMAGE.ndim else ""


def choose_domain(name: str | None, shape: Shape | None, known: Domain | None) -> Domain | None:
    """Return the domain with this name, or else that of a network's input shape, or else the one that is known.

    >>> choose_domain(None, (1, 150), None).name, choose_domain("image", None, None).name
    ('signal', 'image')

    Raises:
        ConfigurationError: If there is no such domain, or if two of these disagree.
    """
    if name is not None and name not in DOMAINS:
        raise ConfigurationError(f'unknown domain "{name}". {suggest(str(name), DOMAINS)}', parameter="domain")
    of_network = None if shape is None else domain_of(shape)
    found = [domain for domain in (DOMAINS[name] if name else None, of_network, known) if domain is not None]
    if any(domain is not found[0] for domain in found):
        sources = {"`domain`": DOMAINS.get(name or ""), "the model": of_network, "the partition": known}
        said = ", ".join(f"{source} says {domain.name}" for source, domain in sources.items() if domain is not None)
        raise ConfigurationError(f"it is not clear what is classified: {said}. Make them agree.", parameter="domain")
    return found[0] if found else None


def check_unambiguous(shape: Shape) -> None:
    """Raise an error for a shape that fits an image without its channel axis and a signal of many channels alike.

    >>> check_unambiguous((1, 150)), check_unambiguous((1, 28, 28))
    (None, None)
    """
    if len(shape) == SIGNAL.ndim and min(shape) >= MIN_SIDE:
        raise PprsError(
            f"the shape {tuple(shape)} may be that of a grey image without its channel axis, or of a signal of "
            f'{shape[0]} channels. Pass x[None] for the image, or create the classifier with `domain`="signal".',
            parameter="domain",
            noun="input",
        )


def domain_of_any(shapes: Iterable[Shape | None]) -> Domain:
    """Return the domain of inputs of which some have a known shape. Without any, they are images."""
    return next((domain_of(shape) for shape in shapes if shape is not None), IMAGE)
