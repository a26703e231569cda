"""Conformal scores: how badly each label fits the scores of a network for one noisy image.

A label belongs to the set if its score is at most a threshold. A score may depend on the noisy image, the label, and a
random number that is drawn for the image, and on nothing else. Scores are computed from sorted values only, so that
they do not depend on the order of the classes.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch

from pprs.errors import ConfigurationError, PprsError, suggest

APS, LAC = "aps", "lac"
SCORES = (APS, LAC)
LAC_STEPS = 2.0**32  # to which the randomised form of LAC rounds, so that the random number orders what is equal

Floats = npt.NDArray[np.float64]


def check_score(name: str) -> str:
    """Return the name, or raise an error unless there is a score of this name."""
    if name not in SCORES:
        raise ConfigurationError(f'unknown `score` "{name}". {suggest(str(name), SCORES)}', parameter="score")
    return name


def conformal_scores(outputs: torch.Tensor, score: str, u: float | None = None) -> Floats:
    """Return the conformal score of every label, from the scores that a network gives to one image.

    Probabilities are the softmax of the network's scores. The scores are those of the literature minus 1, so that small
    probabilities keep all their digits.

    - "aps" (Romano et al. 2020): the probability of the labels that are more likely than this one, minus 1. So a label
      belongs to a set if enough probability is left for it and all labels that are no more likely. The most likely
      label has the score -1, so no set is empty. The randomised form adds a share u of the label's own probability, and
      of that of labels that are equally likely.
    - "lac" (Sadinle et al. 2019): minus the probability of the label. The randomised form orders labels that are
      equally likely up to 2^-32 by u.

    Args:
        outputs: The network's scores [num_classes].
        score: "aps" or "lac".
        u: The random number of the image, in [0, 1), or None for the deterministic form.

    Returns:
        The conformal scores, float64 [num_classes].

    Raises:
        PprsError: If the network's scores are not numbers.

    >>> outputs = torch.tensor([0.2, 0.7, 0.1]).log()
    >>> conformal_scores(outputs, "aps").round(6).tolist(), conformal_scores(outputs, "lac").round(6).tolist()
    ([-0.3, -1.0, -0.1], [-0.2, -0.7, -0.1])
    """
    values = outputs.detach().cpu().double().numpy()
    if np.isnan(values).any() or not np.isfinite(values.max()):
        raise PprsError(
            "the model returned scores that are not finite numbers. Check its weights, and that it takes images in "
            "[0, 1]."
        )
    order = np.argsort(-values, kind="stable")
    descending = values[order]
    weights = np.exp(descending - descending[0])
    probabilities = weights / weights.sum()
    if score == APS:
        ordered = _adaptive_scores(descending, probabilities, u or 0.0)
    else:
        ordered = -probabilities if u is None else (np.floor(-probabilities * LAC_STEPS) + u) / LAC_STEPS
    result: Floats = np.empty_like(ordered)
    result[order] = ordered
    return result


def _adaptive_scores(descending: Floats, probabilities: Floats, u: float) -> Floats:
    """Return minus the probability of each label and those below it, without a share u of that of its equals."""
    remaining = np.append(np.cumsum(probabilities[::-1])[::-1], 0.0)
    remaining[0] = 1.0  # whatever the rounding, so that the most likely labels of all images have the same score
    starts = np.concatenate([[True], descending[1:] != descending[:-1]])
    group = np.cumsum(starts) - 1
    first = np.flatnonzero(starts)
    last = np.append(first[1:], len(descending))
    scores: Floats = -((1 - u) * (remaining[first] - remaining[last]) + remaining[last])[group]
    return scores
