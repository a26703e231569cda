"""`verify_run`: open the model and the data of a run, and check everything that can be checked."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from pprs.domain import domain_of_any
from pprs.engine import check_engine
from pprs.errors import DamagedError, PprsError, describe_error
from pprs.model import Model
from pprs.progress import Progress, as_progress, rename_inputs, stage
from pprs.runs import Replay, Row, Run, RunSettings, check_rows, choose_rows, open_run
from pprs.space import check_pixels
from pprs.task import Task, load_task, reopen_model
from pprs.verification.findings import Findings, Verification
from pprs.verification.images import check_binding, check_images, check_subject
from pprs.verification.replay import replay as replay_votes


def verify_run(
    run: Run | str | Path,
    *,
    model: str | Model | torch.nn.Module | None = None,
    adapted: str | Path | None = None,
    data: Any = None,
    classes: str | Path | None = None,
    denoiser: str | Path | None = None,
    replay: int = 0,
    rows: Iterable[int] | None = None,
    seed: int | None = None,
    progress: bool | Progress = True,
) -> Verification:
    """Check that a run is what it claims to be.

    Every bound, radius and prediction is computed again from the counts and settings. If the data can be opened, the
    images and labels are compared with those that were certified. With `replay`, votes are drawn again from the seed
    and compared one by one. A model or data that the run names and that cannot be opened is no error: the result says
    what was not checked.

    Args:
        run: The run, its folder or url, or rows exported from it.
        model: The model, as for `certify_dataset`. By default the one that the run names.
        adapted: The file of its adaptation, if it has one. By default the one that the run names.
        data: The data, as for `certify_dataset`. By default those that the run names.
        classes: File with the class names of the data, if the run was made with one.
        denoiser: The file of the partition's denoiser. By default the one that the run names, which is only opened for
            a replay.
        replay: Number of rows, chosen at random, whose votes are drawn again.
        rows: Indices of images whose votes are drawn again in any case.
        seed: The seed of an earlier choice of rows, to repeat it. By default nobody can know the choice in advance.
        progress: True shows a progress bar, as for `certify_dataset`.

    Returns:
        What was checked, what was not, and what does not follow.

    Raises:
        ConfigurationError: If there is no run, if it has no row of an index in `rows`, or if `denoiser` is another one
            than the run's.
        PprsError: If `model` or `data` is given and cannot be opened.

    Example:
        ```python
        result = verify_run("runs/slic", replay=10)
        print(result)
        assert result.ok
        ```
    """
    opened = run if isinstance(run, Run) else open_run(run)
    stored, findings = opened.rows(), Findings()
    domain = domain_of_any(row.shape for row in stored)
    reporter = rename_inputs(as_progress(progress), domain)
    chosen = choose_rows((row.idx for row in stored), replay, rows, seed)
    _check_counts(opened, stored, findings)
    if not _check_settings(opened.settings, findings):
        return findings.to_verification(opened.path, len(stored), chosen, domain)
    settings = opened.settings if denoiser is None else opened.settings.find_denoiser(str(denoiser))
    task = _Given(model, adapted, data, classes).open_task(settings, findings)
    same_model = task is not None and _check_model(task, settings, findings)
    if task is not None:
        check_subject(task, settings, findings)
        check_binding(opened.binding, task, settings, findings)
        with stage(reporter, "images", len(stored), "images"):
            check_images(task, opened, stored, findings, reporter)
    if not chosen.indices:
        findings.not_checked.append("votes: no row was replayed. Give `replay` to draw some again")
    elif task is None or not same_model:
        findings.not_checked.append("votes: replaying needs the data and the model of the run")
    else:
        # The task of the run, so that the model is checked on the same noisy images.
        present = [row.idx for row in stored if row.idx < len(task.data)]
        wanted = [row for row in stored if row.idx in set(chosen.indices)]
        replay_votes(replace(task, images=present), settings, opened.binding, wanted, findings, reporter)
        _describe_choice(chosen, findings)
    return findings.to_verification(opened.path, len(stored), chosen, domain)


def _describe_choice(chosen: Replay, findings: Findings) -> None:
    if findings.replayed and chosen.seed is not None:
        findings.checked.append(f"which rows: {chosen}")


def _check_counts(run: Run, stored: Sequence[Row], findings: Findings) -> None:
    check = check_rows(stored, run.settings)
    findings.mismatches += check.mismatches
    findings.count(check.rows, "bounds, radii and predictions from counts and settings")
    findings.not_checked += [f"bounds and radii: {reason}" for reason in check.list_unchecked()]
    if failed := len(run.failures()):
        findings.not_checked.append(f"{failed} images that failed, which count as not certified")


def _check_settings(settings: RunSettings, findings: Findings) -> bool:
    """Check that the settings that are recorded mean something, and return whether they do."""
    checks: dict[str, Callable[[], object]] = {
        "noise": lambda: None if settings.noise_text is None else settings.noise,
        "partition": lambda: None if settings.partition_text is None else settings.partition,
        "engine": lambda: _check_engine(settings.engine),
        "device": lambda: torch.device(settings.device),
        "pixels": lambda: check_pixels(settings.pixels),
    }
    before = len(findings.mismatches)
    for name, check in checks.items():
        try:
            check()
        except (PprsError, RuntimeError) as error:
            if isinstance(error, DamagedError):  # names the setting
                findings.mismatch(None, error.message)
                continue
            reason = error.message if isinstance(error, PprsError) else str(error).splitlines()[0]
            findings.mismatch(None, f"the setting {name} is not valid ({reason})")
    return len(findings.mismatches) == before


def _check_engine(engine: str | None) -> None:
    if engine == "auto":
        raise PprsError("a run records the engine that was chosen")
    check_engine(engine or "auto")


@dataclass(frozen=True)
class _Given:
    """The model and the data that the caller gives, in the place of those that the run names."""

    model: str | Model | torch.nn.Module | None
    adapted: str | Path | None
    data: Any
    classes: str | Path | None

    def open_task(self, settings: RunSettings, findings: Findings) -> Task | None:
        """Open the model and the data. None if those that the run names cannot be opened."""
        try:
            return self._load(settings)
        except (PprsError, OSError, ImportError) as error:
            if self.model is not None and self.data is not None and isinstance(error, PprsError):
                # Both are at hand. If they can be opened, it is the settings of the run that do not fit them.
                self._load(RunSettings(model=settings.model))
                findings.mismatch(
                    None, f"its labels, split or pixels do not fit the model and the data ({error.message})"
                )
                return None
            findings.not_checked.append(f"model, images and true labels: {describe_error(error)}")
            return None

    def _load(self, settings: RunSettings) -> Task:
        model, adapted = reopen_model(settings.model, self.model, self.adapted)
        data = settings.data if self.data is None else self.data
        if model is None or data is None:
            raise PprsError(f"the run does not record its {'model' if model is None else 'data'}")
        split = settings.split if isinstance(data, str | Path) else None
        task = load_task(
            model, data, split=split, classes=self.classes, labels=settings.labels, pixels=settings.pixels,
            adapted=adapted,
        )  # fmt: skip
        task.model.digest()
        return task


def _check_model(task: Task, settings: RunSettings, findings: Findings) -> bool:
    """Compare the digest of the model, and return whether it is that of the run."""
    digest = task.model.digest()
    if settings.model_digest is None:
        findings.not_checked.append("model: its digest is not recorded")
    elif digest != settings.model_digest:
        findings.mismatch(
            None, f"this is not the model of the run: its digest is {digest}, not {settings.model_digest}"
        )
    else:
        findings.checked.append("model: the digest of its weights")
    return digest == settings.model_digest


__all__ = ["verify_run"]
