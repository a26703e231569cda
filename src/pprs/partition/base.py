"""Base classes of partitions.

A partition is a function of the *noisy* image only. This is the soundness argument of PPRS: partition, average and
classifier together form one base classifier of x + Z, so the theorem of plain randomized smoothing applies to them
unchanged.

A `Partition` replaces a noisy image, or a noisy signal, by a cleaner one (`apply`). `Superpixels` do so by dividing the
image into segments (`labels`) and replacing every pixel by the mean of its segment. A `Filter` has no segments.
`Seeded` partitions grow from a grid of seeds, which can be shifted.
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

from pprs._support import text as _text
from pprs._support.params import Parameters
from pprs._support.threads import parallel_for
from pprs.errors import ConfigurationError
from pprs.inputs.domain import IMAGE, Domain, domain_of
from pprs.kernels import average, torch_ops

Floats = npt.NDArray[np.float32]
Ints = npt.NDArray[np.int32]
Batch = TypeVar("Batch", torch.Tensor, npt.NDArray[Any])
Averaged = tuple[torch.Tensor, torch.Tensor | None]
Shift = tuple[float, float]  # down and to the right, in fractions of the seeds' spacing

AUTO = _text.AUTO  # the value of an option that follows the noise
BLOCK_PIXELS = 2**18  # approximate number of pixels that a thread holds labels for at a time


class Partition(Parameters, ABC):
    """Base class of the functions that denoise an image or a signal between the noise and the classifier.

    A partition averages a batch of noisy images [B, C, H, W], or of noisy signals [B, C, T], as its `domain` says. It
    is deterministic, and treats every image independently of the batch it is in. Subclasses are usually frozen
    dataclasses whose fields are the options. They derive from `Superpixels` or `Filter`, or implement `_run_cpu`.

    Attributes:
        name: Name in texts such as `slic:n_segments=100`.
        static: Whether images are averaged in the same way regardless of their content.
        keeps_constants: Whether constant images are unchanged, as by every mean of pixels.
        defaults: Values of the options that may be "auto", used where no noise is known.
    """

    name: ClassVar[str]
    static: ClassVar[bool] = False
    keeps_constants: ClassVar[bool] = True
    defaults: ClassVar[dict[str, Any]] = {}

    @final
    def apply(self, noisy: Batch) -> Batch:
        """Average noisy images over their segments.

        Args:
            noisy: Images [B, C, H, W] as a tensor or array of floats, with 1 or 3 channels and at least 8x8 pixels, or
                signals [B, C, T] with at least 8 values per channel, if this is a partition of signals.

        Returns:
            The averaged images, in the shape and type (tensor or array) of the noisy ones.

        Raises:
            PprsError: If the batch has the wrong shape or type, or has pixels that are not finite.
        """
        return _convert_like(noisy, self.run(self.domain.check_batch(noisy))[0])

    @final
    def labels(self, noisy: Batch) -> Batch:
        """Return the segment of each pixel.

        Args:
            noisy: Images [B, C, H, W] or signals [B, C, T], as for `apply`.

        Returns:
            int32 labels [B, H, W] or [B, T], numbered 0..k-1 without gaps in every image.

        Raises:
            PprsError: If the batch is invalid, or if this partition has no segments.
        """
        return _convert_like(noisy, self.with_defaults()._labels(self.domain.check_batch(noisy)))

    @final
    def run(self, noisy: torch.Tensor) -> Averaged:
        """Return averaged images and the number of segments in each, on the device of the input.

        The number is None for partitions without segments. The input is not validated, and must be float32
        [B, C, H, W] or [B, C, T].
        """
        resolved = self.with_defaults()
        return resolved._run_cpu(noisy.contiguous()) if noisy.device.type == "cpu" else resolved._run_device(noisy)

    def run_quantised(self, noisy: torch.Tensor, levels: int) -> Averaged:
        """Like `run`, for images whose values are multiples of 1 / levels."""
        return self.run(noisy)

    def resolve(self, sigma: float, shape: tuple[int, ...]) -> Self:
        """Return a copy in which every "auto" option has the value for noise of this sigma on inputs of this shape.

        Raises:
            ConfigurationError: If the shape is that of a signal and this partition averages images, or the reverse.
        """
        self._check_domain(shape)
        resolved = self._map_inner(lambda part: part.resolve(sigma, shape))
        if not resolved._auto_options():
            return resolved
        tuned = self._tune(sigma, shape)
        return resolved._replace({option: getattr(tuned, option) for option in resolved._auto_options()})

    def _check_domain(self, shape: tuple[int, ...]) -> None:
        domain = domain_of(shape)
        if domain is not self.domain:
            raise ConfigurationError(
                f"{self.name} averages {self.domain.plural} {self.domain.axes}, but the input has the shape "
                f"{tuple(shape)} of {domain.plural} {domain.axes}. Use a partition of {domain.plural}.",
                parameter="partition",
            )

    def _tune(self, sigma: float, shape: tuple[int, ...]) -> Self:
        """Return this partition with the options that suit noise of this sigma on inputs of this shape."""
        return self.for_noise(sigma, round(math.sqrt(shape[-2] * shape[-1])))

    def with_defaults(self) -> Self:
        """Return a copy in which every "auto" option has its value for unknown noise."""
        resolved = self._map_inner(lambda part: part.with_defaults())
        return resolved._replace({option: resolved.defaults[option] for option in resolved._auto_options()})

    def _auto_options(self) -> list[str]:
        """List the options that are "auto"."""
        if not dataclasses.is_dataclass(self):
            return []
        values = ((f.name, getattr(self, f.name)) for f in dataclasses.fields(self) if f.name != _text.FILE)
        names = [name for name, value in values if isinstance(value, str) and value == AUTO]
        for name in names:
            if name not in self.defaults:
                raise ConfigurationError(
                    f'the option {name} of {self.name} has no rule for "auto". Give it a number.', parameter="partition"
                )
        return names

    @property
    def inner(self) -> tuple[Partition, ...]:
        """The partitions that this one builds on or consists of."""
        of = getattr(self, _text.OF, None)
        return (of,) if isinstance(of, Partition) else ()

    @property
    def domain(self) -> Domain:
        """What this partition averages: images or signals."""
        return self.inner[0].domain if self.inner else IMAGE

    @property
    def files(self) -> tuple[str, ...]:
        """The files that this partition reads when it is resolved or run, and never before."""
        return tuple(file for part in self.inner for file in part.files)

    def bind_files(self) -> Self:
        """Return a copy that holds a digest of each file it reads, so that it runs with no other."""
        return self._map_inner(lambda part: part.bind_files())

    def with_file(self, file: str, digest: str) -> Self:
        """Return a copy that reads the file with this digest, if it reads one with that digest at all, from `file`."""
        return self._map_inner(lambda part: part.with_file(file, digest))

    def without_paths(self) -> Self:
        """Return a copy without the paths of files whose digests it holds, to compare with one read from elsewhere."""
        return self._map_inner(lambda part: part.without_paths())

    def _map_inner(self, change: Callable[[Partition], Partition]) -> Self:
        """Return a copy that builds on a changed partition, or self if it does not build on another one."""
        of = getattr(self, _text.OF, None)
        return self._replace({_text.OF: change(of)}) if isinstance(of, Partition) else self

    def _replace(self, options: dict[str, Any]) -> Self:
        return dataclasses.replace(cast(Any, self), **options) if options else self

    @classmethod
    def for_noise(cls, sigma: float, side: int = 224) -> Self:
        """Return this partition with the options that suit noise of this sigma on images of side x side pixels."""
        raise ConfigurationError(f"{cls.name} has no options that follow the noise", parameter="partition")

    @abstractmethod
    def _run_cpu(self, noisy: torch.Tensor) -> Averaged: ...

    def _run_device(self, noisy: torch.Tensor) -> Averaged:
        """Run on the device of the tensor. The default copies to the host and back."""
        averaged, segments = self._run_cpu(noisy.cpu().contiguous())
        return averaged.to(noisy.device), segments

    def _labels(self, noisy: torch.Tensor) -> torch.Tensor:
        raise ConfigurationError(f"{self} has no segments, so it has no labels. Use apply().", parameter="partition")

    def __str__(self) -> str:
        return _text.to_text(self.name, self)

    @property
    def short(self) -> str:
        """The text without options at their defaults, for tables and figures."""
        return _text.to_short_text(self.name, self)


class Filter(Partition):
    """A partition without segments that filters each image. Filters are the baselines that superpixels have to beat."""

    @abstractmethod
    def _filter(self, noisy: Floats, out: Floats) -> None:
        """Write the filtered images to out."""

    def _run_cpu(self, noisy: torch.Tensor) -> Averaged:
        images = noisy.numpy()
        filtered = np.empty_like(images)
        parallel_for(lambda first, stop: self._filter(images[first:stop], filtered[first:stop]), len(images))
        return torch.from_numpy(filtered), None


class Seeded(Partition):
    """A partition whose segments grow from a grid of seeds."""

    @abstractmethod
    def run_shifted(self, noisy: torch.Tensor, shifts: Sequence[Shift]) -> Averaged:
        """Average inputs in host memory with each of the shifted grids, and return the mean over the grids."""

    def run_shifted_device(self, noisy: torch.Tensor, shifts: Sequence[Shift]) -> Averaged:
        """Like `run_shifted`, on the device of the tensor. The default copies to the host and back."""
        averaged, segments = self.run_shifted(noisy.cpu().contiguous(), shifts)
        return averaged.to(noisy.device), segments

    def spread_shifts(self, k: int) -> list[Shift]:
        """Return k shifts that fill the unit square evenly: multiples of 1/g and 1/g^2 with g^3 = g + 1."""
        g = 1.324717957244746
        return [(i / g % 1, i / g**2 % 1) for i in range(k)]


class Clusters(Seeded):
    """A partition whose segments surround the centres of clusters, and which can therefore be made soft."""

    @abstractmethod
    def run_soft(self, noisy: torch.Tensor, shifts: Sequence[Shift], near: float, guide: float) -> Averaged:
        """Like `run_shifted`, with soft segments. `near` and `guide` are the options of `Soft`."""

    def run_soft_device(self, noisy: torch.Tensor, shifts: Sequence[Shift], near: float, guide: float) -> Averaged:
        """Like `run_soft`, on the device of the tensor. The default copies to the host and back."""
        averaged, segments = self.run_soft(noisy.cpu().contiguous(), shifts, near, guide)
        return averaged.to(noisy.device), segments

    @abstractmethod
    def tune_soft(self, sigma: float, shape: tuple[int, ...]) -> tuple[Self, float]:
        """Return the partition and the guide that suit noise of this sigma if segments are soft."""


class Superpixels(Partition):
    """A partition into segments, over which the noisy image is averaged.

    Most find the segments on a box blur of the noisy image. Without the blur, the noise and not the image would
    determine where segments lie.
    """

    @abstractmethod
    def _segment(self, noisy: Floats, labels: npt.NDArray[Any], segments: Ints) -> None:
        """Write labels [B, H*W] and the number of segments of each image."""

    def _label_type(self, area: int) -> npt.DTypeLike:
        """Return the type of labels of this many pixels in kernels. Users see 32-bit integers."""
        return np.int32

    def _block_size(self, batch: int) -> int:
        """Return how many images one thread should process together."""
        return 1

    def _run_cpu(self, noisy: torch.Tensor) -> Averaged:
        images = noisy.numpy()
        averaged, segments = np.empty_like(images), np.empty(len(images), np.int32)

        def task(first: int, stop: int) -> None:
            for span, labels in self._iter_blocks(first, stop, math.prod(images.shape[2:])):
                self._segment(images[span], labels, segments[span])
                self._average(images[span], labels, segments[span], averaged[span])

        parallel_for(task, len(images), self._block_size(len(images)))
        return torch.from_numpy(averaged), torch.from_numpy(segments)

    def _average(self, noisy: Floats, labels: npt.NDArray[Any], segments: Ints, out: Floats) -> None:
        """Write the means over the segments to out."""
        average.average_segments(noisy, labels, segments, out)

    def _iter_blocks(self, first: int, stop: int, area: int) -> Iterator[tuple[slice, npt.NDArray[Any]]]:
        """Yield slices of a few images, with memory for their labels."""
        block = min(stop - first, max(32, BLOCK_PIXELS // area))
        scratch = np.empty((block, area), self._label_type(area))
        for start in range(first, stop, block):
            span = slice(start, min(start + block, stop))
            yield span, scratch[: span.stop - start]

    def _segment_device(self, noisy: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return int64 labels [B, H*W] on the device of the tensor, and the number of segments of each image.

        The default copies to the host and back.
        """
        labels = self._labels_cpu(noisy.cpu()).flatten(1)
        return labels.to(noisy.device, torch.int64), labels.amax(1) + 1

    def _run_device(self, noisy: torch.Tensor) -> Averaged:
        averaged, segments = torch.empty_like(noisy), []
        for piece, out in zip(split_batch(noisy), split_batch(averaged), strict=True):
            labels, count = self._segment_device(piece)
            out.copy_(torch_ops.average_segments(piece, labels, int(count.max())))
            segments.append(count)
        return averaged, torch.cat(segments).to(torch.int32)

    def run_quantised(self, noisy: torch.Tensor, levels: int) -> Averaged:
        """Like `run`, for images whose values are multiples of 1 / levels.

        Means over fixed segments are computed from integer sums, so that they depend on nothing but these sums, and a
        certificate covers every change that preserves them.
        """
        if not self.static:
            return self.run(noisy)
        averaged, segments = self.run((noisy * levels).round_())
        return averaged.div_(levels), segments

    def _labels(self, noisy: torch.Tensor) -> torch.Tensor:
        if noisy.device.type == "cpu":
            return self._labels_cpu(noisy)
        pieces = [self._segment_device(piece)[0].to(torch.int32) for piece in split_batch(noisy)]
        return torch.cat(pieces).reshape(len(noisy), *noisy.shape[2:])

    def _labels_cpu(self, noisy: torch.Tensor) -> torch.Tensor:
        images = noisy.contiguous().numpy()
        batch, _, *sides = images.shape
        area = math.prod(sides)
        # Of the same type as for averaging, so that the kernel is compiled for one type only.
        labels, segments = np.empty((batch, area), self._label_type(area)), np.empty(batch, np.int32)

        def task(first: int, stop: int) -> None:
            self._segment(images[first:stop], labels[first:stop], segments[first:stop])

        parallel_for(task, batch, self._block_size(batch))
        return torch.from_numpy(labels.reshape(batch, *sides).astype(np.int32, copy=False))


