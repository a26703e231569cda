"""Certify a data set. Commands, the app, tuning and reproduction all certify through this module."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from pprs.certify.guarantee import CERTIFY
from pprs.data import Selection
from pprs.dither import Dither, check_unused, dither_dataset, is_dither
from pprs.model.forms import AnyModel
from pprs.noise import AnyNoise
from pprs.partition import AUTO, AnyPartition
from pprs.progress import Progress, as_progress
from pprs.runners import Budget, Runner, RunOptions, run_dataset, run_subject
from pprs.runners.cost import apply_limits
from pprs.runs import Run
from pprs.runs.subject import Subject, load_subject
from pprs.smoothing.sampling import Sampling


def certify_dataset(
    model: AnyModel,
    data: Any,
    *,
    noise: AnyNoise | Dither,
    partition: AnyPartition = AUTO,
    sampling: Sampling | None = None,
    n0: int | None = None,
    n: int | None = None,
    alpha: float | None = None,
    bound: str | None = None,
    stop: str | None = None,
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
    budget: str | Budget | None = None,
    target_error: float | None = None,
    arithmetic: str = "auto",
    pixels: str = "network",
    adapted: str | Path | None = None,
) -> Run:
    """Certify the images of a data set.

    Each image gets a label of the smoothed classifier, and an L2 radius within which no perturbation changes that
    label. Images that raise an error are recorded as failures and count as not certified.

    Args:
        model: Text as for `load_model`, a `pprs.Model`, or a `torch.nn.Module` or function that takes images in
            [0, 1]. A runner with workers needs text, since each worker opens the model itself.
        data: Text as for `open_dataset`, an `ImageSet`, a map-style `Dataset`, or a pair `(images, labels)`.
        noise: The noise, as an object, as text such as "gaussian:sigma=0.25", or as the sigma of Gaussian noise. With
            thresholds instead, such as "dither:levels=1020", votes are counted, as `dither_dataset` describes.
        partition: The partition, as an object or as text such as "slic:n_segments=100". None means plain randomized
            smoothing, and "auto" the partition that is recommended for the noise, the image size and the model. Under
            "auto", a resumed run keeps its own.
        sampling: Sample sizes, failure probability, bound and stop rule. `Sampling()` by default. Its fields can be
            given one by one instead, as for `SmoothedClassifier.certify`.
        n0: Noisy samples per image that select the class, 100 by default.
        n: Further samples that estimate the probability of that class, 10,000 by default.
        alpha: Failure probability of each certificate, 0.001 by default.
        bound: "one-sided" or "two-sided".
        stop: Rule for stopping before all `n` samples are drawn.
        images: Indices of the images to certify. All images by default.
        seed: Random seed.
        out: Folder or url of the run. Repeating the call resumes the run, also after Ctrl-C or a crash. Without `out`,
            the rows are kept only as long as the returned run.
        runner: Where images are certified, for example `Processes(8)`. This process by default.
        progress: True shows a progress bar in the terminal or notebook. Any object with the methods of
            `pprs.progress.Progress` is accepted.
        split: Split of the data. By default test, else validation, else train.
        classes: File with the class names of the data, one per line, in the model's order.
        labels: Restrict the classifier to these labels of the model. Images with other labels are left out.
        engine: "auto", "torch" or "onnxruntime".
        device: Torch device.
        batch_size: Noisy samples per batch. Affects speed only.
        threads: CPU threads of this process. Affects speed only.
        autocast: Use mixed precision, which changes the base classifier slightly.
        channels_last: Use the channels-last memory layout, which changes rounding.
        budget: Time or number of samples to spend, such as "10m" or "2e6samples". Samples go to the images whose
            result they can still change.
        target_error: Certify images in random order until certified accuracy is known to within this error, with 95%
            confidence.
        arithmetic: "auto", "exact", "8-bit", "16-bit", "rounded" or "real", as for `SmoothedClassifier`. Under "auto"
            and "exact", the first image of the data decides the bit depth of all. Under "auto", a resumed run keeps
            its own arithmetic.
        pixels: What noise is added to, and so what the radii measure: "network" is the network's input, after resizing
            and the conversion to its channels. "file" is the image as it is, with its own size and channels, and
            resizing becomes part of the base classifier.
        adapted: File with an adaptation of the model, written by `adapt`.

    Returns:
        The run, with the rows of all its images.

    Raises:
        ConfigurationError: If an argument is invalid, or if `out` holds a run with other settings.
        PprsError: If no image could be certified.

    Example:
        ```python
        run = certify_dataset(
            "m.safetensors", "builtin:mnist5k", noise=0.25, n=1000, images=range(100), out="runs/rs"
        )
        ```
    """
    if is_dither(noise):
        check_unused(
            noise, sampling=(sampling, None), n0=(n0, None), n=(n, None), alpha=(alpha, None), bound=(bound, None),
            stop=(stop, None), budget=(budget, None), target_error=(target_error, None), seed=(seed, 0),
            arithmetic=(arithmetic, "auto"),
        )  # fmt: skip
        return dither_dataset(
            model, data, noise=noise, partition=partition, images=images, out=out, runner=runner, progress=progress,
            split=split, classes=classes, labels=labels, engine=engine, device=device, batch_size=batch_size,
            threads=threads, autocast=autocast, channels_last=channels_last, pixels=pixels, adapted=adapted,
        )  # fmt: skip
    assert not isinstance(noise, Dither)
    options = RunOptions.of(
        noise=noise, partition=partition, seed=seed, out=out, runner=runner, engine=engine, device=device,
        batch_size=batch_size, threads=threads, autocast=autocast, channels_last=channels_last, budget=budget,
        target_error=target_error, progress=progress, arithmetic=arithmetic,
    )  # fmt: skip
    sampling = Sampling.of(sampling, n0=n0, n=n, alpha=alpha, bound=bound, stop=stop)
    _check_request(options, sampling)
    subject = load_subject(
        model, data, split=split, classes=classes, labels=labels, images=images, pixels=pixels, adapted=adapted
    )
    return certify_subject(subject, sampling, options)


def certify_subject(subject: Subject, sampling: Sampling, options: RunOptions) -> Run:
    """Certify the images of a subject, that is, of a model already matched with its images."""
    limited = _check_request(options, sampling)
    if limited != sampling:
        as_progress(options.progress).message(f"a budget needs a stop rule: using {limited.stop}")
    own = {
        "n0": limited.n0, "n": limited.n, "alpha": limited.alpha, "bound": limited.bound, "stop": limited.stop,
    }  # fmt: skip
    return run_subject(CERTIFY, subject, own, options)


def _check_request(options: RunOptions, sampling: Sampling) -> Sampling:
    """Reject invalid arguments before anything is loaded, and return the sampling with the limits applied."""
    options.check(CERTIFY)
    return apply_limits(sampling, options.limits, options.runner)


__all__ = ["certify_dataset", "certify_subject", "run_dataset"]
