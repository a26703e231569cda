"""What an adaptation is worth, measured without labels on images that were held back from it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from pprs.adaptation.problem import FIRST_INDEX, Array, Changes, VotingProblem, predict_scores
from pprs.model.modes import eval_mode
from pprs.smoothing.bounds import mean_error

SAMPLES = 64  # noisy samples of each image
MOST_EXCESS = 0.25  # by which the most overrepresented label may exceed its share on clean images
MAPS = 8  # images whose scores of all pixels are in memory


@dataclass(frozen=True)
class Judgement:
    """The votes of a smoothed classifier on held-back images, against the labels of the clean images.

    The labels are those that the unadapted network assigns to the clean images.

    Attributes:
        agrees: Whether the label with the most votes is that of the clean image, for each image. In label maps, the
            share of its pixels for which this holds.
        radii: The radius at the share of votes for the label of the clean image, 0 up to a half. In label maps, the
            mean over the pixels of an image.
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

    def improves_on(self, other: Judgement, unadapted: Judgement | None = None) -> bool:
        """Return whether this classifier is better than another, beyond the error of the comparison.

        The radius must be larger by more than the 95% error of the paired difference. It counts votes for the label of
        the clean image only, so it falls where agreement is lost. Still, larger radii on fewer images are not what
        users expect: the agreement must not be smaller than that of the unadapted classifier (by default the other
        one) by more than its error. A classifier that predicts the same label for most images is never better: its
        votes are unanimous and promise large radii.
        """
        reference = other if unadapted is None else unadapted
        gain, loss = self.radii - other.radii, reference.agrees.astype(float) - self.agrees
        has_collapsed = self.excess > max(MOST_EXCESS, other.excess)
        return bool(gain.mean() > mean_error(gain) and loss.mean() <= mean_error(loss) and not has_collapsed)


def judge(problem: VotingProblem, changes: Changes, held_back: torch.Tensor, samples: int = SAMPLES) -> Judgement:
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
    if problem.model.task == "segment":
        return _judge_maps(problem, changes, held_back, samples)
    clean = predict_scores(problem.model.module, held_back)
    labels, classes = clean.argmax(1).numpy(), clean.shape[1]
    net = changes.apply(problem.model.module)
    with eval_mode(net):
        counts = problem.count_votes(net, held_back, samples, classes)
    return summarise_votes(counts, labels, problem)


def _judge_maps(problem: VotingProblem, changes: Changes, held_back: torch.Tensor, samples: int) -> Judgement:
    """Count the votes of a network that labels every pixel, one image at a time."""
    module = problem.model.module
    net, images = changes.apply(module), list[Judgement]()
    for i, image in enumerate(held_back):
        clean = _predict_maps(module, image[None])[0]
        noisy = problem.perturb(image.expand(samples, *image.shape), FIRST_INDEX + i)
        votes = torch.zeros(len(clean), problem.model.num_classes or 0, dtype=torch.int64)
        for labels in _predict_maps(net, noisy):
            votes.scatter_add_(1, labels[:, None], torch.ones_like(labels[:, None]))
        images.append(summarise_votes(votes.numpy(), clean.numpy(), problem))
    return Judgement(
        agrees=np.array([image.agreement for image in images]),
        radii=np.array([image.radius for image in images]),
        excess=float(np.mean([image.excess for image in images])),
    )


@torch.inference_mode()
def _predict_maps(net: torch.nn.Module, images: torch.Tensor) -> torch.Tensor:
    """Return the labels of all pixels of all images, int64 [N, pixels]. Few scores are kept at a time."""
    with eval_mode(net):
        return torch.cat([net(batch.clone()).argmax(1).flatten(1) for batch in images.split(MAPS)])


def summarise_votes(counts: Array, labels: Array, problem: VotingProblem) -> Judgement:
    """Compare votes [N, num_classes] with the labels of the clean images."""
    samples = int(counts[0].sum())
    radius_of = problem.tabulate_radii(samples)
    clean_mix = np.bincount(labels, minlength=counts.shape[1]) / len(labels)
    return Judgement(
        agrees=counts.argmax(1) == labels,
        radii=radius_of[counts[np.arange(len(labels)), labels]],
        excess=float((counts.mean(0) / samples - clean_mix).max()),
    )
