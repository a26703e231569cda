"""Compare the rows of a run with the model and the data: settings, images, labels, pictures, and the random order."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from pprs.data import Example, fair_order
from pprs.data.thumbnail import decode_thumbnail, encode_thumbnail
from pprs.errors import PprsError
from pprs.model.identity import identify
from pprs.noise import QuantisedImage, digest_image
from pprs.progress import Progress
from pprs.runs import Binding, Failure, Row, Run, RunSettings, describe_parts
from pprs.runs.check import BELOW, count_rows
from pprs.runs.columns import quote_value
from pprs.runs.session import describe_subject
from pprs.task import Task
from pprs.verification.findings import Findings
from pprs.voting import check_image, prepare_image

# Settings that follow from the model and the data.
DERIVED = ("preprocess", "labels", "num_classes", "class_names", "data_fingerprint", "pixels")


def check_subject(task: Task, settings: RunSettings, findings: Findings) -> None:
    """Compare the settings that follow from the model and the data."""
    found = describe_subject(task)
    names: tuple[str, ...] = DERIVED if task.data.split is None or settings.split is None else (*DERIVED, "split")
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


def check_binding(binding: Binding | None, task: Task, settings: RunSettings, findings: Findings) -> None:
    """Compare what the scores depend on besides the weights. Differences do not prove other votes; a replay does."""
    if binding is None:
        findings.not_checked.append("model: its source code, preprocessing and versions are not recorded")
        return
    parts = describe_parts(binding.identity, identify(task.model, engine=settings.engine or "torch"))
    if parts:
        findings.not_checked.append(f"model: it may give other votes, since parts of it differ ({'; '.join(parts)})")
    else:
        findings.checked.append("model: its source code, preprocessing and versions")


def check_images(task: Task, run: Run, stored: Sequence[Row], findings: Findings, reporter: Progress) -> None:
    """Compare the images, labels and pictures with those that were certified."""
    comparison = _Comparison(task, run.settings, findings, run.thumbnails())
    for row in stored:
        reporter.advance(1)
        comparison.compare(row)
    comparison.finish()
    for index in sorted(run.thumbnails().keys() - {row.idx for row in stored}):
        findings.mismatch(index, "it has a picture for reports, and no row")
    for failure in run.failures():
        _check_failure(failure, task, findings)
    _check_order(run.fair_order(), task, run.settings, findings)
    findings.checked.append(f"{count_rows(len(stored))} of the {len(task.data)} images of the data")


@dataclass
class _Comparison:
    """Compares rows with the images of the data."""

    task: Task
    settings: RunSettings
    findings: Findings
    thumbnails: dict[int, bytes]
    bound: int = 0
    labelled: int = 0
    unbound: int = 0
    pictures: int = 0
    unread: list[int] = field(default_factory=list)

    def compare(self, row: Row) -> None:
        try:
            example = self.task.data[row.idx]
            image = prepare_image(check_image(example.image), self.settings.noise, self.settings.arithmetic_option)
        except IndexError:
            self.findings.mismatch(row.idx, f"the data has no image {row.idx}")
            return
        except (PprsError, OSError):
            self.unread.append(row.idx)
            return
        self.labelled += 1
        found = []
        if example.label != row.label:
            found.append(f"label is {row.label}, and that of the data is {example.label}")
        found += compare_name(row.name, self.task.data.name_of(row.idx))
        if row.image_digest is None:
            self.unbound += self.settings.arithmetic == "real"  # in exact arithmetic, the check of counts has found it
        else:
            self.bound += 1
            found += compare_image(row, image, example)
        if row.idx in self.thumbnails and row.image_digest in (None, digest_image(image)):
            self.pictures += 1
            found += compare_picture(self.thumbnails[row.idx], example.image)
        for text in found:
            self.findings.mismatch(row.idx, text)

    def finish(self) -> None:
        """Say what was compared, and what was not."""
        findings = self.findings
        findings.count(self.bound, "images: their digests")
        findings.count(self.labelled, "true labels")
        findings.count(self.pictures, "pictures for reports")
        if self.unread:
            findings.not_checked.append(
                f"the images of {count_rows(len(self.unread))} cannot be read, the first of them image {self.unread[0]}"
            )
        if self.unbound:
            findings.not_checked.append(
                f"images: {count_rows(self.unbound)} of an earlier version are not bound to their images"
            )


def compare_image(row: Row, image: torch.Tensor | QuantisedImage, example: Example) -> list[str]:
    """Return in what the row of an image differs from the image, prepared for its noise."""
    if digest_image(image) != row.image_digest:
        return ["the image is not the one that was certified: its digest differs"]
    levels = image.levels if isinstance(image, QuantisedImage) else None
    moved = image.quantisation.moved if isinstance(image, QuantisedImage) else 0.0
    compared: list[tuple[str, Any, Any]] = [("levels", row.levels, levels)]
    if row.shape is not None:
        compared += [("shape", row.shape, tuple(image.shape)), ("file_shape", row.file_shape, example.file_shape)]
    found = [f"{name} is {stored}, and the image has {own}" for name, stored, own in compared if stored != own]
    # This is taken off the radius, and the image decides it. Earlier versions recorded slightly more.
    if not moved * (1 - BELOW) <= (row.moved or 0.0) <= moved * (1 + BELOW):
        found.append(f"moved is {row.moved}, and rounding moves the image by {moved}")
    return found


def compare_name(stored: str | None, own: str | None) -> list[str]:
    """Return in what the name of an input differs from that in the data. Runs of earlier versions hold no names."""
    return (
        [] if stored in (None, own) else [f"name is {quote_value(stored)}, and that of the data is {quote_value(own)}"]
    )


def compare_picture(picture: bytes, image: torch.Tensor) -> list[str]:
    """Return in what the picture that reports show differs from an image. Its bytes depend on the encoder's version."""
    try:
        stored = decode_thumbnail(picture, image.numel())
        own = decode_thumbnail(encode_thumbnail(image), image.numel())
    except PprsError as error:
        return [f"its picture cannot be read ({error.message})"]
    return [] if torch.equal(stored, own) else ["its picture, which reports show, is not that of the image"]


def _check_failure(failure: Failure, task: Task, findings: Findings) -> None:
    """Compare the label of an image that failed. Why it failed is not stated as a fact about the classifier."""
    if failure.idx >= len(task.data):
        findings.mismatch(failure.idx, f"the data has no image {failure.idx}")
        return
    try:
        label = task.data.label_of(failure.idx)
    except (PprsError, OSError):  # the label may be what cannot be read
        return
    if failure.label not in (None, label):
        findings.mismatch(failure.idx, f"label is {failure.label}, and that of the data is {label}")
    for text in compare_name(failure.name, task.data.name_of(failure.idx)):
        findings.mismatch(failure.idx, text)


def _check_order(order: Sequence[int] | None, task: Task, settings: RunSettings, findings: Findings) -> None:
    """Check the random order in which images count, which decides which of them are a sample of the data."""
    if order is None:
        return
    expected = fair_order(range(len(task.data)), settings.seed or 0)
    if all(own == stored for own, stored in itertools.zip_longest(expected[: len(order)], order)):
        findings.checked.append("the random order of the images, from the seed")
    elif len(set(order)) < len(order) or set(order) == set(range(len(task.data))):
        findings.mismatch(None, "the random order of the images is not the one that follows from the seed")
    else:
        findings.not_checked.append(
            "the random order of the images: they were chosen from a part of the data, which is not recorded"
        )


__all__ = ["check_binding", "check_images", "check_subject", "compare_image", "compare_picture", "describe_setting"]
