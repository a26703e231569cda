"""The smoothed segmentation, which certifies the labels of pixels by counting them over noisy samples."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch

from pprs.errors import ConfigurationError, PprsError, check_integer, check_type
from pprs.inputs.domain import IMAGE
from pprs.model.forms import AnyModel, open_network
from pprs.noise import AnyNoise, Noise, Quantisation, QuantisedImage, as_noise, digest_image
from pprs.partition import AUTO, AnyPartition, Partition, as_partition
from pprs.progress import Progress, as_progress, stage
from pprs.segmentation.certificate import ABSTAINED, SegmentationCertificate
from pprs.segmentation.counting import Ints, PixelVotes
from pprs.segmentation.groups import Groups, check_groups, make_groups
from pprs.segmentation.holm import check_attainable, check_samples, least_significant_count
from pprs.smoothing.arithmetic import Arithmetic
from pprs.smoothing.consistency import FirstBatch, check_function_of_one_image, checked
from pprs.smoothing.voting import SELECT, OnSamples, check_image, error_context, noisy_chunk, trial_inputs


@dataclass(frozen=True)
class SegmentationSampling:
    """How to sample each image, and what to prove about its pixels.

    Args:
        tau: The share of the noisy samples in which a label must occur. It decides the radius, which for Gaussian
            noise is sigma * Phi^-1(tau).
        n0: Number of noisy samples that select the label of each pixel.
        n: Number of further samples that test it.
        alpha: Failure probability of each image: the largest probability that any claim about its pixels is wrong.
        groups: A partition with segments, such as `grid:size=4`. The pixels of a segment share one label and one
            hypothesis. None tests every pixel.

    Raises:
        ConfigurationError: If a value is invalid, or if n samples can never certify a pixel.
    """

    tau: float = 0.75
    n0: int = 20
    n: int = 100
    alpha: float = 0.001
    groups: Partition | None = None

    def __post_init__(self) -> None:
        for name in ("n0", "n"):
            object.__setattr__(self, name, check_integer(getattr(self, name), name))
        check_samples(self.n0, self.n, self.tau, self.alpha)
        check_type(self.groups, Partition | None, "groups", "pprs.Grid(4)")
        check_groups(self.groups)


class SmoothedSegmenter:
    """The most frequent label of each pixel under noise, with a partition applied to every noisy sample.

    Args:
        model: The segmentation network. It maps images [B, C, H, W], float32 in about [0, 1] plus noise, to scores
            [B, num_classes, H, W]. Coarser scores are enlarged to the size of the image.
        num_classes: The number of classes, at least 2, if the model does not say.
        noise: The noise added to the image, such as `Gaussian(0.25)`, "gaussian:sigma=0.25" or 0.25.
        partition: The partition applied to each noisy sample before the network, as for `SmoothedClassifier`.
        seed: The random seed.
        batch_size: The number of noisy samples per call of the network. Labels do not depend on it.
        threads: The number of batches that run in parallel on a CPU. Defaults to the number of cores.
        device: The torch device on which to run the network.
        arithmetic: "auto", "exact", "8-bit", "16-bit", "rounded" or "real", as for `SmoothedClassifier`.
        check: Whether to check that the network is a function of one image, as for `SmoothedClassifier`.

    Raises:
        PprsError: If `num_classes`, `seed`, `batch_size` or `threads` is out of range.
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
    ) -> None:
        network = open_network(model, num_classes)
        self.votes = PixelVotes(
            network.function, network.num_classes, as_noise(noise), as_partition(partition, auto=True), seed=seed,
            batch_size=batch_size, threads=threads, device=device, arithmetic=arithmetic,
        )  # fmt: skip
        self.votes.recommend = network.recommend
        self._check = FirstBatch()
        self.votes.batch_check = self._check if check else None

    def certify(
        self,
        x: torch.Tensor,
        sampling: SegmentationSampling | None = None,
        *,
        index: int = 0,
        on_samples: OnSamples | None = None,
    ) -> SegmentationCertificate:
        """Return the labels of the pixels that no perturbation up to the radius changes, and abstain at the others.

        Args:
            x: The image [C, H, W], with values in [0, 1].
            sampling: How many samples to draw, and what to prove.
            index: Keys the noise of this image. Use a different index for each image of a data set.
            on_samples: Called with the number of new samples after every few chunks.

        Returns:
            The certificate, whose labels hold all at once with probability at least 1 - alpha.

        Raises:
            PprsError: If an argument or the image is invalid, or if the network fails.
        """
        sampling, votes = sampling or SegmentationSampling(), self.votes
        with checked(votes), error_context(x, index, votes.partition):
            image = votes.quantise(check_image(x, votes.device, IMAGE))
            quantisation = image.quantisation if isinstance(image, QuantisedImage) else None
            groups = self._draw_groups(image, sampling, index)
            hypotheses = image.shape[1] * image.shape[2] if groups is None else groups.count
            try:
                alpha, _ = split_alpha(quantisation, votes.noise, image.numel(), sampling)
                check_attainable(hypotheses, sampling.n, sampling.tau, alpha)
            except ConfigurationError as error:  # other images of a run may be smaller or on other levels
                raise PprsError(error.message, parameter=error.parameter) from error
            selected = votes.select(image, sampling.n0, index, groups, on_samples)
            counts, segments = votes.count_agreement(image, selected, sampling.n, index, groups, on_samples)
        return conclude(
            sampling,
            noise=votes.noise,
            partition=str(votes.resolve(tuple(image.shape)) or "none"),
            num_classes=votes.num_classes,
            shape=(image.shape[0], image.shape[1], image.shape[2]),
            selected=selected,
            counts=counts,
            groups=groups,
            quantisation=quantisation,
            mean_segments=None if segments is None else segments / sampling.n,
            image_digest=digest_image(image),
        )

    def check_model(self, x: torch.Tensor, *, index: int = 0) -> None:
        """Check that the network is a function of one image, as every certificate assumes.

        Args:
            x: The image [C, H, W], with values in [0, 1].
            index: Keys the noise of this image.

        Raises:
            ConfigurationError: If the scores of an image depend on the batch, on earlier calls or on random numbers.
            PprsError: If the image is invalid, or if the network fails.
        """
        votes = self.votes
        with error_context(x, index, votes.partition):
            image = votes.quantise(check_image(x, votes.device, IMAGE))
            inputs = trial_inputs(image, votes.noise, votes.resolve(tuple(x.shape)), votes.seed, index)
            votes.settle_alone(check_function_of_one_image(votes, inputs))
            self._check.accept(votes, inputs[-1:])

    def _draw_groups(
        self, image: torch.Tensor | QuantisedImage, sampling: SegmentationSampling, index: int
    ) -> Groups | None:
        """Return the groups of pixels, found on the mean of the selection samples."""
        if sampling.groups is None:
            return None
        votes = self.votes
        partition = resolve_groups(sampling.groups, votes.noise, tuple(image.shape))
        if partition.static:
            return make_groups(partition, np.zeros(tuple(image.shape), np.float32))
        total, done, chunk = torch.zeros(tuple(image.shape), dtype=torch.float64), 0, 0
        while done < sampling.n0:
            noisy = noisy_chunk(image, votes.noise, votes.seed, index, SELECT, chunk)[: sampling.n0 - done]
            total += noisy.double().sum(0).cpu()
            done, chunk = done + len(noisy), chunk + 1
        return make_groups(partition, (total / sampling.n0).float().numpy())


