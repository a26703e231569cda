"""The guarantee of `pprs predict`: the label of the smoothed classifier for the input as it is, without a radius."""

from __future__ import annotations

import torch

from pprs.errors import PprsError
from pprs.inputs.domain import Domain, Shape, domain_of_any
from pprs.noise import Noise, digest_image
from pprs.prediction.row import ROWS, PredictedRow, PredictionSettings, check_row
from pprs.runs.guarantee import Answer, Guarantee, Key, Known, Metric, Question, RunSummary
from pprs.runs.row import Failure
from pprs.runs.run import Run
from pprs.runs.session import Session, describe_problem
from pprs.runs.subject import Subject
from pprs.smoothing.arithmetic import Arithmetic
from pprs.smoothing.bounds import clopper_pearson_interval
from pprs.smoothing.certificate import Prediction, confidence, state_label_arithmetic
from pprs.smoothing.certification import predict_label, reduce_alpha
from pprs.smoothing.classifier import SmoothedClassifier
from pprs.smoothing.voting import LocalVotes, OnSamples, VoteSource, check_image


class PredictAnswer(Answer):
    """Predicts inputs with a smoothed classifier. `source` counts its votes, by default in this process."""

    def __init__(self, votes: LocalVotes, n: int, alpha: float, source: VoteSource | None = None) -> None:
        self.scorer: LocalVotes = votes
        self._n, self._alpha, self._source = n, alpha, source or votes

    def answer(self, question: Question, on_passes: OnSamples) -> Prediction:
        return predict_label(
            self._source, question.image, n=self._n, alpha=self._alpha, index=question.index, on_samples=on_passes
        )

    def digest(self, image: torch.Tensor) -> str:
        return digest_image(self.scorer.quantise(check_image(image)))

    def split(self, source: VoteSource) -> PredictAnswer:
        return PredictAnswer(self.scorer, self._n, self._alpha, source)


class PredictGuarantee(Guarantee[PredictionSettings, PredictedRow]):
    """The label that the smoothed classifier gives to an input."""

    name = "predict"
    noun = "a run of predictions"
    verb = "predict"
    answered = "predicted"
    unanswered = "without a prediction"
    settings = PredictionSettings
    schema = ROWS
    section = "pprs.report.predict:make_section"
    examination = "pprs.prediction.examination:examine_predictions"
    derived = "p-values and predictions from counts and settings"

    def check_attainable(
        self, subject: Subject, noise: Noise | None, settings: PredictionSettings, arithmetic: Arithmetic
    ) -> None:
        assert noise is not None
        n, alpha = settings.check()
        _, dim, _, quantisation = describe_problem(subject, noise, arithmetic)
        reduce_alpha(alpha, noise, n, dim, quantisation)

    def describe_work(self, subject: Subject, session: Session, settings: PredictionSettings, inputs: int) -> list[str]:
        return [f"{session.partition or 'none'} under {session.noise}: {inputs} images, {settings.n} samples each"]

    def open(self, session: Session, settings: PredictionSettings) -> PredictAnswer:
        assert session.noise is not None
        classifier = SmoothedClassifier(
            session.network, session.num_classes, session.noise, session.partition, seed=session.seed,
            batch_size=session.batch_size, threads=session.threads, device=session.device,
            arithmetic=session.arithmetic, check=False,  # a run checks and watches its network
        )  # fmt: skip
        return PredictAnswer(classifier.votes, *settings.check())

    def count_passes(self, settings: PredictionSettings) -> int | None:
        return settings.n

    def make_row(self, key: Key, outcome: Prediction, known: Known, seconds: float) -> PredictedRow:
        return PredictedRow.of(key[0], outcome, known, seconds)

    def failed_row(self, failure: Failure) -> PredictedRow:
        return PredictedRow.failed(failure)

    def check_settings(self, settings: PredictionSettings) -> None:
        settings.check()

    def check(self, row: PredictedRow, settings: PredictionSettings) -> list[str]:
        return check_row(row, settings)

    def summarise(self, run: Run) -> RunSummary:
        failures = tuple(run.failures())
        predicted = correct = labelled = rows = 0
        shape: Shape | None = None
        row: PredictedRow
        for row in run.iter_rows():
            rows += 1
            predicted += row.prediction is not None
            correct += row.correct
            labelled += row.label is not None
            shape = shape or row.shape
        count = rows + len(failures)
        if not count:
            return RunSummary((), (), 0, failures)
        name, hits = ("accuracy of the smoothed classifier", correct) if labelled else ("predicted", predicted)
        low, high = clopper_pearson_interval(hits, count)
        abstained = Metric("abstained", (rows - predicted) / count)
        metrics = [Metric(name, hits / count, float(low), float(high)), abstained]
        promise = state_promise(run.settings, predicted, count, domain_of_any([shape]))
        return RunSummary((promise,), tuple(metrics), count, failures)

    def tally(self, row: PredictedRow) -> float:
        return float(row.prediction is not None)


def state_promise(settings: PredictionSettings, predicted: int, count: int, inputs: Domain) -> str:
    """State what predictions promise."""
    if settings.alpha is None:
        raise PprsError("n and alpha of these rows are not recorded")
    arithmetic = state_label_arithmetic(settings.arithmetic, settings.levels)
    return (
        f"{predicted} of {count} {inputs.plural} have a prediction: each is the smoothed classifier's label for the "
        f"{inputs.name} as it is, with {confidence(settings.alpha)} confidence{arithmetic}. Nothing is said about "
        f"changes of the {inputs.name}"
    )


PREDICT = PredictGuarantee()
