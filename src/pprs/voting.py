"""The one loop of randomized smoothing: noise -> partition -> classify -> count.

Everything after the noise is handed the noisy batch and never the clean image, so a partition of any kind is
part of the base classifier and the certificate holds by construction.

Randomness. Noise comes in chunks of fixed size, keyed by (seed, image index, phase, chunk). So counts do not
depend on batch size, on threads, on where an interrupted run resumed, or on which other images run; and selection
and estimation never share a draw.
"""

from __future__ import annotations

import contextlib
import itertools
import math
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch

from pprs import _threads
from pprs.certificate import Counts
from pprs.errors import ConfigurationError, PprsError
from pprs.noise import Noise, keyed_rng
from pprs.partition import Partition
from pprs.partition.base import check_image_shape, check_values

# Phases: each has draws of its own. TRIAL is for whatever is decided before a run, such as which engine it uses: had
# that been decided with the draws that estimate, the classifier would depend on them.
SELECT, ESTIMATE, PREDICT, TRAIN, TRIAL, TUNE = range(6)

# A floating-point network gives a picture slightly different scores in another batch. Where the two best
# scores are closer than this share of their size, the picture is scored again on its own, so that its vote
# is a function of the picture alone.
NEAR_TIE = 1e-4

Model = Callable[[torch.Tensor], torch.Tensor]
OnSamples = Callable[[int], None]


@dataclass(frozen=True)
class Votes:
    """The votes of some samples by class, and the number of segments summed over those samples."""

    counts: Counts
    segments: int | None  # None where there are no segments

    @staticmethod
    def none(num_classes: int) -> Votes:
        return Votes(np.zeros(num_classes, np.int64), None)

    def __add__(self, other: Votes) -> Votes:
        segments = None if other.segments is None else (self.segments or 0) + other.segments
        return Votes(self.counts + other.counts, segments)


class VoteSource(Protocol):
    """Counts a base classifier's votes on noisy copies of a picture: in this process, or in workers."""

    @property
    def num_classes(self) -> int: ...

    @property
    def noise(self) -> Noise: ...

    @property
    def partition(self) -> Partition | None: ...

    @property
    def device(self) -> torch.device: ...

    def resolve(self, shape: tuple[int, ...]) -> Partition | None:
        """The partition of pictures of this shape [C, H, W], with every "auto" option as it suits the noise."""

    def votes(
        self,
        x: torch.Tensor,
        samples: range,
        index: int,
        phase: int,
        *,
        eager: bool = True,
        more: Callable[[], bool] = lambda: True,
    ) -> Generator[Votes]:
        """The votes of these samples, which begin with a chunk, chunk by chunk.

        x is a picture that `check_image` has passed. eager: work well ahead of what is asked for; else only so far
        that no thread is idle. more: whether to start on further samples; those already started are returned anyway.
        """


def count_votes(
    source: VoteSource, x: torch.Tensor, n: int, index: int, phase: int, on_samples: OnSamples | None = None
) -> Votes:
    """The votes of all n samples of a phase, added up."""
    votes = Votes.none(source.num_classes)
    for part in source.votes(x, range(n), index, phase):
        votes += part
        if on_samples is not None:
            on_samples(int(part.counts.sum()))
    check_count(votes, n)
    return votes


def check_count(votes: Votes, n: int) -> None:
    if votes.counts.sum() != n:
        raise PprsError(f"{int(votes.counts.sum())} votes were counted for {n} samples: the model is not consistent")


def check_image(x: torch.Tensor, device: torch.device | str = "cpu") -> torch.Tensor:
    """The picture [C, H, W] as float32 on this device, if it is one."""
    x = torch.as_tensor(x)
    if x.ndim != 3:
        raise PprsError(f"expected one picture [C, H, W], got shape {tuple(x.shape)}")
    check_image_shape(tuple(x.shape))
    check_values(x)
    return x.to(device=device, dtype=torch.float32)


@contextlib.contextmanager
def error_context(x: torch.Tensor, index: int, partition: Partition | None) -> Iterator[None]:
    """Add to errors which image they are about, unless they say so already."""
    try:
        yield
    except ConfigurationError:
        raise
    except PprsError as error:
        if error.index is not None:
            raise
        where = f"shape {tuple(getattr(x, 'shape', ()))}, partition {partition or 'none'}"
        raise PprsError(f"{where}: {error.message}", parameter=error.parameter, index=index) from error


def chunk_size(dim: int) -> int:
    """Samples per chunk, for pictures of `dim` values: fewer of very large ones, so that a chunk stays small."""
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


