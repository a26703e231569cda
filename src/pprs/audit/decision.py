"""The test whether the smoothed classifier's label has changed, with draws that no attack has seen."""

from __future__ import annotations

import math

import torch
from scipy.special import bdtr

from pprs.bounds import clopper_pearson_lower
from pprs.classifier import SmoothedClassifier
from pprs.noise import QuantisedImage
from pprs.voting import AUDIT, Votes, check_image, chunk_size, error_context

RIVAL_SAMPLES = 100  # samples that choose the class to compare with
CHANCE = 0.05  # probability with which chance alone may exceed the allowance


class LabelTest:
    """Tests on one image whether a class is still the smoothed classifier's, each with fresh draws.

    Some samples choose the rival, the class with the most votes besides the given one. Further samples test whether the
    rival is more likely: among the votes for either, its share must be proved to exceed 1/2. All tests of an image
    share alpha, the j-th getting 6 / (pi j)^2 of it, so that any number of them wrongly rejects with probability at
    most alpha.

    Args:
        classifier: The smoothed classifier. Its seed keys the noise.
        index: The index of the image, which keys the noise.
        label: The class.
        alpha: The probability that any test is wrong.
        samples: The number of samples of each test.
    """

    def __init__(self, classifier: SmoothedClassifier, index: int, label: int, alpha: float, samples: int) -> None:
        self._classifier, self._index, self._label = classifier, index, label
        self._alpha, self._samples, self.tests, self.queries = alpha, samples, 0, 0

    def find_other_label(self, image: torch.Tensor) -> int | None:
        """Return a class that is proved to be more likely than the given one for this image, or None."""
        chunk = chunk_size(image.numel())
        first = math.ceil(RIVAL_SAMPLES / chunk) * chunk
        start = self.tests * (first + math.ceil(self._samples / chunk) * chunk)
        self.tests += 1
        votes = self._count(image, range(start, start + RIVAL_SAMPLES))
        votes.counts[self._label] = -1
        rival = int(votes.counts.argmax())
        counts = self._count(image, range(start + first, start + first + self._samples)).counts
        wins, total = int(counts[rival]), int(counts[rival] + counts[self._label])
        level = self._level(image)
        return rival if total and clopper_pearson_lower(wins, total, level) > 0.5 else None

    def _level(self, image: torch.Tensor) -> float:
        level = self._alpha * 6 / (math.pi * self.tests) ** 2
        source = self._classifier.votes
        prepared = source.quantise(check_image(image, source.device))
        if not isinstance(prepared, QuantisedImage):
            return level
        return prepared.quantisation.reduced_alpha(level, source.noise.sigma, self._samples, image.numel())

    def _count(self, image: torch.Tensor, samples: range) -> Votes:
        source = self._classifier.votes
        self.queries += len(samples)
        total = Votes.none(source.num_classes)
        with error_context(image, self._index, source.partition):
            prepared = source.quantise(check_image(image, source.device))
            for part in source.votes(prepared, samples, self._index, AUDIT):
                total += part
        return total


def count_by_chance(images: int, alpha: float) -> int:
    """Return how many of these images may have a change found inside their certified set by chance alone.

    A certificate is false with probability at most alpha, and the tests of an image are wrong with probability at most
    alpha, so each image counts with probability at most 2 alpha. The result is exceeded with probability at most 5%.

    >>> count_by_chance(8, 0.001), count_by_chance(1000, 0.001)
    (0, 5)
    """
    allowed = 0
    while allowed < images and 1 - float(bdtr(allowed, images, min(1.0, 2 * alpha))) > CHANCE:
        allowed += 1
    return allowed
