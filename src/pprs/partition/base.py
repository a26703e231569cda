"""The contract of every partition.

A partition is a function of the *noisy* image alone. That is the whole soundness argument of PPRS: partition,
average and classifier together are one base classifier of x + Z, so the theorem of plain randomized smoothing
applies to them as it stands.

Three abstract roles. A `Partition` replaces a picture by a cleaner one (`apply`). `Superpixels` do it by cutting
the picture into segments (`labels`) and giving every pixel its segment's mean. What is `Seeded` begins with a grid of
seeds, which can be shifted.
"""

from __future__ import annotations

import dataclasses
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from typing import Any, ClassVar, Self, TypeVar, cast, final

import numpy as np
import numpy.typing as npt
import torch

from pprs import _text
from pprs._threads import spread
from pprs.errors import ConfigurationError, PprsError
from pprs.kernels import average, torch_ops

Floats = npt.NDArray[np.float32]
Ints = npt.NDArray[np.int32]
Batch = TypeVar("Batch", torch.Tensor, npt.NDArray[Any])
Averaged = tuple[torch.Tensor, torch.Tensor | None]
Shift = tuple[float, float]  # down and to the right, in parts of the seeds' spacing

AUTO = _text.AUTO  # an option that follows the noise
MIN_SIDE = 8
LARGEST = 1e5  # of a pixel: beyond it, distances in single precision mean nothing
BLOCK = 2**18  # pixels, about, that a thread holds labels for at a time


class Partition(ABC):
    """Averages noisy pictures [B, C, H, W]; each picture on its own, whatever the batch it comes in."""

    name: ClassVar[str]
    static: ClassVar[bool] = False  # the same segments for every picture
    defaults: ClassVar[dict[str, Any]] = {}  # what an option that is "auto" is where no noise is known

    @final
    def apply(self, noisy: Batch) -> Batch:
        """The averaged pictures, in the shape and kind (tensor or array) of the noisy ones."""
        return _like(noisy, self.run(check_batch(noisy))[0])

    @final
    def labels(self, noisy: Batch) -> Batch:
        """The segment of each pixel: int32 [B, H, W], numbered 0..k-1 without gaps in every picture."""
        return _like(noisy, self.with_defaults()._labels(check_batch(noisy)))

    @final
    def run(self, noisy: torch.Tensor) -> Averaged:
        """Averaged pictures and the number of segments in each (None where there are no segments), on their device.

        For callers that have checked their input: float32 [B, C, H, W].
        """
        fixed = self.with_defaults()
        return fixed._run_cpu(noisy.contiguous()) if noisy.device.type == "cpu" else fixed._run_device(noisy)

    def resolve(self, sigma: float, shape: tuple[int, ...]) -> Self:
        """The same, with every option that is "auto" as it suits noise of this sigma on pictures [C, H, W]."""
        made = self._of(lambda part: part.resolve(sigma, shape))
        if not made._open():
            return made
        suited = self.for_noise(sigma, round(math.sqrt(shape[-2] * shape[-1])))
        return made._with({option: getattr(suited, option) for option in made._open()})

    def with_defaults(self) -> Self:
        """The same, with every option that is "auto" as it is where no noise is known."""
        made = self._of(lambda part: part.with_defaults())
        return made._with({option: made.defaults[option] for option in made._open()})

    def _open(self) -> list[str]:
        """The options that are "auto"."""
        if not dataclasses.is_dataclass(self):
            return []
        values = ((f.name, getattr(self, f.name)) for f in dataclasses.fields(self))
        found = [name for name, value in values if isinstance(value, str) and value == AUTO]
        for name in found:
            if name not in self.defaults:
                raise ConfigurationError(
                    f'the option {name} of {self.name} has no rule for "auto". Give it a number.', parameter="partition"
                )
        return found

    def _of(self, change: Callable[[Partition], Partition]) -> Self:
        """The same, made of another that is changed so."""
        of = getattr(self, _text.OF, None)
        return self._with({_text.OF: change(of)}) if isinstance(of, Partition) else self

    def _with(self, options: dict[str, Any]) -> Self:
        return dataclasses.replace(cast(Any, self), **options) if options else self

    @classmethod
    def for_noise(cls, sigma: float, side: int = 224) -> Self:
        """The one that suits noise of this sigma on pictures of side x side pixels."""
        raise ConfigurationError(f"{cls.name} has no options that follow the noise", parameter="partition")

    @abstractmethod
    def _run_cpu(self, noisy: torch.Tensor) -> Averaged: ...

    def _run_device(self, noisy: torch.Tensor) -> Averaged:
        """On the tensor's own device; by way of the host for those that have no path of their own."""
        averaged, segments = self._run_cpu(noisy.cpu().contiguous())
        return averaged.to(noisy.device), segments

    def _labels(self, noisy: torch.Tensor) -> torch.Tensor:
        raise ConfigurationError(
            f"{self} has no segments, so it has no labels: it only averages. Use apply().", parameter="partition"
        )

    def __str__(self) -> str:
        return _text.to_text(self.name, self)

    @property
    def short(self) -> str:
        """For tables and figures: the text without the options that are at their default."""
        return _text.to_short_text(self.name, self)


