"""Predict a data set with the smoothed classifier, without radii."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from pprs.data import Selection
from pprs.errors import check_integer
from pprs.model.forms import AnyModel
from pprs.noise import AnyNoise
from pprs.partition import AUTO, AnyPartition
from pprs.prediction.guarantee import PREDICT
from pprs.progress import Progress
from pprs.runners import Runner, RunOptions, run_subject
from pprs.runs import Run
from pprs.runs.subject import Subject, load_subject
from pprs.smoothing.bounds import check_alpha


def predict_dataset(
    model: AnyModel,
    data: Any,
    *,
    noise: AnyNoise,
    partition: AnyPartition = AUTO,
    n: int = 1_000,
    alpha: float = 0.001,
    images: Iterable[int] | Selection | None = None,
    seed: int = 0,
    out: str | Path | None = None,
    runner: Runner | None = None,
    progress: bool | Progress = True,
    split: str | None = None,
    classes: str | Path | None = None,
    labels: str | Sequence[str] | None = None,
    engine: str = "auto",
    device: str = "cpu",
    batch_size: int | None = None,
    threads: int | None = None,
    autocast: bool = False,
    channels_last: bool = False,
    arithmetic: str = "auto",
    pixels: str = "network",
    adapted: str | Path | None = None,
) -> Run:
    """Predict the images of a data set with the smoothed classifier, which abstains where the vote is too close.

    A prediction is the smoothed classifier's label for the image as it is. It has no radius, so it takes fewer samples
    than a certificate. Images that raise an error are recorded as failures.

    Args:
        model: As for `certify_dataset`.
        data: As for `certify_dataset`.
        noise: As for `certify_dataset`.
        partition: As for `certify_dataset`.
        n: Samples per image.
        alpha: The largest probability that a label is not the smoothed classifier's.
        images: Indices of the images to predict. All images by default.
        seed: As for `certify_dataset`.
        out: As for `certify_dataset`.
        runner: As for `certify_dataset`.
        progress: As for `certify_dataset`.
        split: As for `certify_dataset`.
        classes: As for `certify_dataset`.
        labels: As for `certify_dataset`.
        engine: As for `certify_dataset`.
        device: As for `certify_dataset`.
        batch_size: As for `certify_dataset`.
        threads: As for `certify_dataset`.
        autocast: As for `certify_dataset`.
        channels_last: As for `certify_dataset`.
        arithmetic: As for `certify_dataset`.
        pixels: As for `certify_dataset`.
        adapted: As for `certify_dataset`.

    Returns:
        The run, with the rows of all its images.

    Raises:
        ConfigurationError: If an argument is invalid, or if `out` holds a run with other settings.
        PprsError: If no image could be predicted.
    """
    options = RunOptions.of(
        noise=noise, partition=partition, seed=seed, out=out, runner=runner, engine=engine, device=device,
        batch_size=batch_size, threads=threads, autocast=autocast, channels_last=channels_last, progress=progress,
        arithmetic=arithmetic,
    )  # fmt: skip
    own = _check_request(n, alpha, options)
    subject = load_subject(
        model, data, split=split, classes=classes, labels=labels, images=images, pixels=pixels, adapted=adapted
    )
    return run_subject(PREDICT, subject, own, options)


def predict_subject(subject: Subject, n: int, alpha: float, options: RunOptions) -> Run:
    """Predict the images of a subject, that is, of a model already matched with its images."""
    return run_subject(PREDICT, subject, _check_request(n, alpha, options), options)


def _check_request(n: int, alpha: float, options: RunOptions) -> dict[str, Any]:
    """Reject invalid arguments before anything is loaded, and return the settings of the guarantee."""
    check_alpha(alpha)
    options.check(PREDICT)
    return {"n": check_integer(n, "n", 1), "alpha": float(alpha)}
