"""The sampling loop of randomized smoothing: add noise, partition, classify, count.

Every step after the noise receives the noisy batch and never the clean image. A partition of any kind is therefore
part of the base classifier, and the certificate holds by construction.

Noise is drawn in chunks of fixed size, keyed by (seed, image index, phase, chunk). Vote counts therefore do not depend
on the batch size, the number of threads, the point at which an interrupted run resumed, or the other images of the
run, and selection and estimation never share a noisy sample.
"""

from __future__ import annotations

import contextlib
import copy
import itertools
import math
import time
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol, TypeVar

import numpy as np
import torch

from pprs._support import threads as _threads
from pprs.errors import ConfigurationError, PprsError
from pprs.inputs.domain import domain_of
from pprs.model.scores import HALF_ROUNDING, HALF_TOLERANCE, TOLERANCE, near_ties, spread
from pprs.noise import (
    Noise,
    QuantisedImage,
    host_rng,
    keyed_rng,
    quantised_gaussian,
)
from pprs.partition import Partition
from pprs.smoothing.arithmetic import Arithmetic
from pprs.smoothing.certificate import Counts

# Each phase has its own noise. TRIAL is for decisions that are made before a run, such as the choice of engine: if
# these used the noise of the estimate, the classifier would depend on it and the guarantee would be lost. ATTACK is for
# the search for a change that alters a label, and AUDIT for the test whether it does. ADAPT is for the adaptation of a
# classifier to its noise.
SELECT, ESTIMATE, PREDICT, TRAIN, TRIAL, TUNE, ATTACK, AUDIT, ADAPT = range(9)
# CALIBRATE is for the images that label sets are calibrated with, and SETS for the images that are given a set.
CALIBRATE, SETS = 16, 17

# The floating-point scores of an image change slightly with the batch it is in. If the difference of the two best
# scores is smaller than this share of their spread, the image is scored again in a batch of one, so that its vote
# depends on nothing but the image.
NEAR_TIE = 1e-4
TIES_PER_DIFFERENCE = 4  # both scores of a margin may change, each way

TRIAL_SIZE = 8  # noisy images that are scored before a run

BaseClassifier = Callable[[torch.Tensor], torch.Tensor]
OnSamples = Callable[[int], None]
P = TypeVar("P")
T = TypeVar("T")


@dataclass(frozen=True)
class Votes:
    """Vote counts by class for some noisy samples, and the sum of those samples' segment counts."""

    counts: Counts
    segments: int | None  # None if the partition has no segments

    @staticmethod
    def none(num_classes: int) -> Votes:
        return Votes(np.zeros(num_classes, np.int64), None)

    def __add__(self, other: Votes) -> Votes:
        segments = None if other.segments is None else (self.segments or 0) + other.segments
        return Votes(self.counts + other.counts, segments)


class VoteSource(Protocol):
    """Counts a base classifier's votes on noisy samples of an image, in this process or in workers."""

    @property
    def num_classes(self) -> int: ...

    @property
    def noise(self) -> Noise: ...

    @property
    def partition(self) -> Partition | None: ...

    @property
    def device(self) -> torch.device: ...

    def quantise(self, x: torch.Tensor) -> torch.Tensor | QuantisedImage:
        """Return an image in the form in which noise is added: as integers in exact arithmetic, else unchanged."""

    def resolve(self, shape: tuple[int, ...]) -> Partition | None:
        """Return the partition for images of this shape [C, H, W], with every "auto" option set for the noise."""

    def votes(
        self,
        x: torch.Tensor | QuantisedImage,
        samples: range,
        index: int,
        phase: int,
        *,
        eager: bool = True,
        more: Callable[[], bool] = lambda: True,
    ) -> Generator[Votes]:
        """Yield the votes of a range of samples, one chunk at a time.

        Args:
            x: An image, as returned by `check_image` and then `quantise`.
            samples: The range of sample numbers. It must start at the beginning of a chunk.
            index: The index of the image, which keys its noise.
            phase: The phase of the noise, such as `ESTIMATE`.
            eager: Work well ahead of the consumer. If false, work ahead only as far as needed to keep all threads busy.
            more: Returns whether to start on further samples. Samples already started are yielded in any case.
        """


