"""A classifier that sees values only behind thresholds, and answers by the votes of all offsets."""

from __future__ import annotations

import numpy as np
import torch

from pprs.dither.certificate import DitherCertificate, certified_changes, choose_label
from pprs.dither.choice import as_estimate, make_estimator, recommend_estimator
from pprs.dither.estimators import Estimator
from pprs.dither.templates import SHARED
from pprs.dither.thresholds import Dither, ShownLevels, as_dither, show
from pprs.model.forms import AnyModel, open_network
from pprs.noise import QuantisedImage
from pprs.partition import AUTO, AnyPartition, Auto
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
        estimator: Estimator | Auto,
        *,
        made_for: str | None = None,
        batch_size: int | None = None,
        threads: int | None = None,
        device: str | torch.device = "cpu",
    ) -> None:
        Scorer.__init__(self, model, num_classes, batch_size=batch_size, threads=threads, device=device)
        self.dither, self.estimator, self.made_for, self.partition = dither, estimator, made_for, None
        self._estimators: dict[tuple[int, ...], Estimator] = {}
        self._templates: dict[tuple[int, ...], torch.Tensor] = {}
        self._order, self._scale = torch.from_numpy(dither.order()), 0.0

    def show(self, values: torch.Tensor, offsets: torch.Tensor) -> ShownLevels:
        """Return what is shown of the levels [C, H, W] of an input at some offsets."""
        shape = tuple(values.shape)
        if shape not in self._templates:
            self._templates[shape] = torch.from_numpy(self.dither.thresholds(shape)).to(self.device)
        shared = self.dither.channels == SHARED
        return show(values, self._templates[shape], offsets.to(self.device), self.dither.levels, shared=shared)

    def estimate(self, values: torch.Tensor, offsets: torch.Tensor) -> torch.Tensor:
        """Return what the base classifier gets of the levels [C, H, W] of an input at some offsets."""
        estimator = self.find_estimator(tuple(values.shape))
        return self.dither.restore(estimator.estimate(self.show(values, offsets)))

    def find_estimator(self, shape: tuple[int, ...]) -> Estimator:
        """Return how inputs of this shape are estimated, with every option resolved."""
        if shape not in self._estimators:
            found = self.estimator
            chosen = recommend_estimator(self.made_for, shape)[0] if isinstance(found, str) else found
            self._estimators[shape] = chosen.resolve(self.dither.levels, shape)
        return self._estimators[shape]

    def _prepare(self, x: torch.Tensor | QuantisedImage, index: int, phase: int) -> MakeInputs:
        assert isinstance(x, torch.Tensor)
        values, _ = self.dither.quantise(x)

        def make(chunks: range, out: torch.Tensor, count: int) -> tuple[torch.Tensor, torch.Tensor | None]:
            first = chunks.start * out.shape[1]
            stop = first + min(count, len(chunks) * out.shape[1])
            return self.estimate(values, self._order[first:stop]), None

        return make


class DitherClassifier:
    """The classifier that certificates without sampling are about.

    Args:
        model: The base classifier, as for `SmoothedClassifier`.
        num_classes: The number of its classes, if the model does not say.
        dither: The thresholds, as an object or as text.
        partition: What the estimate of an image is averaged over, as an object or as text, or a whole estimate such as
            "local:sigma=0.7/slic". "auto" is soft superpixels, or what the network was adapted or trained to, and None
            is nothing.
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
        model: AnyModel,
        num_classes: int | None = None,
        dither: Dither | str | None = None,
        partition: AnyPartition | Estimator = AUTO,
        *,
        batch_size: int | None = None,
        threads: int | None = None,
        device: str | torch.device = "cpu",
        check: bool = True,
    ) -> None:
        network, asked = open_network(model, num_classes), as_estimate(partition)
        self.dither = Dither() if dither is None else as_dither(dither)
        self.votes = DitherVotes(
            network.function, network.num_classes, self.dither,
            asked if isinstance(asked, str | Estimator) else make_estimator(asked), made_for=network.made_for_dither,
            batch_size=batch_size, threads=threads, device=device,
        )  # fmt: skip
        self._check = FirstBatch()
        self.votes.batch_check = self._check if check else None

    def certify(self, x: torch.Tensor, *, on_passes: OnSamples | None = None) -> DitherCertificate:
        """Return the label with most votes over all offsets, and which changes cannot alter it.

        Args:
            x: The image [C, H, W], with values in [0, 1], or the signal [C, T]. Images
                between grey levels are rounded.
            on_passes: Called with the number of new passes after every few batches.

        Returns:
            The certificate. It holds for every changed image of 8 bits, or for every changed signal.

        Raises:
            PprsError: If the image is invalid, or if the base classifier fails.
        """
        image = self._check_image(x)
        counts = self.count(image, on_passes)
        return DitherCertificate(
            prediction=choose_label(counts), votes=counts, offsets=certified_changes(counts),
            rounding=self.dither.quantise(image)[1], per_pixel=self.dither.offsets_per_pixel(image.shape[0]),
            shape=tuple(image.shape), step=self.dither.step,
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
        values, _ = self.dither.quantise(self._check_image(x))
        offsets = torch.linspace(0, self.dither.levels - 1, TRIAL_SIZE).long()
        return self.votes.estimate(values, offsets)

    def _check_image(self, x: torch.Tensor) -> torch.Tensor:
        """Return a valid input, whose values have levels."""
        image = check_image(x, self.votes.device)
        self.dither.check_domain(tuple(image.shape))
        return image
