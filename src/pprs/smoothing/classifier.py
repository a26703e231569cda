"""The smoothed classifier, which certifies and predicts by counting votes on noisy samples."""

from __future__ import annotations

import contextlib
import copy
import threading
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence, Sized
from typing import Protocol

import numpy as np
import torch

from pprs.errors import ConfigurationError, PprsError
from pprs.noise import Noise, Quantisation, QuantisedImage, digest_image
from pprs.partition import Partition
from pprs.progress import Progress, as_progress, stage
from pprs.smoothing.arithmetic import Arithmetic
from pprs.smoothing.bounds import binomial_test, check_alpha
from pprs.smoothing.certificate import Certificate, Counts, Prediction
from pprs.smoothing.consistency import FirstBatch, check_function_of_one_image, checked
from pprs.smoothing.sampling import Evidence, Sampling, check_certifiable
from pprs.smoothing.voting import (
    ESTIMATE,
    PREDICT,
    SELECT,
    LocalVotes,
    OnSamples,
    Votes,
    VoteSource,
    check_count,
    check_image,
    count_votes,
    error_context,
    trial_inputs,
)


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


class SmoothedClassifier:
    """The majority vote of a base classifier under noise, with a partition applied to every noisy sample.

    With `partition=None` this is plain randomized smoothing (Cohen et al. 2019).

    On a CPU, several batches run through noise, partition and network in parallel, so the network is called from
    several threads at once. Use `threads=1` for a network that keeps state between calls. A `model` that is not a
    `torch.nn.Module` is called only from the caller's thread.

    Args:
        model: The base classifier. It maps images [B, C, H, W], float32 in about [0, 1] plus noise, to scores
            [B, num_classes]. A `torch.nn.Module` is moved to `device` and put in eval mode.
        num_classes: The number of classes, at least 2.
        noise: The noise added to the image, such as `Gaussian(0.25)`.
        partition: The partition applied to each noisy sample before the base classifier, such as `Slic()`.
        seed: The random seed.
        batch_size: The number of noisy samples per call of the base classifier. By default it depends on the image
            size and the device. Vote counts do not depend on it.
        threads: The number of batches that run in parallel on a CPU. Defaults to the number of cores.
        device: The torch device on which to run the base classifier.
        arithmetic: "exact" draws Gaussian noise in integers on the levels of an 8-bit or 16-bit image, so that the
            certificate holds as stated. "8-bit" and "16-bit" do so on these levels only. "rounded" rounds every image
            to 16 bits first, which the radius takes into account. "real" adds noise in floating point, so that the
            certificate disregards rounding. "auto" is exact for Gaussian noise, and rounds an image that is on neither
            kind of level. Signals have the levels of audio, of 24 bits too ("24-bit"), or are rounded to decimals.
            Images of different bit depth are classified differently by "auto" and "exact", and each certificate says
            for which it holds. Give one of the others for a single classifier.
        check: Whether to check that the base classifier is a function of one image, as every certificate assumes: on
            the first batch, before its votes are counted, and that it is still the same one afterwards.

    Raises:
        PprsError: If `num_classes`, `seed`, `batch_size` or `threads` is out of range.

    Examples:
        >>> from pprs import Gaussian
        >>> def model(x): return torch.stack([x.mean((1, 2, 3)) - 0.5, 0.5 - x.mean((1, 2, 3))], dim=1)
        >>> g = SmoothedClassifier(model, num_classes=2, noise=Gaussian(0.5))
        >>> certificate = g.certify(torch.full((1, 8, 8), 0.6), n=1000)
        >>> print(certificate)  # doctest: +NORMALIZE_WHITESPACE
        class 0: no change of L2 norm up to 0.658 to this 8x8 grey image can alter this label, with 99.9% confidence,
        among 8-bit images
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
        arithmetic: str | Arithmetic = "auto",
        check: bool = True,
    ) -> None:
        self._votes = LocalVotes(
            model, num_classes, noise, partition, seed=seed, batch_size=batch_size, threads=threads, device=device,
            arithmetic=arithmetic,
        )  # fmt: skip
        self._check = FirstBatch()
        self._votes.batch_check = self._check if check else None

    @property
    def model(self) -> Callable[[torch.Tensor], torch.Tensor]:
        """The base classifier."""
        return self._votes.model

    @property
    def num_classes(self) -> int:
        """The number of classes."""
        return self._votes.num_classes

    @property
    def noise(self) -> Noise:
        """The noise added to the image."""
        return self._votes.noise

    @property
    def partition(self) -> Partition | None:
        """The partition applied to each noisy sample, or None."""
        return self._votes.partition

    @property
    def votes(self) -> LocalVotes:
        """The source of its votes, which adds noise, partitions, classifies and counts."""
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
        check: bool = True,
        progress: bool | Progress | None = None,
    ) -> Certificate:
        """Return a label and a radius within which no perturbation changes it, or abstain.

        The statement is wrong with probability at most `alpha`. This is the procedure CERTIFY of Cohen et al. (2019).

        Args:
            x: The image [C, H, W], with values in [0, 1].
            n0: The number of noisy samples that select the class.
            n: The number of further samples that estimate the probability of that class.
            alpha: The failure probability.
            index: Keys the noise of this image. Use a different index for each image of a data set.
            bound: "one-sided" assigns all the remaining probability to a single other class. "two-sided" also bounds
                the probability of every other class from above.
            stop: A rule for stopping before all `n` samples are drawn, without weakening the guarantee.
                "radius:0.25,0.5" stops once it is decided whether the image is certified at these radii, "width:0.02"
                once the radius is known to that precision, and "abstain" once a certificate is very unlikely.
            check: Whether to check the base classifier, if this classifier does so at all.
            progress: True to show a progress bar, or a `Progress` object to report to.

        Returns:
            The certificate. Its `prediction` is None and its `radius` 0 if the classifier abstains.

        Raises:
            ConfigurationError: If the base classifier is not a function of one image.
            PprsError: If an argument or the image is invalid, or if the base classifier fails.
        """
        if not check:
            self = self._without_check()
        certification = self.start(Sampling(n0, n, alpha, bound, stop), index)
        reporter = as_progress(progress)
        with checked(self._votes), stage(reporter, "certify", n0 + n, "samples"):
            certification.select(x, reporter.advance)  # the class with the most of n0 votes
            certification.estimate(x, reporter.advance)  # its vote count among n fresh samples, and the lower bound
        return certification.certificate()  # the radius at that bound, or an abstention if it is at most 1/2

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
        """Yield one certificate per image, each as soon as it is complete.

        The certificate of an image does not depend on the other images: it equals that of `certify` with the same
        index.

        Args:
            images: A tensor [B, C, H, W] or any iterable of images [C, H, W].
            n0: The number of noisy samples that select the class.
            n: The number of further samples that estimate the probability of that class.
            alpha: The failure probability of each certificate.
            indices: One index per image, which keys its noise. Defaults to the positions of the images.
            bound: "one-sided" or "two-sided", as in `certify`.
            stop: A rule for stopping early, as in `certify`.
            progress: True to show a progress bar, or a `Progress` object to report to.

        Yields:
            The certificates, in the order of the images.

        Raises:
            PprsError: If there are fewer indices than images, or for any reason given in `certify`.
        """
        keys = None if indices is None else iter(indices)
        reporter, total = as_progress(progress), len(images) if isinstance(images, Sized) else 0
        with stage(reporter, "certify", total, "images"):
            for position, x in enumerate(images):
                index = position if keys is None else next(keys, None)
                if index is None:
                    raise PprsError(
                        f"`indices` ended after {position} images. Give one index per image.", parameter="indices"
                    )
                yield self.certify(x, n0=n0, n=n, alpha=alpha, index=index, bound=bound, stop=stop)
                reporter.advance(1)

    def start(self, sampling: Sampling, index: int = 0, checkpoint: Checkpoint | None = None) -> Certification:
        """Start the certification of one image, to be run in steps.

        Args:
            sampling: How many samples to draw, the failure probability, the bound and the stop rule.
            index: Keys the noise of this image.
            checkpoint: The state of an earlier, interrupted certification of the same image, from which to resume.

        Returns:
            A certification to which no sample has been added yet.
        """
        return Certification(self._votes, sampling, index, checkpoint)

    def predict(self, x: torch.Tensor, *, n: int = 1_000, alpha: float = 0.001, index: int = 0) -> Prediction:
        """Return the smoothed classifier's label, or abstain.

        The label is wrong with probability at most `alpha`. The classifier abstains unless an exact binomial test
        separates the two classes with the most votes. This is the procedure PREDICT of Cohen et al. (2019). In exact
        arithmetic, the probability that a draw differs from one of the exact distribution is taken off `alpha`.

        Args:
            x: The image [C, H, W], with values in [0, 1].
            n: The number of noisy samples.
            alpha: The failure probability.
            index: Keys the noise of this image.

        Returns:
            The prediction. Its `prediction` is None if the classifier abstains.

        Raises:
            PprsError: If an argument or the image is invalid, if the base classifier fails, or if exact arithmetic
                cannot keep `alpha` with so many samples.
        """
        with checked(self._votes):
            return predict_label(self._votes, x, n=n, alpha=alpha, index=index)

    def counts(self, x: torch.Tensor, *, n: int = 1_000, index: int = 0, phase: int = PREDICT) -> Counts:
        """Count the base classifier's votes on noisy samples of an image.

        Args:
            x: The image [C, H, W], with values in [0, 1].
            n: The number of noisy samples.
            index: Keys the noise of this image.
            phase: The phase of the noise. Samples of different phases are independent.

        Returns:
            The vote count of each class, int64 [num_classes].

        Raises:
            PprsError: If an argument or the image is invalid, or if the base classifier fails.
        """
        _check_number(n)
        with error_context(x, index, self.partition):
            return count_votes(self._votes, self._prepare(x), n, index, phase).counts

    def _without_check(self) -> SmoothedClassifier:
        other = copy.copy(self)
        other._votes = copy.copy(self._votes)
        other._votes.batch_check = None
        return other

    def check_model(self, x: torch.Tensor, *, index: int = 0) -> None:
        """Check that the base classifier is a function of one image, as every certificate assumes.

        A few noisy samples of the image are scored alone, together, among other images and again, in batches as large
        as those of a run. Runs are checked before they start, and `certify` and `predict` check their first batch.

        Args:
            x: The image [C, H, W], with values in [0, 1].
            index: Keys the noise of this image.

        Raises:
            ConfigurationError: If the scores of an image depend on the batch, on earlier calls or on random numbers.
            PprsError: If the image is invalid, or if the base classifier fails.
        """
        with error_context(x, index, self.partition):
            self.check_inputs(trial_inputs(self._prepare(x), self.noise, self.partition, self._votes.seed, index))

    def check_inputs(self, inputs: torch.Tensor) -> None:
        """Check the base classifier as `check_model` does, on noisy samples that are partitioned already.

        Images whose label the remaining rounding could change are scored alone from now on.
        """
        self._votes.settle_alone(check_function_of_one_image(self._votes, inputs))
        self._check.accept(self._votes, inputs[-1:])

    def confirm(self) -> None:
        """Check that the base classifier is still the one that was checked, as `certify` does at its end.

        Raises:
            ConfigurationError: If its scores or its parameters have changed.
        """
        self._check.confirm(self._votes)

    def seconds_per_sample(self, x: torch.Tensor) -> float:
        """Measure the seconds that one noisy sample of the image takes, with noise used for nothing else."""
        return self._votes.seconds_per_sample(x)

    def _prepare(self, x: torch.Tensor) -> torch.Tensor | QuantisedImage:
        """Validate an image and return it in the form in which noise is added to it."""
        return self._votes.quantise(check_image(x, self._votes.device))


def predict_label(
    source: VoteSource, x: torch.Tensor, *, n: int, alpha: float, index: int, on_samples: OnSamples | None = None
) -> Prediction:
    """Return the label that most of n samples have, or abstain, as `SmoothedClassifier.predict` does."""
    check_alpha(alpha)
    _check_number(n)
    with error_context(x, index, source.partition):
        image = source.quantise(check_image(x, source.device))
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


def _check_number(n: int) -> None:
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
            self._image = self._source.quantise(check_image(x, self._source.device))
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