def count_votes(
    source: VoteSource,
    x: torch.Tensor | QuantisedImage,
    n: int,
    index: int,
    phase: int,
    on_samples: OnSamples | None = None,
) -> Votes:
    """Return the total votes of samples 0 to n - 1 of a phase."""
    votes = Votes.none(source.num_classes)
    for part in source.votes(x, range(n), index, phase):
        votes += part
        if on_samples is not None:
            on_samples(int(part.counts.sum()))
    check_count(votes, n)
    return votes


def check_count(votes: Votes, n: int) -> None:
    """Raise an error unless there is one vote per sample."""
    if votes.counts.sum() != n:
        raise PprsError(f"{int(votes.counts.sum())} votes were counted for {n} samples: the model is not consistent")


def check_image(x: torch.Tensor, device: torch.device | str = "cpu") -> torch.Tensor:
    """Validate an image [C, H, W] or a signal [C, T], and return it as float32 on the device."""
    x = torch.as_tensor(x)
    domain_of(tuple(x.shape)).check(x)
    return x.to(device=device, dtype=torch.float32)


@contextlib.contextmanager
def error_context(x: torch.Tensor, index: int, partition: Partition | None) -> Iterator[None]:
    """Add the image's index and shape and the partition to errors that do not name an image yet."""
    try:
        yield
    except ConfigurationError:
        raise
    except PprsError as error:
        if error.index is not None:
            raise
        context = f"shape {tuple(getattr(x, 'shape', ()))}, partition {partition or 'none'}"
        raise PprsError(f"{context}: {error.message}", parameter=error.parameter, index=index) from error


