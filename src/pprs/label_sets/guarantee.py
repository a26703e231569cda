"""The guarantee of `pprs predict-set`: a set with the true label, with a promised probability, also under attack."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from pprs.errors import PprsError
from pprs.label_sets.answer import ScoreAnswer
from pprs.label_sets.row import (
    ROWS,
    LabelSetRow,
    LabelSetSettings,
    Scored,
    check_row,
    compare_rows,
    find_set,
)
from pprs.label_sets.scoring import check_size, make_votes
from pprs.label_sets.settings import Calibration, state_promise
from pprs.model.forms import open_model
from pprs.noise import QuantisedImage, digest_image
from pprs.runs.check import RowCheck
from pprs.runs.guarantee import Guarantee, Key, Known, Metric, Question, RunSummary
from pprs.runs.row import Failure
from pprs.runs.run import Run
from pprs.runs.session import Session
from pprs.runs.subject import Subject
from pprs.smoothing.bounds import clopper_pearson_interval
from pprs.smoothing.voting import SETS, LocalVotes, OnSamples


class LabelSetAnswer(ScoreAnswer):
    """Scores every label of an input in one noisy pass, and compares the scores with the threshold."""

    def __init__(self, votes: LocalVotes, calibration: Calibration) -> None:
        super().__init__(votes, calibration.settings.score, calibration.settings.randomised, SETS)
        self._calibration = calibration

    def answer(self, question: Question, on_passes: OnSamples) -> Scored:
        x = self.quantise(question.image)
        check_size(x, self._calibration.settings.dim)
        values = tuple(self.score(question, x, on_passes).tolist())
        exact = x if isinstance(x, QuantisedImage) else None
        return Scored(
            find_set(values, self._calibration.threshold), values, tuple(x.shape),
            None if exact is None else exact.levels, 0.0 if exact is None else exact.quantisation.moved,
            digest_image(x),
        )  # fmt: skip


class LabelSetGuarantee(Guarantee[LabelSetSettings, LabelSetRow]):
    """A set of labels that contains the true one with a promised probability."""

    name = "label-set"
    adapted_caveat = (
        "Nothing is promised of these, since they are not like the calibration images, which the classifier had not "
        "seen: predict images that were not used to adapt it."
    )
    noun = "a run of label sets"
    verb = "predict"
    answered = "predicted"
    unanswered = "without a set"
    settings = LabelSetSettings
    schema = ROWS
    section = "pprs.label_sets.page:make_section"
    examination = "pprs.label_sets.examination:examine_sets"
    derived = "sets from scores and the threshold, and this from the scores of the calibration"
    replayed = "scores: drawn again and compared"

    def load_again(self, settings: LabelSetSettings, model: Any, data: Any, **options: Any) -> Subject:
        adapted = options.pop("adapted", None)
        opened, text = open_model(model, adapted)
        is_named = opened.class_names is not None  # otherwise the data of the calibration may have named the classes
        names = settings.class_names if settings.labels is None and not is_named else opened.class_names
        opened = replace(opened, class_names=names, num_classes=opened.num_classes or settings.num_classes)
        subject = replace(self.load(opened, data, **options), model_text=text)
        return subject if is_named else replace(subject, model=replace(subject.model, class_names=settings.class_names))

    def describe_work(self, subject: Subject, session: Session, settings: LabelSetSettings, inputs: int) -> list[str]:
        return [f"{session.partition or 'none'} under {session.noise}: {inputs} images, one noisy pass each"]

    def open(self, session: Session, settings: LabelSetSettings) -> LabelSetAnswer:
        return LabelSetAnswer(make_votes(session), settings.calibration)

    def count_passes(self, settings: LabelSetSettings) -> int | None:
        return 1

    def make_row(self, key: Key, outcome: Scored, known: Known, seconds: float) -> LabelSetRow:
        return LabelSetRow.of(key[0], outcome, known, seconds)

    def failed_row(self, failure: Failure) -> LabelSetRow:
        return LabelSetRow.failed(failure)

    def check_settings(self, settings: LabelSetSettings) -> None:
        if settings.sets is not None or settings.model_digest is not None:  # exported rows repeat the threshold only
            settings.check()

    def check_rows(self, rows: Iterable[LabelSetRow], settings: LabelSetSettings) -> RowCheck:
        found = super().check_rows(rows, settings)
        if settings.sets is not None:
            return found
        missing = {"the threshold, the radius and alpha, since the calibration is not recorded": found.rows}
        return replace(found, claims="sets from scores and the threshold that the rows state", not_checked=missing)

    def check(self, row: LabelSetRow, settings: LabelSetSettings) -> list[str]:
        return check_row(row, settings)

    def compare(self, row: LabelSetRow, again: LabelSetRow) -> list[str]:
        others = super().compare(row, replace(again, scores=row.scores, labels=row.labels))
        return compare_rows(row, again) + others

    def summarise(self, run: Run) -> RunSummary:
        failures = tuple(run.failures())
        covered = size = single = rows = 0
        labelled = sum(failure.label is not None for failure in failures)  # which count as not covered
        row: LabelSetRow
        for row in run.iter_rows():
            rows, size, single = rows + 1, size + len(row.labels), single + (len(row.labels) == 1)
            labelled, covered = labelled + (row.covered is not None), covered + bool(row.covered)
        if not rows:
            return RunSummary((), (), len(failures), failures)
        metrics = [Metric("mean size", size / rows, unit="labels"), Metric("sets of one label", single / rows)]
        if labelled:
            low, high = clopper_pearson_interval(covered, labelled)
            metrics.insert(0, Metric("coverage without an attack", covered / labelled, float(low), float(high)))
        return RunSummary((describe_promise(run.settings),), tuple(metrics), rows + len(failures), failures)

    def tally(self, row: LabelSetRow) -> float:
        return float(len(row.labels) == 1)

    def describe_tally(self, rows: int, total: float) -> str:
        return f"{round(total)} sets of one label"

    def describe_run(self, rows: int, total: float) -> str:
        return f"{rows} images, {round(total)} sets of one label"


def describe_promise(settings: LabelSetSettings) -> str:
    """State what the sets of a run promise."""
    try:
        return state_promise(settings.calibration.settings)
    except PprsError:  # exported rows do not repeat the calibration
        return f"sets for radius {settings.radius} and alpha {settings.alpha}, whose calibration is not recorded here"


LABEL_SET = LabelSetGuarantee()
