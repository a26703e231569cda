"""Certify the label maps of a data set, in a run that can be interrupted and resumed."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

from pprs.data import Selection
from pprs.errors import check_type
from pprs.model.forms import AnyModel
from pprs.noise import AnyNoise
from pprs.partition import AUTO, AnyPartition, Partition
from pprs.progress import Progress
from pprs.runners import Runner, RunOptions, run_subject
from pprs.runs import Run
from pprs.runs.subject import Subject
from pprs.segmentation.guarantee import SEGMENT
from pprs.segmentation.segmenter import SegmentationSampling


def segment_dataset(
    model: AnyModel,
    data: Any,
    *,
    noise: AnyNoise,
    partition: AnyPartition = AUTO,
    sampling: SegmentationSampling | None = None,
    images: Iterable[int] | Selection | None = None,
    seed: int = 0,
    out: str | Path | None = None,
    runner: Runner | None = None,
    progress: bool | Progress = True,
    split: str | None = None,
    classes: str | Path | None = None,
    engine: str = "auto",
    device: str = "cpu",
    batch_size: int | None = None,
    threads: int | None = None,
    autocast: bool = False,
    channels_last: bool = False,
    arithmetic: str = "auto",
    adapted: str | Path | None = None,
) -> Run:
    """Certify the label maps that a segmentation network gives to the images of a data set.

    Each image gets a label for every pixel at which no perturbation up to the radius changes it, and abstains at the
    others. Images that raise an error are recorded as failures.

    Args:
        model: Text as for `load_model`, a `pprs.Model`, or a `torch.nn.Module` that takes images in [0, 1]. A runner
            with workers needs text, since each worker opens the model itself.
        data: Text as for `open_masked`, a `MaskedSet`, or a pair `(images, masks)` of arrays.
        noise: The noise, as an object or as text such as "gaussian:sigma=0.25".
        partition: The partition, as an object or as text such as "slic:n_segments=100". "auto" is the one that is
            recommended for certificates of whole images, and None is plain smoothing.
        sampling: Sample sizes, share, failure probability and groups. `SegmentationSampling()` by default.
        images: Indices of the images to certify. All images by default.
        seed: Random seed.
        out: Folder or url of the run. Repeating the call resumes the run, also after Ctrl-C or a crash. Without `out`,
            the rows are kept only as long as the returned run.
        runner: Where images are certified, for example `Processes(8)`. This process by default.
        progress: True shows a progress bar in the terminal or notebook. Any object with the methods of
            `pprs.progress.Progress` is accepted.
        split: Split of the data. By default test, else validation, else train.
        classes: File with the class names of the data, one per line, in the order of the labels.
        engine: "auto", "torch" or "onnxruntime".
        device: Torch device.
        batch_size: Noisy samples per batch. Affects speed only.
        threads: CPU threads of this process. Affects speed only.
        autocast: Use mixed precision, which changes the base network slightly.
        channels_last: Use the channels-last memory layout, which changes rounding.
        arithmetic: "auto", "exact", "8-bit", "16-bit", "rounded" or "real", as for `certify_dataset`.
        adapted: File with an adaptation of the model, written by `adapt`.

    Returns:
        The run, with the rows of all its images.

    Raises:
        ConfigurationError: If an argument or a mask is invalid, or if `out` holds a run with other settings.
        PprsError: If no image could be certified.

    Example:
        ```python
        run = segment_dataset("scenes.safetensors", "builtin:scenes", noise="gaussian:sigma=0.25", images=range(20))
        shares = [row.share for row in run.iter_rows()]
        ```
    """
    options = RunOptions.of(
        noise=noise, partition=partition, seed=seed, out=out, runner=runner, engine=engine, device=device,
        batch_size=batch_size, threads=threads, autocast=autocast, channels_last=channels_last, progress=progress,
        arithmetic=arithmetic,
    )  # fmt: skip
    check_type(sampling, SegmentationSampling | None, "sampling", "SegmentationSampling(tau=0.75)")
    options.check(SEGMENT)
    subject = SEGMENT.load(model, data, split=split, classes=classes, images=images, adapted=adapted)
    return segment_subject(subject, sampling or SegmentationSampling(), options)


def segment_subject(subject: Subject, sampling: SegmentationSampling, options: RunOptions) -> Run:
    """Certify the label maps of a subject, that is, of a network already matched with its images and masks."""
    options.check(SEGMENT)
    partition, noise = options.partition, options.noise
    if isinstance(partition, Partition) and noise is not None:  # all images of a run have the same partition
        shape = tuple(subject.sample.image.shape)
        options = replace(options, partition=partition.bind_files().resolve(noise.sigma, shape))
    own = {
        "tau": sampling.tau, "n0": sampling.n0, "n": sampling.n, "alpha": sampling.alpha,
        "groups": str(sampling.groups or "none"),
    }  # fmt: skip
    return run_subject(SEGMENT, subject, own, options)


__all__ = ["segment_dataset", "segment_subject"]
