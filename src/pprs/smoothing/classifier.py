"""The smoothed classifier, which certifies and predicts by counting votes on noisy samples."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Iterator, Sized
from typing import Any

import torch

from pprs._support.shown import Shown
from pprs.errors import PprsError
from pprs.inputs.domain import Domain, check_unambiguous, choose_domain
from pprs.model.forms import AnyModel, describe_network, open_network
from pprs.noise import AnyNoise, Noise, QuantisedImage, as_noise
from pprs.partition import AUTO, AnyPartition, Auto, Partition, as_partition
from pprs.progress import Progress, as_progress, stage
from pprs.smoothing.arithmetic import Arithmetic
from pprs.smoothing.certificate import Certificate, Counts, Prediction
from pprs.smoothing.certification import Certification, Checkpoint, check_number, predict_label
from pprs.smoothing.consistency import FirstBatch, check_function_of_one_image, checked
from pprs.smoothing.local_votes import LocalVotes
from pprs.smoothing.samples import PREDICT, check_image, error_context, trial_inputs
from pprs.smoothing.sampling import Sampling
from pprs.smoothing.votes import count_votes


class SmoothedClassifier(Shown):
    """The majority vote of a base classifier under noise, with a partition applied to every noisy sample.

    With `partition=None` this is plain randomized smoothing (Cohen et al. 2019).

    On a CPU, several batches run through noise, partition and network in parallel, so the network is called from
    several threads at once. Use `threads=1` for a network that keeps state between calls. A `model` that is not a
    `torch.nn.Module` is called only from the caller's thread.

    Args:
        model: The base classifier: text for `load_model`, a `pprs.Model`, a `torch.nn.Module` or a function. It maps
            images [B, C, H, W], float32 in about [0, 1] plus noise, to scores [B, num_classes]. A `torch.nn.Module` is
            moved to `device`, and is in eval mode while it is called.
        num_classes: The number of classes, at least 2, if the model does not say.
        noise: The noise added to the image, such as `Gaussian(0.25)`, "gaussian:sigma=0.25" or 0.25.
        partition: The partition applied to each noisy sample before the base classifier, such as `Slic()` or "slic".
            "auto" is the one that is recommended for the noise, the shape of the image and the model, and None is plain
            randomized smoothing.
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
        domain: "image" for images [C, H, W], "signal" for signals [C, T]. By default what the model's input shape or
            the partition says, and else either, as the shape of an input says.

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
        model: AnyModel,
        num_classes: int | None = None,
        noise: AnyNoise | None = None,
        partition: AnyPartition = AUTO,
        *,
        seed: int = 0,
        batch_size: int | None = None,
        threads: int | None = None,
        device: str | torch.device = "cpu",
        arithmetic: str | Arithmetic = "auto",
        check: bool = True,
        domain: str | None = None,
    ) -> None:
        network = open_network(model, num_classes)
        self._votes = LocalVotes(
            network.function, network.num_classes, as_noise(noise), as_partition(partition, auto=True), seed=seed,
            batch_size=batch_size, threads=threads, device=device, arithmetic=arithmetic,
        )  # fmt: skip
        self._votes.recommend, self._input_shape = network.recommend, network.input_shape
        self._votes.domain = choose_domain(domain, network.input_shape, _domain_of(self._votes.partition))
        self._check = FirstBatch()
        self._votes.batch_check = self._check if check else None

    def _facts(self) -> dict[str, Any]:
        return {
            "model": describe_network(self.model),
            "classes": self.num_classes,
            "noise": self.noise,
            "partition": self.partition or "none",
            "arithmetic": self._votes.arithmetic,
            "of": None if self._votes.domain is None else self._votes.domain.plural,
        }

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
    def partition(self) -> Partition | Auto | None:
        """The partition applied to each noisy sample, or None. "auto" if it depends on the shape of an image."""
        votes, shape = self._votes, self._input_shape
        return votes.resolve(shape) if votes.partition == AUTO and shape is not None else votes.partition

    @property
    def domain(self) -> str | None:
        """Whether it classifies images or signals: "image", "signal", or None if nothing says so."""
        return None if self._votes.domain is None else self._votes.domain.name

    @property
    def votes(self) -> LocalVotes:
        """The source of its votes, which adds noise, partitions, classifies and counts."""
        return self._votes

    def certify(
        self,
        x: torch.Tensor,
        *,
        n0: int | None = None,
        n: int | None = None,
        alpha: float | None = None,
        index: int = 0,
        bound: str | None = None,
        stop: str | None = None,
        check: bool = True,
        sampling: Sampling | None = None,
        progress: bool | Progress | None = None,
    ) -> Certificate:
        """Return a label and a radius within which no perturbation changes it, or abstain.

        The statement is wrong with probability at most `alpha`. This is the procedure CERTIFY of Cohen et al. (2019).

        Args:
            x: The image [C, H, W], with values in [0, 1].
            n0: The number of noisy samples that select the class, 100 by default.
            n: The number of further samples that estimate the probability of that class, 10,000 by default.
            alpha: The failure probability, 0.001 by default.
            index: Keys the noise of this image. Use a different index for each image of a data set.
            bound: "one-sided", the default, assigns all the remaining probability to a single other class. "two-sided"
                also bounds the probability of every other class from above.
            stop: A rule for stopping before all `n` samples are drawn, without weakening the guarantee.
                "radius:0.25,0.5" stops once it is decided whether the image is certified at these radii, "width:0.02"
                once the radius is known to that precision, and "abstain" once a certificate is very unlikely.
            check: Whether to check the base classifier, if this classifier does so at all.
            sampling: All of `n0`, `n`, `alpha`, `bound` and `stop` in one object, instead of one by one.
            progress: True to show a progress bar, or a `Progress` object to report to.

        Returns:
            The certificate. Its `prediction` is None and its `radius` 0 if the classifier abstains.

        Raises:
            ConfigurationError: If the base classifier is not a function of one image.
            PprsError: If an argument or the image is invalid, or if the base classifier fails.
        """
        self._check_domain(x)
        if not check:
            self = self._without_check()
        sampling = Sampling.of(sampling, n0=n0, n=n, alpha=alpha, bound=bound, stop=stop)
        certification, reporter = self.start(sampling, index), as_progress(progress)
        with checked(self._votes), stage(reporter, "certify", sampling.n0 + sampling.n, "samples"):
            certification.select(x, reporter.advance)  # the class with the most of n0 votes
            certification.estimate(x, reporter.advance)  # its vote count among n fresh samples, and the lower bound
        return certification.certificate()  # the radius at that bound, or an abstention if it is at most 1/2

    def certify_batch(
        self,
        images: Iterable[torch.Tensor],
        *,
        n0: int | None = None,
        n: int | None = None,
        alpha: float | None = None,
        indices: Iterable[int] | None = None,
        bound: str | None = None,
        stop: str | None = None,
        sampling: Sampling | None = None,
        progress: bool | Progress | None = None,
    ) -> Iterator[Certificate]:
        """Yield one certificate per image, each as soon as it is complete.

        The certificate of an image does not depend on the other images: it equals that of `certify` with the same
        index.

        Args:
            images: A tensor [B, C, H, W] or any iterable of images [C, H, W].
            n0: The number of noisy samples that select the class, 100 by default.
            n: The number of further samples that estimate the probability of that class, 10,000 by default.
            alpha: The failure probability of each certificate, 0.001 by default.
            indices: One index per image, which keys its noise. Defaults to the positions of the images.
            bound: "one-sided" or "two-sided", as in `certify`.
            stop: A rule for stopping early, as in `certify`.
            sampling: All of `n0`, `n`, `alpha`, `bound` and `stop` in one object, instead of one by one.
            progress: True to show a progress bar, or a `Progress` object to report to.

        Yields:
            The certificates, in the order of the images.

        Raises:
            PprsError: If there are fewer indices than images, or for any reason given in `certify`.
        """
        sampling = Sampling.of(sampling, n0=n0, n=n, alpha=alpha, bound=bound, stop=stop)
        keys = None if indices is None else iter(indices)
        reporter, total = as_progress(progress), len(images) if isinstance(images, Sized) else 0
        with stage(reporter, "certify", total, "images"):
            for position, x in enumerate(images):
                index = position if keys is None else next(keys, None)
                if index is None:
                    raise PprsError(
                        f"`indices` ended after {position} images. Give one index per image.", parameter="indices"
                    )
                yield self.certify(x, index=index, sampling=sampling)
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
        self._check_domain(x)
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
        check_number(n)
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
            image, partition = self._prepare(x), self._votes.resolve(tuple(x.shape))
            self.check_inputs(trial_inputs(image, self.noise, partition, self._votes.seed, index))

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

    def _check_domain(self, x: torch.Tensor) -> None:
        """Refuse an input that may be an image or a signal, if nothing says which of them is classified."""
        if self._votes.domain is None:
            check_unambiguous(tuple(x.shape))

    def _prepare(self, x: torch.Tensor) -> torch.Tensor | QuantisedImage:
        """Validate an image and return it in the form in which noise is added to it."""
        self._check_domain(x)
        return self._votes.quantise(check_image(x, self._votes.device, self._votes.domain))


def _domain_of(partition: Partition | Auto | None) -> Domain | None:
    return partition.domain if isinstance(partition, Partition) else None
