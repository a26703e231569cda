"""Conformal scores: how badly each label fits the scores of a network for one noisy image.

A label belongs to the set if its score is at most a threshold. A score may depend on the noisy image, the label, and a
random number that is drawn for the image, and on nothing else. Scores are computed from sorted values only, so that
they do not depend on the order of the classes.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import ClassVar

import numpy as np
import numpy.typing as npt
import torch
from torch.nn import functional

from pprs.errors import ConfigurationError, PprsError, suggest

LAC_STEPS = 2.0**32  # to which the randomised form of LAC rounds, so that the random number orders what is equal

Floats = npt.NDArray[np.float64]


class ConformalScore(ABC):
    """How badly each label fits one noisy image.

    Scores are those of the literature minus 1, so that small probabilities keep all their digits.
    """

    name: ClassVar[str]

    @abstractmethod
    def score(self, descending: Floats, probabilities: Floats, u: float | None) -> Floats:
        """Return the conformal score of every label of one image.

        Args:
            descending: The network's scores in descending order.
            probabilities: Their softmax.
            u: The random number of the image, in [0, 1), or None for the deterministic form.
        """

    @abstractmethod
    def odds(self, own: torch.Tensor, others: torch.Tensor) -> torch.Tensor:
        """Return a smooth form of the odds of minus the conformal score of a label, for a search by gradient.

        Args:
            own: The network's score of the label for each image [B, 1].
            others: Those of the other labels [B, num_classes - 1].
        """


class Aps(ConformalScore):
    """The probability of the labels that are more likely than this one, minus 1 (Romano et al. 2020).

    So a label belongs to a set if enough probability is left for it and all labels that are no more likely. The most
    likely label has the score -1, so no set is empty. The randomised form adds a share u of the label's own
    probability, and of that of labels that are equally likely.
    """

    name = "aps"

    def score(self, descending: Floats, probabilities: Floats, u: float | None) -> Floats:
        share = u or 0.0
        remaining = np.append(np.cumsum(probabilities[::-1])[::-1], 0.0)
        remaining[0] = 1.0  # whatever the rounding, so that the most likely labels of all images have the same score
        starts = np.concatenate([[True], descending[1:] != descending[:-1]])
        group = np.cumsum(starts) - 1
        first = np.flatnonzero(starts)
        last = np.append(first[1:], len(descending))
        scores: Floats = -((1 - share) * (remaining[first] - remaining[last]) + remaining[last])[group]
        return scores

    def odds(self, own: torch.Tensor, others: torch.Tensor) -> torch.Tensor:
        # the labels above this one, and this one with those below, both counted softly
        above = (others + functional.logsigmoid(others - own)).logsumexp(1)
        below = torch.cat([own, others + functional.logsigmoid(own - others)], 1).logsumexp(1)
        return below - above


class Lac(ConformalScore):
    """Minus the probability of the label (Sadinle et al. 2019).

    The randomised form orders labels that are equally likely up to 2^-32 by u.
    """

    name = "lac"

    def score(self, descending: Floats, probabilities: Floats, u: float | None) -> Floats:
        return -probabilities if u is None else (np.floor(-probabilities * LAC_STEPS) + u) / LAC_STEPS

    def odds(self, own: torch.Tensor, others: torch.Tensor) -> torch.Tensor:
        return own[:, 0] - others.logsumexp(1)


SCORES: dict[str, ConformalScore] = {score.name: score for score in (Aps(), Lac())}


def find_score(name: str) -> ConformalScore:
    """Return the score of this name.

    Raises:
        ConfigurationError: If there is none.
    """
    if not isinstance(name, str) or name not in SCORES:
        raise ConfigurationError(f'unknown `score` "{name}". {suggest(str(name), SCORES)}', parameter="score")
    return SCORES[name]


def conformal_scores(outputs: torch.Tensor, score: str, u: float | None = None) -> Floats:
    """Return the conformal score of every label, from the scores that a network gives to one image.

    Args:
        outputs: The network's scores [num_classes]. Their softmax is the probability of each label.
        score: "aps" or "lac", described at `Aps` and `Lac`.
        u: The random number of the image, in [0, 1), or None for the deterministic form.

    Returns:
        The conformal scores, float64 [num_classes].

    Raises:
        ConfigurationError: If there is no such score.
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
    ordered = find_score(score).score(descending, probabilities, u)
    result: Floats = np.empty_like(ordered)
    result[order] = ordered
    return result
