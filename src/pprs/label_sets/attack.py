"""Coverage of label sets under attack: the strongest change within the radius that a search finds for each image.

The search knows the image, its true label, the threshold and the network, and has noise of its own. What counts is the
set of the changed image under fresh noise, as it is predicted.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import partial

import torch

from pprs.audit import Attack, LevelImage, Objective
from pprs.audit.margins import NoGradientError
from pprs.errors import ConfigurationError
from pprs.label_sets.evaluation import AttackedSets
from pprs.label_sets.scores import find_score
from pprs.label_sets.sets import LabelSets
from pprs.progress import Progress, as_progress, rename_inputs, stage
from pprs.runs.subject import Subject
from pprs.smoothing.classifier import SmoothedClassifier

DRAWS = 16  # noisy copies from which a gradient is computed
SMALLEST = 1e-9  # threshold that is told from 0 and 1


@dataclass(frozen=True)
class AttackOptions:
    """How hard to attack.

    Attributes:
        images: The number of images.
        steps: Gradient steps for each image.
    """

    images: int = 50
    steps: int = 20


def attack_sets(
    sets: LabelSets,
    subject: Subject,
    options: AttackOptions | None = None,
    *,
    seed: int | None = None,
    progress: bool | Progress = False,
) -> AttackedSets:
    """Attack the labelled images of a subject within the radius of the sets, and count how many sets stay correct.

    Args:
        sets: The calibrated sets.
        subject: Their model and the images. Calibration images are left out.
        options: How hard to attack.
        seed: The random seed of the noise. By default, that of the calibration.
        progress: True to show a progress bar, or a `Progress` object to report to.

    Returns:
        The number of images whose set contains the true label after the attack.

    Raises:
        ConfigurationError: If no image has a label.
    """
    options, settings = options or AttackOptions(), sets.settings
    reporter = rename_inputs(as_progress(progress), subject.domain)
    images = list(_choose_images(sets, subject, options.images))
    if not images:
        raise ConfigurationError("there is no labelled image to attack, besides calibration images", parameter="data")
    changed: list[tuple[int, torch.Tensor]] = []
    by_scores = 0
    with stage(reporter, "attack", len(images), "images"):
        for index, image, label in images:
            found, kind = find_change(sets, image, label, index, options.steps)
            changed.append((index, found))
            by_scores += kind == "scores"
            reporter.advance(1)
    truths = {index: label for index, _, label in images}
    threshold = sets.calibration.threshold

    def count(items: Iterable[tuple[int, torch.Tensor]]) -> tuple[int, int]:
        covered = size = 0
        inputs = ((index, sets.quantise(image, index)) for index, image in items)
        for index, scores in sets.score_inputs(inputs, seed=seed):
            covered += bool(scores[truths[index]] <= threshold)
            size += int((scores <= threshold).sum())
        return covered, size

    covered, size = count(changed)
    clean, _ = count((index, image) for index, image, _ in images)
    return AttackedSets(
        covered, len(images), clean, settings.promise, len(sets.calibration.scores), size / len(images), by_scores
    )


def _choose_images(sets: LabelSets, subject: Subject, limit: int) -> Iterator[tuple[int, torch.Tensor, int]]:
    """Yield index, image as noise is added to it, and label of the first labelled images."""
    count = 0
    for index in subject.images:
        if count == limit:
            return
        example = subject.data[index]
        if example.label is None or sets.was_calibrated_with(sets.quantise(example.image, index)):
            continue
        count += 1
        yield index, example.image, example.label


def find_change(sets: LabelSets, image: torch.Tensor, label: int, index: int, steps: int) -> tuple[torch.Tensor, str]:
    """Search for the change within the radius that most often removes the true label from the set.

    Returns:
        The changed image, on the levels of the original, and how it was searched: "gradient", "scores", or "none" if
        the scores do not change around the image.
    """
    radius = sets.settings.radius
    if radius == 0:
        return image, "none"
    votes = sets.votes
    classifier = SmoothedClassifier(
        votes.model, votes.num_classes, votes.noise, votes.partition, seed=votes.seed, threads=votes.threads,
        device=votes.device, arithmetic=votes.arithmetic,
    )  # fmt: skip
    objective = Objective(
        classifier, image, label, index=index, draws=DRAWS, margin=partial(inside, sets), network=sets.network
    )
    try:
        attack = Attack(objective, draws=DRAWS)
    except NoGradientError:
        return image, "none"
    change = attack.search(radius, steps)
    levels = LevelImage.of(image)
    return levels.to_tensor(levels.fit(change.cpu().numpy(), radius)), attack.kind


def inside(sets: LabelSets, scores: torch.Tensor, label: int) -> torch.Tensor:
    """Return a smooth form of how far a label is inside the set of each image, given the network's scores.

    It compares the odds of what the score of the label measures with those of the threshold.
    """
    least = min(max(-sets.calibration.threshold, SMALLEST), 1 - SMALLEST)
    others = torch.cat([scores[:, :label], scores[:, label + 1 :]], 1)
    own = scores[:, label : label + 1]
    return find_score(sets.settings.score).odds(own, others) - math.log(least / (1 - least))
