"""What a run promises about its inputs: the protocol that drivers, stores, verifiers and reports work through.

A guarantee is one class. It says how an input is answered, which columns a row has, what follows from a row alone, and
what a summary and a page show. Workers, resumption, verification, reports and exports come with the machinery.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Generic, TypeVar

import torch

from pprs.data import Selection
from pprs.errors import ConfigurationError
from pprs.noise import Noise, QuantisedImage, digest_image
from pprs.partition import Partition
from pprs.progress import Progress
from pprs.runs.binding import Binding
from pprs.runs.check import Mismatch, RowCheck
from pprs.runs.columns import Schema, quote_value, same_value
from pprs.runs.provenance import Provenance
from pprs.runs.row import Failure
from pprs.runs.session import Session
from pprs.runs.subject import Subject, load_subject
from pprs.smoothing.arithmetic import Arithmetic
from pprs.smoothing.bounds import clopper_pearson_interval
from pprs.smoothing.certification import Certification
from pprs.smoothing.voting import OnSamples, Scorer, VoteSource, check_image

S = TypeVar("S", bound=Provenance)
R = TypeVar("R")
Key = tuple[int, ...]
VALUES = "values: of their types, and in their ranges"  # what is checked of rows from which nothing follows


@dataclass(frozen=True)
class Question:
    """An input that is to be answered.

    Attributes:
        key: What its row is known by: the index of the input, and what else distinguishes rows.
        image: The input [C, H, W] or [C, T].
        partial: Its row so far, if a budget ended its sampling.
    """

    key: Key
    image: torch.Tensor
    partial: Any = None

    @property
    def index(self) -> int:
        """The index of the input in its data."""
        return self.key[0]


@dataclass(frozen=True)
class Known:
    """What is known of an input besides its values, which no answer may depend on.

    Attributes:
        name: Its name in the data.
        file_shape: Its shape before it was prepared for the network.
        truth: Its true label, or whatever else its data say about it, by column.
    """

    name: str | None = None
    file_shape: tuple[int, ...] | None = None
    truth: Mapping[str, Any] = field(default_factory=dict)

    @property
    def label(self) -> int | None:
        """The true label, if there is one."""
        return self.truth.get("label")


@dataclass(frozen=True)
class Metric:
    """A number that a run comes to.

    Attributes:
        name: What it is, such as "certified accuracy at radius 0.25".
        value: The number, from 0 to 1 unless `unit` says otherwise.
        low: The lower end of its 95% interval, None without one.
        high: The upper end.
        unit: What it is measured in.
    """

    name: str
    value: float
    low: float | None = None
    high: float | None = None
    unit: str = ""

    @classmethod
    def of_parts(cls, name: str, parts: Sequence[float], count: int) -> Metric:
        """Return the mean of numbers from 0 to 1 over `count` inputs, those that failed included."""
        total = math.fsum(parts)
        if any(part not in (0, 1) for part in parts):  # an interval for shares needs more than their mean
            return cls(name, total / count)
        low, high = map(float, clopper_pearson_interval(round(total), count))
        return cls(name, total / count, low, high)

    def __str__(self) -> str:
        if self.unit:
            return f"{self.name} {self.value:.4g} {self.unit}"
        interval = "" if self.low is None or self.high is None else f" (95%: {self.low:.1%} to {self.high:.1%})"
        return f"{self.name} {self.value:.1%}{interval}"


@dataclass(frozen=True)
class RunSummary:
    """What a run says as a whole.

    Attributes:
        claims: What is promised, in sentences.
        metrics: The numbers that matter most.
        inputs: How many inputs the run has answered or failed on.
        failures: Those that failed.
    """

    claims: tuple[str, ...]
    metrics: tuple[Metric, ...] = ()
    inputs: int = 0
    failures: tuple[Failure, ...] = ()


class Answer(ABC):
    """Answers inputs with an open network, in this process or in a worker.

    Attributes:
        scorer: The network that is asked, which is checked to be one function of one input.
        takes_one_thread: Whether an answer takes a single thread, so that several inputs are answered at a time.
    """

    scorer: Scorer
    takes_one_thread: ClassVar[bool] = False

    @abstractmethod
    def answer(self, question: Question, on_passes: OnSamples) -> Any:
        """Answer an input. The result is sent from a worker to the driver, which makes a row of it.

        Args:
            question: The input.
            on_passes: Called with the number of new passes of the network now and then.

        Raises:
            PprsError: If the input is invalid, or if the network fails.
        """

    def digest(self, image: torch.Tensor) -> str:
        """Return the digest of an input as it is answered, by which a row is bound to it. By default, of its values."""
        return digest_image(image)

    def bind(self, image: torch.Tensor) -> dict[str, Any]:
        """Return the fields by which a row is bound to its input: its shape, and its digest."""
        return {"shape": tuple(image.shape), "image_digest": self.digest(image)}

    def split(self, source: VoteSource) -> Answer:
        """Return what answers with votes that come from elsewhere, so that workers share the samples of an input."""
        raise ConfigurationError(
            "the samples of one input cannot be split over workers here. Leave out `split_samples`.",
            parameter="split_samples",
        )


class Resumable(Answer):
    """Answers that can be left at any time and continued, such as votes of which more make a bound tighter."""

    @abstractmethod
    def start(self, index: int, partial: Any = None) -> Certification:
        """Start the answer to an input, or continue it from its row so far."""


@dataclass(frozen=True)
class Legacy:
    """The file in which earlier versions kept a kind of run.

    Attributes:
        file: Its name in the folder of the run.
        read: Returns settings, rows, failures and pictures by index.
        beside: Names of other files that earlier versions wrote into the folder.
        bind: Returns what identifies the model of the run, if that is recorded.
    """

    file: str
    read: Callable[[Path], tuple[Any, Iterable[Any], list[Failure], Mapping[int, bytes]]]
    beside: tuple[str, ...] = ()
    bind: Callable[[Path], Binding | None] = lambda folder: None


class Guarantee(ABC, Generic[S, R]):
    """What is promised about an input. `S` are the settings of a run, and `R` is a row.

    Attributes:
        name: The name, which a run's file holds. It is that of the command.
        noun: What a run is called in messages, such as "a certification run".
        verb: What the driver does, for progress bars.
        promise: What is promised about each certified input, in a few words.
        task: What its networks do, in the words of the Hugging Face hub. None for classification.
        settings: The class of the settings.
        schema: The columns of a row.
        adapted_caveat: What holds for images that the model was adapted with, in sentences.
        allows_gaps: Whether files of earlier versions lack settings, and digests of inputs, that later ones have.
        is_sampled: Whether a row rests on noise that was drawn, so that a replay draws it again.
        may_be_large: Whether inputs are often so large that their noisy copies may not fit in memory. Those are refused
            before they are answered, as all are to whose files noise is added.
        can_budget: Whether sampling may end at any time, so that a budget can be spent where it helps.
        legacy: The file of earlier versions, if there is one.
        answered: What an input is that has a row, such as "certified".
        unanswered: What an input that failed counts as.
        section: The place of the function that makes the section of a report from runs, such as "package.module:name".
        examination: The place of the function that says why inputs are not certified and what may help, if any.
        auditor: The place of the class that attacks what is certified, derived from `pprs.audit.Auditor`, if any.
    """

    section: ClassVar[str] = "pprs.report.plain:make_section"
    examination: ClassVar[str | None] = None
    auditor: ClassVar[str | None] = None
    name: ClassVar[str]
    noun: ClassVar[str]
    verb: ClassVar[str]
    promise: ClassVar[str] = ""
    task: ClassVar[str | None] = None
    settings: ClassVar[type[Any]]
    schema: ClassVar[Schema[Any]]
    answered: ClassVar[str] = "certified"
    unanswered: ClassVar[str] = "counted as not certified"
    adapted_caveat: ClassVar[str] = (
        "What is promised of each holds, but accuracy on them says little about other images: use images that were not "
        "used to adapt it."
    )
    allows_gaps: ClassVar[bool] = False
    is_sampled: ClassVar[bool] = True
    may_be_large: ClassVar[bool] = False
    can_budget: ClassVar[bool] = False
    legacy: ClassVar[Legacy | None] = None

    # ---- the subject

    def load(
        self,
        model: Any,
        data: Any,
        *,
        split: str | None = None,
        classes: str | Path | None = None,
        labels: str | Sequence[str] | None = None,
        images: Any | Selection = None,
        pixels: str = "network",
        adapted: str | Path | None = None,
    ) -> Subject:
        """Open a model and its data, and match them."""
        return load_subject(
            model, data, split=split, classes=classes, labels=labels, images=images, pixels=pixels, adapted=adapted
        )

    def load_again(self, settings: S, model: Any, data: Any, **options: Any) -> Subject:
        """Open the model and the data of a run again, as `load` does."""
        return self.load(model, data, **options)

    def choose_settings(
        self, subject: Subject, own: Mapping[str, Any], recorded: S | None, progress: Progress
    ) -> Mapping[str, Any]:
        """Return the guarantee's own settings, with what the caller leaves open.

        Args:
            subject: The model and its inputs.
            own: The settings that were asked for, by name.
            recorded: Those of the run that is resumed, if it is.
            progress: Receives messages.
        """
        return own

    def make_trials(
        self, subject: Subject, noise: Noise | None, partition: Partition | None, settings: S, arithmetic: Arithmetic
    ) -> torch.Tensor:
        """Return a few inputs as the network receives them, on which to try engines and to check the network.

        They are made of the first usable input, with noise that is used for nothing else, if there is noise.
        """
        if noise is None:
            return torch.stack([subject.sample.image, subject.sample.image.flip(-1)])
        return subject.trial_images(noise, partition, settings.seed or 0, arithmetic)

    def check_attainable(self, subject: Subject, noise: Noise | None, settings: S, arithmetic: Arithmetic) -> None:
        """Raise an error before a run if its settings can never promise anything about the first usable input."""

    def check_data(self, subject: Subject, progress: Progress) -> None:
        """Raise an error before a run if the data of its inputs cannot be what the guarantee needs."""

    def list_mismatches(
        self, subject: Subject, noise: Noise | None, partition: Partition | None, settings: S
    ) -> list[str]:
        """Say to what an adapted model was not adapted, in sentences."""
        return [] if noise is None else subject.list_mismatches(noise, partition)

    def describe_method(self, settings: S) -> str:
        """Say in a few words through what a classifier sees its inputs, if that is not as they are."""
        if not self.is_sampled:
            return ""
        return f"{settings.partition_text or 'unknown partition'} under {settings.noise_text or 'unknown noise'}"

    def describe_work(self, subject: Subject, session: Session, settings: S, inputs: int) -> list[str]:
        """Say what is about to be done, and what is the most that can come of it."""
        return []

    # ---- answers

    @abstractmethod
    def open(self, session: Session, settings: S) -> Answer:
        """Return what answers inputs with an open network."""

    def list_keys(self, images: Sequence[int], settings: S) -> list[Key]:
        """Return the keys of the rows that a run over these inputs has."""
        return [(index,) for index in images]

    def count_passes(self, settings: S) -> int | None:
        """Return the passes of the network that each row takes. None if that varies."""
        return None

    def expect_passes(self, settings: S) -> int:
        """Return about how many passes a row takes, by which an engine is chosen."""
        return self.count_passes(settings) or 1

    def make_row(self, key: Key, outcome: Any, known: Known, seconds: float) -> R:
        """Return the row of an input that was answered. By default, the outcome is a mapping with the other fields."""
        fields = {column.field for column in self.schema.stored}
        given = dict(zip(self.schema.keys, key, strict=True)) | {name: known.truth.get(name) for name in self.truth}
        given |= {"name": known.name, "file_shape": known.file_shape, "seconds": seconds}
        row: R = self.schema.row(**{name: value for name, value in given.items() if name in fields}, **outcome)
        return row

    def failed_row(self, failure: Failure) -> R:
        """Return the row of an input that failed, which promises nothing. Leaving it out could flatter a model.

        By default, it has no value where a column needs none, and otherwise 0 or an empty text.
        """
        known = {*self.schema.keys, *self.truth, "name"}
        row: R = self.schema.row(**{
            column.field: failure.get(column.field) if column.field in known else column.empty
            for column in self.schema.stored
        })  # fmt: skip
        return row

    @property
    def truth(self) -> tuple[str, ...]:
        """The columns that are known of an input without an answer."""
        return self.schema.truth

    def is_final(self, row: R) -> bool:
        """Return whether no later call continues a row."""
        return True

    # ---- verification

    replayed: ClassVar[str] = "votes: drawn again and compared"  # what a replay checks
    truth_words: ClassVar[str] = "true labels"
    derived: ClassVar[str] = "claims: derived from the rows and the settings"  # what needs neither model nor data

    def check_rows(self, rows: Iterable[R], settings: S) -> RowCheck:
        """Check what follows from rows and settings alone. Reports and exports refuse rows that fail."""
        count, mismatches = 0, list[Mismatch]()
        for row in rows:
            count += 1
            mismatches += [Mismatch(self.schema.key(row)[0], text) for text in self.check(row, settings)]
        is_checked = type(self).check is not Guarantee.check
        return RowCheck(count, tuple(mismatches), claims=self.derived if is_checked else VALUES)

    def check_settings(self, settings: S) -> None:
        """Raise an error if the guarantee's own settings mean nothing."""

    def check(self, row: R, settings: S) -> list[str]:
        """Return what in a row does not follow from the row and the settings alone."""
        return []

    def compare_input(self, row: R, image: Any, settings: S) -> list[str]:
        """Return what in a row does not follow from its input, as `prepare` returns it, besides what all rows have."""
        return []

    def prepare(self, image: torch.Tensor, settings: S) -> torch.Tensor | QuantisedImage:
        """Return an input in the form that a row is bound to."""
        if not self.is_sampled:
            return image
        prepared: torch.Tensor | QuantisedImage = settings.chosen_arithmetic.prepare(check_image(image), settings.noise)
        return prepared

    def replay(self, answer: Answer, row: R, question: Question, known: Known, on_passes: OnSamples) -> list[str]:
        """Answer the input of a row again, and return in what the row differs."""
        again = self.make_row(question.key, answer.answer(question, on_passes), known, 0.0)
        return self.compare(row, again)

    def passes_of(self, row: R, settings: S) -> int:
        """Return about how many passes it takes to answer the input of a row again."""
        return self.expect_passes(settings)

    def compare(self, row: R, again: R) -> list[str]:
        """Return in what a row differs from one that was made again."""
        return [
            f"{column.field} is {quote_value(stored)}, and answering again gives {quote_value(made)}"
            for column in self.schema.stored
            if column.field not in ("seconds", "name")
            and not same_value(stored := getattr(row, column.field), made := getattr(again, column.field))
        ]

    # ---- what is shown

    def summarise(self, run: Any) -> RunSummary:
        """Return what a run says as a whole, for the terminal, model cards and exit codes.

        By default, the claim is `promise`, and the number is how much the rows promise on average, also with the
        correct label if rows have a `prediction`. Inputs that failed count as nothing.
        """
        failures = tuple(run.failures())
        promised, correct, is_labelled = list[float](), list[float](), False
        for row in run.iter_rows():
            promised.append(self.tally(row))
            label = getattr(row, "label", None)
            is_labelled |= label is not None and hasattr(row, "prediction")
            correct.append(promised[-1] * (label is not None and getattr(row, "prediction", None) == label))
        count, total = len(promised) + len(failures), math.fsum(promised)
        if not count:
            return RunSummary((), (), 0, failures)
        claim = self.describe_run(count, total) + (f": {self.promise}" if self.promise else "")
        metrics = [Metric.of_parts("certified", promised, count)]
        if is_labelled:
            metrics.append(Metric.of_parts("certified with the correct label", correct, count))
        return RunSummary((claim,) if total else (), tuple(metrics), count, failures)

    def tally(self, row: R) -> float:
        """Return how much a row promises, from 0 to 1: by default, whether it is `certified`."""
        return float(row.certified)  # type: ignore[attr-defined]

    def describe_tally(self, rows: int, total: float) -> str:
        """Say in a few words how much the rows so far promise."""
        return f"{round(total)} {self.answered}"

    def describe_run(self, rows: int, total: float) -> str:
        """Say in a few words how much a run of so many rows promises."""
        return f"{round(total)} of {rows} images {self.answered}"
