"""A correction of the logits, so that noise does not favour some labels."""

from __future__ import annotations

import time
from dataclasses import replace

import torch

from pprs.adaptation.problem import Changes, Problem, predict_scores, to_logits
from pprs.adaptation.statistics import draw_batches
from pprs.progress import Progress, stage
from pprs.scores import spread

LEAST, MOST = 1024, 4096  # noisy images
TEMPERATURES = 8  # from the spread of the logits down to a fiftieth of it
ITERATIONS = 25  # at each temperature
NEVER = 1e-6  # added to frequencies, so that a label that never occurs has no effect
FIRST_DRAW = 2 << 32  # of the noise, so that no other method shares it


def adapt_bias(problem: Problem, changes: Changes, *, progress: Progress, deadline: float | None = None) -> Changes:
    """Add a bias to the logits, so that labels are as frequent on noisy images as on the clean ones.

    Under noise a network predicts a few labels for most images. The bias needs neither gradients nor inner layers, so
    it suits every network.

    Args:
        problem: The classifier, and what it is adapted to.
        changes: Earlier changes to build on. Their bias is replaced.
        progress: Where to report progress.
        deadline: When to stop, on the clock of `time.monotonic`. At least one batch is used.

    Returns:
        The changes with the new bias.
    """
    net = replace(changes, bias=None).apply(problem.model.module)
    batches = draw_batches(problem, LEAST, MOST)
    logits: list[torch.Tensor] = []
    with stage(progress, "bias", len(batches), "batches"):
        for draw, indices in enumerate(batches):
            if draw and deadline is not None and time.monotonic() > deadline:
                break
            scores = predict_scores(net, problem.noisy(indices, FIRST_DRAW + draw))
            logits.append(to_logits(scores, problem.probabilities))
            progress.advance(1)
    used = torch.cat(batches[: len(logits)]).unique()
    clean = predict_scores(problem.model.module, problem.images[used]).argmax(1)
    bias = match_label_mix(torch.cat(logits), clean)
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
