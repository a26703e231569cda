"""`verify_run`: open the model and the data of a run, and check everything that can be checked."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from pprs.errors import DamagedError, PprsError, describe_error
from pprs.inputs.domain import domain_of_any
from pprs.inputs.space import check_pixels
from pprs.model.forms import AnyModel
from pprs.progress import Progress, as_progress, rename_inputs, stage
from pprs.runs import ExportedRun, Guarantee, Replay, Run, choose_rows, open_run
from pprs.runs.columns import quote_value
from pprs.runs.engine import check_engine
from pprs.runs.subject import Subject, reopen_model
from pprs.verification.findings import Findings, Verification
from pprs.verification.images import check_binding, check_images, check_subject
from pprs.verification.replay import replay as replay_rows

FEW = 20  # rows that say which kind of input a run has
# Settings of noise, as they are where there is none.
NOISELESS: dict[str, Any] = {
    "noise_text": None, "partition_text": None, "seed": None, "arithmetic": "real", "bit_depth": None,
    "signal_levels": None,
}  # fmt: skip


def verify_run(
    run: Run | str | Path,
    *,
    model: AnyModel | None = None,
    adapted: str | Path | None = None,
    data: Any = None,
    classes: str | Path | None = None,
    denoiser: str | Path | None = None,
    replay: int | None = None,
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
        replay: Number of inputs, chosen at random, that are answered again: their votes are drawn again or, if the
            claims are exact, they are certified again. By default none if votes were
            drawn, else all or those of `rows`.
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
    guarantee, findings = opened.guarantee, Findings()
    keys = opened.keys()
    if not keys and not opened.failures():
        raise PprsError(f"{opened.path} has no rows yet, so there is nothing to verify. Let it finish at least one.")
    domain = domain_of_any(getattr(row, "shape", None) for row in itertools.islice(opened.iter_rows(), FEW))
    reporter = rename_inputs(as_progress(progress), domain)
    if replay is None:  # an exact claim has no votes, and is only as good as the answer
        replay = 0 if guarantee.is_sampled or rows is not None else len(keys)
    chosen = choose_rows((key[0] for key in keys), replay, rows, seed)
    _check_rows(opened, findings)
    if not _check_settings(opened, findings):
        return findings.to_verification(opened.path, len(keys), chosen, domain)
    settings = opened.settings if denoiser is None else opened.settings.find_denoiser(str(denoiser))
    subject = _Given(guarantee, model, adapted, data, classes).open_subject(settings, findings)
    same_model = subject is not None and _check_model(subject, settings, findings)
    if subject is not None:
        check_subject(subject, settings, findings)
        check_binding(opened.binding, subject, settings, findings)
        with stage(reporter, "images", len(keys), "images"):
            check_images(subject, opened, settings, findings, reporter)
    _replay(opened, settings, subject if same_model else None, chosen, findings, reporter)
    return findings.to_verification(opened.path, len(keys), chosen, domain)


def _replay(
    run: Run, settings: Any, subject: Subject | None, chosen: Replay, findings: Findings, reporter: Progress
) -> None:
    """Answer the inputs of the chosen rows again with the subject of the run, if there is one."""
    what = run.guarantee.replayed.partition(":")[0]
    if not chosen.indices:
        findings.not_checked.append(f"{what}: no row was replayed. Give `replay` to draw some again")
        return
    if subject is None:
        findings.not_checked.append(f"{what}: replaying needs the data and the model of the run")
        return
    # All images of the run, so that the model is checked on the same noisy ones.
    keys = run.keys()
    present = sorted({key[0] for key in keys if key[0] < len(subject.data)})
    wanted = set(chosen.indices)
    passes = sum(run.guarantee.passes_of(row, settings) for row in run.iter_rows() if row.idx in wanted)
    again = (row for row in run.iter_rows() if row.idx in wanted)
    of_run = replace(subject, images=present)
    replay_rows(run.guarantee, of_run, settings, run.binding, again, passes, findings, reporter)
    if findings.replayed and chosen.seed is not None and len(chosen.indices) < chosen.total:
        findings.checked.append(f"which rows: {chosen}")


def _check_rows(run: Run, findings: Findings) -> None:
    guarantee = run.guarantee
    check = guarantee.check_rows(run.iter_rows(), run.settings)
    findings.mismatches += check.mismatches
    findings.count(check.rows, check.claims or guarantee.derived)
    what = "bounds and radii: " if check.claims is None else ""
    findings.not_checked += [f"{what}{reason}" for reason in check.list_unchecked()]
    if failed := len({failure.idx for failure in run.failures()}):
        plural = "1 image" if failed == 1 else f"{failed} images"
        findings.not_checked.append(f"{plural} that failed: {guarantee.unanswered}")


def _check_settings(run: Run, findings: Findings) -> bool:
    """Check that the settings that are recorded mean something, and return whether they do."""
    settings = run.settings
    checks: dict[str, Callable[[], object]] = {
        "noise": lambda: None if settings.noise_text is None else settings.noise,
        "partition": lambda: None if settings.partition_text is None else settings.partition,
        "arithmetic": lambda: settings.chosen_arithmetic,
        "engine": lambda: _check_engine(settings.engine),
        "device": lambda: torch.device(settings.device),
        "pixels": lambda: check_pixels(settings.pixels),
        "of the guarantee": lambda: run.guarantee.check_settings(settings),
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
    for name in _list_required(run):
        if getattr(settings, name) is None:
            findings.mismatch(None, f"the setting {name.removesuffix('_text')} is not recorded, as in every such run")
    for name, value in () if run.guarantee.is_sampled else NOISELESS.items():
        if getattr(settings, name) != value:
            stored = quote_value(getattr(settings, name))
            findings.mismatch(None, f"the setting {name.removesuffix('_text')} is {stored}, and there is no noise")
    return len(findings.mismatches) == before


def _list_required(run: Run) -> tuple[str, ...]:
    """Return the settings without which nobody could answer the inputs of a run again. Exported rows lack some."""
    # Files of earlier versions lack some too, and are not bound to their model.
    if isinstance(run, ExportedRun) or (run.guarantee.allows_gaps and run.binding is None):
        return ()
    drawn = ("noise_text", "partition_text", "seed") if run.guarantee.is_sampled else ()
    return ("model", "model_digest", "num_classes", "engine", *drawn)


def _check_engine(engine: str | None) -> None:
    if engine == "auto":
        raise PprsError("a run records the engine that was chosen")
    check_engine(engine or "auto")


@dataclass(frozen=True)
class _Given:
    """The model and the data that the caller gives, in the place of those that the run names."""

    guarantee: Guarantee[Any, Any]
    model: AnyModel | None
    adapted: str | Path | None
    data: Any
    classes: str | Path | None

    def open_subject(self, settings: Any, findings: Findings) -> Subject | None:
        """Open the model and the data. None if those that the run names cannot be opened."""
        try:
            return self._load(settings)
        except (PprsError, OSError, ImportError) as error:
            if self.model is not None and self.data is not None and isinstance(error, PprsError):
                # Both are at hand. If they can be opened, it is the settings of the run that do not fit them.
                self._load(type(settings)(model=settings.model))
                findings.mismatch(
                    None, f"its labels, split or pixels do not fit the model and the data ({error.message})"
                )
                return None
            findings.not_checked.append(f"model, images and true labels: {describe_error(error)}")
            return None

    def _load(self, settings: Any) -> Subject:
        model, adapted = reopen_model(settings.model, self.model, self.adapted)
        data = settings.data if self.data is None else self.data
        if model is None or data is None:
            raise PprsError(f"the run does not record its {'model' if model is None else 'data'}")
        split = settings.split if isinstance(data, str | Path) else None
        subject = self.guarantee.load_again(
            settings, model, data, split=split, classes=self.classes, labels=settings.labels, pixels=settings.pixels,
            adapted=adapted,
        )  # fmt: skip
        subject.model.digest()
        return subject


def _check_model(subject: Subject, settings: Any, findings: Findings) -> bool:
    """Compare the digest of the model, and return whether it is that of the run."""
    digest = subject.model.digest()
    if settings.model_digest is None:
        findings.not_checked.append("model: its digest is not recorded")
    elif digest != settings.model_digest:
        findings.mismatch(
            None, f"this is not the model of the run: its digest is {digest}, not {settings.model_digest}"
        )
    else:
        findings.checked.append("model: the digest of its weights")
    return bool(digest == settings.model_digest)


__all__ = ["verify_run"]