class LocalVotes:
    """A vote source in this process. The classifier runs on `threads` batches side by side on a CPU."""

    def __init__(
        self,
        model: Model,
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
            raise PprsError(
                f"num_classes must be a whole number of at least 2, not {num_classes!r}", parameter="num_classes"
            )
        for name, value, least in (("batch_size", batch_size, 1), ("threads", threads, 1), ("seed", seed, 0)):
            if value is not None and value < least:
                raise PprsError(f"`{name}` must be at least {least}, not {value}", parameter=name)
        if isinstance(model, torch.nn.Module):
            model.eval().to(device)
        self.model, self.num_classes, self.noise, self.partition = model, num_classes, noise, partition
        self.seed, self.batch_size, self.threads, self.device = seed, batch_size, threads, torch.device(device)
        self._resolved: dict[tuple[int, ...], Partition] = {}

    def resolve(self, shape: tuple[int, ...]) -> Partition | None:
        if self.partition is None:
            return None
        if shape not in self._resolved:
            self._resolved[shape] = self.partition.resolve(self.noise.sigma, shape)
        return self._resolved[shape]

    def votes(
        self,
        x: torch.Tensor,
        samples: range,
        index: int,
        phase: int,
        *,
        eager: bool = True,
        more: Callable[[], bool] = lambda: True,
    ) -> Generator[Votes]:
        if isinstance(self.model, torch.nn.Module):
            self.model.eval()  # here, not only once: it may have been trained on since
        size, chunk, n = self._batch_size(x), chunk_size(x.numel()), samples.stop
        step = max(1, size // chunk) * chunk
        partition = self.resolve(tuple(x.shape))

        def count(first: int) -> list[Votes]:
            """The votes of samples first..first+step, chunk by chunk."""
            chunks = range(first // chunk, math.ceil(min(first + step, n) / chunk))
            with torch.inference_mode(), self._memory((len(chunks), chunk, *x.shape)) as noisy:
                for i, out in zip(chunks, noisy, strict=True):
                    noisy_chunk(x, self.noise, self.seed, index, phase, i, out)
                return self._count(noisy.flatten(0, 1)[: n - first], partition, size, chunk)

        for parts in self._spread(count, samples[::step], eager=eager, more=more):
            yield from parts

    def _count(self, noisy: torch.Tensor, partition: Partition | None, size: int, chunk: int) -> list[Votes]:
        """Partition, classify in batches of `size`, count each chunk."""
        found = None
        if partition is not None:
            noisy, found = partition.run(noisy)
        labels = torch.cat([self._classify(batch) for batch in noisy.split(size)])
        counts = [np.bincount(part, minlength=self.num_classes) for part in labels.cpu().split(chunk)]
        segments = [None] * len(counts) if found is None else [int(part.sum()) for part in found.split(chunk)]
        return [Votes(*both) for both in zip(counts, segments, strict=True)]

    @contextlib.contextmanager
    def _memory(self, shape: tuple[int, ...]) -> Iterator[torch.Tensor]:
        """For noisy pictures: on a CPU the same each time, since fresh memory is slow."""
        if self.device.type == "cpu":
            with _threads.borrowed(math.prod(shape), "noisy") as memory:
                yield torch.from_numpy(memory).reshape(shape)
        else:
            yield torch.empty(shape, device=self.device)

    def _spread(
        self, task: Callable[[int], list[Votes]], firsts: Iterable[int], *, eager: bool, more: Callable[[], bool]
    ) -> Iterator[list[Votes]]:
        """The task's results in order, from the pool's threads where there are any to use."""
        firsts = itertools.takewhile(lambda _: more(), firsts)
        if self.device.type != "cpu" or not isinstance(self.model, torch.nn.Module) or _threads.pooled():
            yield from map(task, firsts)
            return
        workers = self.threads or _threads.get_threads()
        if workers == 1 and torch.get_num_threads() == 1:  # nobody to hand it to who would be quicker
            yield from map(task, firsts)
            return
        most = 2 * workers + 1 if eager else workers  # at once: memory does not grow with n
        waiting: deque[Future[list[Votes]]] = deque()
        try:
            for first in firsts:
                waiting.append(_threads.pool(workers).submit(task, first))
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
        scores = self.scores(pictures)
        top = scores.topk(2, dim=1)
        margin = top.values[:, 0] - top.values[:, 1]
        labels = scores.argmax(dim=1)
        # Written so that NaN scores count as close, and reach the check below.
        near = max(NEAR_TIE, getattr(self.model, "rounding", 0.0))
        close = ~(margin > near * top.values.abs().amax(dim=1))
        if len(pictures) > 1:
            for i in close.nonzero().flatten().tolist():
                labels[i] = self.scores(pictures[i : i + 1]).argmax()
        if bool(scores[close].isnan().any()):
            raise PprsError("the model returned NaN scores. Check its weights, and that it takes pictures in [0, 1].")
        return labels

    def scores(self, pictures: torch.Tensor) -> torch.Tensor:
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