class Filter(Partition):
    """No segments: a filter of each picture, the baseline that superpixels have to beat."""

    @abstractmethod
    def _filter(self, noisy: Floats, out: Floats) -> None:
        """Write the filtered pictures."""

    def _run_cpu(self, noisy: torch.Tensor) -> Averaged:
        pictures = noisy.numpy()
        filtered = np.empty_like(pictures)
        spread(lambda first, past: self._filter(pictures[first:past], filtered[first:past]), len(pictures))
        return torch.from_numpy(filtered), None


class Seeded(Partition):
    """Segments that grow from a grid of seeds."""

    @abstractmethod
    def shifted(self, noisy: torch.Tensor, shifts: Sequence[Shift]) -> Averaged:
        """The mean of what the grids shifted thus make of pictures in the host's memory, one after the other."""


class Superpixels(Partition):
    """Segments found on a box blur of the noisy picture; the unblurred noisy picture is averaged over them.

    Without that blur the noise, not the picture, decides where the segments lie.
    """

    @abstractmethod
    def _segment(self, noisy: Floats, labels: npt.NDArray[Any], segments: Ints) -> None:
        """Write the labels [B, H*W], and how many segments each picture has."""

    def _label_type(self, height: int, width: int) -> npt.DTypeLike:
        """The type of labels while they are only passed on to the mean."""
        return np.int32

    def _abreast(self, batch: int) -> int:
        """How many pictures are best left to one thread together."""
        return 1

    def _run_cpu(self, noisy: torch.Tensor) -> Averaged:
        pictures = noisy.numpy()
        averaged, segments = np.empty_like(pictures), np.empty(len(pictures), np.int32)

        def task(first: int, past: int) -> None:
            for here, labels in self._blocks(first, past, *pictures.shape[2:]):
                self._segment(pictures[here], labels, segments[here])
                average.segment_mean(pictures[here], labels, segments[here], averaged[here])

        spread(task, len(pictures), self._abreast(len(pictures)))
        return torch.from_numpy(averaged), torch.from_numpy(segments)

    def _blocks(self, first: int, past: int, height: int, width: int) -> Iterator[tuple[slice, npt.NDArray[Any]]]:
        """A few pictures at a time, and memory for their labels."""
        block = min(past - first, max(32, BLOCK // (height * width)))
        scratch = np.empty((block, height * width), self._label_type(height, width))
        for start in range(first, past, block):
            here = slice(start, min(start + block, past))
            yield here, scratch[: here.stop - start]

    def _segment_device(self, noisy: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Labels int64 [B, H*W] on the tensor's own device, and how many segments each picture has.

        By way of the host for those that have no path of their own.
        """
        labels = self._labels_cpu(noisy.cpu()).flatten(1)
        return labels.to(noisy.device, torch.int64), labels.amax(1) + 1

    def _run_device(self, noisy: torch.Tensor) -> Averaged:
        averaged, segments = torch.empty_like(noisy), []
        for piece, out in zip(_pieces(noisy), _pieces(averaged), strict=True):
            labels, count = self._segment_device(piece)
            out.copy_(torch_ops.segment_mean(piece, labels, int(count.max())))
            segments.append(count)
        return averaged, torch.cat(segments).to(torch.int32)

    def _labels(self, noisy: torch.Tensor) -> torch.Tensor:
        if noisy.device.type == "cpu":
            return self._labels_cpu(noisy)
        made = [self._segment_device(piece)[0].to(torch.int32) for piece in _pieces(noisy)]
        return torch.cat(made).reshape(len(noisy), *noisy.shape[2:])

    def _labels_cpu(self, noisy: torch.Tensor) -> torch.Tensor:
        pictures = noisy.contiguous().numpy()
        batch, _, height, width = pictures.shape
        labels, segments = np.empty((batch, height * width), np.int32), np.empty(batch, np.int32)

        def task(first: int, past: int) -> None:
            self._segment(pictures[first:past], labels[first:past], segments[first:past])

        spread(task, batch, self._abreast(batch))
        return torch.from_numpy(labels.reshape(batch, height, width))


def _pieces(batch: torch.Tensor) -> list[torch.Tensor]:
    """A few parts of a batch, one after the other: the steps on a device take several times the memory of a picture."""
    return list(batch.split(max(1, -(-len(batch) // 6))))


def check_batch(noisy: torch.Tensor | npt.NDArray[Any]) -> torch.Tensor:
    """Noisy pictures as a checked float32 tensor; raises where the input cannot be meant."""
    try:
        tensor = noisy.detach() if isinstance(noisy, torch.Tensor) else torch.from_numpy(np.ascontiguousarray(noisy))
    except (TypeError, ValueError) as error:
        raise PprsError(f"pictures must be a tensor or an array of floating point numbers ({error})") from error
    if tensor.ndim != 4:
        raise PprsError(
            f"expected a batch of pictures [B, C, H, W], got shape {tuple(tensor.shape)}. "
            "For one picture [C, H, W] pass x[None]."
        )
    check_image_shape(tuple(tensor.shape[1:]))
    if not tensor.is_floating_point():
        raise PprsError(f"pictures must be floating point, not {tensor.dtype}. Divide 0..255 pictures by 255.")
    if not len(tensor):
        raise PprsError("the batch has no pictures")
    tensor = tensor.to(torch.float32)
    # By numpy where that can be: torch would wake its OpenMP threads, which spin for a while beside the kernels.
    values = tensor.numpy() if tensor.device.type == "cpu" else tensor
    low, high = float(values.min()), float(values.max())
    if not (np.isfinite(low) and np.isfinite(high)):
        raise PprsError("the picture has NaN or infinite pixels. Look for a division by zero in its preparation.")
    if max(-low, high) > LARGEST:
        raise PprsError(f"the picture's values run from {low:.3g} to {high:.3g}: a noisy picture lies around [0, 1].")
    return tensor


def check_image_shape(shape: tuple[int, ...]) -> None:
    """One or three channels, at least 8x8 pixels."""
    channels, height, width = shape
    if channels not in (1, 3):
        raise PprsError(
            f"a picture must have 1 or 3 channels, not {channels} (shape {tuple(shape)}). "
            "Channels come first: move the last axis to the front with x.permute(2, 0, 1)."
        )
    if min(height, width) < MIN_SIDE:
        raise PprsError(f"a picture must be at least {MIN_SIDE}x{MIN_SIDE} pixels, not {height}x{width}. Enlarge it.")


def check_values(x: torch.Tensor) -> None:
    """A picture before the noise: floating point in [0, 1]."""
    if not x.is_floating_point():
        raise PprsError(f"the picture must be floating point in [0, 1], not {x.dtype}. Divide 0..255 by 255.")
    if not bool(x.isfinite().all()):
        raise PprsError("the picture has NaN or infinite pixels. Look for a division by zero in its preparation.")
    low, high = float(x.min()), float(x.max())
    if low < -1e-3 or high > 1 + 1e-3:
        scale = "Divide 0..255 pictures by 255." if high > 8 else "Do not normalise it: that belongs to the model."
        raise PprsError(f"the picture's values run from {low:.3g} to {high:.3g}, but must lie in [0, 1]. {scale}")


def check_odd(value: Any, option: str) -> None:
    if value != AUTO and not (_whole(value) and 1 <= value < 256 and value % 2 == 1):
        raise wrong_option(f"{option} must be an odd whole number below 256 (1 means no blur), not {value!r}")


def check_whole(value: Any, option: str) -> None:
    if value != AUTO and not (_whole(value) and 1 <= value < 2**31):
        raise wrong_option(f"{option} must be a whole number of at least 1, not {value!r}")


def check_at_least(value: Any, least: float, option: str) -> None:
    if value != AUTO and not (_number(value) and least <= value < float("inf")):
        raise wrong_option(f"{option} must be at least {least}, not {value!r}")


def check_between(value: Any, least: float, most: float, option: str, why: str) -> None:
    if value != AUTO and not (_number(value) and least <= value <= most):
        raise wrong_option(f"{option} must lie between {least} and {most}, not {value!r}: {why}")


def check_positive(value: Any, option: str) -> None:
    if value != AUTO and not (_number(value) and 0 < value < float("inf")):
        raise wrong_option(f"{option} must be above 0, not {value!r}")


def check_sigma(sigma: Any) -> None:
    """For rules: the noise's sigma."""
    if not (_number(sigma) and 0 < sigma < float("inf")):
        raise ConfigurationError(f"`sigma` must be above 0, not {sigma!r}", parameter="sigma")


def wrong_option(message: str) -> ConfigurationError:
    return ConfigurationError(message, parameter="partition")


def rounded(value: float, least: float, most: float) -> float:
    """For rules: a number in range, to three digits, which is more than any rule knows."""
    return float(f"{min(max(value, least), most):.3g}")


def rounded_odd(value: float, least: int, most: int) -> int:
    """For rules: the nearest odd number in range; `least` and `most` are odd."""
    return 2 * round((min(max(value, least), most) - 1) / 2) + 1


def _whole(value: object) -> bool:
    return isinstance(value, int | np.integer) and not isinstance(value, bool)


def _number(value: object) -> bool:
    return _whole(value) or isinstance(value, float | np.floating)


def _like(given: Batch, made: torch.Tensor) -> Batch:
    return made.to(given.device) if isinstance(given, torch.Tensor) else made.numpy()