def resolve_groups(groups: Partition, noise: Noise, shape: tuple[int, ...]) -> Partition:
    """Return the partition that groups pixels, with every "auto" option set as for the noise."""
    return groups.resolve(noise.sigma, shape)


def split_alpha(
    quantisation: Quantisation | None, noise: Noise, dim: int, sampling: SegmentationSampling
) -> tuple[float, float]:
    """Return alpha without the probability of a differing draw, and the radius without what rounding takes off it.

    The samples of an image are shared by all its pixels, so what a differing draw costs is taken off once.

    Raises:
        ConfigurationError: If exact arithmetic is not possible.
        PprsError: If rounding uses up the radius.
    """
    radius = noise.radius(sampling.tau, dim)
    if quantisation is None:
        return sampling.alpha, radius
    quantisation.check_thresholds(noise.sigma)
    alpha = quantisation.reduced_alpha(sampling.alpha, noise.sigma, sampling.n, dim)
    loss = quantisation.radius_loss(dim)
    if loss:
        radius = math.nextafter(radius - loss, 0)
        if radius <= 0:
            raise PprsError(
                f"rounding the image to 16 bits takes {loss:.2g} off the radius, which uses it up. Increase `tau`, or "
                "use an 8-bit image, which is not rounded.",
                parameter="tau",
            )
    return alpha, radius


