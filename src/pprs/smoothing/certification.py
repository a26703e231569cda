"""The certification of one image in steps, and the prediction of one image."""

from __future__ import annotations

import contextlib
import copy
import threading
from collections.abc import Callable, Generator, Iterator, Sequence
from typing import Protocol

import numpy as np
import torch

from pprs.errors import ConfigurationError, PprsError
from pprs.noise import Noise, Quantisation, QuantisedImage, digest_image
from pprs.smoothing.bounds import binomial_test, check_alpha
from pprs.smoothing.certificate import Certificate, Counts, Prediction
from pprs.smoothing.samples import ESTIMATE, PREDICT, SELECT, check_image, error_context
from pprs.smoothing.sampling import Evidence, Sampling, check_certifiable
from pprs.smoothing.votes import OnSamples, Votes, VoteSource, check_count, count_votes


class Checkpoint(Protocol):
    """The stored state of a certification that was interrupted."""

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
    @property
    def image_digest(self) -> str | None: ...


def predict_label(
    source: VoteSource, x: torch.Tensor, *, n: int, alpha: float, index: int, on_samples: OnSamples | None = None
) -> Prediction:
    """Return the label that most of n samples have, or abstain, as `SmoothedClassifier.predict` does."""
    check_alpha(alpha)
    check_number(n)
    with error_context(x, index, source.partition):
        image = source.quantise(check_image(x, source.device, source.domain))
        quantisation = _quantisation_of(image)
        try:
            level = reduce_alpha(alpha, source.noise, n, image.numel(), quantisation)
        except ConfigurationError as error:  # other images may be smaller or on other levels
            raise PprsError(error.message, parameter=error.parameter) from error
        counts = count_votes(source, image, n, index, PREDICT, on_samples).counts
    prediction, p_value = decide_label(counts, level)
    return Prediction(
        prediction,
        counts,
        p_value,
        n,
        alpha,
        arithmetic="real" if quantisation is None else "exact",
        levels=None if quantisation is None else quantisation.levels,
        shape=tuple(image.shape),
        moved=0.0 if quantisation is None else quantisation.moved,
        image_digest=digest_image(image),
    )


def reduce_alpha(alpha: float, noise: Noise, n: int, dim: int, quantisation: Quantisation | None) -> float:
    """Return alpha without the probability that exact arithmetic draws another sample than the exact distribution."""
    return alpha if quantisation is None else quantisation.reduced_alpha(alpha, noise.sigma, n, dim)


def decide_label(counts: Counts, level: float) -> tuple[int | None, float]:
    """Return the label with the most votes, and the p-value of the test that it is no likelier than the second.

    The label is None if the test does not separate the two at this level.

    >>> decide_label(np.array([5, 60, 35]), 0.001)[0], decide_label(np.array([0, 90, 10]), 0.001)[0]
    (None, 1)
    """
    second, first = np.argsort(counts, kind="stable")[-2:]
    p_value = binomial_test(int(counts[first]), int(counts[first] + counts[second]))
    return (int(first) if p_value <= level else None), p_value


def check_number(n: int) -> None:
    if n < 1:
        raise PprsError(f"`n` must be at least 1, not {n}", parameter="n")


def _quantisation_of(image: torch.Tensor | QuantisedImage) -> Quantisation | None:
    """Return the levels of a prepared image, or None in real arithmetic."""
    return image.quantisation if isinstance(image, QuantisedImage) else None


