"""Certify a data set by counted votes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, TypeGuard

from pprs.data import Selection
from pprs.dither.estimators import Estimator, GaussianEstimator, PartitionedEstimator
from pprs.dither.guarantee import DITHER
from pprs.dither.thresholds import Dither, parse_dither
from pprs.errors import check_type
from pprs.inputs.space import NETWORK
from pprs.model.forms import AnyModel
from pprs.partition import AnyPartition, Auto, Partition, Slic, Soft, parse_request
from pprs.progress import Progress
from pprs.runners import Runner, RunOptions, run_subject
from pprs.runs import Run
from pprs.runs.subject import Subject

NOTHING_DRAWN = "all votes are counted, and nothing is drawn. Leave it out: `levels` is the number of passes."


def dither_dataset(
    model: AnyModel,
    data: Any,
    *,
    noise: Dither | str,
    partition: AnyPartition = "auto",
    images: Iterable[int] | Selection | None = None,
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
    pixels: str = NETWORK,
    adapted: str | Path | None = None,
) -> Run:
    """Certify the images of a data set without sampling: no change of so many grey levels in total alters the label.

    Every image takes as many passes as there are thresholds. The claims are certain. Images that raise an error are
    recorded as failures and count as not certified.

    Args:
        model: The classifier, as for `certify_dataset`.
        data: The images, as for `certify_dataset`.
        noise: The thresholds, as an object or as text such as "dither:levels=1020".
        partition: What the estimate of an image is averaged over, as an object or as text. "auto" is soft superpixels,
            and None is nothing.
        images: Indices of the images, or a `Selection`. All images by default.
        out: Folder or url of the run. Repeating the call resumes the run, also after Ctrl-C or a crash.
        runner: Where images are certified, for example `Processes(8)`. This process by default.
        progress: True shows a progress bar. Any object with the methods of `pprs.progress.Progress` is accepted.
        split: Split of the data. By default test, else validation, else train.
        classes: File with the class names of the data, one per line, in the model's order.
        labels: Restrict the classifier to these labels of the model. Images with other labels are left out.
        engine: "auto", "torch" or "onnxruntime".
        device: Torch device.
        batch_size: Images per batch. Affects speed only.
        threads: CPU threads of this process. Affects speed only.
        autocast: Use mixed precision, which changes the base classifier slightly.
        channels_last: Use the channels-last memory layout, which changes rounding.
        pixels: "network" for changes of the network's input, "file" for changes of the pixels of the file.
        adapted: File with an adaptation of the model, written by `adapt`.

    Returns:
        The run, with one row for each image.

    Raises:
        ConfigurationError: If an argument is invalid, or if `out` holds something else or a run with other settings.
        PprsError: If the model or the data cannot be opened, or if all images fail.

    Example:
        ```python
        run = dither_dataset("m.safetensors", "builtin:mnist5k", noise="dither:levels=510", images=range(20))
        ```
    """
    thresholds = parse_dither(noise) if isinstance(noise, str) else noise
    check_type(thresholds, Dither, "noise", 'pprs.dither.Dither(1020) or "dither:levels=1020"')
    options = RunOptions.of(
        out=out, runner=runner, engine=engine, device=device, batch_size=batch_size, threads=threads,
        autocast=autocast, channels_last=channels_last, progress=progress,
    )  # fmt: skip
    options.check(DITHER)
    asked = parse_request(partition) if isinstance(partition, str) else partition
    subject = DITHER.load(
        model, data, split=split, classes=classes, labels=labels, images=images, pixels=pixels, adapted=adapted
    )
    own = {"dither_text": str(thresholds), "estimator_text": str(choose_estimator(thresholds, asked, subject))}
    return run_subject(DITHER, subject, own, options)


def is_dither(noise: Any) -> TypeGuard[str]:
    """Return whether the text of a noise describes thresholds instead."""
    return isinstance(noise, str) and noise.strip().partition(":")[0] == Dither.name


def choose_estimator(dither: Dither, partition: Partition | Auto | None, subject: Subject) -> Estimator:
    """Return how images of a subject are estimated, with all options set if they all have one shape."""
    shape = tuple(subject.sample.image.shape)
    if isinstance(partition, str):
        partition = Soft(Slic())
    estimator: Estimator = GaussianEstimator()
    if partition is not None:
        estimator = PartitionedEstimator(estimator, partition)
    return estimator.resolve(dither.levels, shape) if subject.model.input_shape is not None else estimator