def conclude(
    sampling: SegmentationSampling,
    *,
    noise: Noise,
    partition: str,
    num_classes: int,
    shape: tuple[int, int, int],
    selected: Ints,
    counts: Ints,
    groups: Groups | None = None,
    quantisation: Quantisation | None = None,
    mean_segments: float | None = None,
    image_digest: str | None = None,
) -> SegmentationCertificate:
    """Return what the counts of pixels or groups [U] prove about their selected labels [U].

    This is the only place where claims are made: runs store counts, and come here whenever they are read.
    """
    alpha, radius = split_alpha(quantisation, noise, math.prod(shape), sampling)
    least = least_significant_count(counts, sampling.n, sampling.tau, alpha)
    labels = np.where(counts >= least, selected, ABSTAINED)
    cells = np.arange(shape[1] * shape[2]).reshape(shape[1:]) if groups is None else groups.cells
    return SegmentationCertificate(
        labels=labels[cells].astype(np.int32),
        radius=radius,
        selected=selected[cells].astype(np.int32),
        counts=counts[cells].astype(np.int32),
        least_count=least,
        hypotheses=len(counts),
        tau=sampling.tau,
        n0=sampling.n0,
        n=sampling.n,
        alpha=sampling.alpha,
        num_classes=num_classes,
        shape=shape,
        noise=str(noise),
        partition=partition,
        groups="none" if sampling.groups is None else str(resolve_groups(sampling.groups, noise, shape)),
        static_groups=groups is None or groups.static,
        cells=None if groups is None else groups.cells,
        mean_segments=mean_segments,
        arithmetic="real" if quantisation is None else "exact",
        levels=None if quantisation is None else quantisation.levels,
        moved=0.0 if quantisation is None else quantisation.moved,
        image_digest=image_digest,
    )


def certify_segmentation(
    model: AnyModel,
    x: torch.Tensor,
    *,
    num_classes: int | None = None,
    noise: AnyNoise,
    partition: AnyPartition = AUTO,
    tau: float = 0.75,
    n0: int = 20,
    n: int = 100,
    alpha: float = 0.001,
    index: int = 0,
    groups: AnyPartition = None,
    seed: int = 0,
    batch_size: int | None = None,
    threads: int | None = None,
    device: str | torch.device = "cpu",
    arithmetic: str = "auto",
    check: bool = True,
    progress: bool | Progress | None = None,
) -> SegmentationCertificate:
    """Certify the label map that a segmentation network gives to an image.

    With probability at least 1 - `alpha`, no perturbation of the image with an L2 norm up to the radius changes the
    smoothed network's label of any pixel that is not abstained. The claim is about all these pixels at once. For
    Gaussian noise, the radius is sigma * Phi^-1(tau).

    Args:
        model: The network, as for `SmoothedClassifier`. It maps images [B, C, H, W] in about [0, 1] plus noise to
            scores [B, num_classes, H, W].
        x: The image [C, H, W], with values in [0, 1].
        num_classes: The number of classes, at least 2, if the model does not say.
        noise: The noise, as an object, as text such as "gaussian:sigma=0.25", or as the sigma of Gaussian noise.
        partition: The partition applied to each noisy sample, as for `SmoothedClassifier`.
        tau: The share of the noisy samples in which a label must occur, above 1/2.
        n0: The number of noisy samples that select the labels.
        n: The number of further samples that test them.
        alpha: The failure probability of the whole map.
        index: Keys the noise of this image. Use a different index for each image of a data set.
        groups: A partition with segments, such as `Grid(4)`, whose segments are certified as a whole.
        seed: The random seed.
        batch_size: The number of noisy samples per call of the network. Results do not depend on it.
        threads: The number of batches that run in parallel on a CPU.
        device: The torch device on which to run the network.
        arithmetic: "auto", "exact", "8-bit", "16-bit", "rounded" or "real", as for `SmoothedClassifier`.
        check: Whether to check that the network is a function of one image, as for `SmoothedClassifier`.
        progress: True to show a progress bar, or a `Progress` object to report to.

    Returns:
        The certificate. Its `labels` are -1 where the segmentation abstains.

    Raises:
        PprsError: If an argument or the image is invalid, or if the network fails.

    Examples:
        >>> from pprs import Gaussian
        >>> def model(x): return torch.cat([0.5 - x, x - 0.5], dim=1)
        >>> x = torch.zeros(1, 8, 8); x[:, :, 4:] = 1
        >>> certificate = certify_segmentation(model, x, num_classes=2, noise=Gaussian(0.25))
        >>> certificate.labels[0].tolist(), round(certificate.radius, 3)
        ([0, 0, 0, 0, 1, 1, 1, 1], 0.169)
    """
    sampling = SegmentationSampling(tau, n0, n, alpha, as_partition(groups, "groups"))
    segmenter = SmoothedSegmenter(
        model, num_classes, noise, partition, seed=seed, batch_size=batch_size, threads=threads, device=device,
        arithmetic=arithmetic, check=check,
    )  # fmt: skip
    reporter = as_progress(progress)
    with stage(reporter, "segment", sampling.n0 + sampling.n, "samples"):
        return segmenter.certify(x, sampling, index=index, on_samples=reporter.advance)


__all__ = ["SegmentationSampling", "SmoothedSegmenter", "certify_segmentation", "conclude"]
