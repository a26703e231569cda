"""Compare the rows of a run with the model and the data: settings, images, labels, pictures, and the random order."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from pprs.data import Example, fair_order
from pprs.data.thumbnail import decode_thumbnail, encode_thumbnail
from pprs.errors import PprsError
from pprs.model.identity import identify
from pprs.noise import QuantisedImage, digest_image
from pprs.progress import Progress
from pprs.runs import Binding, ExportedRun, Failure, Guarantee, Run, describe_parts, same_value
from pprs.runs.check import BELOW, count_rows
from pprs.runs.columns import quote_value
from pprs.runs.session import describe_subject
from pprs.runs.subject import Subject
from pprs.verification.findings import Findings

# Settings that follow from the model and the data.
DERIVED = ("preprocess", "labels", "num_classes", "class_names", "data_fingerprint", "pixels")


def check_subject(subject: Subject, settings: Any, findings: Findings) -> None:
    """Compare the settings that follow from the model and the data."""
    found = describe_subject(subject)
    names: tuple[str, ...] = DERIVED if subject.data.split is None or settings.split is None else (*DERIVED, "split")
    if settings.model_digest is None:  # exported rows, most of whose settings are not recorded
        names = tuple(name for name in names if getattr(settings, name) is not None)
    for name in names:
        stored, own = getattr(settings, name), getattr(found, name)
        if stored == own:
            continue
        findings.mismatch(None, describe_setting(name, stored, own))
    findings.checked.append("settings that follow from the model and the data")


def describe_setting(name: str, stored: Any, own: Any) -> str:
    """Describe a setting that differs from that of the model and the data."""
    if name == "data_fingerprint":
        return "this is not the data of the run: labels or images differ from those of its fingerprint"
    text = f"{name} is {quote_value(stored)}, and that of the model and the data is {quote_value(own)}"
    return text + (". If the run was made with a file of class names, give it" if name == "class_names" else "")


def check_binding(binding: Binding | None, subject: Subject, settings: Any, findings: Findings) -> None:
    """Compare what the scores depend on besides the weights. Differences do not prove other votes; a replay does."""
    if binding is None:
        findings.not_checked.append("model: its source code, preprocessing and versions are not recorded")
        return
    parts = describe_parts(binding.identity, identify(subject.model, engine=settings.engine or "torch"))
    if parts:
        findings.not_checked.append(f"model: it may give other votes, since parts of it differ ({'; '.join(parts)})")
    else:
        findings.checked.append("model: its source code, preprocessing and versions")


def check_images(subject: Subject, run: Run, settings: Any, findings: Findings, reporter: Progress) -> None:
    """Compare the inputs, what is true of them, and the pictures with those that were answered."""
    comparison = _Comparison(subject, run.guarantee, settings, findings, run.thumbnails(), _is_named(run))
    rows = 0
    for row in run.iter_rows():
        reporter.advance(1)
        comparison.compare(row)
        rows += 1
    comparison.finish()
    for index in sorted(comparison.thumbnails.keys() - comparison.seen):
        findings.mismatch(index, "it has a picture for reports, and no row")
    for failure in run.failures():
        _check_failure(failure, run.guarantee, subject, findings)
    _check_order(run.fair_order(), subject, settings, findings)
    some = "" if rows == len(comparison.seen) else f" about {len(comparison.seen)}"
    findings.checked.append(f"{count_rows(rows)}{some} of the {len(subject.data)} images of the data")


def _is_named(run: Run) -> bool:
    """Whether every row must name its input, if the data does. In rows of earlier versions names may be missing."""
    if run.guarantee.allows_gaps or run.guarantee.legacy or isinstance(run, ExportedRun):
        return False
    return any(row.name is not None for row in run.iter_rows())


@dataclass
class _Comparison:
    """Compares rows with the inputs of the data."""

    subject: Subject
    guarantee: Guarantee[Any, Any]
    settings: Any
    findings: Findings
    thumbnails: dict[int, bytes]
    is_named: bool  # whether every row names its input, if the data does
    bound: int = 0
    known: int = 0
    unbound: int = 0
    pictures: int = 0
    seen: set[int] = field(default_factory=set)
    unread: list[int] = field(default_factory=list)

    def compare(self, row: Any) -> None:
        self.seen.add(row.idx)
        try:
            example = self.subject.data[row.idx]
        except IndexError:
            self.findings.mismatch(row.idx, f"the data has no image {row.idx}")
            return
        except (PprsError, OSError):
            self.unread.append(row.idx)
            return
        try:
            image = self.guarantee.prepare(example.image, self.settings)
        except PprsError as error:  # of a row, so it was possible
            self.findings.mismatch(row.idx, f"with these settings it cannot be answered ({error.message})")
            return
        self.known += 1
        found = compare_truth(self.guarantee, row, example.truth)
        found += compare_name(row.name, self.subject.data.name_of(row.idx), required=self.is_named)
        if row.image_digest is None and not self.guarantee.allows_gaps:
            found.append("it is not bound to an image: it has no digest")
        elif row.image_digest is None:
            self.unbound += self.settings.arithmetic == "real"  # in exact arithmetic, the check of rows has found it
        else:
            self.bound += 1
            found += compare_image(row, image, example)
            if not found:
                found += self.guarantee.compare_input(row, image, self.settings)
        if row.idx in self.thumbnails and row.image_digest in (None, digest_image(image)):
            self.pictures += 1
            found += compare_picture(self.thumbnails.pop(row.idx), example.image)
        for text in found:
            self.findings.mismatch(row.idx, text)

    def finish(self) -> None:
        """Say what was compared, and what was not."""
        findings = self.findings
        findings.count(self.bound, "images: their digests")
        findings.count(self.known, self.guarantee.truth_words)
        findings.count(self.pictures, "pictures for reports")
        if self.unread:
            findings.not_checked.append(
                f"the images of {count_rows(len(self.unread))} cannot be read, the first of them image {self.unread[0]}"
            )
        if self.unbound:
            findings.not_checked.append(
                f"images: {count_rows(self.unbound)} of an earlier version are not bound to their images"
            )


def compare_truth(guarantee: Guarantee[Any, Any], row: Any, truth: Mapping[str, Any]) -> list[str]:
    """Return in what a row or a failure states another truth than the data."""
    found = []
    for name in guarantee.schema.truth:
        stored = row.get(name) if isinstance(row, Failure) else getattr(row, name)
        if not same_value(stored, truth.get(name)):
            if isinstance(stored, np.ndarray) or isinstance(truth.get(name), np.ndarray):
                found.append(f"its {name} is not that of the data")
            else:
                found.append(f"{name} is {stored}, and that of the data is {truth.get(name)}")
    return found


def compare_image(row: Any, image: torch.Tensor | QuantisedImage, example: Example) -> list[str]:
    """Return in what the row of an image differs from the image, prepared for its noise."""
    if digest_image(image) != row.image_digest:
        return ["the image is not the one that was certified: its digest differs"]
    levels = image.levels if isinstance(image, QuantisedImage) else None
    moved = image.quantisation.moved if isinstance(image, QuantisedImage) else 0.0
    own: dict[str, Any] = {"levels": levels}
    if getattr(row, "shape", None) is not None:
        own |= {"shape": tuple(image.shape), "file_shape": example.file_shape}
    compared = [(name, getattr(row, name), value) for name, value in own.items() if hasattr(row, name)]
    found = [f"{name} is {stored}, and the image has {own}" for name, stored, own in compared if stored != own]
    # This is taken off the radius, and the image decides it. Earlier versions recorded slightly more.
    if hasattr(row, "moved") and not moved * (1 - BELOW) <= (row.moved or 0.0) <= moved * (1 + BELOW):
        found.append(f"moved is {row.moved}, and rounding moves the image by {moved}")
    return found


def compare_name(stored: str | None, own: str | None, *, required: bool = False) -> list[str]:
    """Return in what the name of an input differs from that in the data. Runs of earlier versions hold no names."""
    if stored == own or (stored is None and not required):
        return []
    return [f"name is {quote_value(stored)}, and that of the data is {quote_value(own)}"]


def compare_picture(picture: bytes, image: torch.Tensor) -> list[str]:
    """Return in what the picture that reports show differs from an image. Its bytes depend on the encoder's version."""
    try:
        stored = decode_thumbnail(picture, image.numel())
        own = decode_thumbnail(encode_thumbnail(image), image.numel())
    except PprsError as error:
        return [f"its picture cannot be read ({error.message})"]
    return [] if torch.equal(stored, own) else ["its picture, which reports show, is not that of the image"]


