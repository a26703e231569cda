"""The guarantee of `pprs segment`: labels of pixels that no change of L2 norm up to a radius alters, all at once."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from pprs.data import Selection
from pprs.errors import ConfigurationError
from pprs.inputs.space import NETWORK
from pprs.model.forms import AnyModel
from pprs.noise import Noise, digest_image
from pprs.progress import Progress
from pprs.runs import Answer, Failure, Guarantee, Key, Known, Question, Run, Session
from pprs.runs.guarantee import RunSummary
from pprs.runs.session import describe_problem
from pprs.runs.subject import Subject
from pprs.segmentation.certificate import SegmentationCertificate
from pprs.segmentation.holm import check_attainable
from pprs.segmentation.legacy import LEGACY
from pprs.segmentation.masks import MaskedSet
from pprs.segmentation.row import SEGMENTATION_ROWS, SegmentationRow, conclude_row
from pprs.segmentation.segmenter import SegmentationSampling, SmoothedSegmenter, split_alpha
from pprs.segmentation.settings import SegmentationSettings
from pprs.segmentation.subject import check_masks, open_subject
from pprs.segmentation.summary import summarise_segmentation
from pprs.smoothing.arithmetic import Arithmetic
from pprs.smoothing.certificate import round_down
from pprs.smoothing.voting import OnSamples, check_image


class SegmentAnswer(Answer):
    """Certifies label maps with a smoothed segmentation."""

    def __init__(self, segmenter: SmoothedSegmenter, sampling: SegmentationSampling) -> None:
        self.segmenter, self.sampling = segmenter, sampling
        self.scorer = segmenter.votes

    def answer(self, question: Question, on_passes: OnSamples) -> SegmentationCertificate:
        return self.segmenter.certify(question.image, self.sampling, index=question.index, on_samples=on_passes)

    def digest(self, image: torch.Tensor) -> str:
        return digest_image(self.segmenter.votes.quantise(check_image(image)))


class SegmentGuarantee(Guarantee[SegmentationSettings, SegmentationRow]):
    """A map of labels, and a radius within which no change alters any of them."""

    name = "segment"
    noun = "a segmentation run"
    verb = "segment"
    promise = "labels of pixels, all at once"
    task = "image-segmentation"
    may_be_large = True
    settings = SegmentationSettings
    schema = SEGMENTATION_ROWS
    legacy = LEGACY
    section = "pprs.segmentation.report:make_section"
    examination = "pprs.segmentation.examination:examine_segmentation"

    def load(
        self,
        model: AnyModel,
        data: Any,
        *,
        split: str | None = None,
        classes: str | Path | None = None,
        labels: str | Sequence[str] | None = None,
        images: Iterable[int] | Selection | None = None,
        pixels: str = NETWORK,
        adapted: str | Path | None = None,
    ) -> Subject:
        if labels is not None:
            raise ConfigurationError("a segmentation cannot be restricted to some `labels`", parameter="labels")
        if pixels != NETWORK:
            raise ConfigurationError(
                "a network labels the pixels of its input, and has no label for pixels of the file that resizing "
                'merges or cropping removes. Leave out `pixels`, or give "network".',
                parameter="pixels",
            )
        return open_subject(model, data, images=images, split=split, classes=classes, adapted=adapted)

    def check_data(self, subject: Subject, progress: Progress) -> None:
        if isinstance(subject.data, MaskedSet):
            check_masks(subject.data, subject.images, progress)

    def check_attainable(
        self, subject: Subject, noise: Noise | None, settings: SegmentationSettings, arithmetic: Arithmetic
    ) -> None:
        alpha, _ = self._split_alpha(subject, noise, settings, arithmetic)
        if settings.sampling.groups is None:
            _, height, width = subject.sample.image.shape
            check_attainable(height * width, settings.sampling.n, settings.sampling.tau, alpha)

    def describe_work(
        self, subject: Subject, session: Session, settings: SegmentationSettings, inputs: int
    ) -> list[str]:
        sampling = settings.sampling
        _, radius = self._split_alpha(subject, session.noise, settings, session.arithmetic)
        return [
            f"{session.partition or 'none'} under {session.noise}: {inputs} images, {sampling.n0} + {sampling.n} "
            f"samples each; tau {sampling.tau:g} gives certified pixels the radius {round_down(radius)}"
        ]

    @staticmethod
    def _split_alpha(
        subject: Subject, noise: Noise | None, settings: SegmentationSettings, arithmetic: Arithmetic
    ) -> tuple[float, float]:
        """Return the failure probability of the tests, and the radius, for the first usable image."""
        assert noise is not None
        _, dim, _, quantisation = describe_problem(subject, noise, arithmetic)
        return split_alpha(quantisation, noise, dim, settings.sampling)

    def open(self, session: Session, settings: SegmentationSettings) -> SegmentAnswer:
        assert session.noise is not None
        segmenter = SmoothedSegmenter(
            session.network, session.num_classes, session.noise, session.partition, seed=session.seed,
            batch_size=session.batch_size, threads=session.threads, device=session.device,
            arithmetic=session.arithmetic, check=False,  # a run checks and watches its network
        )  # fmt: skip
        return SegmentAnswer(segmenter, settings.sampling)

    def count_passes(self, settings: SegmentationSettings) -> int:
        return settings.sampling.n0 + settings.sampling.n

    def make_row(self, key: Key, outcome: SegmentationCertificate, known: Known, seconds: float) -> SegmentationRow:
        return SegmentationRow.of(key[0], outcome, known, seconds)

    def failed_row(self, failure: Failure) -> SegmentationRow:
        return SegmentationRow(failure.idx, mask=failure.get("mask"), name=failure.name)

    replayed = "votes: drawn again, and whole certificates compared"
    truth_words = "true masks"
    derived = "claims: derived from the counts"

    def check_settings(self, settings: SegmentationSettings) -> None:
        settings.make_sampling()

    def check(self, row: SegmentationRow, settings: SegmentationSettings) -> list[str]:
        try:
            again = conclude_row(row, settings)
        except ValueError as error:
            return [str(error)]
        return _list_differences(row, again, "its counts give")

    def compare(self, row: SegmentationRow, again: SegmentationRow) -> list[str]:
        return _list_differences(row, again, "drawing again gives")

    def summarise(self, run: Run) -> RunSummary:
        return summarise_segmentation(run)

    def tally(self, row: SegmentationRow) -> float:
        return row.share

    def describe_tally(self, rows: int, total: float) -> str:
        return f"{total / max(rows, 1):.1%} of their pixels certified"

    def describe_run(self, rows: int, total: float) -> str:
        return f"{rows} images, {self.describe_tally(rows, total)}"


def _list_differences(row: SegmentationRow, again: SegmentationRow, source: str) -> list[str]:
    """Return in what the certificate of a row differs from one that was made again."""
    found = []
    for field in dataclasses.fields(SegmentationCertificate):
        stored, own = (getattr(each.certificate, field.name) for each in (row, again))
        if np.array_equal(stored, own):
            continue
        if isinstance(stored, np.ndarray) and isinstance(own, np.ndarray):
            found.append(f"{field.name} differ at {int((stored != own).sum())} of {stored.size} pixels")
        else:
            found.append(f"{field.name} is {stored}, and {source} {own}")
    return found


SEGMENT = SegmentGuarantee()
"""Certificates of whole label maps: what `pprs segment` promises."""
