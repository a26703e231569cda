"""Votes counted in this process: add noise, partition, classify, count.

Every step after the noise receives the noisy batch and never the clean image. A partition of any kind is therefore
part of the base classifier, and the certificate holds by construction.
"""

from __future__ import annotations

import contextlib
import itertools
import math
import time
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator
from concurrent.futures import Future
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
import torch

from pprs._support import threads as _threads
from pprs.errors import PprsError
from pprs.inputs.domain import Domain
from pprs.model.modes import eval_mode
from pprs.model.recommendation import Recommend
from pprs.model.scores import near_ties, spread
from pprs.noise import Noise, QuantisedImage, quantised_gaussian
from pprs.partition import AUTO, Auto, Partition, recommend_partition
from pprs.smoothing.arithmetic import Arithmetic
from pprs.smoothing.samples import TRIAL, check_image, chunk_size, error_context, noisy_chunk
from pprs.smoothing.scoring import BaseClassifier, Scorer
from pprs.smoothing.votes import Votes

# Makes the inputs for some chunks, in memory that it may use, at most so many, and counts their segments.
MakeInputs = Callable[[range, torch.Tensor, int], tuple[torch.Tensor, torch.Tensor | None]]
P = TypeVar("P")
T = TypeVar("T")


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
        partition: Partition | Auto | None = None,
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
        self.noise, self.partition, self.seed = noise, partition, seed
        self.arithmetic = Arithmetic.of(arithmetic, noise)
        self.domain: Domain | None = None  # either
        self.recommend: Recommend = recommend_partition  # what "auto" stands for
        self._scale = 0.0
        self._resolved: dict[tuple[int, ...], Partition | None] = {}

    def quantise(self, x: torch.Tensor) -> torch.Tensor | QuantisedImage:
        return self.arithmetic.prepare(x, self.noise)

    def resolve(self, shape: tuple[int, ...]) -> Partition | None:
        if self.partition is None:
            return None
        if shape not in self._resolved:
            partition = self.recommend(self.noise.sigma, shape).partition if self.partition == AUTO else self.partition
            self._resolved[shape] = None if partition is None else partition.resolve(self.noise.sigma, shape)
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
        batch_size, chunk, n = self.images_per_batch(x), chunk_size(x.numel()), samples.stop
        step = max(1, batch_size // chunk) * chunk
        make = self._prepare(x, index, phase)

        def run(first: int) -> T:
            """Return the result for samples first to first + step - 1."""
            chunks = range(first // chunk, math.ceil(min(first + step, n) / chunk))
            with torch.inference_mode(), self._buffer((len(chunks), chunk, *x.shape)) as buffer:
                noisy, segments = make(chunks, buffer, n - first)
                return task(Samples(noisy, segments, batch_size, chunk, first + step >= n))

        with eval_mode(self.model):
            yield from self.map_on_pool(run, samples[::step], eager=eager, more=more)

    def _prepare(self, x: torch.Tensor | QuantisedImage, index: int, phase: int) -> MakeInputs:
        """Return what makes the inputs of the classifier for some chunks of samples of an image."""
        partition = self.resolve(tuple(x.shape))
        levels = None
        if isinstance(x, QuantisedImage):
            levels = x.levels
            quantised_gaussian(self.noise.sigma, levels)  # prepared here, not by every thread at once

        def make(chunks: range, out: torch.Tensor, count: int) -> tuple[torch.Tensor, torch.Tensor | None]:
            for i, buffer in zip(chunks, out, strict=True):
                noisy_chunk(x, self.noise, self.seed, index, phase, i, buffer)
            noisy = out.flatten(0, 1)[:count]
            if partition is None:
                return noisy, None
            return partition.run(noisy) if levels is None else partition.run_quantised(noisy, levels)

        return make

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
