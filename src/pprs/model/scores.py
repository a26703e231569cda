"""Comparing scores: near ties, and whether two sets of scores are the same up to rounding.

Every comparison is relative to the spread of the scores around their mean. A constant added to all scores of an image
changes no label, so it must not change what counts as close. Only the rounding of the scores themselves grows with
their size.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

ROUNDING = 2.0**-19  # of float32 scores, relative to their size: 16 times the distance between two numbers
HALF_ROUNDING = 2.0**-6  # of scores computed with 16 bits

# Scores of the same images on other processors may differ by this share of their spread.
TOLERANCE, HALF_TOLERANCE = 0.02, 0.2
PROBED_PIXELS = 16  # of each image, by which a network that labels pixels is recognised


def _centred(scores: torch.Tensor) -> torch.Tensor:
    """Return the scores [B, C] minus the mean of each image's finite scores."""
    finite = scores.isfinite()
    return scores - torch.where(finite, scores, 0).sum(1, keepdim=True) / finite.sum(1, keepdim=True).clamp(min=1)


def spread(scores: torch.Tensor) -> torch.Tensor:
    """Return the largest distance of a finite score from the mean, for each image [B].

    >>> spread(torch.tensor([[0.0, 4.0, 2.0], [1000.0, 1004.0, 1002.0]]))
    tensor([2., 2.])
    """
    distances = _centred(scores).abs()
    return torch.where(distances.isfinite(), distances, 0).amax(1)


def near_ties(scores: torch.Tensor, tolerance: float, rounding: float = 0.0, least_scale: float = 0.0) -> torch.Tensor:
    """Return for each image whether its two best scores are too close for its label to be certain. NaN is too close.

    With two classes the spread of an image is half its margin. So the scale is at least the mean spread of all images,
    and at least `least_scale`.
    """
    best = scores.topk(2, dim=1).values
    spreads = spread(scores)
    scale = torch.maximum(spreads, spreads.mean()).clamp(min=least_scale)
    limit = torch.maximum(max(tolerance, rounding) * scale, max(ROUNDING, rounding) * best[:, 0].abs())
    return ~(best[:, 0] - best[:, 1] > limit)  # a negation, so that NaN counts as close


def relative_difference(expected: torch.Tensor, found: torch.Tensor, scale: float | None = None) -> float:
    """Return the largest difference of two sets of scores, beyond rounding, as a share of their mean spread.

    A constant added to the scores of an image is no difference. `scale` is the mean spread of more scores, if these are
    only a few of them.
    """
    if expected.shape != found.shape:
        return math.inf
    ours, theirs = _centred(expected.double()), _centred(found.double())
    equal = (ours == theirs) | (ours.isnan() & theirs.isnan())
    largest = float(torch.where(equal, 0, (ours - theirs).abs()).max())
    if math.isnan(largest):
        return math.inf
    size = float(torch.where(expected.isfinite(), expected, 0).abs().max())
    excess = largest - ROUNDING * size
    scale = float(spread(expected.double()).mean()) if scale is None else scale
    return 0.0 if excess <= 0 else excess / scale if scale > 0 else math.inf


@dataclass(frozen=True)
class Probe:
    """A network's labels and margins on a few fixed noisy images, by which to recognise it.

    Attributes:
        labels: The label of each image, or of a few pixels of each image.
        margins: The difference of the two best scores of each.
        spread: The mean spread of the scores, which is the scale of the margins.
    """

    labels: tuple[int, ...]
    margins: tuple[float, ...]
    spread: float

    @classmethod
    def of(cls, scores: torch.Tensor) -> Probe:
        """Return the probe for scores [B, C], or [B, C, H, W] of pixels, of which a few stand for the rest."""
        if scores.ndim > 2:
            scores = _pick_pixels(scores)
        best = scores.topk(2, dim=1)
        margins = best.values[:, 0] - best.values[:, 1]
        return cls(tuple(best.indices[:, 0].tolist()), tuple(margins.tolist()), float(spread(scores).mean()))

    def difference(self, found: Probe, tolerance: float = TOLERANCE) -> str | None:
        """Describe how a network's labels or margins differ from these, or return None if they are the same.

        The tolerance is a share of the spread. A label may differ only where the margin is smaller than that.
        """
        if len(found.labels) != len(self.labels):
            return f"there are {len(found.labels)} predictions on noisy images instead of {len(self.labels)}"
        allowed = tolerance * self.spread
        for i, label in enumerate(self.labels):
            is_other, old, new = found.labels[i] != label, self.margins[i], found.margins[i]
            signed = -new if is_other else new  # the margin by which the stored label leads
            if math.isnan(old) and math.isnan(new):
                continue
            if not abs(signed - old) <= allowed:  # a negation, so that NaN is a difference
                what = f"label {found.labels[i]} instead of {label}" if is_other else f"label {label}"
                return (
                    f"prediction {i + 1} of {len(self.labels)} on noisy images is {what}, with a margin of {new:.3g} "
                    f"instead of {old:.3g}, and the spread of the scores is {self.spread:.3g}"
                )
        return None


def _pick_pixels(scores: torch.Tensor) -> torch.Tensor:
    """Return the scores [B * P, C] of P pixels of each image, from the first to the last at equal distances.

    >>> _pick_pixels(torch.arange(8.0).reshape(1, 2, 2, 2)).tolist()
    [[0.0, 4.0], [1.0, 5.0], [2.0, 6.0], [3.0, 7.0]]
    """
    flat = scores.flatten(2)
    places = torch.linspace(0, flat.shape[2] - 1, min(PROBED_PIXELS, flat.shape[2])).round().long()
    return flat[:, :, places.to(flat.device)].transpose(1, 2).flatten(0, 1)
