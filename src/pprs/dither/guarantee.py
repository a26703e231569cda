"""The guarantee of counted votes: no change of so many grey levels, and none of so many pixels, alters the label."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch

from pprs.dither.certificate import (
    DitherCertificate,
    certified_changes,
    choose_label,
    describe_change,
    measure_radius,
    shorten,
)
from pprs.dither.choice import as_estimate, choose_estimator, choose_range, iter_inputs
from pprs.dither.classifier import DitherClassifier
from pprs.dither.estimators import Estimator, parse_estimator
from pprs.dither.scale import STEP
from pprs.dither.thresholds import MOST_LEVELS, Dither, parse_dither
from pprs.errors import DamagedError, PprsError
from pprs.inputs.domain import IMAGE, SIGNAL, Domain, domain_of, domain_of_any
from pprs.inputs.space import NETWORK
from pprs.kernels.thresholds import GREY
from pprs.noise import Noise
from pprs.partition import AUTO, Partition
from pprs.progress import Progress
from pprs.runs.columns import INPUT_COLUMNS, INTEGERS, ArrowType, Column, InputRow, Schema
from pprs.runs.guarantee import Answer, Guarantee, Metric, Question, RunSummary
from pprs.runs.provenance import Provenance
from pprs.runs.run import Run
from pprs.runs.session import Session
from pprs.runs.subject import Subject
from pprs.smoothing.arithmetic import Arithmetic
from pprs.smoothing.bounds import clopper_pearson_interval
from pprs.smoothing.certificate import round_down
from pprs.smoothing.votes import OnSamples

REPORTED_CHANGES = (0, 128, 255, 510, 1020)  # in grey levels in total, at which certified accuracy is stated
REPORTED_PIXELS = (1, 2, 5, 10)  # that change in any way


@dataclass(frozen=True)
class DitherSettings(Provenance):
    """What the rows of a run without sampling depend on.

    Attributes:
        dither_text: The thresholds as text. `dither` is the object.
        estimator_text: How images are estimated, as text. `estimator` is the object.
    """

    kind: ClassVar[str] = "dither"
    texts: ClassVar[Mapping[str, str]] = {
        **Provenance.texts, "dither": "dither_text", "estimator": "estimator_text",
    }  # fmt: skip
    exported: ClassVar[Mapping[str, ArrowType]] = {
        "model": "string", "data": "string", "dither": "string", "estimator": "string", "engine": "string",
        "preprocess": "string", "pixels": "string",
    }  # fmt: skip

    dither_text: str | None = None
    estimator_text: str | None = None

    @functools.cached_property
    def dither(self) -> Dither:
        """The thresholds."""
        if self.dither_text is None:
            raise DamagedError(
                "the setting dither is not recorded: nothing says behind which thresholds votes were counted"
            )
        try:
            return parse_dither(self.dither_text)
        except PprsError as error:
            raise DamagedError(f"the setting dither is not valid ({error.message})") from error

    @functools.cached_property
    def estimator(self) -> Estimator:
        """How images are estimated from what is shown of them."""
        if self.estimator_text is None:
            raise DamagedError("the setting estimator is not recorded")
        try:
            return parse_estimator(self.estimator_text)
        except PprsError as error:
            raise DamagedError(f"the setting estimator is not valid ({error.message})") from error


@dataclass(frozen=True, kw_only=True)
class DitherRow(InputRow):
    """The votes of all offsets for one image.

    Attributes:
        prediction: The label with most votes, None if the image failed.
        votes: The votes by class.
        rounding: By how many grey levels in total the image was moved to the nearest one of 8 bits, rounded up.
        step: The change of a value of a signal that passes one threshold. None for a grey level.
    """

    prediction: int | None = None
    votes: tuple[int, ...] = ()
    rounding: int = 0
    step: float | None = None

    @property
    def offsets(self) -> int:
        """At how many offsets a change may alter what is shown without altering the label."""
        return certified_changes(self.votes) if self.votes else 0

    @property
    def grey_levels(self) -> int:
        """The largest total change that cannot alter the label, in grey levels or in steps of a signal."""
        return max(0, self.offsets - self.rounding)

    @property
    def radius(self) -> float:
        """The L1 norm that this is, with the values of an image in [0, 1]."""
        return measure_radius(self.grey_levels, self.step or STEP, self.shape)

    @property
    def correct(self) -> bool:
        """Whether the label is the true one."""
        return self.prediction is not None and self.prediction == self.label


class DitherAnswer(Answer):
    """Counts the votes of all offsets."""

    def __init__(self, classifier: DitherClassifier) -> None:
        self.classifier, self.scorer = classifier, classifier.votes

    def answer(self, question: Question, on_passes: OnSamples) -> dict[str, Any]:
        found = self.classifier.certify(question.image, on_passes=on_passes)
        step = None if domain_of(found.shape) is IMAGE else found.step
        fields = {"prediction": found.prediction, "votes": found.votes, "rounding": found.rounding, "step": step}
        return {**fields, **self.bind(question.image)}


class DitherGuarantee(Guarantee[DitherSettings, DitherRow]):
    """A label that no change of so many grey levels in total alters: certain, since nothing is sampled."""

    name = "dither"
    noun = "a run of counted votes"
    verb = "certify"
    settings = DitherSettings
    schema = Schema(
        DitherRow,
        (
            *INPUT_COLUMNS,
            Column("prediction", "int64", "INTEGER", least=0),
            Column("votes", "string", "TEXT NOT NULL", codec=INTEGERS),
            Column("rounding", "int64", "INTEGER NOT NULL", least=0),
            Column("step", "double", "REAL"),
            Column("offsets", "int64", export=lambda row: row.offsets),
            Column("grey_levels", "int64", export=lambda row: row.grey_levels),
            Column("radius", "double", export=lambda row: row.radius),
            Column("correct", "int64", export=lambda row: int(row.correct)),
        ),
    )
    is_sampled = False
    examination = "pprs.dither.examination:examine_dither"
    auditor = "pprs.audit.counted:DitherAuditor"
    replayed = "votes: counted again and compared"
    derived = "predictions and certified changes from votes"

    def choose_settings(
        self, subject: Subject, own: Mapping[str, Any], recorded: DitherSettings | None, progress: Progress
    ) -> Mapping[str, Any]:
        """Choose the range of signals and the estimate, where that is left open."""
        dither, asked = parse_dither(own["dither_text"]), as_estimate(own["estimator_text"])
        if recorded is not None and subject.domain is SIGNAL and dither.low is None:
            dither = replace(dither, low=recorded.dither.low, high=recorded.dither.high)
        dither = choose_range(dither, iter_inputs(subject.data) if subject.domain is SIGNAL else ())
        if recorded is not None and asked == AUTO:
            estimator = recorded.estimator
        else:
            estimator = choose_estimator(dither, asked, subject, progress)
        return {**own, "dither_text": str(dither), "estimator_text": str(estimator)}

    def list_mismatches(
        self, subject: Subject, noise: Noise | None, partition: Partition | None, settings: DitherSettings
    ) -> list[str]:
        adaptation = subject.model.adaptation
        if adaptation is None:
            return []
        return adaptation.list_mismatches(str(settings.dither), str(settings.estimator))

    def make_trials(
        self,
        subject: Subject,
        noise: Noise | None,
        partition: Partition | None,
        settings: DitherSettings,
        arithmetic: Arithmetic,
    ) -> torch.Tensor:
        session = Session(torch.nn.Identity(), subject.num_classes)
        return _make_classifier(session, settings).trial_inputs(subject.sample.image)

    def describe_method(self, settings: DitherSettings) -> str:
        return f"{settings.estimator_text or 'unknown estimator'} behind {settings.dither_text or 'unknown thresholds'}"

    def describe_work(self, subject: Subject, session: Session, settings: DitherSettings, inputs: int) -> list[str]:
        levels, unit = settings.dither.levels, "grey levels" if subject.domain is IMAGE else "steps"
        return [
            f"{self.describe_method(settings)}: {inputs} images, {levels} passes each; at most {levels // 2} {unit} in "
            "total can be certified"
        ]

    def open(self, session: Session, settings: DitherSettings) -> DitherAnswer:
        return DitherAnswer(_make_classifier(session, settings))

    def count_passes(self, settings: DitherSettings) -> int:
        return settings.dither.levels

    def check_settings(self, settings: DitherSettings) -> None:
        if settings.dither.levels > MOST_LEVELS or not isinstance(settings.estimator, Estimator):
            raise DamagedError("the thresholds of this run cannot be")

    def check(self, row: DitherRow, settings: DitherSettings) -> list[str]:
        if len(row.votes) != settings.num_classes:
            return [f"there are votes for {len(row.votes)} classes, and the network has {settings.num_classes}"]
        if min(row.votes) < 0 or sum(row.votes) != settings.dither.levels:
            return [f"there are {sum(row.votes)} votes, and {settings.dither.levels} offsets"]
        if row.shape is None:
            return ["it has no shape, and what its votes certify depends on that"]
        is_signal = domain_of(row.shape) is SIGNAL
        if is_signal != (settings.dither.low is not None):
            return [
                f"its shape is {list(row.shape)}, and the thresholds are for {'images' if is_signal else 'signals'}"
            ]
        if is_signal and row.rounding:
            return [f"rounding is {row.rounding}, and signals are not rounded"]
        if row.step != (settings.dither.step if is_signal else None):
            return [f"step is {row.step}, and thresholds lie {settings.dither.step} apart"]
        if row.prediction != choose_label(row.votes):
            return [f"prediction is {row.prediction}, and most votes are for {choose_label(row.votes)}"]
        return []

    def compare_input(self, row: DitherRow, image: torch.Tensor, settings: DitherSettings) -> list[str]:
        own = settings.dither.quantise(image)[1]
        return [] if row.rounding == own else [f"rounding is {row.rounding}, and the image is moved by {own}"]

    def certificate(self, row: DitherRow, settings: DitherSettings) -> DitherCertificate:
        """Return the certificate of a row."""
        if row.prediction is None or row.shape is None:
            raise PprsError("the image of this row failed", index=row.idx)
        return DitherCertificate(
            row.prediction, row.votes, row.offsets, row.rounding,
            settings.dither.offsets_per_pixel(row.shape[0]), row.shape, row.step or STEP,
        )  # fmt: skip

    def summarise(self, run: Run) -> RunSummary:
        rows, failures = run.outcomes(), tuple(run.failures())
        settings: DitherSettings = run.settings
        if not rows:
            return RunSummary((), (), 0, failures)
        changes, domain = _choose_changes(settings.dither.levels), domain_of_any(row.shape for row in rows)
        most_votes = settings.dither.levels // 2  # that a change may alter if all are for one class
        claims, metrics = [_state_claim(rows, most, settings, domain) for most in changes[1:]], list[Metric]()
        pixels = [(row, _count_pixels(row, settings)) for row in rows]
        most_pixels = [count for count in REPORTED_PIXELS if count * settings.dither.offsets_per_pixel(1) <= most_votes]
        claims += [_state_pixels(pixels, most, settings, domain) for most in most_pixels]
        if any(row.label is not None for row in rows):
            metrics = [_measure(rows, most, settings.dither.step, domain) for most in changes]
            metrics += [_measure_pixels(pixels, most, domain) for most in most_pixels]
        mean = sum(row.radius * row.correct for row in rows) / len(rows)
        unit = "(values in [0, 1])" if domain is IMAGE else "(in the unit of the signals)"
        metrics.append(Metric("average certified L1 radius", mean, unit=unit))
        return RunSummary(tuple(claims), tuple(metrics), len(rows), failures)

    def tally(self, row: DitherRow) -> float:
        """Return the certified change as a share of the largest that so many votes can certify."""
        return row.grey_levels / max(1, sum(row.votes) // 2)

    def describe_tally(self, rows: int, total: float) -> str:
        return f"{total / max(rows, 1):.0%} of the largest change"

    def describe_run(self, rows: int, total: float) -> str:
        return f"{rows} images, certified on average for {total / max(rows, 1):.0%} of the largest change"


def _choose_changes(levels: int) -> tuple[int, ...]:
    """Return the changes at which certified accuracy is stated: of the usual ones those that can be certified."""
    usual = tuple(change for change in REPORTED_CHANGES if change <= levels // 2)
    return usual if len(usual) > 1 else (0, max(1, levels // 4))


def _state_claim(rows: list[DitherRow], most: int, settings: DitherSettings, domain: Domain) -> str:
    """Say for how many rows no change up to one of these alters the label."""
    count = sum(row.grey_levels >= most for row in rows if row.prediction is not None)
    shape = (1, 1, 1) if domain is IMAGE else (1, MOST_LEVELS)
    change = describe_change(most, settings.dither.step, shape)
    return _claim(count, len(rows), f"no change of at most {change}", settings, domain)


def _state_pixels(rows: list[tuple[DitherRow, int]], most: int, settings: DitherSettings, domain: Domain) -> str:
    """Say for how many rows no change of so many pixels, or samples of a signal, alters the label."""
    count = sum(pixels >= most for row, pixels in rows if row.prediction is not None)
    return _claim(count, len(rows), f"no change whatever of any {_name_pixels(most, domain)}", settings, domain)


def _claim(count: int, total: int, change: str, settings: DitherSettings, domain: Domain) -> str:
    where, among = "the signal", ""
    if domain is IMAGE:
        where, among = "the network's input" if settings.pixels == NETWORK else "the file", ", among 8-bit images"
    return f"{count} of {total} {domain.plural}: {change} to {where} alters the label{among}; certain"


def _measure(rows: list[DitherRow], most: int, step: float, domain: Domain) -> Metric:
    right = sum(row.correct and row.grey_levels >= most for row in rows)
    change = f"grey levels (L1 {round_down(most / GREY)})" if domain is IMAGE else f"steps of {shorten(step)}"
    return _to_metric(f"{most} {change}", right, len(rows))


def _measure_pixels(rows: list[tuple[DitherRow, int]], most: int, domain: Domain) -> Metric:
    right = sum(row.correct and pixels >= most for row, pixels in rows)
    return _to_metric(f"any {_name_pixels(most, domain)}", right, len(rows))


def _to_metric(what: str, right: int, total: int) -> Metric:
    low, high = clopper_pearson_interval(right, total)
    return Metric(f"certified accuracy at {what}", right / total, float(low), float(high))


def _name_pixels(count: int, domain: Domain) -> str:
    return f"{count} {'pixel' if domain is IMAGE else 'sample'}{'s' * (count > 1)}"


def _count_pixels(row: DitherRow, settings: DitherSettings) -> int:
    """Return how many pixels may change in any way without altering the label."""
    return 0 if row.shape is None else row.offsets // settings.dither.offsets_per_pixel(row.shape[0])


def _make_classifier(session: Session, settings: DitherSettings) -> DitherClassifier:
    """Return a classifier with the network of a session. A run checks and watches its network itself."""
    return DitherClassifier(
        session.network, session.num_classes, settings.dither, settings.estimator,
        batch_size=session.batch_size, threads=session.threads, device=session.device, check=False,
    )  # fmt: skip


DITHER = DitherGuarantee()
