"""The test whether the smoothed classifier's label has changed, with draws that no attack has seen."""

from __future__ import annotations

import math

import torch
from scipy.special import bdtrc

from pprs.errors import ConfigurationError
from pprs.noise import QuantisedImage
from pprs.smoothing.bounds import clopper_pearson_lower
from pprs.smoothing.classifier import SmoothedClassifier
from pprs.smoothing.voting import AUDIT, Votes, check_image, chunk_size, error_context

RIVAL_SAMPLES = 100  # samples that choose the class to compare with
CHANCE = 0.05  # probability with which chance alone may exceed the allowance
# Numbers of images for which false certificates are counted: 20, 80, 320 and so on. Each is given a fifth of the
# probability of the one before. That of the first makes the sum 1.
FIRST_SIZE, NEXT_SIZE, FIRST_SHARE, NEXT_SHARE = 20, 4, 4 / 5, 1 / 5


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

    Attributes:
        tests: The number of tests so far.
        untested: How many of them were left out, because earlier ones had used up alpha. They prove nothing.
        queries: The number of noisy copies that the classifier has seen.
    """

    def __init__(self, classifier: SmoothedClassifier, index: int, label: int, alpha: float, samples: int) -> None:
        self._classifier, self._index, self._label = classifier, index, label
        self._alpha, self._samples = alpha, samples
        self.tests, self.untested, self.queries = 0, 0, 0

    def find_other_label(self, image: torch.Tensor) -> int | None:
        """Return a class that is proved to be more likely than the given one for this image, or None."""
        chunk = chunk_size(image.numel())
        first = math.ceil(RIVAL_SAMPLES / chunk) * chunk
        start = self.tests * (first + math.ceil(self._samples / chunk) * chunk)
        self.tests += 1
        level = self._level(image)
        if level is None:
            self.untested += 1
            return None
        votes = self._count(image, range(start, start + RIVAL_SAMPLES))
        votes.counts[self._label] = -1
        rival = int(votes.counts.argmax())
        counts = self._count(image, range(start + first, start + first + self._samples)).counts
        wins, total = int(counts[rival]), int(counts[rival] + counts[self._label])
        return rival if total and clopper_pearson_lower(wins, total, level) > 0.5 else None

    def _level(self, image: torch.Tensor) -> float | None:
        """Return the level of this test. None if the noise of a 16-bit image is not exact enough for it."""
        level = self._alpha * 6 / (math.pi * self.tests) ** 2
        source = self._classifier.votes
        prepared = source.quantise(check_image(image, source.device))
        if not isinstance(prepared, QuantisedImage):
            return level
        try:
            return prepared.quantisation.reduced_alpha(level, source.noise.sigma, self._samples, image.numel())
        except ConfigurationError:
            return None

    def _count(self, image: torch.Tensor, samples: range) -> Votes:
        source = self._classifier.votes
        self.queries += len(samples)
        total = Votes.none(source.num_classes)
        with error_context(image, self._index, source.partition):
            prepared = source.quantise(check_image(image, source.device))
            for part in source.votes(prepared, samples, self._index, AUDIT):
                total += part
        return total


def count_by_chance(attempted: int, audited: int, alpha: float) -> int:
    """Return how many of the audited images may have a change found inside their certified set by chance alone.

    Such a change is found if the certificate is false or if a test is wrong. The result is exceeded with probability
    at most 5%, half of it for each of the two. Tests use noise of their own: whatever was certified, the tests of an
    image are wrong with probability at most alpha. So wrong tests are counted among the images audited.

    Args:
        attempted: The number of images that the run attempted, as for `count_false_certificates`.
        audited: The number of images that were audited.
        alpha: The failure probability of each certificate, and of the tests of each image.

    Returns:
        The number of images, at most all that were audited.

    >>> [count_by_chance(attempted, 10, 0.001) for attempted in (10, 20, 21, 100, 1000)]
    [0, 0, 1, 3, 7]
    """
    return min(audited, count_false_certificates(attempted, alpha) + _find_quantile(audited, alpha, CHANCE / 2))


def count_false_certificates(attempted: int, alpha: float) -> int:
    """Return how many false certificates a run may have by chance alone, with 97.5% probability.

    A certificate is given and false with probability at most alpha for every image that a run attempts. This is not so
    for every image that it certifies: of a classifier for which no certificate is true, all are false. So false
    certificates are counted among all images attempted, up to the last one audited. That number depends on the votes,
    which decide what is certified. So the result holds for all numbers at once: they are rounded up to 20, 80, 320 and
    so on, which share the remaining 2.5%.

    Args:
        attempted: The number of images that the run attempted, up to one of them, in an order that does not depend on
            the votes.
        alpha: The failure probability of each certificate.
    """
    size, chance = FIRST_SIZE, FIRST_SHARE * CHANCE / 2
    while size < attempted:
        size, chance = NEXT_SIZE * size, NEXT_SHARE * chance
    return _find_quantile(size, alpha, chance)


def _find_quantile(trials: int, probability: float, chance: float) -> int:
    """Return the number of hits that is exceeded with at most this chance."""
    hits = 0
    while hits < trials and float(bdtrc(hits, trials, probability)) > chance:
        hits += 1
    return hits
