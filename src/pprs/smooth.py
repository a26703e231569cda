"""The one loop of randomized smoothing: noise -> partition -> classify -> count.

Everything after the noise is handed the noisy batch and never the clean image, so a partition of any kind is
part of the base classifier and the certificate holds by construction.

Randomness. Noise comes in chunks of fixed size, keyed by (seed, image index, phase, chunk). So counts do not
depend on batch size, on threads, on where an interrupted run went on, or on which other images run; and selection
and estimation never share a draw.
"""

from __future__ import annotations

import contextlib
import math
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from pprs.bound import binomial_test, check_alpha, check_samples, clopper_pearson_lower, two_sided
from pprs.certificate import Certificate, Counts, Prediction
from pprs.errors import PprsError
from pprs.kernels import threads
from pprs.noise import Noise, keyed_rng
from pprs.partition import Partition
from pprs.partition.base import check_picture_shape, check_values

# Phases: each has draws of its own. TRIAL is for whatever is decided before a run, such as which engine it has: were
# that looked at with the draws that estimate, the classifier would depend on them.
SELECT, ESTIMATE, PREDICT, TRAIN, TRIAL = range(5)

# A floating-point network gives a picture slightly different scores in another batch. Where the two best
# scores are closer than this share of their size, the picture is scored again on its own, so that its vote
# is a function of the picture alone.
NEAR_TIE = 1e-4

OnSamples = Callable[[int], None]


@dataclass(frozen=True)
class _Votes:
    counts: Counts
    segments: int | None  # summed over samples; None where there are none

    @staticmethod
    def none(num_classes: int) -> _Votes:
        return _Votes(np.zeros(num_classes, np.int64), None)

    def __add__(self, other: _Votes) -> _Votes:
        segments = None if other.segments is None else (self.segments or 0) + other.segments
        return _Votes(self.counts + other.counts, segments)


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


