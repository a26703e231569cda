"""Calibration: the score of the true label of every calibration image, under noise of its own."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch

from pprs.errors import ConfigurationError
from pprs.inputs.space import FILE, NETWORK
from pprs.label_sets.calibration import Promise
from pprs.label_sets.scoring import (
    SetRequest,
    check_label,
    confirm_unchanged,
    name_image,
    open_votes,
    score_images,
)
from pprs.label_sets.settings import Calibration, SetSettings, shorten_digest, sorted_scores
from pprs.model import Model
from pprs.model.base import Restricted
from pprs.noise import QuantisedImage, digest_image
from pprs.progress import Progress, stage
from pprs.runners import Local, fit_in_memory
from pprs.runs.session import warn_of_strong_noise
from pprs.runs.subject import Subject
from pprs.smoothing.voting import CALIBRATE, LocalVotes, check_image


def calibrate(subject: Subject, request: SetRequest, progress: Progress) -> tuple[Calibration, LocalVotes]:
    """Score the calibration images and return the calibration, and what it was scored with."""
    device = Local().check_device(request.options.device)
    if subject.pixels == FILE:
        subject = fit_in_memory(subject, Local(), replace(request.options, device=device))
    partition = None if request.partition is None else request.partition.bind_files()
    if partition is not None and subject.pixels == NETWORK:
        partition = partition.resolve(request.noise.sigma, tuple(subject.sample.image.shape))
    warn_of_strong_noise(request.noise.sigma, subject.sample.image, progress)
    for text in subject.list_mismatches(request.noise, partition):
        progress.message(f"warning: {text}")
    arithmetic = subject.fix_arithmetic(request.noise, request.arithmetic)
    request = replace(request, partition=partition, arithmetic=arithmetic)
    shape, levels = tuple(subject.sample.image.shape), arithmetic.levels
    Promise(request.radius, request.alpha, request.noise, levels, subject.sample.image.numel()).rank(
        len(subject.images)
    )
    votes, binding = open_votes(subject.model, subject.pixels, request, shape, len(subject.images), progress)
    settings = SetSettings(
        model=subject.model_text or subject.model.source,
        model_digest=subject.model.digest(),
        num_classes=subject.num_classes,
        noise_text=str(request.noise),
        partition_text=str(partition or "none"),
        radius=float(request.radius),
        alpha=float(request.alpha),
        score=request.score,
        randomised=request.randomised,
        seed=request.seed,
        arithmetic=str(arithmetic),
        engine=binding.identity.get("engine", "torch"),
        device=device,
        pixels=subject.pixels,
        shape=shape,
        dim=subject.sample.image.numel(),
        class_names=subject.model.class_names,
        labels=_restriction(subject.model),
        data=subject.data.source,
        split=subject.data.split,
    )
    scored = _score_calibration(subject, votes, settings, progress)
    confirm_unchanged(votes)
    settings = replace(settings, dim=scored.dim)
    calibration = Calibration(settings, sorted_scores(scored.scores), tuple(sorted(scored.digests)), binding)
    calibration.threshold  # noqa: B018  refuses too few images
    return calibration, votes


def _restriction(model: Model) -> tuple[str, ...] | None:
    """Return the labels that a classifier is restricted to, as indices."""
    return tuple(map(str, model.module.chosen.tolist())) if isinstance(model.module, Restricted) else None


@dataclass
class _Scored:
    """The scores of the calibration images so far."""

    scores: list[float]
    digests: list[str]
    dim: int = 0


def _score_calibration(subject: Subject, votes: LocalVotes, settings: SetSettings, progress: Progress) -> _Scored:
    """Score the true label of every calibration image."""
    scored, labels = _Scored([], []), dict[int, int]()
    digests: dict[int, str] = {}

    def items() -> Iterator[tuple[int, torch.Tensor | QuantisedImage]]:
        for index in subject.images:
            example = subject.data[index]
            label = check_label(example.label, index, settings.num_classes)
            if label is None:
                raise ConfigurationError(
                    f"image {index} has no label, and calibration needs labelled images", parameter="data"
                )
            if subject.was_adapted_with(example.image):
                raise ConfigurationError(
                    f"the model was adapted with image {index}, so it fits this image better than others, and the "
                    "sets would be too small. Calibrate with images that were not used to adapt it.",
                    parameter="adapted",
                )
            with name_image(index):
                x = votes.quantise(check_image(example.image, votes.device))
            scored.dim = max(scored.dim, x.numel())
            labels[index], digests[index] = label, shorten_digest(digest_image(x))
            yield index, x

    with stage(progress, "calibrate", len(subject.images), "images"):
        for index, scores in score_images(votes, items(), CALIBRATE, settings.score, settings.randomised):
            scored.scores.append(float(scores[labels[index]]))
            scored.digests.append(digests[index])
            progress.advance(1)
    return scored