def chunk_size(dim: int) -> int:
    """Return the number of samples per chunk for images of `dim` values. Large images get smaller chunks."""
    return max(1, min(64 if dim <= 2**16 else 32, 2**24 // dim))


def noisy_chunk(
    x: torch.Tensor | QuantisedImage,
    noise: Noise,
    seed: int,
    index: int,
    phase: int = ESTIMATE,
    chunk: int = 0,
    out: torch.Tensor | None = None,
    batch: int | None = None,
) -> torch.Tensor:
    """Return a chunk of noisy samples of a prepared image, exactly those that its certificate is based on.

    With `batch`, return that many samples instead. They are not the first samples of the chunk.
    """
    key, batch = (seed, index, phase, chunk), batch or chunk_size(x.numel())
    if isinstance(x, QuantisedImage):
        return quantised_gaussian(noise.sigma, x.levels).sample(x, batch, host_rng(*key), out)
    return noise.sample((batch, *x.shape), keyed_rng(x.device, *key), out).add_(x)


def trial_inputs(
    x: torch.Tensor | QuantisedImage, noise: Noise, partition: Partition | None, seed: int, index: int = 0
) -> torch.Tensor:
    """Return a few partitioned noisy samples of a prepared image, with noise used for nothing else."""
    noisy = noisy_chunk(x, noise, seed, index, TRIAL)[:TRIAL_SIZE]
    return noisy if partition is None else partition.resolve(noise.sigma, tuple(x.shape)).run(noisy)[0]


class BatchCheck(Protocol):
    """Checks a base classifier on batches that it scores for votes, and when they are counted."""

    def begin(self, votes: Scorer) -> None:
        """Prepare for a certificate, whose first batches are checked if the classifier was changed since the last."""

    def confirm(self, votes: Scorer) -> None:
        """Raise an error if the classifier has changed since it was checked."""

    def accept(self, votes: Scorer, image: torch.Tensor) -> None:
        """Take the classifier as checked, and remember its scores of an image [1, C, H, W]."""

    def score(self, votes: Scorer, images: torch.Tensor, *, last: bool = False) -> torch.Tensor:
        """Return the scores of a batch. Raise an error if they depend on more than the images."""


class Scorer:
    """A base classifier whose scores are checked. Its device and batch size are fixed.

    Attributes:
        near_tie: The share of the spread of the scores below which the difference of the two best is a near tie.
        batch_check: Checks batches that are scored for votes. None if nothing does.
    """

    least_near_tie: ClassVar[float] = NEAR_TIE

    def __init__(
        self,
        model: BaseClassifier,
        num_classes: int,
        *,
        batch_size: int | None = None,
        threads: int | None = None,
        device: str | torch.device = "cpu",
    ) -> None:
        if not (isinstance(num_classes, int) and num_classes >= 2):
            raise PprsError(
                f"num_classes must be an integer of at least 2, not {num_classes!r}", parameter="num_classes"
            )
        for name, value in (("batch_size", batch_size), ("threads", threads)):
            if value is not None and value < 1:
                raise PprsError(f"`{name}` must be at least 1, not {value}", parameter=name)
        if isinstance(model, torch.nn.Module):
            model.eval().to(device)
        self.model, self.num_classes = model, num_classes
        self.batch_size, self.threads, self.device = batch_size, threads, torch.device(device)
        self.rounding, self.near_tie = _find_rounding(model), self.least_near_tie
        self.batch_check: BatchCheck | None = None

    def images_per_batch(self, x: torch.Tensor | QuantisedImage) -> int:
        """Return the number of images of this size per call of the base classifier."""
        return self.batch_size or self.usual_batch(x)

    def usual_batch(self, x: torch.Tensor | QuantisedImage) -> int:
        """Return the number of images of this size per call if no batch size is given."""
        # Small on a CPU: layers are slow if their outputs do not fit in the caches and need newly allocated memory.
        max_images, max_values = (64, 2**20) if self.device.type == "cpu" else (512, 2**25)
        return max(1, min(max_images, max_values // x.numel()))

    @property
    def score_tolerance(self) -> float:
        """The share of their spread by which the scores of the same network may differ on another processor."""
        return HALF_TOLERANCE if self.rounding else TOLERANCE

    def scores(self, images: torch.Tensor) -> torch.Tensor:
        """Return the base classifier's scores [B, num_classes] as float32."""
        try:
            # A copy, because some models normalise in place, and a near tie is scored a second time.
            # A single image is always copied: its alignment in memory can change the last digit.
            preserves_input = getattr(self.model, "preserves_input", False) and len(images) > 1
            scores: Any = self.model(images if preserves_input else images.clone())
        except Exception as error:  # a user's model may raise anything
            if isinstance(error, MemoryError):
                raise
            if isinstance(error, torch.OutOfMemoryError) or "can't allocate memory" in str(error):
                raise MemoryError(str(error).splitlines()[0]) from error
            reason = str(error).splitlines()[0] if str(error) else type(error).__name__
            raise PprsError(
                f"the model failed on a batch of shape {tuple(images.shape)}: {reason}. The usual cause is an image "
                "whose size or number of channels does not match the model's input."
            ) from error
        self._check_output(scores, len(images))
        return scores.float()  # type: ignore[no-any-return]

    def vote_scores(self, images: torch.Tensor, *, last: bool = False) -> torch.Tensor:
        """Return the scores of a batch whose votes are counted. `last` says that it is the last one of a series."""
        return self.scores(images) if self.batch_check is None else self.batch_check.score(self, images, last=last)

    def find_labels(self, images: torch.Tensor) -> torch.Tensor:
        """Return the label of each image [B], or -1 where the two best scores are a near tie, which rounding decides.

        Raises:
            PprsError: If the base classifier fails, or returns NaN.
        """
        labels = []
        for batch in images.split(self.images_per_batch(images[0])):
            with torch.inference_mode():
                scores = self.vote_scores(batch.to(self.device)).cpu()
            if bool(scores.isnan().any()):
                raise PprsError("the model returned NaN scores. Check its weights, and that it takes images in [0, 1].")
            ties = near_ties(scores, self.near_tie, self.rounding)
            labels.append(scores.argmax(dim=1).masked_fill(ties, -1))
        return torch.cat(labels)

    def settle_alone(self, difference: float) -> None:
        """Score images alone whose label could change if a batch changes scores by this share of their spread."""
        self.near_tie = max(self.near_tie, TIES_PER_DIFFERENCE * difference)

    def _check_output(self, scores: Any, batch: int) -> None:
        if not isinstance(scores, torch.Tensor):
            raise PprsError(
                f"the model must return a tensor of scores, not {type(scores).__name__}. Wrap it so that it does."
            )
        if scores.ndim == 4:
            raise ConfigurationError(
                f"the model returned shape {tuple(scores.shape)}: it labels every pixel, and this is for networks that "
                "label the whole image. Use `pprs segment`, or certify_segmentation in Python.",
                parameter="model",
            )
        if scores.shape != (batch, self.num_classes):
            raise PprsError(
                f"the model returned shape {tuple(scores.shape)} for {batch} images, but num_classes="
                f"{self.num_classes} requires ({batch}, {self.num_classes}). Check num_classes and the model's last "
                "layer."
            )


@dataclass(frozen=True, eq=False)
class Samples:
    """A few chunks of partitioned noisy samples of an image.

    Attributes:
        noisy: The samples [B, C, H, W].
        segments: The number of segments of each, None for a partition without segments.
        batch_size: The number of samples per call of the network.
        chunk: The number of samples per chunk.
        last: Whether these are the last samples of a series.
    """

    noisy: torch.Tensor
    segments: torch.Tensor | None
    batch_size: int
    chunk: int
    last: bool

    def batches(self) -> Iterator[tuple[torch.Tensor, bool]]:
        """Yield the batches for the network, and whether each is the last one of the series."""
        *others, end = self.noisy.split(self.batch_size)
        yield from ((batch, False) for batch in others)
        yield end, self.last


class LocalVotes(Scorer):
    """A vote source in this process. On a CPU, the classifier runs on `threads` batches in parallel."""

    def __init__(
        self,
        model: BaseClassifier,
        num_classes: int,
        noise: Noise,
        partition: Partition | None = None,
        *,
        seed: int = 0,
        batch_size: int | None = None,
        threads: int | None = None,
        device: str | torch.device = "cpu",
        arithmetic: str | Arithmetic = "auto",
    ) -> None:
        super().__init__(model, num_classes, batch_size=batch_size, threads=threads, device=device)
        if seed < 0:
            raise PprsError(f"`seed` must be at least 0, not {seed}", parameter="seed")
        # Copies, since `set_params` could change the originals between two calls.
        self.noise, self.partition, self.seed = copy.copy(noise), copy.copy(partition), seed
        self.arithmetic = Arithmetic.of(arithmetic, noise)
        self._scale = 0.0
        self._resolved: dict[tuple[int, ...], Partition] = {}

    def quantise(self, x: torch.Tensor) -> torch.Tensor | QuantisedImage:
        return self.arithmetic.prepare(x, self.noise)

    def resolve(self, shape: tuple[int, ...]) -> Partition | None:
        if self.partition is None:
            return None
        if shape not in self._resolved:
            self._resolved[shape] = self.partition.resolve(self.noise.sigma, shape)
        return self._resolved[shape]

    def votes(
        self,
        x: torch.Tensor | QuantisedImage,
        samples: range,
        index: int,
        phase: int,
        *,
        eager: bool = True,
        more: Callable[[], bool] = lambda: True,
    ) -> Generator[Votes]:
        for votes in self.map_samples(x, samples, index, phase, self._count, eager=eager, more=more):
            yield from votes

    def map_samples(
        self,
        x: torch.Tensor | QuantisedImage,
        samples: range,
        index: int,
        phase: int,
        task: Callable[[Samples], T],
        *,
        eager: bool = True,
        more: Callable[[], bool] = lambda: True,
    ) -> Generator[T]:
        """Yield the results of a task on the partitioned noisy samples, a few chunks at a time, in order.

        The task must not keep the samples: their memory is used again.
        """
        if isinstance(self.model, torch.nn.Module):
            self.model.eval()  # not only in __init__: the caller may have trained it further since
        batch_size, chunk, n = self.images_per_batch(x), chunk_size(x.numel()), samples.stop
        step = max(1, batch_size // chunk) * chunk
        partition = self.resolve(tuple(x.shape))
        levels = None
        if isinstance(x, QuantisedImage):
            levels = x.levels
            quantised_gaussian(self.noise.sigma, levels)  # prepared here, not by every thread at once

        def run(first: int) -> T:
            """Return the result for samples first to first + step - 1."""
            chunks = range(first // chunk, math.ceil(min(first + step, n) / chunk))
            with torch.inference_mode(), self._buffer((len(chunks), chunk, *x.shape)) as buffer:
                for i, out in zip(chunks, buffer, strict=True):
                    noisy_chunk(x, self.noise, self.seed, index, phase, i, out)
                noisy, segments = buffer.flatten(0, 1)[: n - first], None
                if partition is not None:
                    noisy, segments = partition.run(noisy) if levels is None else partition.run_quantised(noisy, levels)
                return task(Samples(noisy, segments, batch_size, chunk, first + step >= n))

        yield from self.map_on_pool(run, samples[::step], eager=eager, more=more)

    def seconds_per_sample(self, x: torch.Tensor) -> float:
        """Measure the seconds that one noisy sample of an image takes, with noise used for nothing else."""
        with error_context(x, 0, self.partition):
            image = self.quantise(check_image(x, self.device))
            workers = (self.threads or _threads.get_threads()) if self.device.type == "cpu" else 1
            n = chunk_size(x.numel()) * workers

            def score() -> None:
                for _ in self.map_samples(image, range(n), 0, TRIAL, self._score_only):
                    pass

            score()  # warm up: compile kernels, fill caches
            began = time.perf_counter()
            score()
        return (time.perf_counter() - began) / n

    def _score_only(self, samples: Samples) -> int:
        return sum(len(self.scores(batch)) for batch, _ in samples.batches())

    def _count(self, samples: Samples) -> list[Votes]:
        """Classify partitioned noisy samples, and count the votes of each chunk."""
        chunk, segments = samples.chunk, samples.segments
        scores = torch.cat([self.vote_scores(batch, last=last) for batch, last in samples.batches()])
        chunks = zip(samples.noisy.split(chunk), scores.split(chunk), strict=True)
        labels = torch.cat([self._choose_labels(*pair, alone=samples.batch_size == 1) for pair in chunks])
        counts = [np.bincount(part, minlength=self.num_classes) for part in labels.cpu().split(chunk)]
        totals = [None] * len(counts) if segments is None else [int(part.sum()) for part in segments.split(chunk)]
        return [Votes(*chunk_votes) for chunk_votes in zip(counts, totals, strict=True)]

    @contextlib.contextmanager
    def _buffer(self, shape: tuple[int, ...]) -> Iterator[torch.Tensor]:
        """Lend memory for noisy samples. On a CPU it is reused, since newly allocated memory is slow."""
        if self.device.type == "cpu":
            with _threads.borrow_scratch(math.prod(shape), "noisy") as memory:
                yield torch.from_numpy(memory).reshape(shape)
        else:
            yield torch.empty(shape, device=self.device)

    def map_on_pool(
        self,
        task: Callable[[P], T],
        firsts: Iterable[P],
        *,
        eager: bool = True,
        more: Callable[[], bool] = lambda: True,
    ) -> Iterator[T]:
        """Yield the task's results in order, computed on the thread pool where that helps.

        Items are requested from the caller's thread, and only a few in advance.
        """
        firsts = itertools.takewhile(lambda _: more(), firsts)
        if self.device.type != "cpu" or not isinstance(self.model, torch.nn.Module) or _threads.in_pool_thread():
            yield from map(task, firsts)
            return
        workers = self.threads or _threads.get_threads()
        if workers == 1 and torch.get_num_threads() == 1:  # a single pool thread would be no faster
            yield from map(task, firsts)
            return
        max_pending = 2 * workers + 1 if eager else workers  # limited, so that memory does not grow with n
        pending: deque[Future[T]] = deque()
        try:
            for first in firsts:
                pending.append(_threads.get_pool(workers).submit(task, first))
                if len(pending) >= max_pending:
                    yield pending.popleft().result()
            while pending:
                yield pending.popleft().result()
        finally:
            for future in pending:
                future.cancel()

    def _choose_labels(self, images: torch.Tensor, scores: torch.Tensor, *, alone: bool) -> torch.Tensor:
        """Return the label of each image of a chunk from its scores. Near ties are scored again, each image alone.

        What counts as near depends on the spread of the scores of a chunk or of any earlier one, not of a batch, since
        a batch may hold near ties only.
        """
        labels = scores.argmax(dim=1)
        self._scale = max(self._scale, float(spread(scores).mean()))
        for i in near_ties(scores, self.near_tie, self.rounding, self._scale).nonzero().flatten().tolist():
            own = scores[i] if alone else self.scores(images[i : i + 1])[0]
            if bool(own.isnan().any()):
                raise PprsError("the model returned NaN scores. Check its weights, and that it takes images in [0, 1].")
            labels[i] = own.argmax()
        return labels

    def score_once(
        self,
        images: Iterable[tuple[int, torch.Tensor | QuantisedImage]],
        phase: int,
    ) -> Iterator[tuple[int, torch.Tensor]]:
        """Yield the index and the scores [num_classes] of one noisy sample of each image, in order.

        Every sample is partitioned and classified alone, so that its scores depend on no other image. Images are
        requested from the caller's thread, and only a few in advance.

        Args:
            images: The index of each image, which keys its noise, and the image, as returned by `quantise`.
            phase: The phase of the noise.
        """
        if isinstance(self.model, torch.nn.Module):
            self.model.eval()
        pending: dict[int, tuple[int, torch.Tensor | QuantisedImage]] = {}

        def request() -> Iterator[int]:
            for position, item in enumerate(images):
                pending[position] = item
                yield position

        def score(position: int) -> tuple[int, torch.Tensor]:
            index, x = pending.pop(position)
            return index, self._score_sample(index, x, phase)

        yield from self.map_on_pool(score, request())

    def _score_sample(self, index: int, x: torch.Tensor | QuantisedImage, phase: int) -> torch.Tensor:
        """Return the scores [num_classes] of one noisy sample of an image."""
        image = x.original if isinstance(x, QuantisedImage) else x
        with torch.inference_mode(), error_context(image, index, self.partition):
            noisy, partition = noisy_chunk(x, self.noise, self.seed, index, phase, batch=1), self.resolve(x.shape)
            if partition is not None and isinstance(x, QuantisedImage):
                noisy, _ = partition.run_quantised(noisy, x.levels)
            elif partition is not None:
                noisy, _ = partition.run(noisy)
            return self.scores(noisy)[0].cpu()


def _find_rounding(model: BaseClassifier) -> float:
    """Return the rounding error of a network's scores relative to their size, if it computes with 16 bits, else 0."""
    if not isinstance(model, torch.nn.Module):
        return float(getattr(model, "rounding", 0.0))
    has_half = any(p.dtype in (torch.float16, torch.bfloat16) for p in model.parameters())
    declared = (float(getattr(layer, "rounding", 0.0)) for layer in model.modules())
    return max(HALF_ROUNDING if has_half else 0.0, *declared)