class SmoothedClassifier:
    """A classifier's majority vote under noise, with the partition applied to every noisy copy.

    `model` maps float32 [B, C, H, W] (about [0, 1], plus noise) to scores [B, num_classes]; it is put in eval
    mode. `partition=None` is plain randomized smoothing (Cohen et al. 2019).

    On a CPU, `threads` batches (as many as there are cores, unless given) go through noise, partition and network side
    by side, so the network is called from several threads at once: give threads=1 to one that keeps state between
    calls. A `model` that is not a torch.nn.Module is called from the caller's thread alone.

    >>> from pprs import Gaussian
    >>> def model(x): return torch.stack([x.mean((1, 2, 3)) - 0.5, 0.5 - x.mean((1, 2, 3))], dim=1)
    >>> g = SmoothedClassifier(model, num_classes=2, noise=Gaussian(0.5))
    >>> print(g.certify(torch.full((1, 8, 8), 0.6), n=1000))
    class 0: no change of L2 norm up to 0.719 can alter this label, with 99.9% confidence
    """

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

    def certify(
        self,
        x: torch.Tensor,
        *,
        n0: int = 100,
        n: int = 10_000,
        alpha: float = 0.001,
        index: int = 0,
        bound: str = "one-sided",
        on_samples: OnSamples | None = None,
    ) -> Certificate:
        """A label and a radius within which no perturbation changes it; wrong with probability at most alpha.

        x: [C, H, W] in [0, 1]. index keys this image's randomness: give every image of a set its own. bound:
        "one-sided" grants the selected class's rivals all that it may lack; "two-sided" bounds each of them too.
        """
        check_samples(n0, n, alpha, bound)
        with self._context(x, index):
            x = self._checked(x)
            selected = int(self._vote(x, n0, index, SELECT, on_samples).counts.argmax())
            votes = self._vote(x, n, index, ESTIMATE, on_samples)
        p_upper = None
        if bound == "two-sided":
            p_lower, p_upper = two_sided(votes.counts.tolist(), selected, alpha)
            radius = self.noise.radius_between(p_lower, p_upper, x.numel())
        else:
            p_lower = clopper_pearson_lower(int(votes.counts[selected]), n, alpha)
            radius = self.noise.radius(p_lower, x.numel())
        certified = p_lower > (0.5 if p_upper is None else p_upper)
        return Certificate(
            prediction=selected if certified else None,
            radius=radius if certified else 0.0,
            p_lower=p_lower,
            counts=votes.counts,
            selected=selected,
            n0=n0,
            n=n,
            alpha=alpha,
            shape=(x.shape[0], x.shape[1], x.shape[2]),
            noise=str(self.noise),
            partition=str(self.partition or "none"),
            mean_segments=None if votes.segments is None else votes.segments / n,
            bound=bound,
            p_upper=p_upper,
        )

    def predict(self, x: torch.Tensor, *, n: int = 1_000, alpha: float = 0.001, index: int = 0) -> Prediction:
        """The smoothed classifier's own label, wrong with probability at most alpha, or an abstention.

        Abstains unless an exact binomial test tells the two classes with the most votes apart.
        """
        check_alpha(alpha)
        counts = self.counts(x, n=n, index=index)
        second, first = np.argsort(counts, kind="stable")[-2:]
        p_value = binomial_test(int(counts[first]), int(counts[first] + counts[second]))
        return Prediction(int(first) if p_value <= alpha else None, counts, p_value, n, alpha)

    def counts(self, x: torch.Tensor, *, n: int = 1_000, index: int = 0, on_samples: OnSamples | None = None) -> Counts:
        """How many of n noisy copies each class gets: int64 [num_classes]."""
        if n < 1:
            raise PprsError(f"n must be at least 1, not {n}")
        with self._context(x, index):
            return self._vote(self._checked(x), n, index, PREDICT, on_samples).counts

    @contextlib.contextmanager
    def _context(self, x: torch.Tensor, index: int) -> Iterator[None]:
        """Errors told with the image they are about."""
        try:
            yield
        except PprsError as error:
            where = f"image {index}, shape {tuple(getattr(x, 'shape', ()))}, partition {self.partition or 'none'}"
            raise PprsError(f"{where}: {error}") from error

    def _vote(self, x: torch.Tensor, n: int, index: int, phase: int, on_samples: OnSamples | None) -> _Votes:
        if isinstance(self.model, torch.nn.Module):
            self.model.eval()  # here, not only once: it may have been trained on since
        size, chunk = self._batch_size(x), chunk_size(x.numel())
        step = max(1, size // chunk) * chunk

        def count(first: int) -> _Votes:
            """The votes of samples first..first+step."""
            chunks = range(first // chunk, math.ceil(min(first + step, n) / chunk))
            with torch.inference_mode(), self._memory((len(chunks), chunk, *x.shape)) as noisy:
                for i, out in zip(chunks, noisy, strict=True):
                    noisy_chunk(x, self.noise, self.seed, index, phase, i, out)
                return self._count(noisy.flatten(0, 1)[: n - first], size)

        votes = _Votes.none(self.num_classes)
        for part in self._spread(count, range(0, n, step)):
            votes += part
            if on_samples is not None:
                on_samples(int(part.counts.sum()))
        if votes.counts.sum() != n:
            raise PprsError(
                f"{int(votes.counts.sum())} votes were counted for {n} samples: the model is not consistent"
            )
        return votes

    @contextlib.contextmanager
    def _memory(self, shape: tuple[int, ...]) -> Iterator[torch.Tensor]:
        """For noisy pictures: on a CPU the same each time, since fresh memory is slow."""
        if self.device.type == "cpu":
            with threads.borrowed(math.prod(shape), "noisy") as memory:
                yield torch.from_numpy(memory).reshape(shape)
        else:
            yield torch.empty(shape, device=self.device)

    def _count(self, noisy: torch.Tensor, size: int) -> _Votes:
        """Partition, classify in batches of `size`, count."""
        segments = None
        if self.partition is not None:
            noisy, found = self.partition.run(noisy)
            segments = None if found is None else int(found.sum())
        labels = torch.cat([self._classify(batch) for batch in noisy.split(size)])
        return _Votes(np.bincount(labels.cpu().numpy(), minlength=self.num_classes), segments)

    def _spread(self, task: Callable[[int], _Votes], firsts: Iterable[int]) -> Iterator[_Votes]:
        """The task's results in order, from the pool's threads where there are any to use."""
        if self.device.type != "cpu" or not isinstance(self.model, torch.nn.Module) or threads.pooled():
            yield from map(task, firsts)
            return
        workers = self.threads or threads.get_threads()
        waiting: deque[Future[_Votes]] = deque()
        try:
            for first in firsts:
                waiting.append(threads.pool(workers).submit(task, first))
                if len(waiting) > 2 * workers:  # enough to keep all at work: memory does not grow with n
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
