"""Check that the claims of a segmentation run follow from its counts, and its counts from its model and images."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import torch

from pprs.domain import IMAGE
from pprs.errors import PprsError, describe_error
from pprs.model import Model
from pprs.model.identity import identify
from pprs.noise import QuantisedImage, digest_image
from pprs.progress import Progress, as_progress, stage
from pprs.runs import Replay, choose_rows, describe_parts
from pprs.segmentation.masks import Prepared
from pprs.segmentation.run import describe_subject, open_subject, segment_dataset
from pprs.segmentation.store import Map, SegmentationRow, SegmentationRun, SegmentationSettings
from pprs.task import Task, reopen_model
from pprs.verification.findings import Findings, Verification
from pprs.verification.images import compare_picture, describe_setting
from pprs.voting import check_image, prepare_image

DERIVED = ("model_digest", "data_fingerprint", "num_classes", "class_names", "split")  # from the model and the data


def verify_segmentation(
    run: SegmentationRun | str | Path,
    *,
    model: str | Model | torch.nn.Module | None = None,
    adapted: str | Path | None = None,
    data: Any = None,
    classes: str | Path | None = None,
    replay: int = 0,
    rows: Iterable[int] | None = None,
    seed: int | None = None,
    progress: bool | Progress = False,
) -> Verification:
    """Check that a segmentation run is what it claims to be.

    The claims of each row are derived from its counts. If the model and the data can be opened, the settings that
    follow from them, the images, the masks and the pictures are compared. With `replay`, votes are drawn again, and
    whole certificates compared. A model or data that the run names and that cannot be opened is no error: the result
    says what was not checked.

    Args:
        run: The run or its folder.
        model: The model, as for `segment_dataset`. By default the one that the run names.
        adapted: The file of its adaptation, if it has one. By default the one that the run names.
        data: The data, as for `segment_dataset`. By default those that the run names.
        classes: File with the class names of the data, if the run was made with one.
        replay: Number of rows, chosen at random, whose votes are drawn again.
        rows: Indices of images whose votes are drawn again in any case.
        seed: The seed of an earlier choice of rows, to repeat it. By default nobody can know the choice in advance.
        progress: True shows a progress bar. Any object with the methods of `pprs.progress.Progress` is accepted.

    Returns:
        What was checked, what was not, and what does not follow.

    Raises:
        ConfigurationError: If there is no run, or if it has no row of an index in `rows`.
        PprsError: If `model` or `data` is given and cannot be opened, or if the counts of the run are impossible.
    """
    opened = run if isinstance(run, SegmentationRun) else SegmentationRun(run)
    findings, reporter = Findings(), as_progress(progress)
    chosen = choose_rows(opened.completed(), replay, rows, seed)
    findings.count(sum(1 for _ in opened.iter_rows()), "claims: derived from the counts")
    if failed := len(opened.failures()):
        findings.not_checked.append(f"{failed} images that failed, which count as abstained")
    subject = _open(opened.settings, model, adapted, data, classes, findings)
    if subject is not None:
        same_model = _check_settings(opened.settings, subject, findings)
        _check_images(opened, subject, findings, reporter)
    if not chosen.indices:
        findings.not_checked.append("votes: no row was replayed. Give `replay` to draw some again")
    elif subject is None or not same_model:
        findings.not_checked.append("votes: replaying needs the data and the model of the run")
    else:
        _replay(opened, subject, chosen, findings, reporter)
    return findings.to_verification(str(run), len(opened.completed()), chosen, IMAGE)


def _open(
    settings: SegmentationSettings,
    model: str | Model | torch.nn.Module | None,
    adapted: str | Path | None,
    data: Any,
    classes: str | Path | None,
    findings: Findings,
) -> Task | None:
    """Open the model and the data. None if those that the run names cannot be opened."""
    given = model is not None and data is not None
    data = settings.data if data is None else data
    try:
        net, overlay = reopen_model(settings.model, model, adapted)
        assert net is not None  # since the settings name one
        split = settings.split or None if isinstance(data, str | Path) else None
        subject = open_subject(net, data, split=split, classes=classes, adapted=overlay)
        subject.model.digest()
    except (PprsError, OSError, ImportError) as error:
        if given and isinstance(error, PprsError):
            # Both are at hand. If they can be opened, it is the split of the run that does not fit them.
            assert net is not None
            open_subject(net, data, classes=classes, adapted=overlay)
            findings.mismatch(None, f"its split does not fit the data ({error.message})")
            return None
        findings.not_checked.append(f"model, images and masks: {describe_error(error)}")
        return None
    return subject


def _check_settings(settings: SegmentationSettings, subject: Task, findings: Findings) -> bool:
    """Compare the settings that follow from the model and the data, and return whether the model is that of the run."""
    found = describe_subject(subject)
    for name in DERIVED:
        stored, own = getattr(settings, name), found[name]
        if stored != own and not (name == "split" and not own):
            findings.mismatch(None, describe_setting(name, stored, own))
    findings.checked.append("settings that follow from the model and the data")
    parts = describe_parts(settings.model_parts, identify(subject.model, engine=settings.engine))
    if parts:
        findings.not_checked.append(f"model: it may give other votes, since parts of it differ ({'; '.join(parts)})")
    else:
        findings.checked.append("model: its source code, preprocessing and versions")
    return bool(settings.model_digest == found["model_digest"])


def _check_images(run: SegmentationRun, subject: Task, findings: Findings, reporter: Progress) -> None:
    """Compare images, masks and pictures with those of the data."""
    data, pictures, settings = subject.data, run.pictures(), run.settings
    assert isinstance(data, Prepared)
    compared, unread = 0, list[int]()
    with stage(reporter, "images", len(run.completed()), "images"):
        for row in run.iter_rows():
            reporter.advance(1)
            if row.idx >= len(data):
                findings.mismatch(row.idx, f"the data has no image {row.idx}")
                continue
            try:
                example = data.masked(row.idx)
                image = prepare_image(check_image(example.image), settings.parsed_noise, settings.arithmetic)
            except (PprsError, OSError):
                unread.append(row.idx)
                continue
            compared += 1
            mask = None if example.mask is None else example.mask.numpy()
            found = _compare_image(row, image, mask)
            if not found and row.idx in pictures:
                found = compare_picture(pictures[row.idx], example.image)
            for text in found:
                findings.mismatch(row.idx, text)
    findings.count(compared, "images: their digests, masks and pictures")
    if unread:
        findings.not_checked.append(f"the images of {len(unread)} rows cannot be read, the first of them {unread[0]}")
    for index in sorted(pictures.keys() - set(run.completed())):
        findings.mismatch(index, "it has a picture for reports, and no row")
    for index, mask in run.failed_masks():
        own = data.mask_alone(index) if index < len(data) else None
        if not _same_map(mask, None if own is None else own.numpy()):
            findings.mismatch(index, "the mask of this image, which failed, is not that of the data")
    findings.checked.append(f"{len(run.completed())} of the {len(data)} images of the data have a row")


def _compare_image(row: SegmentationRow, image: torch.Tensor | QuantisedImage, mask: Map | None) -> list[str]:
    """Return in what a row differs from its image and mask."""
    certificate = row.certificate
    if digest_image(image) != certificate.image_digest:
        return ["the image is not the one that was certified: its digest differs"]
    if certificate.shape != tuple(image.shape):
        return [f"shape is {certificate.shape}, and the image has {tuple(image.shape)}"]
    quantisation = image.quantisation if isinstance(image, QuantisedImage) else None
    own = (None, 0.0) if quantisation is None else (quantisation.levels, quantisation.moved)
    found = []
    if (certificate.levels, certificate.moved) != own:
        found.append(f"levels and moved are {(certificate.levels, certificate.moved)}, and the image has {own}")
    if not _same_map(row.mask, mask):
        found.append("its mask is not that of the data")
    return found


def _same_map(stored: Map | None, own: Map | None) -> bool:
    return (stored is None) == (own is None) and (stored is None or own is None or np.array_equal(stored, own))


def _replay(run: SegmentationRun, subject: Task, chosen: Replay, findings: Findings, reporter: Progress) -> None:
    """Draw the votes of the chosen rows again, and compare whole certificates."""
    settings = run.settings
    assert isinstance(subject.data, Prepared)
    try:
        fresh = segment_dataset(
            subject.model, subject.data.original, noise=settings.noise, partition=settings.partition,
            sampling=settings.sampling, images=chosen.indices, seed=settings.seed, progress=reporter,
            engine=settings.engine, device=settings.device, arithmetic=settings.arithmetic,
        )  # fmt: skip
    except PprsError as error:  # the images were certified, so they can be again
        findings.mismatch(None, f"votes cannot be drawn again ({error.message})")
        return
    again, failures = {row.idx: row for row in fresh.iter_rows()}, fresh.failures()
    for row in run.iter_rows():
        if row.idx not in chosen.indices:
            continue
        findings.replayed.append(row.idx)
        if row.idx not in again:
            findings.mismatch(row.idx, f"its votes cannot be drawn again ({failures.get(row.idx, '')})")
            continue
        for text in _compare_certificates(row, again[row.idx]):
            findings.mismatch(row.idx, text)
    findings.count(len(findings.replayed), "votes: drawn again, and whole certificates compared")
    if chosen.seed is not None:
        findings.checked.append(f"which rows: {chosen}")


def _compare_certificates(row: SegmentationRow, again: SegmentationRow) -> list[str]:
    """Return in what a certificate differs from one that was made again."""
    found = []
    for field in dataclasses.fields(row.certificate):
        stored, drawn = (getattr(each.certificate, field.name) for each in (row, again))
        if np.array_equal(stored, drawn):
            continue
        if isinstance(stored, np.ndarray) and isinstance(drawn, np.ndarray):
            found.append(f"{field.name} differ at {int((stored != drawn).sum())} of {stored.size} pixels")
        else:
            found.append(f"{field.name} is {stored}, and drawing again gives {drawn}")
    return found


__all__ = ["verify_segmentation"]
