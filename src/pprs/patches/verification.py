"""Check that the rows of a run against patches follow from its model and images, by certifying the images again."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from pprs.data import Example
from pprs.data.base import decode_png
from pprs.errors import ConfigurationError, PprsError, check_integer, describe_error
from pprs.model import Model
from pprs.noise import digest_image
from pprs.patches.classifier import PatchClassifier
from pprs.patches.fills import parse_fill
from pprs.patches.masks import MaskGrid
from pprs.patches.run import ClassifierMaker, certify_image, describe_run, draw_example
from pprs.patches.store import PatchRow, PatchRun, PatchSettings, open_patch_run, picture_path
from pprs.progress import Progress, as_progress, stage
from pprs.runners import Local
from pprs.runs import Mismatch, choose_rows, describe_parts
from pprs.runs.check import count_rows
from pprs.runs.session import describe_subject
from pprs.task import Task, load_task, reopen_model
from pprs.verification import Verification
from pprs.verification.images import describe_setting

SAME = ("label", "prediction", "certified", "plain")  # of a row, whatever the number of threads


def verify_patches(
    run: PatchRun | str | Path,
    *,
    model: str | Model | torch.nn.Module | None = None,
    adapted: str | Path | None = None,
    data: Any = None,
    classes: str | Path | None = None,
    images: int | None = None,
    rows: Iterable[int] | None = None,
    seed: int | None = None,
    progress: bool | Progress = True,
) -> Verification:
    """Check that a run against patches is what it claims to be.

    A certificate against patches is exact, so certifying an image again gives the same claim. All rows are checked, or
    those of some images. The settings that follow from the model and the data, the images and the true labels of all
    rows are compared in any case. A model or data that cannot be opened is no error: the result says what was not
    checked.

    Args:
        run: The run or its folder.
        model: The model, as for `certify_patches`. By default the one that the run names.
        adapted: The file of its adaptation, if it has one. By default the one that the run names.
        data: The data, as for `certify_patches`. By default those that the run names.
        classes: File with the class names of the data, if the run was made with one.
        images: Number of images, chosen at random, that are certified again. By default all, or those of `rows`.
        rows: Indices of images that are certified again in any case.
        seed: The seed of an earlier choice of images, to repeat it. By default nobody can know the choice in advance.
        progress: True shows a progress bar, as for `certify_patches`.

    Returns:
        What was checked, what was not, and what does not follow.

    Raises:
        ConfigurationError: If there is no run, or if it has no row of an index in `rows`.
    """
    opened = run if isinstance(run, PatchRun) else open_patch_run(run)
    stored = {row.idx for row in opened.rows}
    count = images if images is None else check_integer(images, "images", 1)
    chosen = choose_rows(stored, (len(stored) if rows is None else 0) if count is None else count, rows, seed)
    findings = _Findings(opened, as_progress(progress))
    findings.check_alone()
    task = findings.open_task(model, adapted, data, classes)
    if task is not None:
        findings.check_images(task)
        findings.certify_again(task, [row for row in opened.rows if row.idx in chosen.indices and row.error is None])
        if findings.certified and len(chosen.indices) < chosen.total and chosen.seed is not None:
            findings.checked.append(f"which images: {chosen}")
    return Verification(
        opened.path or "", len(opened.rows), tuple(findings.checked), tuple(findings.mismatches),
        tuple(findings.not_checked), tuple(sorted(findings.certified)), chosen.seed,
    )  # fmt: skip


class _Findings:
    """Collects what is checked of a run, what is not, and what does not follow."""

    def __init__(self, run: PatchRun, progress: Progress) -> None:
        self._run, self._progress = run, progress
        self.checked: list[str] = []
        self.not_checked: list[str] = []
        self.mismatches: list[Mismatch] = []
        self.certified: set[int] = set()

    def check_alone(self) -> None:
        """Check each row by itself: a certified label is that of the worst pair of masks."""
        for row in self._run.rows:
            is_possible = row.prediction is not None and row.error is None and row.worst_label == row.prediction
            if row.certified and not is_possible:
                self._mismatch(row, "it is certified, but its worst pair of masks has another label, or none")
        if self._run.failures:
            failed = count_rows(len(self._run.failures))
            self.not_checked.append(f"{failed} of images that failed, which count as not certified")

    def open_task(
        self,
        model: str | Model | torch.nn.Module | None,
        adapted: str | Path | None,
        data: Any,
        classes: str | Path | None,
    ) -> Task | None:
        """Open the model and the data, and compare the model with that of the run. None if that is not possible."""
        settings, given = self._run.settings, model is not None and data is not None
        data = settings.data if data is None else data
        try:
            model, adapted = reopen_model(settings.model, model, adapted)
            assert model is not None  # since the settings name one
            split = settings.split or None if isinstance(data, str | Path) else None
            task = load_task(
                model, data, split=split, classes=classes, labels=settings.labels, pixels=settings.pixels,
                adapted=adapted,
            )  # fmt: skip
            digest = task.model.digest()
        except (PprsError, OSError, ImportError) as error:
            if given and isinstance(error, PprsError):
                # Both are at hand. If they can be opened, it is the settings of the run that do not fit them.
                assert model is not None
                load_task(model, data, classes=classes, adapted=adapted)
                text = f"its labels, split or pixels do not fit the model and the data ({error.message})"
                self.mismatches.append(Mismatch(None, text))
                return None
            self.not_checked.append(f"claims: {describe_error(error)}")
            return None
        if digest != settings.model_digest:
            self.mismatches.append(
                Mismatch(None, f"this is not the model of the run: its digest is {digest}, not {settings.model_digest}")
            )
            return None
        self.checked.append("model: the digest of its weights")
        self._check_derived(task)
        present = sorted({row.idx for row in self._run.rows if row.idx < len(task.data)})
        return replace(task, images=present)

    def _check_derived(self, task: Task) -> None:
        """Compare the settings that follow from the model and the data."""
        settings, found = self._run.settings, describe_subject(task)
        for name in ("labels", "num_classes", "class_names", "data_fingerprint", "split"):
            stored, own = getattr(settings, name), getattr(found, name)
            if name == "split" and own is None:  # data that are given as arrays have none
                continue
            if name == "data_fingerprint" and stored is None:
                self.not_checked.append("data: this run of an earlier version does not record their fingerprint")
            elif stored != own:
                self.mismatches.append(Mismatch(None, describe_setting(name, stored, own)))
        self.checked.append("settings that follow from the model and the data")

    def check_images(self, task: Task) -> None:
        """Compare the images, labels and pictures of all rows with those of the data."""
        compared, examples = 0, dict[int, Example | None]()
        for row in self._run.rows:
            if row.idx not in examples:
                examples[row.idx] = self._read(task, row)
            example = examples[row.idx]
            if example is None:
                continue
            compared += 1
            if row.label != example.label:
                self._mismatch(row, f"label is {row.label}, and that of the data is {example.label}")
            if row.error is None and row.image_digest != digest_image(example.image):
                self._mismatch(row, "the image is not the one that was certified: its digest differs")
            elif row.error is None:
                self._check_picture(row, example.image)
        if compared:
            self.checked.append(f"images, true labels and pictures ({count_rows(compared)})")

    def _read(self, task: Task, row: PatchRow) -> Example | None:
        """Return an image of the data, or None if there is none that can be read."""
        if row.idx >= len(task.data):
            self._mismatch(row, f"the data has no image {row.idx}")
            return None
        try:
            return task.data[row.idx]
        except (PprsError, OSError) as error:
            if row.error is None:
                self.not_checked.append(f"image {row.idx} cannot be read: {describe_error(error)}")
            return None

    def _check_picture(self, row: PatchRow, image: torch.Tensor) -> None:
        """Compare the picture of the worst pair of masks, which the report shows, pixel by pixel."""
        path = None if self._run.path is None else picture_path(self._run.path, row)
        if path is None or not path.is_file():
            return
        own = draw_example(image, parse_fill(self._run.settings.fill), row)
        try:
            most = 16 * max(1, image.numel()) * 160**2
            same = torch.equal(decode_png(path.read_bytes(), most), decode_png(own, most))
        except (PprsError, OSError) as error:
            self._mismatch(row, f"its picture cannot be read ({describe_error(error)})")
            return
        if not same:
            self._mismatch(row, "its picture, which reports show, is not that of its worst pair of masks")

    def certify_again(self, task: Task, chosen: Sequence[PatchRow]) -> None:
        """Certify the images of rows again, on the recorded engine, and compare."""
        try:
            sides = [side for side in self._run.patches if self._fits(side, task.sample.image)]
            classifiers = _start_classifiers(task, self._run, sides, self._progress, self._report_settings)
        except PprsError as error:
            self.not_checked.append(f"claims: {error.message}")
            return
        try:
            for classifier in classifiers.values():
                classifier.check_model(task.sample.image)
        except ConfigurationError as error:  # what such a network says about one image proves nothing
            self.mismatches.append(Mismatch(None, error.message))
            return
        compared = 0
        with stage(self._progress, "verify", len(chosen), "images"):
            for row in chosen:
                if row.patch in classifiers:
                    compared += self._compare(row, task, classifiers[row.patch])
                self._progress.advance(1)
        if compared:
            self.checked.append(
                f"claims, images and true labels: certified again and compared ({count_rows(compared)})"
            )
        if left := len(self._run.rows) - len(self._run.failures) - len(chosen):
            self.not_checked.append(f"the claims of {count_rows(left)}, whose images were not chosen")

    def _fits(self, side: int, image: torch.Tensor) -> bool:
        """Return whether there are masks for patches of this size, as the rows claim."""
        try:
            MaskGrid(image.shape[-2], image.shape[-1], side, self._run.settings.masks)
        except ConfigurationError as error:
            self.mismatches.append(Mismatch(None, f"rows about patches of side {side}: {error.message}"))
            return False
        return True

    def _report_settings(self, found: PatchSettings) -> None:
        """Compare what else the scores depend on. Differences do not prove other labels; certifying again does."""
        differences = describe_parts(self._run.settings.identity, found.identity)
        if differences:
            self.not_checked.append(f"model: it may give other labels, since these differ ({'; '.join(differences)})")
        else:
            self.checked.append("model: its source code, preprocessing and versions")

    def _compare(self, row: PatchRow, task: Task, classifier: PatchClassifier) -> bool:
        """Compare a row with one that is computed again. Return whether that was possible."""
        if row.idx >= len(task.data):
            self._mismatch(row, f"the data has no image {row.idx}")
            return False
        again = certify_image(task, classifier, row.idx)
        if again.error is not None:
            self._mismatch(row, f"certifying again fails: {again.error}")
            return False
        self.certified.add(row.idx)
        if again.image_digest != row.image_digest:  # reported already
            return True
        for name in SAME:
            stored, computed = getattr(row, name), getattr(again, name)
            if stored != computed:
                self._mismatch(row, f"{name} is {stored}, and certifying again gives {computed}")
        if row.certified and again.certified and row.passes != again.passes:
            self._mismatch(row, f"passes are {row.passes}, and a certificate takes {again.passes}")
        self._check_worst(row, task.data[row.idx].image, classifier)
        return True

    def _check_worst(self, row: PatchRow, image: torch.Tensor, classifier: PatchClassifier) -> None:
        """Check what the network predicts under the recorded pair of masks. Another pair may be as bad."""
        boxes = classifier.grid_for(image).boxes
        if len(row.boxes) != 2 or not set(row.boxes) <= set(boxes):
            self._mismatch(row, "its worst pair of masks is not one of the grid")
            return
        pair = torch.tensor([[boxes.index(box) for box in row.boxes]])
        label = classifier.predict_unmasked(classifier.mask(image, pair)[0])
        if label != row.worst_label:
            self._mismatch(row, f"its worst pair of masks has the label {label}, not {row.worst_label}")

    def _mismatch(self, row: PatchRow, text: str) -> None:
        self.mismatches.append(Mismatch(row.idx, f"patch {row.patch}: {text}"))


def _start_classifiers(
    task: Task,
    run: PatchRun,
    sides: Sequence[int],
    progress: Progress,
    on_settings: Callable[[PatchSettings], None],
) -> dict[int, PatchClassifier]:
    """Return the classifier of each patch size, with the network on the recorded engine."""
    if not sides:
        return {}
    settings = run.settings
    fill, device = parse_fill(settings.fill), Local().check_device(settings.device)
    make = ClassifierMaker(task, settings.masks, fill, device, batch_size=None)
    choice = make.choose_engine(sides, settings.engine, progress)
    on_settings(describe_run(task, settings.masks, fill, choice, device))
    return {side: make.make(choice.model.module, side) for side in sides}
