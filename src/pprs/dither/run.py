"""Certify a data set by counted votes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from pprs.data import Selection
from pprs.dither.choice import as_estimate
from pprs.dither.estimators import Estimator
from pprs.dither.guarantee import DITHER
from pprs.dither.thresholds import TAKES, Dither, as_dither
from pprs.errors import ConfigurationError
from pprs.inputs.space import NETWORK
from pprs.model.forms import AnyModel
from pprs.partition import AUTO, AnyPartition
from pprs.progress import Progress
from pprs.runners import Runner, RunOptions, run_subject
from pprs.runs import Run


def check_unused(noise: Dither | str, **given: tuple[Any, Any]) -> None:
    """Raise an error if an option is given that thresholds do not have: its value differs from its default."""
    for name, (value, default) in given.items():
        if value != default:
            raise ConfigurationError(
                f"`{name}` does not apply to {noise}: all votes are counted, and nothing is drawn. Leave it out. "
                f"{TAKES}",
                parameter=name,
            )


def dither_dataset(
    model: AnyModel,
    data: Any,
    *,
    noise: Dither | str,
    partition: AnyPartition | Estimator = AUTO,
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
            or what the network was adapted or trained to, and None is nothing. Text such as
            "local:sigma=0.7/slic:n_segments=80" names the estimate too.
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
    thresholds = as_dither(noise)
    asked = as_estimate(partition)
    options = RunOptions.of(
        out=out, runner=runner, engine=engine, device=device, batch_size=batch_size, threads=threads,
        autocast=autocast, channels_last=channels_last, progress=progress,
    )  # fmt: skip
    options.check(DITHER)
    subject = DITHER.load(
        model, data, split=split, classes=classes, labels=labels, images=images, pixels=pixels, adapted=adapted
    )
    own = {
        "dither_text": str(thresholds.bind_file()),
        "estimator_text": AUTO if asked == AUTO else str(asked or "none"),
    }
    return run_subject(DITHER, subject, own, options)
