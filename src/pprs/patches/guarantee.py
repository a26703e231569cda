"""The guarantee of `pprs patch`: one label that no change inside any one square of pixels alters."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch

from pprs.errors import ConfigurationError, PprsError
from pprs.noise import Noise
from pprs.partition import Partition
from pprs.patches.classifier import PatchClassifier
from pprs.patches.fills import describe_masks
from pprs.patches.legacy import LEGACY
from pprs.patches.masks import MaskGrid
from pprs.patches.row import SCHEMA, PatchRow, PatchSettings, count_pairs
from pprs.patches.summary import summarise_patches
from pprs.runs.guarantee import Answer, Guarantee, Key, Known, Question, RunSummary
from pprs.runs.row import Failure
from pprs.runs.run import Run
from pprs.runs.session import Session
from pprs.runs.subject import Subject
from pprs.smoothing.arithmetic import Arithmetic
from pprs.smoothing.voting import OnSamples

TRIAL_PATCH = 1  # the network is tried on masks for patches of this side, which exist if there are any for a larger one
SAME = ("prediction", "certified", "plain")  # of a row, whatever the batches were


class PatchAnswer(Answer):
    """Certifies images against patches of any size, with one network."""

    def __init__(self, classifier: PatchClassifier) -> None:
        self._classifier, self.scorer = classifier, classifier.scorer

    def for_patch(self, patch: int, image: torch.Tensor) -> PatchClassifier:
        """Return the classifier for a patch size.

        Raises:
            PprsError: If there are no masks for this image. It is smaller than the first one, and the run goes on.
        """
        classifier = self._classifier.for_patch(patch)
        try:
            classifier.grid_for(image)
        except ConfigurationError as error:
            raise PprsError(error.message) from error
        return classifier

    def answer(self, question: Question, on_passes: OnSamples) -> PatchRow:
        """Return the row of an image, without what is known of the image besides its values."""
        (index, patch), image = question.key, question.image
        classifier = self.for_patch(patch, image)
        certificate = classifier.certify(image, on_passes=on_passes)
        return PatchRow(
            index,
            patch,
            prediction=certificate.prediction,
            certified=certificate.certified,
            plain=classifier.predict_unmasked(image),
            worst=tuple((*box.rows, *box.columns) for box in certificate.worst_boxes),
            worst_label=certificate.worst_label,
            passes=certificate.passes,
            **self.bind(image),
        )


@dataclass(frozen=True)
class PatchGuarantee(Guarantee[PatchSettings, PatchRow]):
    """One label that no change inside any one square alters. `sides` are the sizes of the square that are asked for.

    They are in the keys of the rows, so that whatever works with rows, such as a worker, does not need them.
    """

    sides: tuple[int, ...] = ()

    name = "patch"
    noun = "a run against patches"
    verb = "certify"
    settings = PatchSettings
    schema = SCHEMA
    is_sampled = False
    legacy = LEGACY
    section = "pprs.patches.report:make_section"
    examination = "pprs.patches.doctor:examine"

    def make_trials(
        self,
        subject: Subject,
        noise: Noise | None,
        partition: Partition | None,
        settings: PatchSettings,
        arithmetic: Arithmetic,
    ) -> torch.Tensor:
        return _make_classifier(Session(torch.nn.Identity(), subject.num_classes), settings).trial_inputs(
            subject.sample.image
        )

    def check_attainable(
        self, subject: Subject, noise: Noise | None, settings: PatchSettings, arithmetic: Arithmetic
    ) -> None:
        """Check that there are masks for the first usable image, in the size that is masked."""
        if not self.sides:
            raise ConfigurationError("give the patch sizes, as in PatchGuarantee((1, 2))", parameter="guarantee")
        height, width = subject.sample.image.shape[-2:]
        for side in self.sides:
            MaskGrid(height, width, side, settings.masks or 0)

    def list_mismatches(
        self, subject: Subject, noise: Noise | None, partition: Partition | None, settings: PatchSettings
    ) -> list[str]:
        adaptation = subject.model.adaptation
        if adaptation is None or not adaptation.methods:
            return []
        used = [describe_masks(side, settings.masks or 0, settings.fill) for side in self.sides]
        return [
            f"the classifier was adapted to {adaptation.noise}, and is used with {masks}. Certificates hold, but there "
            "may be fewer of them."
            for masks in used
            if masks != adaptation.noise
        ]

    def describe_work(self, subject: Subject, session: Session, settings: PatchSettings, inputs: int) -> list[str]:
        return [
            f"{describe_method(settings)}: {inputs} certificates, of at most {self.expect_passes(settings)} passes each"
        ]

    def describe_method(self, settings: PatchSettings) -> str:
        return describe_method(settings)

    def open(self, session: Session, settings: PatchSettings) -> PatchAnswer:
        return PatchAnswer(_make_classifier(session, settings))

    def list_keys(self, images: Sequence[int], settings: PatchSettings) -> list[Key]:
        return [(index, side) for side in self.sides for index in images]

    def expect_passes(self, settings: PatchSettings) -> int:
        return count_pairs((settings.masks or 0) ** 2)

    def passes_of(self, row: PatchRow, settings: PatchSettings) -> int:
        return row.passes

    def make_row(self, key: Key, outcome: PatchRow, known: Known, seconds: float) -> PatchRow:
        return replace(outcome, label=known.label, seconds=seconds, file_shape=known.file_shape, name=known.name)

    def failed_row(self, failure: Failure) -> PatchRow:
        return PatchRow(failure.idx, failure.get("patch"), failure.label, name=failure.name)

    replayed = "claims: certified again and compared"
    derived = "that claims and worst pairs of masks go together"

    def check_settings(self, settings: PatchSettings) -> None:
        settings.make_fill()

    def check(self, row: PatchRow, settings: PatchSettings) -> list[str]:
        return [f"patch {row.patch}: {text}" for text in row.list_mismatches(settings)]

    def replay(
        self, answer: Answer, row: PatchRow, question: Question, known: Known, on_passes: OnSamples
    ) -> list[str]:
        assert isinstance(answer, PatchAnswer)
        if row.image_digest is not None and row.image_digest != answer.digest(question.image):
            return []  # found already: it is another image
        again = answer.answer(question, on_passes)
        found = [
            f"{name} is {stored}, and certifying again gives {made}"
            for name in SAME
            if (stored := getattr(row, name)) != (made := getattr(again, name))
        ]
        if row.certified and again.certified and row.passes != again.passes:
            found.append(f"passes are {row.passes}, and a certificate takes {again.passes}")
        found += _check_worst(answer.for_patch(row.patch, question.image), row, question.image)
        return [f"patch {row.patch}: {text}" for text in found]

    def summarise(self, run: Run) -> RunSummary:
        return summarise_patches(run)

    def tally(self, row: PatchRow) -> float:
        return float(row.certified)

    def describe_run(self, rows: int, total: float) -> str:
        return f"{round(total)} of {rows} rows certified"


def describe_method(settings: PatchSettings) -> str:
    """Describe through what a classifier looks at images.

    >>> describe_method(PatchSettings(masks=6, fill_text="diffusion"))
    '6x6 masks filled by diffusion'
    """
    return f"{settings.masks}x{settings.masks} masks filled by {settings.fill_text}"


def _make_classifier(session: Session, settings: PatchSettings) -> PatchClassifier:
    """Return a classifier with the network of a session. A run checks and watches its network itself."""
    return PatchClassifier(
        session.network, session.num_classes, TRIAL_PATCH, settings.masks or 0, settings.fill,
        batch_size=session.batch_size, threads=session.threads, device=session.device, check=False,
    )  # fmt: skip


def _check_worst(classifier: PatchClassifier, row: PatchRow, image: torch.Tensor) -> list[str]:
    """Check what the network predicts under the recorded pair of masks. Another pair may be as bad."""
    boxes = classifier.grid_for(image).boxes
    if not set(row.boxes) <= set(boxes):
        return ["its worst pair of masks is not one of the grid"]
    pair = torch.tensor([[boxes.index(box) for box in row.boxes]])
    label = classifier.predict_unmasked(classifier.mask(image, pair)[0])
    if label == row.worst_label:
        return []
    return [f"its worst pair of masks has the label {label}, not {row.worst_label}"]


PATCH = PatchGuarantee()
