"""The double-masked classifier, which certifies that no patch can change its label."""

from __future__ import annotations

import copy
import functools
from dataclasses import dataclass
from typing import Any, Self

import torch

from pprs._support import threads as _threads
from pprs._support.shown import Shown
from pprs.errors import PprsError, check_integer, check_type
from pprs.inputs.domain import IMAGE
from pprs.inputs.space import describe_shape
from pprs.model.forms import AnyModel, describe_network, open_network
from pprs.model.scores import near_ties
from pprs.patches import double_masking
from pprs.patches.double_masking import Predictions
from pprs.patches.fills import Fill, parse_fill
from pprs.patches.masks import MIN_MASKS, Box, MaskGrid
from pprs.smoothing.consistency import FirstBatch, check_function_of_one_image, checked
from pprs.smoothing.voting import TRIAL_SIZE, OnSamples, Scorer, check_image

MASKS, FILL = 6, "diffusion"


@dataclass(frozen=True)
class PatchCertificate:
    """The label of the double-masked classifier for an image, and whether any patch can change it.

    Attributes:
        prediction: The label, whether it is certified or not.
        certified: Whether no change inside any one square of `patch` x `patch` pixels can alter the label.
        patch: The side of the patch in pixels.
        masks: The number of masks along each axis.
        fill: What stands in the place of hidden pixels, as text.
        shape: The shape [C, H, W] of the image.
        worst: The pair of masks, among those examined, with the smallest margin of the label. Both are the same if a
            single mask is worst.
        worst_boxes: What this pair of masks hides.
        worst_label: What the base classifier predicts under this pair. If the label is certified, it is the same label.
        passes: The number of masked images that this rests on.
    """

    prediction: int
    certified: bool
    patch: int
    masks: int
    fill: str
    shape: tuple[int, int, int]
    worst: tuple[int, int]
    worst_boxes: tuple[Box, Box]
    worst_label: int
    passes: int

    def __str__(self) -> str:
        side = f"{self.patch}x{self.patch}"
        if not self.certified:
            return f"class {self.prediction}, not certified: a {side} patch may alter this label"
        return (
            f"class {self.prediction}: no change inside any one {side} patch of this {describe_shape(self.shape)} "
            "image can alter this label"
        )


