"""Verify a run: its bounds and radii against its counts, its images and labels, and its votes by drawing them again."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from pprs.certificate import Counts
from pprs.classifier import SmoothedClassifier
from pprs.dataset import check_network
from pprs.domain import domain_of_any
from pprs.engine import choose_engine
from pprs.errors import ConfigurationError, PprsError, check_integer, describe_error
from pprs.model import Model
from pprs.model.identity import identify
from pprs.noise import QuantisedImage, digest_image
from pprs.progress import Progress, as_progress, rename_inputs, stage
from pprs.runners import Local
from pprs.runs import Binding, Mismatch, Row, Run, RunSettings, check_rows, describe_parts, open_run
from pprs.runs.check import BELOW, count_rows
from pprs.runs.row import PARTIAL
from pprs.sampling import Evidence
from pprs.task import Task, load_task, reopen_model
from pprs.voting import ESTIMATE, SELECT, check_image, count_votes, error_context, prepare_image

SHOWN = 20  # mismatches that the text lists one by one


@dataclass(frozen=True)
class Verification:
    """What was checked of a run, and what does not follow.

    Attributes:
        path: Folder, file or url of the run.
        rows: Number of rows.
        checked: What was checked, one line each.
        mismatches: What does not follow, each with the index of its row.
        not_checked: What was not checked, and why, one line each.
        replayed: Indices of the rows whose votes were drawn again.
        seed: The seed that chooses these rows again. None if none was chosen at random.
    """

    path: str
    rows: int
    checked: tuple[str, ...]
    mismatches: tuple[Mismatch, ...]
    not_checked: tuple[str, ...]
    replayed: tuple[int, ...] = ()
    seed: int | None = None

    @property
    def ok(self) -> bool:
        """Whether everything that was checked follows."""
        return not self.mismatches

    def __str__(self) -> str:
        lines = [f"{self.path}: {count_rows(self.rows)}"]
        lines += [f"checked: {text}" for text in self.checked]
        lines += [f"not checked: {text}" for text in self.not_checked]
        lines += [f"mismatch: {mismatch}" for mismatch in self.mismatches[:SHOWN]]
        if len(self.mismatches) > SHOWN:
            lines.append(f"mismatch: and {len(self.mismatches) - SHOWN} more")
        return "\n".join(lines)


class _Findings:
    """Collects what is checked, what is not, and what does not follow."""

    def __init__(self) -> None:
        self.checked: list[str] = []
        self.not_checked: list[str] = []
        self.mismatches: list[Mismatch] = []
        self.replayed: list[int] = []
        self.same_model = False

    def mismatch(self, idx: int | None, text: str) -> None:
        self.mismatches.append(Mismatch(idx, text))


def verify_run(
    run: Run | str | Path,
    *,
    model: str | Model | torch.nn.Module | None = None,
    adapted: str | Path | None = None,
    data: Any = None,
    denoiser: str | Path | None = None,
    replay: int = 0,
    rows: Iterable[int] | None = None,
    progress: bool | Progress = True,
) -> Verification:
    """Check that a run is what it claims to be.

    Every bound, radius and prediction is computed again from the counts and settings. If the data can be opened, the
    images and labels are compared with those that were certified. With `replay`, votes are drawn again from the seed
    and compared one by one. A model or data that cannot be opened is no error: the result says what was not checked.

    Args:
        run: The run, its folder or url, or rows exported from it.
        model: The model, as for `certify_dataset`. By default the one that the run names.
        adapted: The file of its adaptation, if it has one. By default the one that the run names.
        data: The data, as for `certify_dataset`. By default those that the run names.
        denoiser: The file of the partition's denoiser. By default the one that the run names, which is only opened for
            a replay.
        replay: Number of rows, chosen at random, whose votes are drawn again.
        rows: Indices of the images whose votes are drawn again, instead of `replay`.
        progress: True shows a progress bar, as for `certify_dataset`.

    Returns:
        What was checked, what was not, and what does not follow.

    Raises:
        ConfigurationError: If there is no run, if it has no row of an index in `rows`, or if `denoiser` is another one
            than the run's.

    Example:
        ```python
        result = verify_run("runs/slic", replay=10)
        print(result)
        assert result.ok
        ```
    """
    opened = run if isinstance(run, Run) else open_run(run)
    stored, findings = opened.rows(), _Findings()
    domain = domain_of_any(row.shape for row in stored)
    reporter = rename_inputs(as_progress(progress), domain)
    chosen = _choose_rows(stored, replay, rows)
    _check_counts(opened, stored, findings)
    settings = opened.settings if denoiser is None else opened.settings.find_denoiser(str(denoiser))
    task = _open_task(settings, stored, model, adapted, data, findings)
    if task is not None:
        _check_binding(opened.binding, task, opened.settings, findings)
        with stage(reporter, "images", len(stored), "images"):
            _check_images(task, opened.settings, stored, findings, reporter)
    if not chosen:
        findings.not_checked.append("votes: no row was replayed. Give `replay` to draw some again")
    elif task is None or not findings.same_model:
        findings.not_checked.append("votes: replaying needs the data and the model of the run")
    else:
        # The task of the run, so that the model is checked on the same noisy images.
        present = [row.idx for row in stored if row.idx < len(task.data)]
        _replay(replace(task, images=present), settings, chosen, findings, reporter)
    return Verification(
        opened.path,
        len(stored),
        tuple(map(domain.rename, findings.checked)),
        tuple(replace(mismatch, text=domain.rename(mismatch.text)) for mismatch in findings.mismatches),
        tuple(map(domain.rename, findings.not_checked)),
        tuple(findings.replayed),
    )


def _choose_rows(stored: Sequence[Row], replay: int, rows: Iterable[int] | None) -> list[Row]:
    """Return the rows to replay, the same at every call."""
    replay = check_integer(replay, "replay", 0)
    by_index = {row.idx: row for row in stored}
    if rows is not None:
        indices = [check_integer(index, "rows", 0) for index in rows]
        for index in indices:
            if index not in by_index:
                raise ConfigurationError(f"the run has no row of image {index}", parameter="rows")
        return [by_index[index] for index in sorted(set(indices))]
    count = min(replay, len(stored))
    if not count:
        return []
    positions = np.random.default_rng(0).choice(len(stored), count, replace=False)
    return [stored[position] for position in sorted(positions.tolist())]


def _check_counts(run: Run, stored: Sequence[Row], findings: _Findings) -> None:
    check = check_rows(stored, run.settings)
    findings.mismatches += check.mismatches
    if check.rows:
        findings.checked.append(f"bounds, radii and predictions from counts and settings ({count_rows(check.rows)})")
    findings.not_checked += [f"bounds and radii: {reason}" for reason in check.list_unchecked()]
    if failed := len(run.failures()):
        findings.not_checked.append(f"{failed} images that failed, which count as not certified")


def _open_task(
    settings: RunSettings,
    stored: Sequence[Row],
    model: str | Model | torch.nn.Module | None,
    adapted: str | Path | None,
    data: Any,
    findings: _Findings,
) -> Task | None:
    """Open the model and the data, and compare them with those of the run. None if that is not possible."""
    try:
        model, adapted = reopen_model(settings.model, model, adapted)
        data = settings.data if data is None else data
        if model is None or data is None:
            raise PprsError(f"the run does not record its {'model' if model is None else 'data'}")
        split = settings.split if isinstance(data, str | Path) else None
        task = load_task(model, data, split=split, labels=settings.labels, pixels=settings.pixels, adapted=adapted)
        digest = task.model.digest()
    except (PprsError, OSError, ImportError) as error:
        findings.not_checked.append(f"model, images and true labels: {describe_error(error)}")
        return None
    if settings.model_digest is None:
        findings.not_checked.append("model: its digest is not recorded")
    elif digest != settings.model_digest:
        findings.mismatch(
            None, f"this is not the model of the run: its digest is {digest}, not {settings.model_digest}"
        )
    else:
        findings.checked.append("model: the digest of its weights")
        findings.same_model = True
    return task


def _check_binding(binding: Binding | None, task: Task, settings: RunSettings, findings: _Findings) -> None:
    """Compare what the scores depend on besides the weights. Differences do not prove other votes; a replay does."""
    if binding is None:
        findings.not_checked.append("model: its source code, preprocessing and versions are not recorded")
        return
    parts = describe_parts(binding.identity, identify(task.model, engine=settings.engine or "torch"))
    if parts:
        findings.not_checked.append(f"model: it may give other votes, since parts of it differ ({'; '.join(parts)})")
    else:
        findings.checked.append("model: its source code, preprocessing and versions")


def _check_images(
    task: Task, settings: RunSettings, stored: Sequence[Row], findings: _Findings, reporter: Progress
) -> None:
    """Compare the images and labels with those that were certified."""
    bound, labelled, unbound, unread = 0, 0, 0, list[int]()
    for row in stored:
        reporter.advance(1)
        try:
            example = task.data[row.idx]
            image = prepare_image(check_image(example.image), settings.noise, settings.arithmetic_option)
        except IndexError:
            findings.mismatch(row.idx, f"the data has no image {row.idx}")
            continue
        except (PprsError, OSError):
            unread.append(row.idx)
            continue
        labelled += 1
        if example.label != row.label:
            findings.mismatch(row.idx, f"label is {row.label}, and that of the data is {example.label}")
        if row.image_digest is None:
            unbound += settings.arithmetic == "real"  # in exact arithmetic, the check of counts has found it
            continue
        bound += 1
        for text in _compare_image(row, image):
            findings.mismatch(row.idx, text)
    for count, text in ((bound, "images: their digests"), (labelled, "true labels")):
        findings.checked += [f"{text} ({count_rows(count)})"] if count else []
    if unread:
        findings.not_checked.append(
            f"the images of {count_rows(len(unread))} cannot be read, the first of them image {unread[0]}"
        )
    if unbound:
        _check_fingerprint(task, settings, unbound, findings)


def _check_fingerprint(task: Task, settings: RunSettings, unbound: int, findings: _Findings) -> None:
    """Check the data as a whole, for rows of earlier versions."""
    findings.not_checked.append(f"images: {count_rows(unbound)} of an earlier version are not bound to their images")
    if settings.data_fingerprint is None:
        return
    if task.data.fingerprint() == settings.data_fingerprint:
        findings.checked.append("data: the fingerprint of labels and three images")
    else:
        findings.mismatch(
            None, "this is not the data of the run: labels or images differ from those of its fingerprint"
        )


def _compare_image(row: Row, image: torch.Tensor | QuantisedImage) -> list[str]:
    if digest_image(image) != row.image_digest:
        return ["the image is not the one that was certified: its digest differs"]
    shape, found = tuple(image.shape), []
    if row.shape is not None and shape != row.shape:
        found.append(f"shape is {row.shape}, and the image has {shape}")
    levels = image.levels if isinstance(image, QuantisedImage) else None
    if row.levels != levels:
        found.append(f"levels are {row.levels}, and the image has {levels}")
    moved = image.quantisation.moved if isinstance(image, QuantisedImage) else 0.0
    if (row.moved or 0.0) < moved * (1 - BELOW):  # this is taken off the radius, and the image decides it
        found.append(f"moved is {row.moved}, and rounding moves the image by {moved}")
    return found


def _replay(task: Task, settings: RunSettings, chosen: Sequence[Row], findings: _Findings, reporter: Progress) -> None:
    """Draw the votes of rows again, on the recorded engine, and compare them."""
    try:
        classifier, trials = _start_classifier(task, settings, reporter)
    except PprsError as error:
        findings.not_checked.append(f"votes: {error}")
        return
    try:
        check_network(classifier, trials, reporter)  # as the run did. It also decides which votes are near ties.
    except ConfigurationError as error:
        findings.mismatch(None, error.message)
        return
    total = sum((settings.n0 or 0) + row.samples for row in chosen)
    with stage(reporter, "replay", total, "samples"):
        for row in chosen:
            try:
                differences = _replay_row(classifier, task, settings, row, reporter)
            except PprsError as error:
                findings.not_checked.append(f"votes of row {row.idx}: {error}")
                continue
            findings.replayed.append(row.idx)
            for text in differences:
                findings.mismatch(row.idx, text)
    if findings.replayed:
        findings.checked.append(f"votes: drawn again and compared ({count_rows(len(findings.replayed))})")


def _start_classifier(task: Task, settings: RunSettings, reporter: Progress) -> tuple[SmoothedClassifier, torch.Tensor]:
    """Return the classifier of the run, and noisy images on which to check it."""
    noise, partition, seed, arithmetic = settings.noise, settings.partition, settings.seed, settings.arithmetic_option
    if seed is None or settings.engine is None:
        raise PprsError("the seed or the engine of these rows is not recorded")
    device = Local().check_device(settings.device)
    trials = task.trial_images(noise, partition, seed, arithmetic)
    choice = choose_engine(
        task.model, task.network_inputs(trials), engine=settings.engine, device=device, autocast=settings.autocast,
        channels_last=settings.channels_last, message=reporter.message,
    )  # fmt: skip
    classifier = SmoothedClassifier(
        task.base_classifier(choice.model.module), task.num_classes, noise, partition, seed=seed, device=device,
        arithmetic=arithmetic,
    )  # fmt: skip
    return classifier, trials


def _replay_row(
    classifier: SmoothedClassifier, task: Task, settings: RunSettings, row: Row, reporter: Progress
) -> list[str]:
    """Return in what the row differs from one that is computed again."""
    source, sampling = classifier.votes, settings.sampling
    if row.idx >= len(task.data):
        raise PprsError(f"the data has no image {row.idx}")
    example = task.data[row.idx]
    with error_context(example.image, row.idx, classifier.partition):
        image = source.quantise(check_image(example.image, source.device))
        selected = int(count_votes(source, image, sampling.n0, row.idx, SELECT, reporter.advance).counts.argmax())
        quantisation = image.quantisation if isinstance(image, QuantisedImage) else None
        evidence = Evidence(sampling, settings.noise, image.numel(), source.num_classes, selected, quantisation)
        counts: Counts = np.zeros(source.num_classes, np.int64)
        segments, reason = None, None
        for votes in source.votes(image, range(row.samples), row.idx, ESTIMATE):
            counts = counts + votes.counts
            segments = None if votes.segments is None else (segments or 0) + votes.segments
            evidence.add(counts.tolist())
            reason = reason or evidence.stopped
            reporter.advance(int(votes.counts.sum()))
    if selected != row.selected:
        return [f"selected is {row.selected}, and drawing again selects {selected}"]
    if tuple(counts.tolist()) != row.counts:
        return [f"counts are {list(row.counts)}, and drawing again gives {counts.tolist()}"]
    drawn = replace(
        row, stopped=reason or PARTIAL, p_lower=evidence.p_lower, p_upper=evidence.p_upper,
        mean_segments=None if segments is None else segments / max(row.samples, 1),
    )  # fmt: skip
    return [
        f"{name} is {getattr(row, name)}, and drawing again gives {getattr(drawn, name)}"
        for name in ("stopped", "p_lower", "p_upper", "mean_segments")
        if not _equal(getattr(row, name), getattr(drawn, name))
    ]


def _equal(stored: Any, computed: Any) -> bool:
    if isinstance(stored, float | int) and isinstance(computed, float | int):
        return abs(stored - computed) <= 1e-9 * max(1.0, abs(computed))
    return bool(stored == computed)


__all__ = ["Verification", "verify_run"]
