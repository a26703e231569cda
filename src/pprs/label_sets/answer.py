"""What answers inputs of runs of label sets and of their calibrations: the score of every label, in one noisy pass."""

from __future__ import annotations

import torch

from pprs.label_sets.scores import Floats
from pprs.label_sets.scoring import score_image
from pprs.noise import QuantisedImage, digest_image
from pprs.runs.guarantee import Answer, Question
from pprs.smoothing.voting import LocalVotes, OnSamples, check_image


class ScoreAnswer(Answer):
    """Scores every label of an input in one noisy pass. `phase` is that of the noise."""

    takes_one_thread = True

    def __init__(self, votes: LocalVotes, score: str, randomised: bool, phase: int) -> None:
        self.scorer: LocalVotes = votes
        self._method, self._phase = (score, randomised), phase

    def quantise(self, image: torch.Tensor) -> torch.Tensor | QuantisedImage:
        """Return an input as noise is added to it."""
        return self.scorer.quantise(check_image(image, self.scorer.device))

    def score(self, question: Question, x: torch.Tensor | QuantisedImage, on_passes: OnSamples) -> Floats:
        """Return the score of every label."""
        scores = score_image(self.scorer, question.index, x, self._phase, *self._method)
        on_passes(1)
        return scores

    def digest(self, image: torch.Tensor) -> str:
        return digest_image(self.scorer.quantise(check_image(image)))
