"""Calibration: the score of the true label of every calibration image, under noise of its own."""

from __future__ import annotations

import math
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from pprs.errors import ConfigurationError, PprsError
from pprs.inputs.space import NETWORK
from pprs.label_sets.calibration import Promise
from pprs.label_sets.calibration_run import CALIBRATION, find_failure
from pprs.label_sets.scoring import SetRequest, confirm_unchanged, open_votes
from pprs.label_sets.settings import Calibration, SetSettings, shorten_digest, sorted_scores
from pprs.model import Model
from pprs.model.base import Restricted
from pprs.model.forms import FunctionModule
from pprs.partition import AUTO, Partition
from pprs.progress import Progress
from pprs.runners import Local, RunOptions, fit_in_memory, run_subject
from pprs.runners.run import read_recorded
from pprs.runs import Run
from pprs.runs.binding import Binding
from pprs.runs.provenance import Provenance
from pprs.runs.session import count_adapted_images, settle_partition
from pprs.runs.subject import Subject
from pprs.smoothing.voting import LocalVotes


def calibrate(
    subject: Subject, request: SetRequest, progress: Progress, out: str | Path | None = None
) -> tuple[Calibration, LocalVotes]:
    """Score the calibration images and return the calibration, and what it was scored with.

    Args:
        subject: The model and the calibration images.
        request: How to calibrate.
        progress: Receives messages, and how far it is.
        out: The folder in which the scores are kept, so that the same call continues after an interruption, on the
            same engine.
    """
    device = Local().check_device(request.options.device)
    options = replace(request.options, device=device)
    if isinstance(subject.model.module, FunctionModule):
        options = replace(options, engine="torch")
    recorded = None if out is None else read_recorded(Path(out), CALIBRATION)
    if recorded is not None and options.engine == "auto":
        options = replace(options, engine=recorded.engine)
    subject = fit_in_memory(subject, Local(), options)
    partition = _choose_partition(subject, request, recorded, progress)
    arithmetic = subject.fix_arithmetic(request.noise, request.arithmetic)
    request = replace(request, partition=partition, arithmetic=arithmetic, options=options)
    Promise(request.radius, request.alpha, request.noise, arithmetic.levels, subject.sample.image.numel()).rank(
        len(subject.images)
    )
    _refuse_adapted(subject, progress)
    shape = tuple(subject.sample.image.shape)
    votes, binding = open_votes(subject.model, subject.pixels, request, shape, len(subject.images), progress)
    options = replace(options, engine=binding.identity["engine"])
    own = {"score": request.score, "randomised": request.randomised}
    with tempfile.TemporaryDirectory(prefix="pprs-") as scratch:  # which is gone as soon as the scores are read
        run = run_subject(
            CALIBRATION, subject, own,
            RunOptions(
                request.noise, partition, request.seed, out or Path(scratch) / "run", engine=options,
                progress=progress, arithmetic=arithmetic,
            ),
        )  # fmt: skip
        confirm_unchanged(votes)
        request = replace(request, options=options)
        calibration = _collect(run, subject.images, _describe(subject, request), binding)
    calibration.check_enough()
    return calibration, votes


def _choose_partition(
    subject: Subject, request: SetRequest, recorded: Provenance | None, progress: Progress
) -> Partition | None:
    """Return the partition with resolved options, the same one when a calibration is continued."""
    if request.partition == AUTO and recorded is not None:
        return recorded.partition
    image = subject.sample.image
    partition = settle_partition(subject.model, request.noise, image, request.partition, progress)
    if partition is None:
        return None
    bound = partition.bind_files()
    return bound.resolve(request.noise.sigma, tuple(image.shape)) if subject.pixels == NETWORK else bound


def _refuse_adapted(subject: Subject, progress: Progress) -> None:
    if used := count_adapted_images(subject, progress):
        raise ConfigurationError(
            f"the model was adapted with {used} of these {len(subject.images)} images, so it fits them better than "
            "others, and the sets would be too small. Calibrate with images that were not used to adapt it.",
            parameter="adapted",
        )


def _describe(subject: Subject, request: SetRequest) -> SetSettings:
    """Return what the sets depend on."""
    return SetSettings(
        model=subject.model_text or subject.model.source,
        model_digest=subject.model.digest(),
        num_classes=subject.num_classes,
        noise_text=str(request.noise),
        partition_text=str(request.partition or "none"),
        radius=float(request.radius),
        alpha=float(request.alpha),
        score=request.score,
        randomised=request.randomised,
        seed=request.seed,
        arithmetic=str(request.arithmetic),
        engine=request.options.engine,
        device=request.options.device,
        pixels=subject.pixels,
        shape=tuple(subject.sample.image.shape),
        dim=subject.sample.image.numel(),
        class_names=subject.model.class_names,
        labels=_restriction(subject.model),
        data=subject.data.source,
        split=subject.data.split,
    )


def _restriction(model: Model) -> tuple[str, ...] | None:
    """Return the labels that a classifier is restricted to, as indices."""
    return tuple(map(str, model.module.chosen.tolist())) if isinstance(model.module, Restricted) else None


def _collect(run: Run, images: Sequence[int], settings: SetSettings, binding: Binding) -> Calibration:
    """Return the calibration that the scores of these images make.

    Raises:
        PprsError: If an image has no score: leaving it out would make the others less like those that are asked about.
    """
    CALIBRATION.check_rows(run.iter_rows(), run.settings).refuse(run.path or "the calibration")
    if (failure := find_failure(run, images)) is not None:
        raise PprsError(failure.error, index=failure.idx)
    chosen, scores, digests, dim = set(images), list[float](), list[str](), 0
    for row in run.iter_rows():
        if row.idx in chosen:
            scores.append(row.score)
            digests.append(shorten_digest(row.image_digest))
            dim = max(dim, math.prod(row.shape))
    return Calibration(replace(settings, dim=dim), sorted_scores(scores), tuple(sorted(digests)), binding)
