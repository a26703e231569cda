"""What an adaptation is worth, measured without labels on images that were held back from it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from pprs import _threads
from pprs.adaptation.problem import Changes, Problem, eval_mode, predict_scores
from pprs.bounds import clopper_pearson_lower, mean_error
from pprs.classifier import SmoothedClassifier
from pprs.voting import ADAPT

SAMPLES = 64  # noisy samples of each image
N, ALPHA = 1000, 0.001  # no radius above what N unanimous votes would prove
MOST_EXCESS = 0.25  # by which the most overrepresented label may exceed its share on clean images
FIRST_INDEX = 3 << 32  # of the noise, so that no method of adaptation shares it

Array = npt.NDArray[Any]


@dataclass(frozen=True)
class Judgement:
    """The votes of a smoothed classifier on held-back images, against the labels of the clean images.

    The labels are those that the unadapted network assigns to the clean images.

    Attributes:
        agrees: Whether the label with the most votes is that of the clean image, for each image.
        radii: The radius at the share of votes for the label of the clean image, 0 up to a half.
        excess: By how much the share of one label in all votes exceeds its share of the clean images, at most.
    """

    agrees: Array
    radii: Array
    excess: float

    @property
    def agreement(self) -> float:
        return float(self.agrees.mean())

    @property
    def radius(self) -> float:
        return float(self.radii.mean())

    def improves_on(self, other: Judgement) -> bool:
        """Return whether this classifier is better than another, beyond the error of the comparison.

        The radius must be larger by more than the 95% error of the paired difference, and the agreement not smaller by
        more than its error. A classifier that predicts the same label for most images is never better: its votes are
        unanimous and promise large radii.
        """
        gain, loss = self.radii - other.radii, other.agrees.astype(float) - self.agrees
        has_collapsed = self.excess > max(MOST_EXCESS, other.excess)
        return bool(gain.mean() > mean_error(gain) and loss.mean() <= mean_error(loss) and not has_collapsed)


def judge(problem: Problem, changes: Changes, held_back: torch.Tensor, samples: int = SAMPLES) -> Judgement:
    """Smooth the adapted network, and count its votes on images that were held back from the adaptation.

    Every state of a network is judged on the same noise.

    Args:
        problem: The classifier, and what it is adapted to.
        changes: The state to judge.
        held_back: Images [N, C, H, W], at least two.
        samples: The number of noisy samples of each image.

    Returns:
        The judgement.
    """
    clean = predict_scores(problem.model.module, held_back)
    labels, classes = clean.argmax(1).numpy(), clean.shape[1]
    net = changes.apply(problem.model.module)
    counts = np.zeros((len(held_back), classes), np.int64)

    def task(start: int, stop: int) -> None:
        for i in range(start, stop):
            counts[i] = classifier.counts(held_back[i], n=samples, index=FIRST_INDEX + i, phase=ADAPT)

    with eval_mode(net):
        classifier = SmoothedClassifier(net, classes, problem.noise, problem.partition, seed=problem.seed)
        _threads.parallel_for(task, len(held_back))
    return summarise_votes(counts, labels, problem)


def summarise_votes(counts: Array, labels: Array, problem: Problem) -> Judgement:
    """Compare votes [N, num_classes] with the labels of the clean images."""
    samples, dim = int(counts[0].sum()), problem.images[0].numel()
    most = clopper_pearson_lower(N, N, ALPHA)
    shares = [min((votes + 0.5) / (samples + 1), most) for votes in range(samples + 1)]
    radius_of = np.array([problem.noise.radius(share, dim) for share in shares])
    clean_mix = np.bincount(labels, minlength=counts.shape[1]) / len(labels)
    return Judgement(
        agrees=counts.argmax(1) == labels,
        radii=radius_of[counts[np.arange(len(labels)), labels]],
        excess=float((counts.mean(0) / samples - clean_mix).max()),
    )
