"""The scores of calibration images, as rows of a run: they are kept while a calibration goes on, and continue it.

Such a run promises nothing itself. A calibration is made of it once every image has a score.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import torch

from pprs.errors import ConfigurationError
from pprs.label_sets.answer import ScoreAnswer
from pprs.label_sets.row import SAME_SCORE
from pprs.label_sets.scores import find_score
from pprs.label_sets.scoring import make_trials, make_votes
from pprs.noise import Noise, digest_image
from pprs.partition import Partition
from pprs.runs.columns import INPUT_COLUMNS, Column, InputRow, Schema
from pprs.runs.guarantee import Guarantee, Key, Known, Question, RunSummary
from pprs.runs.provenance import Provenance
from pprs.runs.session import Session
from pprs.runs.subject import Subject
from pprs.smoothing.arithmetic import Arithmetic
from pprs.smoothing.voting import CALIBRATE, OnSamples


@dataclass(frozen=True)
class CalibrationSettings(Provenance):
    """What the scores of calibration images depend on. They are the same for every radius and alpha.

    Attributes:
        score: "aps" or "lac".
        randomised: Whether the score uses a random number for each image.
    """

    kind: ClassVar[str] = "calibrate"

    score: str | None = None
    randomised: bool = False


@dataclass(frozen=True, kw_only=True)
class CalibrationRow(InputRow):
    """The row of a calibration image.

    Attributes:
        score: The score of its true label.
    """

    score: float


class CalibrationAnswer(ScoreAnswer):
    """Scores every label of a calibration image. Which label is the true one is not known where it is scored."""

    def answer(self, question: Question, on_passes: OnSamples) -> dict[str, Any]:
        x = self.quantise(question.image)
        scores = tuple(self.score(question, x, on_passes).tolist())
        return {"shape": tuple(x.shape), "image_digest": digest_image(x), "scores": scores}


class CalibrationGuarantee(Guarantee[CalibrationSettings, CalibrationRow]):
    """The score of the true label of every calibration image."""

    name = "calibrate"
    noun = "a calibration that was interrupted"
    verb = "calibrate"
    answered = "scored"
    unanswered = "without a score"
    settings = CalibrationSettings
    schema = Schema(CalibrationRow, (*INPUT_COLUMNS, Column("score", "double", "REAL NOT NULL")))
    derived = "scores: between -1 and 0"
    replayed = "scores: drawn again and compared"

    def open(self, session: Session, settings: CalibrationSettings) -> CalibrationAnswer:
        return CalibrationAnswer(make_votes(session), settings.score or "", settings.randomised, CALIBRATE)

    def make_trials(
        self,
        subject: Subject,
        noise: Noise | None,
        partition: Partition | None,
        settings: CalibrationSettings,
        arithmetic: Arithmetic,
    ) -> torch.Tensor:
        """Return those by which the model of label sets is recognised, so that both are bound to the same."""
        assert noise is not None
        return make_trials(tuple(subject.sample.image.shape), noise, partition, settings.seed or 0, arithmetic)

    def check_settings(self, settings: CalibrationSettings) -> None:
        find_score(settings.score or "")

    def count_passes(self, settings: CalibrationSettings) -> int | None:
        return 1

    def make_row(self, key: Key, outcome: Mapping[str, Any], known: Known, seconds: float) -> CalibrationRow:
        if known.label is None:
            raise ConfigurationError(
                f"image {key[0]} has no label, and calibration needs labelled images", parameter="data"
            )
        own = dict(outcome)
        return super().make_row(key, own | {"score": own.pop("scores")[known.label]}, known, seconds)

    def check(self, row: CalibrationRow, settings: CalibrationSettings) -> list[str]:
        if not -1 - SAME_SCORE <= row.score <= SAME_SCORE:
            return [f"score is {row.score}, which is not between -1 and 0"]
        return []

    def summarise(self, run: Any) -> RunSummary:
        failures = tuple(run.failures())
        return RunSummary((), (), len(run.keys()) + len(failures), failures)

    def tally(self, row: CalibrationRow) -> float:
        return 1.0


CALIBRATION = CalibrationGuarantee()


def find_failure(run: Any, images: Iterable[int]) -> Any | None:
    """Return the first of these images that has no score, with the reason, if there is one."""
    chosen = set(images)
    return next((failure for failure in run.failures() if failure.idx in chosen), None)