class PatchClassifier(Shown):
    """A classifier that looks at an image through masks, so that no patch can be seen through all of them.

    A patch is a square of `patch` x `patch` pixels anywhere in the image. Its values may change to any others, while
    all other pixels keep theirs. A grid of `masks` x `masks` masks covers every patch. The classifier predicts by
    double masking (Xiang et al. 2022), and a certificate says that no patch can change its label. There is no noise and
    no failure probability.

    Args:
        model: The base classifier, as for `SmoothedClassifier`. It maps images [B, C, H, W], float32 in [0, 1], to
            scores [B, num_classes]. A `torch.nn.Module` is moved to `device`, and is in eval mode while it is called.
            On a CPU it is called from several threads at once.
        num_classes: The number of classes, at least 2, if the model does not say.
        patch: The side of the patch in pixels.
        masks: The number of masks along each axis. A certificate takes k^2 (k^2 + 1) / 2 passes for k masks, so 666 for
            6. More masks are smaller, and hide less of the image.
        fill: What stands in the place of hidden pixels: "diffusion", "superpixels", "mean", "constant:value=0.5", or a
            `Fill`.
        batch_size: The number of masked images per call of the base classifier. By default it depends on the image
            size and the device.
        threads: CPU threads. By default as many as this process uses. Affects speed only.
        device: The torch device on which to run the base classifier.
        check: Whether to check that the base classifier is a function of one image, as for `SmoothedClassifier`.

    Raises:
        PprsError: If an argument is out of range.

    Examples:
        >>> def model(x): return torch.stack([x.mean((1, 2, 3)), 1 - x.mean((1, 2, 3))], dim=1)
        >>> g = PatchClassifier(model, num_classes=2, patch=2, masks=3, fill="mean")
        >>> print(g.certify(torch.full((1, 8, 8), 0.8)))
        class 0: no change inside any one 2x2 patch of this 8x8 grey image can alter this label
    """

    def __init__(
        self,
        model: AnyModel,
        num_classes: int | None = None,
        patch: int | None = None,
        masks: int = MASKS,
        fill: Fill | str = FILL,
        *,
        batch_size: int | None = None,
        threads: int | None = None,
        device: str | torch.device = "cpu",
        check: bool = True,
    ) -> None:
        self._fill = parse_fill(fill) if isinstance(fill, str) else fill
        check_type(self._fill, Fill, "fill", '"diffusion"')
        self._patch, self._masks = check_integer(patch, "patch", 1), check_integer(masks, "masks", MIN_MASKS)
        network = open_network(model, num_classes)
        self._scorer = Scorer(
            network.function, network.num_classes, batch_size=batch_size, threads=threads, device=device
        )
        self._check = FirstBatch()
        self._scorer.batch_check = self._check if check else None

    def _facts(self) -> dict[str, Any]:
        return {
            "model": describe_network(self._scorer.model),
            "classes": self.num_classes,
            "patch": f"{self._patch}x{self._patch}",
            "masks": f"{self._masks}x{self._masks}",
            "fill": self._fill,
        }

    def for_patch(self, patch: int) -> Self:
        """Return the classifier for patches of another size. It shares the network, and what is known about it."""
        other = copy.copy(self)
        other._patch = check_integer(patch, "patch", 1)
        return other

    @property
    def scorer(self) -> Scorer:
        """The base classifier, with its device and batch size."""
        return self._scorer

    @property
    def num_classes(self) -> int:
        """The number of classes."""
        return self._scorer.num_classes

    @property
    def patch(self) -> int:
        """The side of the patch in pixels."""
        return self._patch

    @property
    def masks(self) -> int:
        """The number of masks along each axis."""
        return self._masks

    @property
    def fill(self) -> Fill:
        """What stands in the place of hidden pixels."""
        return self._fill

    def predict(self, x: torch.Tensor) -> int:
        """Return the label of the double-masked classifier, the one that certificates are about.

        Args:
            x: The image [C, H, W], with values in [0, 1].

        Returns:
            The label. It takes masks^2 passes if all masks agree, and more otherwise.

        Raises:
            PprsError: If the image is invalid, or if the base classifier fails.
        """
        image = self._check_image(x)
        with checked(self._scorer):
            return double_masking.predict(lambda pairs: self._look(image, pairs), len(self.grid_for(image)))

    def certify(self, x: torch.Tensor, *, on_passes: OnSamples | None = None) -> PatchCertificate:
        """Return the label of the double-masked classifier, and whether any patch can change it.

        Args:
            x: The image [C, H, W], with values in [0, 1].
            on_passes: Called with the number of new passes after every few batches.

        Returns:
            The certificate. Its `prediction` is that of `predict`.

        Raises:
            PprsError: If the image is invalid, or if the base classifier fails.
        """
        image = self._check_image(x)
        # Where the examination ends depends neither on the number of threads nor on the batch size.
        grid, step = self.grid_for(image), self._scorer.usual_batch(image)
        ahead = -(-self._images_at_once(image) // step)
        with checked(self._scorer):
            verdict = double_masking.certify(lambda pairs: self._look(image, pairs, on_passes), len(grid), step, ahead)
        channels, height, width = image.shape
        first, second = verdict.worst
        return PatchCertificate(
            prediction=verdict.label,
            certified=verdict.certified,
            patch=self._patch,
            masks=self._masks,
            fill=str(self._fill),
            shape=(channels, height, width),
            worst=verdict.worst,
            worst_boxes=(grid.boxes[first], grid.boxes[second]),
            worst_label=verdict.worst_label,
            passes=verdict.passes,
        )

    def predict_unmasked(self, x: torch.Tensor) -> int:
        """Return the label of the base classifier for the image as it is, for which no certificate holds.

        Args:
            x: The image [C, H, W], with values in [0, 1].

        Returns:
            The label.

        Raises:
            PprsError: If the image is invalid, or if the base classifier fails.
        """
        with torch.inference_mode():
            return int(self._scorer.scores(self._check_image(x)[None]).argmax())

    def check_model(self, x: torch.Tensor) -> None:
        """Check that the base classifier is a function of one image, as every certificate assumes.

        A few masked copies of the image are scored alone, together, among other images and again. Predictions that the
        remaining rounding could change count as disagreement from now on.

        Args:
            x: The image [C, H, W], with values in [0, 1].

        Raises:
            ConfigurationError: If the scores of an image depend on the batch, on earlier calls or on random numbers.
            PprsError: If the image is invalid, or if the base classifier fails.
        """
        inputs = self.trial_inputs(x)
        self._scorer.settle_alone(check_function_of_one_image(self._scorer, inputs))
        self._check.accept(self._scorer, inputs[-1:])

    def trial_inputs(self, x: torch.Tensor) -> torch.Tensor:
        """Return a few masked and filled copies of an image, on which to try a network."""
        image = self._check_image(x)
        pairs = torch.combinations(torch.arange(len(self.grid_for(image))))
        return self.mask(image, pairs[:: max(1, len(pairs) // TRIAL_SIZE)][:TRIAL_SIZE])

    def mask(self, x: torch.Tensor, pairs: torch.Tensor) -> torch.Tensor:
        """Return an image [C, H, W] under pairs [B, 2] of masks, filled as the base classifier gets it."""
        hidden = self.grid_for(x).hide(pairs).to(x.device)
        return self._fill.apply(x.expand(len(pairs), *x.shape), hidden)

    def grid_for(self, x: torch.Tensor) -> MaskGrid:
        """Return the masks for images of this shape [C, H, W]."""
        return _make_grid(x.shape[-2], x.shape[-1], self._patch, self._masks)

    def _check_image(self, x: torch.Tensor) -> torch.Tensor:
        return check_image(x, self._scorer.device, IMAGE)

    def _images_at_once(self, image: torch.Tensor) -> int:
        """Return the number of masked images that all threads together classify at a time."""
        return self._scorer.images_per_batch(image) * (self._scorer.threads or _threads.get_threads())

    def _look(self, image: torch.Tensor, pairs: torch.Tensor, on_passes: OnSamples | None = None) -> Predictions:
        """Return the predictions for the image under pairs of masks."""
        scores: list[torch.Tensor] = []
        for some in pairs.split(self._images_at_once(image)):
            scores += self._score(image, some)
            if on_passes is not None:
                on_passes(len(some))
        together = torch.cat(scores)
        if bool(together.isnan().any()):
            raise PprsError("the model returned NaN scores. Check its weights, and that it takes images in [0, 1].")
        return Predictions(pairs, together, ~near_ties(together, self._scorer.near_tie, self._scorer.rounding))

    def _score(self, image: torch.Tensor, pairs: torch.Tensor) -> list[torch.Tensor]:
        """Return the scores of the image under pairs of masks, batch by batch."""
        batches = pairs.split(self._scorer.images_per_batch(image))
        scores: list[torch.Tensor] = [torch.empty(0)] * len(batches)

        def task(first: int, stop: int) -> None:
            with torch.inference_mode():
                for i in range(first, stop):
                    scores[i] = self._scorer.vote_scores(self.mask(image, batches[i])).cpu()

        if isinstance(self._scorer.model, torch.nn.Module) and self._scorer.device.type == "cpu":
            _threads.parallel_for_on_pool(task, len(batches), self._scorer.threads)
        else:
            task(0, len(batches))
        return scores


@functools.lru_cache(maxsize=64)
def _make_grid(height: int, width: int, patch: int, masks: int) -> MaskGrid:
    return MaskGrid(height, width, patch, masks)
