"""`pprs.patches.certify_patches`: certify the images of a data set against patches of several sizes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from pprs._threads import keep_memory
from pprs.data import Selection
from pprs.engine import EngineChoice, check_engine, choose_engine
from pprs.errors import ConfigurationError, PprsError, check_integer, check_type, describe_error
from pprs.model import Model
from pprs.model.identity import identify
from pprs.noise import digest_image
from pprs.patches.adaptation import describe_masks
from pprs.patches.classifier import FILL, MASKS, PatchClassifier
from pprs.patches.fills import Fill, parse_fill
from pprs.patches.masks import MIN_MASKS
from pprs.patches.pictures import draw_masks
from pprs.patches.store import FILE, PatchRow, PatchRun, PatchSettings, PatchWriter, has_settings, open_patch_run
from pprs.progress import Progress, as_progress, stage
from pprs.runners import Held, Local
from pprs.runs.session import report_adaptation
from pprs.space import NETWORK
from pprs.task import Task, load_task


def certify_patches(
    model: str | Model | torch.nn.Module,
    data: Any,
    *,
    patch: int | Iterable[int],
    masks: int = MASKS,
    fill: Fill | str = FILL,
    out: str | Path | None = None,
    images: Iterable[int] | Selection | None = None,
    split: str | None = None,
    classes: str | Path | None = None,
    labels: str | Sequence[str] | None = None,
    adapted: str | Path | None = None,
    pixels: str = NETWORK,
    engine: str = "auto",
    device: str = "cpu",
    batch_size: int | None = None,
    progress: bool | Progress = True,
) -> PatchRun:
    """Certify images against patches: for which of them can no change inside any one square alter the label.

    Args:
        model: The classifier, as for `certify_dataset`.
        data: The images, as for `certify_dataset`.
        patch: The side of the patch in pixels, or several.
        masks: The number of masks along each axis.
        fill: What stands in the place of hidden pixels, as for `PatchClassifier`.
        out: Folder for the rows. Repeating the call resumes the run, also after Ctrl-C, and may add images and patch
            sizes. Other settings are refused.
        images: Indices of the images, or a `Selection`. By default all.
        split: Split of the data.
        classes: File with the class names of the data.
        labels: Restrict the classifier to these labels.
        adapted: The file of an adaptation of the model.
        pixels: "network" for patches in the network's input, "file" for patches in the pixels of the file.
        engine: "auto", "torch" or "onnxruntime".
        device: The torch device.
        batch_size: The number of masked images per batch.
        progress: Whether to show progress, or an object that receives it.

    Returns:
        The run, with one row for each image and patch size.

    Raises:
        ConfigurationError: If an argument is invalid, if `out` holds something else or a run with other settings, or if
            the model or an image is not the one that was certified.
        PprsError: If the model or the data cannot be opened, or if all images fail.
    """
    sides, masks = _check_sides(patch), check_integer(masks, "masks", MIN_MASKS)
    fill = parse_fill(fill) if isinstance(fill, str) else fill
    check_type(fill, Fill, "fill", '"diffusion"')
    check_type(out, str | Path | None, "out", '"runs/patches"')
    check_engine(engine)
    device = Local().check_device(device)
    reporter, folder = as_progress(progress), None if out is None else Path(out)
    task = load_task(
        model, data, split=split, classes=classes, labels=labels, images=images, pixels=pixels, adapted=adapted
    )
    keep_memory()
    _report_adaptation(task, sides, masks, fill, reporter)
    make = ClassifierMaker(task, masks, fill, device, batch_size)
    choice = make.choose_engine(sides, _find_engine(folder, engine), reporter)
    with PatchWriter(folder, describe_run(task, masks, fill, choice, device)) as writer:
        wanted = [(index, side) for side in sides for index in task.images]
        _certify(task, make, choice, writer, wanted, reporter)
        run = writer.finish(wanted)
    if all(row.error is not None for row in run.rows):
        raise PprsError(f"no image could be certified. Image {run.rows[0].idx}: {run.rows[0].error}")
    return run


def _check_sides(patch: int | Iterable[int]) -> list[int]:
    """Return the patch sizes, each once, in ascending order."""
    values = list(patch) if isinstance(patch, Iterable) and not isinstance(patch, str) else [patch]
    if not values:
        raise ConfigurationError("`patch` is empty: give at least one side", parameter="patch")
    return sorted({check_integer(value, "patch", 1) for value in values})


def _find_engine(folder: Path | None, engine: str) -> str:
    """Return the engine of the run that is resumed, unless another one is requested."""
    if engine != "auto" or folder is None or not has_settings(folder / FILE):
        return engine
    return open_patch_run(folder).settings.engine


def _report_adaptation(task: Task, sides: Sequence[int], masks: int, fill: Fill, progress: Progress) -> None:
    """Warn if an adapted model is used for other masks, or for the images that it was adapted with."""
    adaptation = task.model.adaptation
    if adaptation is None:
        return
    for side in sides:
        used = describe_masks(side, masks, fill)
        if adaptation.methods and adaptation.noise != used:
            progress.message(
                f"warning: the classifier was adapted to {adaptation.noise}, and is used with {used}. Certificates "
                "hold, but there may be fewer of them."
            )
    report_adaptation(task, [], progress)


@dataclass(frozen=True)
class ClassifierMaker:
    """Makes the classifiers of a run, one for each patch size."""

    task: Task
    masks: int
    fill: Fill
    device: str
    batch_size: int | None

    def choose_engine(self, sides: Sequence[int], engine: str, progress: Progress) -> EngineChoice:
        """Choose the engine, after checking that the network is a function of one image and that the masks fit."""
        image = self.task.sample.image
        for side in sides:
            self.make(self.task.model.module, side).grid_for(image)
        k = self.masks**2
        inputs = self.make(self.task.model.module, sides[0]).trial_inputs(image)
        return choose_engine(
            self.task.model, self.task.network_inputs(inputs), engine=engine, device=self.device,
            samples=k * (k + 1) // 2 * len(sides) * len(self.task.images), message=progress.message,
        )  # fmt: skip

    def make(self, module: torch.nn.Module, side: int) -> PatchClassifier:
        """Return the classifier for a patch size, with the network on its engine."""
        network = self.task.base_classifier(module)
        return PatchClassifier(
            network, self.task.num_classes, side, self.masks, self.fill, batch_size=self.batch_size, device=self.device
        )


def describe_run(task: Task, masks: int, fill: Fill, choice: EngineChoice, device: str) -> PatchSettings:
    """Return what the rows of a run depend on."""
    model = task.model
    return PatchSettings(
        model=task.model_text or model.source,
        model_digest=model.digest(),
        identity=identify(model, engine=choice.engine),
        data=task.data.source or type(task.data).__name__,
        split=task.data.split or "",
        num_classes=task.num_classes,
        masks=masks,
        fill=str(fill),
        pixels=task.pixels,
        engine=choice.engine,
        device=device,
        labels=task.labels,
        class_names=model.class_names,
        data_fingerprint=task.data.fingerprint(),
    )


def _certify(
    task: Task,
    make: ClassifierMaker,
    choice: EngineChoice,
    writer: PatchWriter,
    wanted: Sequence[tuple[int, int]],
    progress: Progress,
) -> None:
    """Certify what the run still lacks."""
    done = {key for key, row in writer.rows.items() if row.error is None}
    # A run of an earlier version does not record its data, so that all its rows are compared with these.
    _check_unchanged(task, [writer.rows[key] for key in (done if writer.is_unbound else wanted) if key in done])
    todo = [key for key in wanted if key not in done]
    if len(todo) < len(wanted):
        progress.message(f"resuming: {len(wanted) - len(todo)} of {len(wanted)} rows are done in {writer.folder}")
    classifiers: dict[int, PatchClassifier] = {}
    for _, side in todo:
        if side not in classifiers:
            classifiers[side] = make.make(choice.model.module, side)
            classifiers[side].check_model(task.sample.image)
    watch = next((classifier.watch(task.sample.image) for classifier in classifiers.values()), None)
    certified = 0

    def write(row: PatchRow) -> None:
        writer.add(row)
        if writer.wants_picture(row):
            writer.add_picture(row, draw_example(task.data[row.idx].image, make.fill, row))

    confirm = watch.confirm if watch is not None else lambda: None
    with stage(progress, "certify", len(todo), "images"), Held(confirm, write) as held:
        for index, side in todo:
            row = certify_image(task, classifiers[side], index)
            held.add(row)
            certified += row.certified
            progress.advance(1, f"{certified} certified")


def certify_image(task: Task, classifier: PatchClassifier, index: int) -> PatchRow:
    """Certify one image. An image that fails gives a row with the error."""
    row = PatchRow(index, classifier.patch)
    try:
        example = task.data[index]
        row = replace(row, label=example.label)
        certificate = classifier.certify(example.image)
        return replace(
            row,
            prediction=certificate.prediction,
            certified=certificate.certified,
            plain=classifier.predict_unmasked(example.image),
            worst=tuple((*box.rows, *box.columns) for box in certificate.worst_boxes),
            worst_label=certificate.worst_label,
            passes=certificate.passes,
            image_digest=digest_image(example.image),
        )
    except OSError:
        raise
    except Exception as error:  # image libraries and users' models raise many types
        if isinstance(error, ConfigurationError) and task.model.input_shape is not None:
            raise  # all images have this shape, so that all would fail
        return replace(row, error=describe_error(error))


def draw_example(image: torch.Tensor, fill: Fill, row: PatchRow) -> bytes:
    """Draw an image, the worst pair of masks on it, and how they are filled."""
    hidden = torch.zeros(image.shape[1:], dtype=torch.bool)
    for rows, columns in row.boxes:
        hidden[rows.start : rows.stop, columns.start : columns.stop] = True
    return draw_masks(image, hidden, fill.apply(image[None], hidden[None])[0])


def _check_unchanged(task: Task, rows: Sequence[PatchRow]) -> None:
    """Check that the images of existing rows are those that were certified."""
    digests: dict[int, str] = {}
    for row in rows:
        if row.idx not in digests:
            digests[row.idx] = digest_image(task.data[row.idx].image) if row.idx < len(task.data) else ""
        if digests[row.idx] != row.image_digest:
            raise ConfigurationError(
                f"image {row.idx} is not the one that was certified: its content has changed since. Nothing was "
                "changed. Restore the image, or give another `out`.",
                parameter="data",
            )
