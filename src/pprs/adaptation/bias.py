"""A correction of the logits, so that noise does not favour some labels."""

from __future__ import annotations

import time
from dataclasses import replace

import numpy as np
import torch

from pprs.adaptation.criterion import summarise_votes
from pprs.adaptation.problem import Changes, VotingProblem, predict_scores, to_logits
from pprs.model.scores import spread
from pprs.progress import Progress, stage

IMAGES, SAMPLES = 256, 16  # images, and noisy samples of each
STRENGTHS = (0.0, 0.25, 0.5, 0.75, 1.0)
TEMPERATURES = 8  # from the spread of the logits down to a fiftieth of it
ITERATIONS = 25  # at each temperature
NEVER = 1e-6  # added to frequencies, so that a label that never occurs has no effect
FIRST_DRAW = 2 << 32  # of the noise, so that no other method shares it


def adapt_bias(
    problem: VotingProblem, changes: Changes, *, progress: Progress, deadline: float | None = None
) -> Changes:
    """Add a bias to the logits, so that noise favours no label.

    Under noise a network predicts a few labels for most images. With the full bias, labels are as frequent on noisy
    images as on clean ones, but votes may be nearer to a tie. So the bias is multiplied by the strength, at most 1,
    that gives the largest radii. This needs neither gradients nor inner layers, and suits every network.

    Args:
        problem: The classifier, and what it is adapted to.
        changes: Earlier changes to build on. Their bias is replaced.
        progress: Where to report progress.
        deadline: When to stop, on the clock of `time.monotonic`. Each image is drawn at least once.

    Returns:
        The changes with the new bias.
    """
    net = replace(changes, bias=None).apply(problem.model.module)
    indices = torch.randperm(len(problem.images), generator=torch.Generator().manual_seed(problem.seed))[:IMAGES]
    labels = predict_scores(problem.model.module, problem.images[indices]).argmax(1)
    samples: list[torch.Tensor] = []
    with stage(progress, "bias", SAMPLES, "samples"):
        for draw in range(SAMPLES):
            if draw and deadline is not None and time.monotonic() > deadline:
                break
            scores = predict_scores(net, problem.noisy(indices, FIRST_DRAW + draw))
            samples.append(to_logits(scores, problem.probabilities))
            progress.advance(1)
    logits = torch.stack(samples)
    bias = match_label_mix(logits.flatten(0, 1), labels)
    bias *= max(STRENGTHS, key=lambda strength: _estimate_radius(problem, logits + strength * bias, labels))
    return replace(changes, bias=bias, probabilities=problem.probabilities)


def match_label_mix(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """Return the bias [K] with which the logits [N, K] give each label as often as it occurs in `labels`.

    The bias b maximises the concave function sum_c target_c b_c - mean max_c (logit_c + b_c), whose gradient is the
    difference of the two label mixes. It is found at falling temperatures, by the iteration of entropic optimal
    transport. To the labels is added one of each class, in the proportions of the noisy images: with few images and
    many classes, the bias remains small.
    """
    images, classes = len(labels), logits.shape[1]
    scale = float(spread(logits).mean()) or 1.0
    seen = torch.bincount(labels, minlength=classes) / images
    weight = images / (images + classes)
    bias = torch.zeros(classes)
    for temperature in torch.logspace(0, -1.7, TEMPERATURES).mul(scale).tolist():
        target = seen.lerp((logits / temperature).softmax(1).mean(0), 1 - weight)
        for _ in range(ITERATIONS):
            mix = ((logits + bias) / temperature).softmax(1).mean(0)
            bias += temperature * ((target + NEVER) / (mix + NEVER)).log()
    return bias - bias.mean()


def _estimate_radius(problem: VotingProblem, logits: torch.Tensor, labels: torch.Tensor) -> float:
    """Return the mean radius of images whose noisy samples have these logits [samples, images, num_classes]."""
    votes = torch.nn.functional.one_hot(logits.argmax(2), logits.shape[2]).sum(0)
    return summarise_votes(np.asarray(votes), labels.numpy(), problem).radius
