"""A base classifier that is called in batches, and whose scores are checked."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar, Protocol

import torch

from pprs.errors import ConfigurationError, PprsError
from pprs.model.modes import eval_mode
from pprs.model.scores import HALF_ROUNDING, HALF_TOLERANCE, TOLERANCE, near_ties
from pprs.noise import QuantisedImage

# The floating-point scores of an image change slightly with the batch it is in. If the difference of the two best
# scores is smaller than this share of their spread, the image is scored again in a batch of one, so that its vote
# depends on nothing but the image.
NEAR_TIE = 1e-4
TIES_PER_DIFFERENCE = 4  # both scores of a margin may change, each way

BaseClassifier = Callable[[torch.Tensor], torch.Tensor]


class BatchCheck(Protocol):
    """Checks a base classifier on batches that it scores for votes, and when they are counted."""

    def begin(self, votes: Scorer) -> None:
        """Prepare for a certificate, whose first batches are checked if the classifier was changed since the last."""

    def confirm(self, votes: Scorer) -> None:
        """Raise an error if the classifier has changed since it was checked."""

    def accept(self, votes: Scorer, image: torch.Tensor) -> None:
        """Take the classifier as checked, and remember its scores of an image [1, C, H, W]."""

    def score(self, votes: Scorer, images: torch.Tensor, *, last: bool = False) -> torch.Tensor:
        """Return the scores of a batch. Raise an error if they depend on more than the images."""


class Scorer:
    """A base classifier whose scores are checked. Its device and batch size are fixed.

    Attributes:
        near_tie: The share of the spread of the scores below which the difference of the two best is a near tie.
        batch_check: Checks batches that are scored for votes. None if nothing does.
    """

    least_near_tie: ClassVar[float] = NEAR_TIE

    def __init__(
        self,
        model: BaseClassifier,
        num_classes: int,
        *,
        batch_size: int | None = None,
        threads: int | None = None,
        device: str | torch.device = "cpu",
    ) -> None:
        if not (isinstance(num_classes, int) and num_classes >= 2):
            raise PprsError(
                f"num_classes must be an integer of at least 2, not {num_classes!r}", parameter="num_classes"
            )
        for name, value in (("batch_size", batch_size), ("threads", threads)):
            if value is not None and value < 1:
                raise PprsError(f"`{name}` must be at least 1, not {value}", parameter=name)
        if isinstance(model, torch.nn.Module):
            model.to(device)
        self.model, self.num_classes = model, num_classes
        self.batch_size, self.threads, self.device = batch_size, threads, torch.device(device)
        self.rounding, self.near_tie = _find_rounding(model), self.least_near_tie
        self.batch_check: BatchCheck | None = None

    def images_per_batch(self, x: torch.Tensor | QuantisedImage) -> int:
        """Return the number of images of this size per call of the base classifier."""
        return self.batch_size or self.usual_batch(x)

    def usual_batch(self, x: torch.Tensor | QuantisedImage) -> int:
        """Return the number of images of this size per call if no batch size is given."""
        # Small on a CPU: layers are slow if their outputs do not fit in the caches and need newly allocated memory.
        max_images, max_values = (64, 2**20) if self.device.type == "cpu" else (512, 2**25)
        return max(1, min(max_images, max_values // x.numel()))

    @property
    def score_tolerance(self) -> float:
        """The share of their spread by which the scores of the same network may differ on another processor."""
        return HALF_TOLERANCE if self.rounding else TOLERANCE

    def scores(self, images: torch.Tensor) -> torch.Tensor:
        """Return the base classifier's scores [B, num_classes] as float32."""
        try:
            # A copy, because some models normalise in place, and a near tie is scored a second time.
            # A single image is always copied: its alignment in memory can change the last digit.
            preserves_input = getattr(self.model, "preserves_input", False) and len(images) > 1
            with eval_mode(self.model):
                scores: Any = self.model(images if preserves_input else images.clone())
        except Exception as error:  # a user's model may raise anything
            if isinstance(error, MemoryError):
                raise
            if isinstance(error, torch.OutOfMemoryError) or "can't allocate memory" in str(error):
                raise MemoryError(str(error).splitlines()[0]) from error
            reason = str(error).splitlines()[0] if str(error) else type(error).__name__
            raise PprsError(
                f"the model failed on a batch of shape {tuple(images.shape)}: {reason}. The usual cause is an image "
                "whose size or number of channels does not match the model's input."
            ) from error
        self._check_output(scores, len(images))
        return scores.float()  # type: ignore[no-any-return]

    def vote_scores(self, images: torch.Tensor, *, last: bool = False) -> torch.Tensor:
        """Return the scores of a batch whose votes are counted. `last` says that it is the last one of a series."""
        return self.scores(images) if self.batch_check is None else self.batch_check.score(self, images, last=last)

    def find_labels(self, images: torch.Tensor) -> torch.Tensor:
        """Return the label of each image [B], or -1 where the two best scores are a near tie, which rounding decides.

        Raises:
            PprsError: If the base classifier fails, or returns NaN.
        """
        labels = []
        for batch in images.split(self.images_per_batch(images[0])):
            with torch.inference_mode():
                scores = self.vote_scores(batch.to(self.device)).cpu()
            if bool(scores.isnan().any()):
                raise PprsError("the model returned NaN scores. Check its weights, and that it takes images in [0, 1].")
            ties = near_ties(scores, self.near_tie, self.rounding)
            labels.append(scores.argmax(dim=1).masked_fill(ties, -1))
        return torch.cat(labels)

    def settle_alone(self, difference: float) -> None:
        """Score images alone whose label could change if a batch changes scores by this share of their spread."""
        self.near_tie = max(self.near_tie, TIES_PER_DIFFERENCE * difference)

    def _check_output(self, scores: Any, batch: int) -> None:
        if not isinstance(scores, torch.Tensor):
            raise PprsError(
                f"the model must return a tensor of scores, not {type(scores).__name__}. Wrap it so that it does."
            )
        if scores.ndim == 4:
            raise ConfigurationError(
                f"the model returned shape {tuple(scores.shape)}: it labels every pixel, and this is for networks that "
                "label the whole image. Use `pprs segment`, or certify_segmentation in Python.",
                parameter="model",
            )
        if scores.shape != (batch, self.num_classes):
            raise PprsError(
                f"the model returned shape {tuple(scores.shape)} for {batch} images, but num_classes="
                f"{self.num_classes} requires ({batch}, {self.num_classes}). Check num_classes and the model's last "
                "layer."
            )


def _find_rounding(model: BaseClassifier) -> float:
    """Return the rounding error of a network's scores relative to their size, if it computes with 16 bits, else 0."""
    if not isinstance(model, torch.nn.Module):
        return float(getattr(model, "rounding", 0.0))
    has_half = any(p.dtype in (torch.float16, torch.bfloat16) for p in model.parameters())
    declared = (float(getattr(layer, "rounding", 0.0)) for layer in model.modules())
    return max(HALF_ROUNDING if has_half else 0.0, *declared)
