"""A classifier that sees values only behind thresholds, and answers by the votes of all offsets."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import torch

from pprs.dither.certificate import DitherCertificate, certified_changes, choose_label
from pprs.dither.estimators import Estimator, GaussianEstimator
from pprs.dither.thresholds import GREY, Dither, ShownLevels, show
from pprs.errors import ConfigurationError
from pprs.inputs.domain import IMAGE, domain_of
from pprs.inputs.space import describe_input
from pprs.noise import QuantisedImage
from pprs.smoothing.consistency import FirstBatch, check_function_of_one_image, checked
from pprs.smoothing.local_votes import LocalVotes, MakeInputs
from pprs.smoothing.samples import ESTIMATE, TRIAL_SIZE, check_image, error_context
from pprs.smoothing.scoring import BaseClassifier, Scorer
from pprs.smoothing.votes import OnSamples


class DitherVotes(LocalVotes):
    """Counts the votes of a base classifier at offsets of the thresholds, instead of at noisy samples."""

    def __init__(
        self,
        model: BaseClassifier,
        num_classes: int,
        dither: Dither,
        estimator: Estimator,
        *,
        batch_size: int | None = None,
        threads: int | None = None,
        device: str | torch.device = "cpu",
    ) -> None:
        Scorer.__init__(self, model, num_classes, batch_size=batch_size, threads=threads, device=device)
        self.dither, self.estimator, self.partition = dither, estimator, None
        self._estimators: dict[tuple[int, ...], Estimator] = {}
        self._order, self._scale = torch.from_numpy(dither.order()), 0.0

    def show(self, values: torch.Tensor, offsets: torch.Tensor) -> ShownLevels:
        """Return what is shown of grey levels [C, H, W] at some offsets."""
        thresholds = torch.from_numpy(self.dither.thresholds(tuple(values.shape)))
        return show(values, thresholds.to(values.device), offsets.to(values.device), self.dither.levels)

    def estimate(self, values: torch.Tensor, offsets: torch.Tensor) -> torch.Tensor:
        """Return what the base classifier gets of grey levels [C, H, W] at some offsets."""
        shape = tuple(values.shape)
        if shape not in self._estimators:
            self._estimators[shape] = self.estimator.resolve(self.dither.levels, shape)
        return self._estimators[shape].estimate(self.show(values, offsets))

    def _prepare(self, x: torch.Tensor | QuantisedImage, index: int, phase: int) -> MakeInputs:
        assert isinstance(x, torch.Tensor)
        values, _ = to_grey_levels(x)

        def make(chunks: range, out: torch.Tensor, count: int) -> tuple[torch.Tensor, torch.Tensor | None]:
            first = chunks.start * out.shape[1]
            stop = first + min(count, len(chunks) * out.shape[1])
            return self.estimate(values, self._order[first:stop]), None

        return make


class DitherClassifier:
    """The classifier that certificates without sampling are about.

    Args:
        model: The base classifier. It takes images in [0, 1].
        num_classes: The number of its classes.
        dither: The thresholds.
        estimator: How an image is estimated from what is shown of it.
        batch_size: Images per call of the base classifier. Affects speed only.
        threads: CPU threads. Affects speed only.
        device: Torch device.
        check: Check that the base classifier is a function of one image, as the certificate assumes.

    Examples:
        >>> def model(x): return torch.stack([x.mean((1, 2, 3)), 1 - x.mean((1, 2, 3))], dim=1)
        >>> g = DitherClassifier(model, 2, Dither(levels=510))
        >>> certificate = g.certify(torch.full((1, 8, 8), 0.8))
        >>> certificate.prediction, certificate.votes, certificate.grey_levels, certificate.pixels
        (0, (510, 0), 255, 1)
    """

    def __init__(
        self,
        model: Callable[[torch.Tensor], torch.Tensor],
        num_classes: int,
        dither: Dither | None = None,
        estimator: Estimator | None = None,
        *,
        batch_size: int | None = None,
        threads: int | None = None,
        device: str | torch.device = "cpu",
        check: bool = True,
    ) -> None:
        self.dither = dither or Dither()
        self.votes = DitherVotes(
            model, num_classes, self.dither, estimator or GaussianEstimator(),
            batch_size=batch_size, threads=threads, device=device,
        )  # fmt: skip
        self._check = FirstBatch()
        self.votes.batch_check = self._check if check else None

    def certify(self, x: torch.Tensor, *, on_passes: OnSamples | None = None) -> DitherCertificate:
        """Return the label with most votes over all offsets, and which changes cannot alter it.

        Args:
            x: The image [C, H, W], with values in [0, 1]. Values between grey levels are rounded.
            on_passes: Called with the number of new passes after every few batches.

        Returns:
            The certificate. It holds for every changed image of 8 bits.

        Raises:
            PprsError: If the image is invalid, or if the base classifier fails.
        """
        image = self._check_image(x)
        counts = self.count(image, on_passes)
        return DitherCertificate(
            prediction=choose_label(counts), votes=counts, offsets=certified_changes(counts),
            rounding=to_grey_levels(image)[1], per_pixel=self.dither.offsets_per_pixel(image.shape[0]),
            shape=tuple(image.shape),
        )  # fmt: skip

    def predict(self, x: torch.Tensor) -> int:
        """Return the label with most votes over all offsets, of which no more are counted than decide it."""
        return choose_label(self.count(self._check_image(x), early=True))

    def count(self, image: torch.Tensor, on_passes: OnSamples | None = None, *, early: bool = False) -> tuple[int, ...]:
        """Return the votes by class. If `early`, end when the other offsets cannot alter the label."""
        votes, total = self.votes, self.dither.levels
        counts = np.zeros(votes.num_classes, np.int64)
        with checked(votes), error_context(image, 0, None):
            for part in votes.votes(image, range(total), 0, ESTIMATE):
                counts += part.counts
                if on_passes is not None:
                    on_passes(int(part.counts.sum()))
                if early and certified_changes(counts.tolist()) * 2 >= total - counts.sum():
                    break
        return tuple(counts.tolist())

    def check_model(self, x: torch.Tensor) -> None:
        """Check that the base classifier is a function of one image, as every certificate assumes.

        Raises:
            ConfigurationError: If the scores of an image depend on the batch, on earlier calls or on random numbers.
        """
        inputs = self.trial_inputs(x)
        self.votes.settle_alone(check_function_of_one_image(self.votes, inputs))
        self._check.accept(self.votes, inputs[-1:])

    def trial_inputs(self, x: torch.Tensor) -> torch.Tensor:
        """Return a few estimates of an image, on which to try a network."""
        values, _ = to_grey_levels(self._check_image(x))
        offsets = torch.linspace(0, self.dither.levels - 1, TRIAL_SIZE).long()
        return self.votes.estimate(values, offsets)

    def _check_image(self, x: torch.Tensor) -> torch.Tensor:
        """Return a valid image. Values of signals have no bounds, and the claims rest on those of 8 bits."""
        if domain_of(tuple(x.shape)) is not IMAGE:
            raise ConfigurationError(
                f"thresholds are for images of 8 bits, and this is a {describe_input(tuple(x.shape))}. Certify signals "
                "with Gaussian `noise`.",
                parameter="noise",
            )
        return check_image(x, self.votes.device)


def to_grey_levels(image: torch.Tensor) -> tuple[torch.Tensor, int]:
    """Return the nearest grey levels of an image, and by how many levels in total it was moved, rounded up.

    >>> values, moved = to_grey_levels(torch.tensor([[[0.0, 0.4001, 1.0]]]))
    >>> values.flatten().tolist(), moved
    ([0, 102, 255], 1)
    """
    scaled = image.double() * GREY  # exact
    values = scaled.round()
    moves = (scaled - values).abs()
    # float32 holds k / 255 to within 2^-16 levels. If all values are that near, it is an image of 8 bits.
    return values.long(), 0 if float(moves.max()) <= 2**-15 else math.ceil(math.fsum(moves.flatten().tolist()))
