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
from pprs.runs.subject import Task
from pprs.smoothing.voting import CALIBRATE, LocalVotes, check_image


def calibrate(task: Task, request: SetRequest, progress: Progress) -> tuple[Calibration, LocalVotes]:
    """Score the calibration images and return the calibration, and what it was scored with."""
    device = Local().check_device(request.options.device)
    if task.pixels == FILE:
        task = fit_in_memory(task, Local(), replace(request.options, device=device))
    partition = None if request.partition is None else request.partition.bind_files()
    if partition is not None and task.pixels == NETWORK:
        partition = partition.resolve(request.noise.sigma, tuple(task.sample.image.shape))
    for text in task.list_mismatches(request.noise, partition):
        progress.message(f"warning: {text}")
    arithmetic = task.fix_arithmetic(request.noise, request.arithmetic)
    request = replace(request, partition=partition, arithmetic=arithmetic)
    shape, levels = tuple(task.sample.image.shape), arithmetic.levels
    Promise(request.radius, request.alpha, request.noise, levels, task.sample.image.numel()).rank(len(task.images))
    votes, binding = open_votes(task.model, task.pixels, request, shape, len(task.images), progress)
    settings = SetSettings(
        model=task.model_text or task.model.source,
        model_digest=task.model.digest(),
        num_classes=task.num_classes,
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
        pixels=task.pixels,
        shape=shape,
        dim=task.sample.image.numel(),
        class_names=task.model.class_names,
        labels=_restriction(task.model),
        data=task.data.source,
        split=task.data.split,
    )
    scored = _score_calibration(task, votes, settings, progress)
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


def _score_calibration(task: Task, votes: LocalVotes, settings: SetSettings, progress: Progress) -> _Scored:
    """Score the true label of every calibration image."""
    scored, labels = _Scored([], []), dict[int, int]()
    digests: dict[int, str] = {}

    def items() -> Iterator[tuple[int, torch.Tensor | QuantisedImage]]:
        for index in task.images:
            example = task.data[index]
            label = check_label(example.label, index, settings.num_classes)
            if label is None:
                raise ConfigurationError(
                    f"image {index} has no label, and calibration needs labelled images", parameter="data"
                )
            if task.was_adapted_with(example.image):
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

    with stage(progress, "calibrate", len(task.images), "images"):
        for index, scores in score_images(votes, items(), CALIBRATE, settings.score, settings.randomised):
            scored.scores.append(float(scores[labels[index]]))
            scored.digests.append(digests[index])
            progress.advance(1)
    return scored
