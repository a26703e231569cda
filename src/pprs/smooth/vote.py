"""The one loop of randomized smoothing: noise -> partition -> classify -> count.

Everything after the noise is handed the noisy batch and never the clean image, so a partition of any kind is
part of the base classifier and the certificate holds by construction.

Randomness. Noise comes in chunks of fixed size, keyed by (seed, image index, phase, chunk). So counts do not
depend on batch size, on threads, on where an interrupted run went on, or on which other images run; and selection
and estimation never share a draw.
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
from typing import Any

import numpy as np
import torch

from pprs.certificate import Counts
from pprs.errors import PprsError, WrongSettings
from pprs.kernels import threads
from pprs.noise import Noise, keyed_rng
from pprs.partition import Partition
from pprs.partition.base import check_picture_shape, check_values

# Phases: each has draws of its own. TRIAL is for whatever is decided before a run, such as which engine it has: were
# that looked at with the draws that estimate, the classifier would depend on them.
SELECT, ESTIMATE, PREDICT, TRAIN, TRIAL, TUNE = range(6)

# A floating-point network gives a picture slightly different scores in another batch. Where the two best
# scores are closer than this share of their size, the picture is scored again on its own, so that its vote
# is a function of the picture alone.
NEAR_TIE = 1e-4

OnSamples = Callable[[int], None]


@dataclass(frozen=True)
class Votes:
    """Of some samples: how many each class got, and how many segments there were in all."""

    counts: Counts
    segments: int | None  # summed over samples; None where there are none

    @staticmethod
    def none(num_classes: int) -> Votes:
        return Votes(np.zeros(num_classes, np.int64), None)

    def __add__(self, other: Votes) -> Votes:
        segments = None if other.segments is None else (self.segments or 0) + other.segments
        return Votes(self.counts + other.counts, segments)


def chunk_size(dim: int) -> int:
    """Samples a chunk, for pictures of so many values: fewer of very large ones, so that a chunk stays small."""
    return max(1, min(64 if dim <= 2**16 else 32, 2**24 // dim))


def noisy_chunk(
    x: torch.Tensor,
    noise: Noise,
    seed: int,
    index: int,
    phase: int = ESTIMATE,
    chunk: int = 0,
    out: torch.Tensor | None = None,
) -> torch.Tensor:
    """A chunk of noisy copies of the picture [C, H, W]: exactly those that its certificate is made from."""
    rng = keyed_rng(x.device, seed, index, phase, chunk)
    return noise.sample((chunk_size(x.numel()), *x.shape), rng, out).add_(x)


class Voter:
    """Counts the votes of a base classifier on noisy copies of a picture. SmoothedClassifier is one."""

    def __init__(
        self,
        model: Callable[[torch.Tensor], torch.Tensor],
        num_classes: int,
        noise: Noise,
        partition: Partition | None = None,
        *,
        seed: int = 0,
        batch_size: int | None = None,
        threads: int | None = None,
        device: str | torch.device = "cpu",
    ) -> None:
        if not (isinstance(num_classes, int) and num_classes >= 2):
            raise PprsError(f"num_classes must be a whole number of at least 2, not {num_classes!r}")
        if batch_size is not None and batch_size < 1:
            raise PprsError(f"batch_size must be at least 1, not {batch_size}")
        if threads is not None and threads < 1:
            raise PprsError(f"threads must be at least 1, not {threads}")
        if seed < 0:
            raise PprsError(f"seed must be at least 0, not {seed}")
        if isinstance(model, torch.nn.Module):
            model.eval().to(device)
        self.model, self.num_classes, self.noise, self.partition = model, num_classes, noise, partition
        self.seed, self.batch_size, self.threads, self.device = seed, batch_size, threads, torch.device(device)
        self._schemes: dict[tuple[Partition, float, tuple[int, ...]], Partition] = {}

    def seconds_a_sample(self, x: torch.Tensor) -> float:
        """How long a sample takes here, measured on draws that nothing else uses."""
        with self._context(x, 0):
            x = self._checked(x)
            workers = self.threads or threads.get_threads()
            n = chunk_size(x.numel()) * (workers if self.device.type == "cpu" else 1)
            self._vote(x, n, 0, TRIAL, None)  # compile, fill caches
            began = time.perf_counter()
            self._vote(x, n, 0, TRIAL, None)
        return (time.perf_counter() - began) / n

    @contextlib.contextmanager
    def _context(self, x: torch.Tensor, index: int) -> Iterator[None]:
        """Errors told with the image they are about."""
        try:
            yield
        except WrongSettings:
            raise
        except PprsError as error:
            if str(error).startswith(f"image {index}, "):  # a worker has told it already
                raise
            where = f"image {index}, shape {tuple(getattr(x, 'shape', ()))}, partition {self.partition or 'none'}"
            raise PprsError(f"{where}: {error}") from error

    def votes(self, x: torch.Tensor, samples: range, index: int, phase: int) -> list[Votes]:
        """The votes of some samples, which begin with a chunk, chunk by chunk: a part of what an image takes."""
        with self._context(x, index):
            return list(self._votes(self._checked(x), samples, index, phase))

    def _vote(self, x: torch.Tensor, n: int, index: int, phase: int, on_samples: OnSamples | None) -> Votes:
        votes = Votes.none(self.num_classes)
        for part in self._votes(x, range(n), index, phase):
            votes += part
            if on_samples is not None:
                on_samples(int(part.counts.sum()))
        if votes.counts.sum() != n:
            raise PprsError(
                f"{int(votes.counts.sum())} votes were counted for {n} samples: the model is not consistent"
            )
        return votes

    def _votes(
        self,
        x: torch.Tensor,
        samples: range,
        index: int,
        phase: int,
        *,
        eager: bool = True,
        more: Callable[[], bool] = lambda: True,
    ) -> Generator[Votes]:
        """The votes of these samples (from the start of a chunk on), chunk by chunk.

        eager: work well ahead of what is asked for; else only so far that no thread is idle. more: whether to begin
        with more samples; those that were begun with are told all the same.
        """
        if isinstance(self.model, torch.nn.Module):
            self.model.eval()  # here, not only once: it may have been trained on since
        size, chunk, n = self._batch_size(x), chunk_size(x.numel()), samples.stop
        step = max(1, size // chunk) * chunk

        def count(first: int) -> list[Votes]:
            """The votes of samples first..first+step, chunk by chunk."""
            chunks = range(first // chunk, math.ceil(min(first + step, n) / chunk))
            with torch.inference_mode(), self._memory((len(chunks), chunk, *x.shape)) as noisy:
                for i, out in zip(chunks, noisy, strict=True):
                    noisy_chunk(x, self.noise, self.seed, index, phase, i, out)
                return self._count(noisy.flatten(0, 1)[: n - first], size, chunk)

        for parts in self._spread(count, samples[::step], eager=eager, more=more):
            yield from parts

    def scheme(self, shape: tuple[int, ...]) -> Partition | None:
        """The partition of pictures of this shape [C, H, W], with what is "auto" as it suits the noise."""
        if self.partition is None:
            return None
        key = (self.partition, self.noise.sigma, shape)
        if key not in self._schemes:
            self._schemes[key] = self.partition.at(self.noise.sigma, shape)
        return self._schemes[key]

    @contextlib.contextmanager
    def _memory(self, shape: tuple[int, ...]) -> Iterator[torch.Tensor]:
        """For noisy pictures: on a CPU the same each time, since fresh memory is slow."""
        if self.device.type == "cpu":
            with threads.borrowed(math.prod(shape), "noisy") as memory:
                yield torch.from_numpy(memory).reshape(shape)
        else:
            yield torch.empty(shape, device=self.device)

    def _count(self, noisy: torch.Tensor, size: int, chunk: int) -> list[Votes]:
        """Partition, classify in batches of `size`, count each chunk."""
        found = None
        scheme = self.scheme(tuple(noisy.shape[1:]))
        if scheme is not None:
            noisy, found = scheme.run(noisy)
        labels = torch.cat([self._classify(batch) for batch in noisy.split(size)])
        counts = [np.bincount(part, minlength=self.num_classes) for part in labels.cpu().split(chunk)]
        segments = [None] * len(counts) if found is None else [int(part.sum()) for part in found.split(chunk)]
        return [Votes(*both) for both in zip(counts, segments, strict=True)]

    def _spread(
        self, task: Callable[[int], list[Votes]], firsts: Iterable[int], *, eager: bool, more: Callable[[], bool]
    ) -> Iterator[list[Votes]]:
        """The task's results in order, from the pool's threads where there are any to use."""
        firsts = itertools.takewhile(lambda _: more(), firsts)
        if self.device.type != "cpu" or not isinstance(self.model, torch.nn.Module) or threads.pooled():
            yield from map(task, firsts)
            return
        workers = self.threads or threads.get_threads()
        if workers == 1 and torch.get_num_threads() == 1:  # nobody to hand it to who would be quicker
            yield from map(task, firsts)
            return
        most = 2 * workers + 1 if eager else workers  # at once: memory does not grow with n
        waiting: deque[Future[list[Votes]]] = deque()
        try:
            for first in firsts:
                waiting.append(threads.pool(workers).submit(task, first))
                if len(waiting) >= most:
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()
        finally:
            for future in waiting:
                future.cancel()

    def _batch_size(self, x: torch.Tensor) -> int:
        # Small on a CPU: layers whose results leave its caches, and come from fresh memory each time, are slow.
        most, values = (64, 2**20) if self.device.type == "cpu" else (512, 2**25)
        return self.batch_size or max(1, min(most, values // x.numel()))

    def _classify(self, pictures: torch.Tensor) -> torch.Tensor:
        """The base classifier's label of each picture."""
        scores = self._scores(pictures)
        top = scores.topk(2, dim=1)
        margin = top.values[:, 0] - top.values[:, 1]
        labels = scores.argmax(dim=1)
        # Written so that NaN scores count as close, and reach the check below.
        near = max(NEAR_TIE, getattr(self.model, "rounding", 0.0))
        close = ~(margin > near * top.values.abs().amax(dim=1))
        if len(pictures) > 1:
            for i in close.nonzero().flatten().tolist():
                labels[i] = self._scores(pictures[i : i + 1]).argmax()
        if bool(scores[close].isnan().any()):
            raise PprsError("the model returned NaN scores. Check its weights, and that it takes pictures in [0, 1].")
        return labels

    def _scores(self, pictures: torch.Tensor) -> torch.Tensor:
        try:
            # A copy, because some models normalise in place, and a near tie is scored a second time.
            kept = getattr(self.model, "leaves_input_alone", False)
            scores: Any = self.model(pictures if kept else pictures.clone())
        except Exception as error:  # a user's model may raise anything
            if isinstance(error, MemoryError):
                raise
            if isinstance(error, torch.OutOfMemoryError) or "can't allocate memory" in str(error):
                raise MemoryError(str(error).splitlines()[0]) from error
            reason = str(error).splitlines()[0] if str(error) else type(error).__name__
            raise PprsError(
                f"the model failed on a batch of shape {tuple(pictures.shape)}: {reason}. The usual cause is a "
                "picture whose size or number of channels is not what the model was made for."
            ) from error
        self._check_output(scores, len(pictures))
        return scores.float()  # type: ignore[no-any-return]

    def _check_output(self, scores: Any, batch: int) -> None:
        if not isinstance(scores, torch.Tensor):
            raise PprsError(f"the model must return a tensor of scores, not {type(scores).__name__}. Wrap it to do so.")
        if scores.shape != (batch, self.num_classes):
            raise PprsError(
                f"the model returned shape {tuple(scores.shape)} for {batch} pictures; with num_classes="
                f"{self.num_classes} it must be ({batch}, {self.num_classes}). Check num_classes "
                "and the model's last layer."
            )

    def _checked(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.as_tensor(x)
        if x.ndim != 3:
            raise PprsError(f"expected one picture [C, H, W], got shape {tuple(x.shape)}")
        check_picture_shape(tuple(x.shape))
        check_values(x)
        return x.to(device=self.device, dtype=torch.float32)
