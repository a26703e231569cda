"""The guarantee of `pprs certify`: one label that no change of L2 norm up to a radius alters."""

from __future__ import annotations

from collections.abc import Iterable

import torch

from pprs.certify.replay import replay_votes
from pprs.certify.summary import summarise_certification
from pprs.noise import Noise, digest_image
from pprs.runs.check import RowCheck, check_rows
from pprs.runs.guarantee import Answer, Guarantee, Key, Known, Question, Resumable, RunSummary
from pprs.runs.row import PARTIAL, ROWS, Failure, Row
from pprs.runs.run import Run
from pprs.runs.session import Session, describe_problem
from pprs.runs.settings import RunSettings
from pprs.runs.subject import Subject
from pprs.smoothing.arithmetic import Arithmetic
from pprs.smoothing.certificate import Certificate, round_down
from pprs.smoothing.certification import Certification
from pprs.smoothing.classifier import SmoothedClassifier
from pprs.smoothing.sampling import Sampling, check_certifiable, max_radius, min_samples_for_radius
from pprs.smoothing.voting import LocalVotes, OnSamples, VoteSource, check_image


class CertifyAnswer(Resumable):
    """Certifies inputs with a smoothed classifier. `source` counts its votes, by default in this process."""

    def __init__(self, classifier: SmoothedClassifier, sampling: Sampling, source: VoteSource | None = None) -> None:
        self.classifier, self.sampling = classifier, sampling
        self.scorer: LocalVotes = classifier.votes
        self._source = source or classifier.votes

    def start(self, index: int, partial: Row | None = None) -> Certification:
        """Start the certification of an input, or continue it."""
        return Certification(self._source, self.sampling, index, partial)

    def answer(self, question: Question, on_passes: OnSamples) -> Certificate:
        certification = self.start(question.index, question.partial)
        certification.advance(question.image, on_samples=on_passes)
        return certification.certificate()

    def digest(self, image: torch.Tensor) -> str:
        return digest_image(self.scorer.quantise(check_image(image)))

    def split(self, source: VoteSource) -> CertifyAnswer:
        return CertifyAnswer(self.classifier, self.sampling, source)


class CertifyGuarantee(Guarantee[RunSettings, Row]):
    """One label, and a radius within which no change alters it."""

    name = "certify"
    noun = "a certification run"
    verb = "certify"
    settings = RunSettings
    schema = ROWS
    can_budget = True
    allows_gaps = True
    section = "pprs.report.certify:make_section"
    examination = "pprs.doctor:examine_run"
    auditor = "pprs.audit.smoothed:SmoothedAuditor"

    def check_attainable(
        self, subject: Subject, noise: Noise | None, settings: RunSettings, arithmetic: Arithmetic
    ) -> None:
        assert noise is not None
        check_certifiable(settings.sampling, *describe_problem(subject, noise, arithmetic))

    def describe_work(self, subject: Subject, session: Session, settings: RunSettings, inputs: int) -> list[str]:
        assert session.noise is not None
        sampling, problem = settings.sampling, describe_problem(subject, session.noise, session.arithmetic)
        most = "at most " if sampling.stop else ""
        lines = [
            f"{session.partition or 'none'} under {session.noise}: {inputs} images, {sampling.n0} + {most}{sampling.n} "
            f"samples each; n and alpha allow a radius of at most {round_down(max_radius(sampling, *problem))}"
        ]
        for radius in sampling.decided_radii or ():
            smallest = min_samples_for_radius(radius, sampling, *problem)
            lines.append(f"  a radius of {radius:g} takes at least {smallest} samples")
        return lines

    def open(self, session: Session, settings: RunSettings) -> CertifyAnswer:
        assert session.noise is not None
        classifier = SmoothedClassifier(
            session.network, session.num_classes, session.noise, session.partition, seed=session.seed,
            batch_size=session.batch_size, threads=session.threads, device=session.device,
            arithmetic=session.arithmetic, check=False,  # a run checks and watches its network
        )  # fmt: skip
        return CertifyAnswer(classifier, settings.sampling)

    def count_passes(self, settings: RunSettings) -> int | None:
        return None if settings.stop else settings.sampling.n0 + settings.sampling.n

    def expect_passes(self, settings: RunSettings) -> int:
        return settings.sampling.n0 + settings.sampling.n

    def passes_of(self, row: Row, settings: RunSettings) -> int:
        return (settings.n0 or 0) + row.samples

    def make_row(self, key: Key, outcome: Certificate, known: Known, seconds: float) -> Row:
        return Row.of(key[0], known.label, outcome, seconds, known.file_shape, known.name)

    def failed_row(self, failure: Failure) -> Row:
        return failure.row()

    def is_final(self, row: Row) -> bool:
        return row.stopped != PARTIAL

    derived = "bounds, radii and predictions from counts and settings"

    def check_rows(self, rows: Iterable[Row], settings: RunSettings) -> RowCheck:
        return check_rows(rows, settings)

    def replay(self, answer: Answer, row: Row, question: Question, known: Known, on_passes: OnSamples) -> list[str]:
        assert isinstance(answer, CertifyAnswer)
        return replay_votes(answer, row, question.image, on_passes)

    def summarise(self, run: Run) -> RunSummary:
        return summarise_certification(run)

    def tally(self, row: Row) -> float:
        return float(row.prediction is not None)


CERTIFY = CertifyGuarantee()