def split_batch(batch: torch.Tensor) -> list[torch.Tensor]:
    """Split a batch, since the steps on a device take several times the memory of the images."""
    return list(batch.split(max(1, -(-len(batch) // 6))))


MAX_ITERATIONS = 100_000  # a run names its options, and may come from somebody else


def check_odd(value: Any, option: str) -> None:
    if value != AUTO and not (_is_integer(value) and 1 <= value < 256 and value % 2 == 1):
        raise option_error(f"{option} must be an odd integer below 256 (1 means no blur), not {value!r}")


def check_positive_integer(value: Any, option: str, most: int = 2**31 - 1) -> None:
    if value != AUTO and not (_is_integer(value) and 1 <= value <= most):
        at_most = f" and at most {most}" if _is_integer(value) and value > most else ""
        raise option_error(f"{option} must be an integer of at least 1{at_most}, not {value!r}")


def check_at_least(value: Any, least: float, option: str) -> None:
    if value != AUTO and not (_is_number(value) and least <= value < float("inf")):
        raise option_error(f"{option} must be at least {least}, not {value!r}")


def check_between(value: Any, least: float, most: float, option: str, why: str) -> None:
    if value != AUTO and not (_is_number(value) and least <= value <= most):
        raise option_error(f"{option} must lie between {least} and {most}, not {value!r}: {why}")


def check_positive(value: Any, option: str) -> None:
    if value != AUTO and not (_is_number(value) and 0 < value < float("inf")):
        raise option_error(f"{option} must be above 0, not {value!r}")


def check_sigma(sigma: Any) -> None:
    """Check the sigma that `for_noise` is called with."""
    if not (_is_number(sigma) and 0 < sigma < float("inf")):
        raise ConfigurationError(f"`sigma` must be above 0, not {sigma!r}", parameter="sigma")


def check_one_domain(parts: Sequence[Partition], what: str) -> None:
    """Check that all partitions that are combined average the same kind of input."""
    first = parts[0]
    for part in parts:
        if part.domain is not first.domain:
            raise option_error(
                f"{what} is of images or of signals, but {first} averages {first.domain.plural} and {part} averages "
                f"{part.domain.plural}"
            )


def option_error(message: str) -> ConfigurationError:
    return ConfigurationError(message, parameter="partition")


def clip_and_round(value: float, least: float, most: float) -> float:
    """Clip a tuned option to its range and round it to three digits, more than any tuning rule is accurate to."""
    return float(f"{min(max(value, least), most):.3g}")


def nearest_odd(value: float, least: int, most: int) -> int:
    """Return the nearest odd number in range. `least` and `most` must be odd."""
    return 2 * round((min(max(value, least), most) - 1) / 2) + 1


def _is_integer(value: object) -> bool:
    return isinstance(value, int | np.integer) and not isinstance(value, bool)


def _is_number(value: object) -> bool:
    return _is_integer(value) or isinstance(value, float | np.floating)


def _convert_like(batch: Batch, result: torch.Tensor) -> Batch:
    return result.to(batch.device) if isinstance(batch, torch.Tensor) else result.numpy()