def _check_failure(failure: Failure, guarantee: Guarantee[Any, Any], subject: Subject, findings: Findings) -> None:
    """Compare what is true of an input that failed. Why it failed is not stated as a fact about the model."""
    data = subject.data
    if failure.idx >= len(data):
        findings.mismatch(failure.idx, f"the data has no image {failure.idx}")
        return
    try:
        truth = data.truth_of(failure.idx)
    except (PprsError, OSError):  # the truth may be what cannot be read
        return
    unknown = {name: None for name in guarantee.schema.truth if failure.get(name) is None}
    for text in compare_truth(guarantee, failure, {**truth, **unknown}):
        findings.mismatch(failure.idx, text)
    for text in compare_name(failure.name, data.name_of(failure.idx)):
        findings.mismatch(failure.idx, text)


def _check_order(order: Sequence[int] | None, subject: Subject, settings: Any, findings: Findings) -> None:
    """Check the random order in which images count, which decides which of them are a sample of the data."""
    if order is None:
        return
    expected = fair_order(range(len(subject.data)), settings.seed or 0)
    if all(own == stored for own, stored in itertools.zip_longest(expected[: len(order)], order)):
        findings.checked.append("the random order of the images, from the seed")
    elif len(set(order)) < len(order) or set(order) == set(range(len(subject.data))):
        findings.mismatch(None, "the random order of the images is not the one that follows from the seed")
    else:
        findings.not_checked.append(
            "the random order of the images: they were chosen from a part of the data, which is not recorded"
        )


__all__ = ["check_binding", "check_images", "check_subject", "compare_image", "compare_picture", "describe_setting"]
