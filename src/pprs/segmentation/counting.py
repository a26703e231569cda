"""Count the labels of pixels over noisy samples: noise, partition and network are one base function.

The noise is that of classification, in the same keyed chunks. Memory does not grow with the number of samples: labels
are added to the counts as soon as a batch is done.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch.nn import functional

from pprs.errors import ConfigurationError, PprsError
from pprs.model.scores import ROUNDING
from pprs.noise import QuantisedImage
from pprs.segmentation.groups import Groups
from pprs.smoothing.voting import ESTIMATE, SELECT, LocalVotes, OnSamples, Samples

Ints = npt.NDArray[Any]
Count = tuple[Ints, int, int | None]  # labels or agreeing samples, samples, and the sum of their segments or None


class PixelVotes(LocalVotes):
    """Counts the labels that a segmentation network gives to the pixels, or groups of pixels, of noisy samples."""

    # Smaller than for classifiers: among thousands of pixels, one is nearly always as close as theirs may be. On a
    # CPU, batches change scores by about 1e-6 of their spread, and `settle_alone` takes what is measured elsewhere.
    least_near_tie = 1e-5

    def scores(self, images: torch.Tensor) -> torch.Tensor:
        """Return the network's scores [B, num_classes, H, W], enlarged to the size of the images if they are coarser.

        The enlargement is bilinear, and part of the base function.
        """
        scores = super().scores(images)
        if scores.shape[2:] == images.shape[2:]:
            return scores
        return functional.interpolate(scores, images.shape[2:], mode="bilinear", align_corners=False)

    def _check_output(self, scores: Any, batch: int) -> None:
        if not isinstance(scores, torch.Tensor):
            raise PprsError(
                f"the model must return a tensor of scores, not {type(scores).__name__}. Wrap it so that it does."
            )
        if scores.ndim == 2:
            raise ConfigurationError(
                f"the model returned shape {tuple(scores.shape)}: it labels the whole image, and this is for networks "
                "that label every pixel. Use `pprs certify`, or SmoothedClassifier in Python.",
                parameter="model",
            )
        if scores.ndim != 4 or scores.shape[:2] != (batch, self.num_classes):
            one = " A single channel of scores s needs two classes: return [-s, s]." if self._is_single(scores) else ""
            raise ConfigurationError(
                f"the model returned shape {tuple(scores.shape)} for {batch} images, but num_classes="
                f"{self.num_classes} requires ({batch}, {self.num_classes}, height, width). Check num_classes and the "
                f"model's last layer.{one}",
                parameter="num_classes",
            )

    @staticmethod
    def _is_single(scores: torch.Tensor) -> bool:
        return scores.ndim == 4 and scores.shape[1] == 1

    def label_pixels(self, samples: Samples) -> torch.Tensor:
        """Return the label of each pixel of partitioned noisy images, int64 [B, H, W].

        An image in which the two best scores of any pixel are so close that the batch could decide between them is
        scored again alone. So labels depend on nothing but the image.
        """
        return torch.cat([self._label_batch(batch, last=last) for batch, last in samples.batches()])

    def _label_batch(self, images: torch.Tensor, *, last: bool) -> torch.Tensor:
        scores = self.vote_scores(images, last=last)
        best, labels = scores.max(1)
        self._scale = max(self._scale, _half_range(scores))
        tolerance = max(self.near_tie, self.rounding) * self._scale
        limit = (best.abs() * max(ROUNDING, self.rounding)).clamp_(min=tolerance)
        runner_up = scores.scatter_(1, labels[:, None], -math.inf).amax(1)
        close = ~(best - runner_up > limit)  # a negation, so that NaN counts as close
        for i in close.flatten(1).any(1).nonzero().flatten().tolist():
            own = self.scores(images[i : i + 1])
            if bool(own.isnan().any()):
                raise PprsError("the model returned NaN scores. Check its weights, and that it takes images in [0, 1].")
            labels[i] = own[0].argmax(0)
        return labels

    def select(
        self,
        x: torch.Tensor | QuantisedImage,
        n: int,
        index: int,
        groups: Groups | None = None,
        on_samples: OnSamples | None = None,
    ) -> Ints:
        """Return the label with the most of n votes for each pixel or group [U]. Ties go to the lower label."""
        units = x.shape[1] * x.shape[2] if groups is None else groups.count
        votes = np.zeros((self.num_classes, units), np.int16 if n < 2**15 else np.int32)
        every, total = np.arange(units), 0
        for labels, samples, _ in self._map_labels(x, n, index, SELECT, groups, _keep):
            for row in labels:
                votes[row, every] += 1
            total += samples
            if on_samples is not None:
                on_samples(samples)
        _check_total(total, n)
        return votes.argmax(0)  # type: ignore[no-any-return]

    def count_agreement(
        self,
        x: torch.Tensor | QuantisedImage,
        selected: Ints,
        n: int,
        index: int,
        groups: Groups | None = None,
        on_samples: OnSamples | None = None,
    ) -> tuple[Ints, int | None]:
        """Count in how many of n fresh samples each pixel or group has its selected label.

        Returns:
            The counts [U], and the sum of the samples' numbers of segments, or None if there are no segments.
        """
        counts, total, all_segments = np.zeros(len(selected), np.int32), 0, None

        def agree(labels: Ints) -> Ints:
            return (labels == selected[None]).sum(0, dtype=np.int32)  # type: ignore[no-any-return]

        for agreeing, samples, segments in self._map_labels(x, n, index, ESTIMATE, groups, agree):
            counts += agreeing
            total += samples
            all_segments = None if segments is None else (all_segments or 0) + segments
            if on_samples is not None:
                on_samples(samples)
        _check_total(total, n)
        return counts, all_segments

    def _map_labels(
        self,
        x: torch.Tensor | QuantisedImage,
        n: int,
        index: int,
        phase: int,
        groups: Groups | None,
        reduce: Callable[[Ints], Ints],
    ) -> Any:
        """Yield what `reduce` makes of the labels [B, U] of a few chunks, with the numbers of samples and segments."""

        def task(samples: Samples) -> Count:
            labels, segments = self.label_pixels(samples).cpu().numpy(), samples.segments
            units = labels.reshape(len(labels), -1) if groups is None else groups.majority(labels, self.num_classes)
            return reduce(units), len(labels), None if segments is None else int(segments.sum())

        return self.map_samples(x, range(n), index, phase, task)


def _keep(labels: Ints) -> Ints:
    return labels.astype(np.int32)


def _half_range(scores: torch.Tensor) -> float:
    """Return half the distance of the largest from the smallest finite score."""
    low, high = (float(value) for value in scores.aminmax())
    if not math.isfinite(high - low):
        finite = scores[scores.isfinite()]
        low, high = (float(value) for value in finite.aminmax()) if len(finite) else (0.0, 0.0)
    return (high - low) / 2


def _check_total(total: int, n: int) -> None:
    if total != n:
        raise PprsError(f"{total} samples were labelled instead of {n}: the model is not consistent")