class Certification:
    """The certification of one image in steps: select, estimate, bound, abstain.

    It can be paused after any chunk of samples and resumed later, in this process with `advance` or from a checkpoint.

    Args:
        source: Counts the votes on noisy samples.
        sampling: How many samples to draw, the failure probability, the bound and the stop rule.
        index: Keys the noise of this image.
        checkpoint: The state of an earlier, interrupted certification of the same image, from which to resume.
    """

    def __init__(
        self, source: VoteSource, sampling: Sampling, index: int = 0, checkpoint: Checkpoint | None = None
    ) -> None:
        self._source, self.sampling, self._index, self._checkpoint = source, sampling, index, checkpoint
        # The votes and the evidence from them are replaced together, so that an interruption cannot separate them.
        self._state: tuple[Votes, Evidence] | None = None
        self._image: torch.Tensor | QuantisedImage | None = None  # as it was certified

    @property
    def stopped(self) -> str | None:
        """Why sampling ended: "n" (all samples are drawn) or the stop rule's reason. None if it has not ended."""
        return None if self._state is None else self._state[1].stopped

    @property
    def samples(self) -> int:
        """The number of votes counted so far."""
        counts = (self._checkpoint.counts if self._checkpoint else ()) if self._state is None else self._state[0].counts
        return int(sum(counts))

    @property
    def begun(self) -> bool:
        """Whether enough is known for a certificate: the class is selected and at least one vote counted."""
        return self._state is not None and self.samples > 0

    @property
    def possible_gain(self) -> float:
        """An optimistic estimate of how much the remaining samples can enlarge the radius."""
        return 0.0 if self._state is None else self._state[1].optimistic_radius() - self._state[1].radius

    def advance(
        self, x: torch.Tensor, pause: Callable[[int], bool] | None = None, on_samples: OnSamples | None = None
    ) -> None:
        """Select the class if necessary, then draw samples until the certification is complete or paused.

        Args:
            x: The image [C, H, W], the same at every call.
            pause: Called with the number of samples after every chunk. Sampling pauses when it returns True.
            on_samples: Called with the number of new samples after every chunk.

        Raises:
            PprsError: If the image is invalid or the base classifier fails.
        """
        if self._state is None:
            self.select(x, on_samples)
        if self.stopped is None:
            self.estimate(x, on_samples, pause)

    def select(self, x: torch.Tensor, on_samples: OnSamples | None = None) -> None:
        """Select the class with the most of `n0` votes, or restore the selection of the checkpoint.

        Args:
            x: The image [C, H, W].
            on_samples: Called with the number of new samples after every chunk.

        Raises:
            PprsError: If the image is invalid, the base classifier fails, or the sampling can never certify the image.
        """
        source, sampling, checkpoint = self._source, self.sampling, self._checkpoint
        with self._check_image(x) as image:
            quantisation = _quantisation_of(image)
            problem = (source.noise, image.numel(), source.num_classes)
            try:
                check_certifiable(sampling, *problem, quantisation)
            except ConfigurationError as error:  # other images of a run may be smaller or on other levels
                raise PprsError(error.message, parameter=error.parameter) from error
            if checkpoint is None:
                selected = int(count_votes(source, image, sampling.n0, self._index, SELECT, on_samples).counts.argmax())
                votes = Votes.none(source.num_classes)
            else:
                if checkpoint.image_digest not in (None, digest_image(image)):
                    raise ConfigurationError(
                        "this is not the image whose votes were stored: its content has changed since", parameter="data"
                    )
                selected, counts = checkpoint.selected, np.array(checkpoint.counts, np.int64)
                mean = checkpoint.mean_segments
                votes = Votes(counts, None if mean is None else round(mean * int(counts.sum())))
            evidence = Evidence(sampling, *problem, selected, quantisation)
            if checkpoint is not None:
                evidence.restore(checkpoint.counts, checkpoint.p_lower, checkpoint.p_upper)
            self._state = votes, evidence

    def estimate(
        self, x: torch.Tensor, on_samples: OnSamples | None = None, pause: Callable[[int], bool] | None = None
    ) -> None:
        """Count the votes of fresh samples and bound the selected class's probability until sampling stops or pauses.

        After a pause, samples that other threads are already working on are counted too, so that none is drawn twice.

        Args:
            x: The image [C, H, W].
            on_samples: Called with the number of new samples after every chunk.
            pause: Called with the number of samples after every chunk. Sampling pauses when it returns True.

        Raises:
            PprsError: If no class is selected yet, the image is invalid, or the base classifier fails.
        """
        if self._state is None:
            raise PprsError("no class is selected yet: call `select` or `advance` first")
        paused = threading.Event()
        with self._check_image(x) as image, contextlib.closing(self._fresh_votes(image, paused)) as chunks:
            for chunk in chunks:
                assert self._state is not None
                votes, evidence = self._state[0] + chunk, copy.copy(self._state[1])
                evidence.add(votes.counts.tolist())
                self._state = votes, evidence
                if on_samples is not None:
                    on_samples(int(chunk.counts.sum()))
                if evidence.stopped is not None:
                    return
                if pause is not None and not paused.is_set() and pause(self.samples):
                    paused.set()
            if not paused.is_set() and self._state is not None:
                check_count(self._state[0], self.sampling.n)

    def _fresh_votes(self, image: torch.Tensor | QuantisedImage, paused: threading.Event) -> Generator[Votes]:
        samples, eager = range(self.samples, self.sampling.n), self.sampling.stop is None
        return self._source.votes(image, samples, self._index, ESTIMATE, eager=eager, more=lambda: not paused.is_set())

    @contextlib.contextmanager
    def _check_image(self, x: torch.Tensor) -> Iterator[torch.Tensor | QuantisedImage]:
        with error_context(x, self._index, self._source.partition):
            self._image = self._source.quantise(check_image(x, self._source.device, self._source.domain))
            yield self._image

    def certificate(self) -> Certificate:
        """Return the certificate that the samples drawn so far prove.

        Returns:
            A certified radius if the lower bound is above 1/2 (or, if two-sided, above the upper bound of every other
            class) and rounding to 16 bits does not use up the radius, otherwise an abstention.

        Raises:
            PprsError: If no sample has been drawn yet.
        """
        if self._state is None or self._image is None or not self.begun:
            raise PprsError("no sample has been drawn yet: call `advance` first")
        source, sampling, n, (votes, evidence) = self._source, self.sampling, self.samples, self._state
        shape = tuple(self._image.shape)
        quantisation = _quantisation_of(self._image)
        return Certificate(
            prediction=evidence.selected if evidence.certified else None,
            radius=evidence.radius if evidence.certified else 0.0,
            p_lower=evidence.p_lower,
            counts=votes.counts,
            selected=evidence.selected,
            n0=sampling.n0,
            n=n,
            alpha=sampling.alpha,
            shape=shape,
            noise=str(source.noise),
            partition=str(source.resolve(shape) or "none"),
            mean_segments=None if votes.segments is None else votes.segments / n,
            bound=sampling.bound,
            p_upper=evidence.p_upper,
            n_max=sampling.n,
            stop=sampling.stop,
            stopped=evidence.stopped or "budget",
            arithmetic="real" if quantisation is None else "exact",
            levels=None if quantisation is None else quantisation.levels,
            moved=0.0 if quantisation is None else quantisation.moved,
            image_digest=digest_image(self._image),
        )
