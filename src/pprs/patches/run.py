"""`pprs.patches.certify_patches`: certify the images of a data set against patches of several sizes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from pprs.data import Selection
from pprs.errors import ConfigurationError, check_integer, check_type
from pprs.inputs.space import NETWORK
from pprs.model.forms import AnyModel
from pprs.patches.classifier import FILL, MASKS
from pprs.patches.fills import Fill, parse_fill
from pprs.patches.guarantee import PatchGuarantee
from pprs.patches.masks import MAX_MASKS, MIN_MASKS
from pprs.progress import Progress
from pprs.runners import Runner, RunOptions, run_subject
from pprs.runs import Run


def certify_patches(
    model: AnyModel,
    data: Any,
    *,
    patch: int | Iterable[int],
    masks: int = MASKS,
    fill: Fill | str = FILL,
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
    """Certify images against patches: for which of them can no change inside any one square alter the label.

    Images that raise an error are recorded as failures and count as not certified.

    Args:
        model: The classifier, as for `certify_dataset`.
        data: The images, as for `certify_dataset`.
        patch: The side of the patch in pixels, or several.
        masks: The number of masks along each axis.
        fill: What stands in the place of hidden pixels, as for `PatchClassifier`.
        images: Indices of the images, or a `Selection`. All images by default.
        out: Folder or url of the run. Repeating the call resumes the run, also after Ctrl-C or a crash, and may add
            images and patch sizes. Other settings are refused. Without `out`, the rows are kept only as long as the
            returned run.
        runner: Where images are certified, for example `Processes(8)`. This process by default.
        progress: True shows a progress bar. Any object with the methods of `pprs.progress.Progress` is accepted.
        split: Split of the data. By default test, else validation, else train.
        classes: File with the class names of the data, one per line, in the model's order.
        labels: Restrict the classifier to these labels of the model. Images with other labels are left out.
        engine: "auto", "torch" or "onnxruntime".
        device: Torch device.
        batch_size: Masked images per batch. Affects speed only.
        threads: CPU threads of this process. Affects speed only.
        autocast: Use mixed precision, which changes the base classifier slightly.
        channels_last: Use the channels-last memory layout, which changes rounding.
        pixels: "network" for patches in the network's input, "file" for patches in the pixels of the file.
        adapted: File with an adaptation of the model, written by `adapt` or `adapt_to_masks`.

    Returns:
        The run, with one row for each image and patch size.

    Raises:
        ConfigurationError: If an argument is invalid, or if `out` holds something else or a run with other settings.
        PprsError: If the model or the data cannot be opened, or if all images fail.

    Example:
        ```python
        run = certify_patches("m.safetensors", "builtin:mnist5k", patch=[1, 2], images=range(100), out="runs/patch")
        ```
    """
    guarantee = PatchGuarantee(_check_sides(patch))
    own = {"masks": _check_masks(masks), "fill_text": str(_check_fill(fill))}
    options = RunOptions.of(
        out=out, runner=runner, engine=engine, device=device, batch_size=batch_size, threads=threads,
        autocast=autocast, channels_last=channels_last, progress=progress,
    )  # fmt: skip
    options.check(guarantee)
    subject = guarantee.load(
        model, data, split=split, classes=classes, labels=labels, images=images, pixels=pixels, adapted=adapted
    )
    return run_subject(guarantee, subject, own, options)


def _check_sides(patch: int | Iterable[int]) -> tuple[int, ...]:
    """Return the patch sizes, each once, in ascending order."""
    values = list(patch) if isinstance(patch, Iterable) and not isinstance(patch, str) else [patch]
    if not values:
        raise ConfigurationError("`patch` is empty: give at least one side", parameter="patch")
    return tuple(sorted({check_integer(value, "patch", 1) for value in values}))


def _check_masks(masks: int) -> int:
    masks = check_integer(masks, "masks", MIN_MASKS)
    if masks > MAX_MASKS:
        raise ConfigurationError(f"`masks` must be at most {MAX_MASKS}, not {masks}", parameter="masks")
    return masks


def _check_fill(fill: Fill | str) -> Fill:
    """Return the fill. Its text must make it again, since that is what a run records."""
    fill = parse_fill(fill) if isinstance(fill, str) else fill
    check_type(fill, Fill, "fill", '"diffusion"')
    if parse_fill(str(fill)) != fill:
        raise ConfigurationError(f"`fill` {fill} is not described fully by its text", parameter="fill")
    return fill
