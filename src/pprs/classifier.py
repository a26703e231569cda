"""The smoothed classifier: a certificate, a label or counts from the votes of noisy copies."""

from __future__ import annotations

import contextlib
import copy
import threading
import time
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence, Sized
from typing import Protocol

import numpy as np
import torch

from pprs import _threads
from pprs.bounds import binomial_test, check_alpha
from pprs.certificate import Certificate, Counts, Prediction
from pprs.errors import PprsError
from pprs.noise import Noise
from pprs.partition import Partition
from pprs.progress import Progress, as_progress, stage
from pprs.sampling import Evidence, Sampling, check_reach
from pprs.voting import (
    ESTIMATE,
    PREDICT,
    SELECT,
    TRIAL,
    LocalVotes,
    OnSamples,
    Votes,
    VoteSource,
    check_count,
    check_image,
    chunk_size,
    count_votes,
    error_context,
)


class Checkpoint(Protocol):
    """What is known of an image whose certification was left before it was done."""

    @property
    def selected(self) -> int: ...
    @property
    def counts(self) -> Sequence[int]: ...
    @property
    def p_lower(self) -> float: ...
    @property
    def p_upper(self) -> float | None: ...
    @property
    def mean_segments(self) -> float | None: ...


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
        self._votes = LocalVotes(
            model, num_classes, noise, partition, seed=seed, batch_size=batch_size, threads=threads, device=device
        )

    @property
    def model(self) -> Callable[[torch.Tensor], torch.Tensor]:
        return self._votes.model

    @property
    def num_classes(self) -> int:
        return self._votes.num_classes

    @property
    def noise(self) -> Noise:
        return self._votes.noise

    @property
    def partition(self) -> Partition | None:
        return self._votes.partition

    @property
    def votes(self) -> LocalVotes:
        """The source of its votes: noise, partition, classify, count."""
        return self._votes

    def certify(
        self,
        x: torch.Tensor,
        *,
        n0: int = 100,
        n: int = 10_000,
        alpha: float = 0.001,
        index: int = 0,
        bound: str = "one-sided",
        stop: str | None = None,
        progress: bool | Progress | None = None,
    ) -> Certificate:
        """A label and a radius within which no perturbation changes it; wrong with probability at most alpha.

        x: [C, H, W] in [0, 1]. index keys this image's randomness: give every image of a set its own. bound:
        "one-sided" grants the selected class's rivals all that it may lack; "two-sided" bounds each of them too.
        stop: end before all n samples are drawn, at no loss of the guarantee: "radius:0.25,0.5" when it is decided
        whether the image is certified at these radii, "width:0.02" when the radius is known to that precision,
        "abstain" when the image is hopeless.
        """
        certification = self.start(Sampling(n0, n, alpha, bound, stop), index)
        shown = as_progress(progress)
        with stage(shown, "certify", n0 + n, "samples"):
            certification.select(x, shown.advance)  # n0 samples choose the class
            certification.estimate(x, shown.advance)  # n fresh ones bound its vote share from below
        return certification.certificate()  # the bound gives the radius; at 1/2 or below it abstains

    def certify_batch(
        self,
        images: Iterable[torch.Tensor],
        *,
        n0: int = 100,
        n: int = 10_000,
        alpha: float = 0.001,
        indices: Iterable[int] | None = None,
        bound: str = "one-sided",
        stop: str | None = None,
        progress: bool | Progress | None = None,
    ) -> Iterator[Certificate]:
        """One certificate an image of [B, C, H, W] (or any iterable of images), as they are finished.

        indices key the images' randomness: their positions unless given. An image's certificate does not depend on
        the others, so it is the one that `certify` gives with the same index.
        """
        keys = None if indices is None else iter(indices)
        shown, total = as_progress(progress), len(images) if isinstance(images, Sized) else 0
        with stage(shown, "certify", total, "images"):
            for position, x in enumerate(images):
                index = position if keys is None else next(keys, None)
                if index is None:
                    raise PprsError(
                        f"`indices` ended after {position} images: give one for every image", parameter="indices"
                    )
                yield self.certify(x, n0=n0, n=n, alpha=alpha, index=index, bound=bound, stop=stop)
                shown.advance(1)

    def start(self, sampling: Sampling, index: int = 0, checkpoint: Checkpoint | None = None) -> Certification:
        """The certification of one image in steps, from its first sample or from a checkpoint on."""
        return Certification(self._votes, sampling, index, checkpoint)

    def predict(self, x: torch.Tensor, *, n: int = 1_000, alpha: float = 0.001, index: int = 0) -> Prediction:
        """The smoothed classifier's own label, wrong with probability at most alpha, or an abstention.

        Abstains unless an exact binomial test tells the two classes with the most votes apart.
        """
        check_alpha(alpha)
        counts = self.counts(x, n=n, index=index)
        second, first = np.argsort(counts, kind="stable")[-2:]
        p_value = binomial_test(int(counts[first]), int(counts[first] + counts[second]))
        return Prediction(int(first) if p_value <= alpha else None, counts, p_value, n, alpha)

    def counts(self, x: torch.Tensor, *, n: int = 1_000, index: int = 0, phase: int = PREDICT) -> Counts:
        """How many of n noisy copies each class gets: int64 [num_classes]. A phase has draws of its own."""
        if n < 1:
            raise PprsError(f"`n` must be at least 1, not {n}", parameter="n")
        with error_context(x, index, self.partition):
            x = check_image(x, self._votes.device)
            return count_votes(self._votes, x, n, index, phase).counts

    def seconds_per_sample(self, x: torch.Tensor) -> float:
        """How long a sample takes here, measured on draws that nothing else uses."""
        with error_context(x, 0, self.partition):
            x = check_image(x, self._votes.device)
            on_cpu = self._votes.device.type == "cpu"
            workers = self._votes.threads or _threads.get_threads()
            n = chunk_size(x.numel()) * (workers if on_cpu else 1)
            count_votes(self._votes, x, n, 0, TRIAL)  # compile, fill caches
            began = time.perf_counter()
            count_votes(self._votes, x, n, 0, TRIAL)
        return (time.perf_counter() - began) / n


class Certification:
    """The certification of one image: select, estimate, bound, abstain. It can be left after any chunk and resumed."""

    def __init__(
        self, source: VoteSource, sampling: Sampling, index: int = 0, checkpoint: Checkpoint | None = None
    ) -> None:
        self._source, self.sampling, self._index, self._checkpoint = source, sampling, index, checkpoint
        # The votes and the evidence from them, as one: an interruption finds both or neither.
        self._state: tuple[Votes, Evidence] | None = None
        self._shape = (0, 0, 0)

    @property
    def stopped(self) -> str | None:
        """Why it is done: "n" (all samples are drawn) or the rule's reason; None: it is not."""
        return None if self._state is None else self._state[1].stopped

    @property
    def samples(self) -> int:
        """How many votes were counted."""
        counts = (self._checkpoint.counts if self._checkpoint else ()) if self._state is None else self._state[0].counts
        return int(sum(counts))

    @property
    def begun(self) -> bool:
        """Whether there is a certificate to give."""
        return self._state is not None and self.samples > 0

    @property
    def possible_gain(self) -> float:
        """How much larger the radius may become, with luck, by going on."""
        return 0.0 if self._state is None else self._state[1].optimistic_radius() - self._state[1].radius

    def advance(
        self, x: torch.Tensor, pause: Callable[[int], bool] | None = None, on_samples: OnSamples | None = None
    ) -> None:
        """Draw samples until it is done, or until `pause`, asked after every chunk with how many there are, says so."""
        if self._state is None:
            self.select(x, on_samples)
        if self.stopped is None:
            self.estimate(x, on_samples, pause)

    def select(self, x: torch.Tensor, on_samples: OnSamples | None = None) -> None:
        """Choose the class with the most of n0 votes, or the one that a checkpoint chose."""
        source, sampling, earlier = self._source, self.sampling, self._checkpoint
        with self._checked(x) as x:
            check_reach(sampling, source.noise, x.numel(), source.num_classes)
            if earlier is None:
                selected = int(count_votes(source, x, sampling.n0, self._index, SELECT, on_samples).counts.argmax())
                votes = Votes.none(source.num_classes)
            else:
                selected, counts, mean = earlier.selected, np.array(earlier.counts, np.int64), earlier.mean_segments
                votes = Votes(counts, None if mean is None else round(mean * int(counts.sum())))
            evidence = Evidence(sampling, source.noise, x.numel(), source.num_classes, selected)
            if earlier is not None:
                evidence.restore(earlier.counts, earlier.p_lower, earlier.p_upper)
            self._state = votes, evidence

    def estimate(
        self, x: torch.Tensor, on_samples: OnSamples | None = None, pause: Callable[[int], bool] | None = None
    ) -> None:
        """Count the selected class's votes among fresh samples, and bound its share, until that is enough.

        After a pause, what other threads are at is counted too, not drawn a second time.
        """
        if self._state is None:
            raise PprsError("select the class first, with `select` or `advance`")
        paused = threading.Event()
        with self._checked(x) as x, contextlib.closing(self._fresh_votes(x, paused)) as parts:
            for part in parts:
                assert self._state is not None
                votes, evidence = self._state[0] + part, copy.copy(self._state[1])
                evidence.add(votes.counts.tolist())
                self._state = votes, evidence
                if on_samples is not None:
                    on_samples(int(part.counts.sum()))
                if evidence.stopped is not None:
                    return
                if pause is not None and not paused.is_set() and pause(self.samples):
                    paused.set()
            if not paused.is_set() and self._state is not None:
                check_count(self._state[0], self.sampling.n)

    def _fresh_votes(self, x: torch.Tensor, paused: threading.Event) -> Generator[Votes]:
        samples, eager = range(self.samples, self.sampling.n), self.sampling.stop is None
        return self._source.votes(x, samples, self._index, ESTIMATE, eager=eager, more=lambda: not paused.is_set())

    @contextlib.contextmanager
    def _checked(self, x: torch.Tensor) -> Iterator[torch.Tensor]:
        with error_context(x, self._index, self._source.partition):
            x = check_image(x, self._source.device)
            self._shape = (x.shape[0], x.shape[1], x.shape[2])
            yield x

    def certificate(self) -> Certificate:
        """What is proved by now: a radius where the bound is above 1/2 (or above every rival's), else an abstention."""
        if self._state is None or not self.begun:
            raise PprsError("no sample has been drawn yet")
        source, sampling, n, (votes, evidence) = self._source, self.sampling, self.samples, self._state
        return Certificate(
            prediction=evidence.selected if evidence.certified else None,
            radius=evidence.radius if evidence.certified else 0.0,
            p_lower=evidence.p_lower,
            counts=votes.counts,
            selected=evidence.selected,
            n0=sampling.n0,
            n=n,
            alpha=sampling.alpha,
            shape=self._shape,
            noise=str(source.noise),
            partition=str(source.resolve(self._shape) or "none"),
            mean_segments=None if votes.segments is None else votes.segments / n,
            bound=sampling.bound,
            p_upper=evidence.p_upper,
            n_max=sampling.n,
            stop=sampling.stop,
            stopped=evidence.stopped or "budget",
        )
