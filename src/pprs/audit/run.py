"""`pprs.audit_run`: open the model and the data of a run, attack its certified images, write the result."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from pprs._support.threads import keep_memory
from pprs.audit.auditor import Auditor
from pprs.audit.folder import AuditResults
from pprs.audit.options import AuditOptions
from pprs.audit.result import Audit
from pprs.data import check_indices
from pprs.errors import ConfigurationError, PprsError, check_integer
from pprs.inputs.domain import domain_of_any
from pprs.model.forms import AnyModel
from pprs.progress import Progress, as_progress, rename_inputs, stage
from pprs.runners import Work, reopen_answer
from pprs.runs import Run, open_run
from pprs.runs.registry import import_place
from pprs.runs.subject import Subject, reopen_model

LIMIT = 10  # images by default


def audit_run(
    run: Run | str | Path,
    *,
    images: Iterable[int] | None = None,
    limit: int | None = None,
    model: AnyModel | None = None,
    adapted: str | Path | None = None,
    data: Any = None,
    steps: int = 20,
    samples: int | None = None,
    seconds: float = 60.0,
    seed: int = 0,
    out: str | Path | None = None,
    progress: bool | Progress = True,
    classes: str | Path | None = None,
) -> Audit:
    """Attack the certified images of a run, to see how tight their radii are.

    For each image, the audit searches for the smallest change that alters the label of the smoothed classifier. Changes
    are whole grey levels, so that the changed image is a real file. Under noise, whether the label is another is tested
    with fresh noise at the run's alpha, and inside the certified radius nothing may be found, except by chance. Where
    all votes are counted, a change that is found is certain, and inside the certificate there is none.

    Args:
        run: The run, its folder or its url.
        images: Indices of the images to attack. By default, the first certified ones.
        limit: The number of images, 10 by default.
        model: The model that was certified, if it is not where the run recorded it.
        adapted: The file of its adaptation, if it has one and it is not where the run recorded it.
        data: The data that was certified, if it is not where the run recorded it.
        steps: Gradient steps at each norm, or in total where votes are counted.
        samples: Fresh noisy copies of each test, 1000 by default. Only for runs under noise.
        seconds: Time limit for each image.
        seed: Random seed of the audit. Its noise differs from that of the run in any case.
        out: Folder for the result, a plot, a gallery and the changed images. Repeating the call resumes the audit, also
            after Ctrl-C.
        progress: Whether to show progress, or an object that receives it.
        classes: File with the class names of the data, as for `certify_dataset`.

    Returns:
        The audit. `passed` is false if more was found inside certificates than chance explains.

    Raises:
        ConfigurationError: If an argument is invalid, if the run has no certified images, if the model or an image is
            not the one that was certified, or if `out` holds another audit.
        PprsError: If the model or the data cannot be opened.
    """
    seed = check_integer(seed, "seed")
    opened = run if isinstance(run, Run) else open_run(run)
    kind = find_auditor(opened)
    options = AuditOptions.of(steps, samples, seconds, usual=kind.samples)
    rows = _choose_rows(opened, images, limit)
    for obstacle in kind.list_obstacles(rows):
        raise ConfigurationError(obstacle, parameter="run")
    reporter = rename_inputs(as_progress(progress), domain_of_any(row.shape for row in rows))
    attempts = _count_attempts(opened)
    subject = _load(opened, rows, model, adapted, data, classes)
    auditor = kind(_reopen(opened, subject, attempts, seed, reporter), seed, reporter)
    results = AuditResults(None if out is None else Path(out), opened.settings, auditor, options, attempts)
    done = {image.idx for image in results.images}
    todo = [row for row in rows if row.idx not in done]
    if len(todo) < len(rows):
        reporter.message(f"resuming: {len(rows) - len(todo)} of {len(rows)} images are done in {out}")
    try:
        with stage(reporter, "audit", len(todo), "images"):
            for row in todo:
                image, changed = auditor.audit(row, options)
                results.add(image, changed)
                reporter.advance(1, str(image))
    finally:
        results.draw()
    return results.audit([row.idx for row in rows])


def find_auditor(run: Run) -> type[Auditor]:
    """Return what attacks the inputs of a run.

    Raises:
        ConfigurationError: If nothing does.
    """
    place = run.guarantee.auditor
    if place is None:
        raise ConfigurationError(
            f"{run.path} is {run.guarantee.noun}, and this needs a certification run or a run of counted votes. "
            "`pprs verify` checks runs of any kind.",
            parameter="run",
        )
    found: type[Auditor] = import_place(place)
    return found


def _choose_rows(run: Run, images: Iterable[int] | None, limit: int | None) -> list[Any]:
    """Return the rows to attack, about which something is certified."""
    if limit is not None:
        check_integer(limit, "limit", 1)
    certified = {row.idx: row for row in run.rows() if run.guarantee.tally(row) > 0}
    if not certified:
        raise ConfigurationError(f"{run.path} has no certified images, so there is nothing to audit")
    if images is None:
        return list(certified.values())[: limit or LIMIT]
    chosen = check_indices(images, max(certified) + 1)
    missing = [index for index in chosen if index not in certified]
    if missing:
        raise ConfigurationError(
            f"image {missing[0]} is not certified in {run.path}. The first certified images are "
            f"{', '.join(map(str, list(certified)[:10]))}.",
            parameter="images",
        )
    return [certified[index] for index in chosen][:limit]


def _count_attempts(run: Run) -> dict[int, int]:
    """Return for each image of a run how many images the run attempted up to it, in the order of their indices.

    A run with a target error attempts images in another order, and ends when its results are precise enough. Then all
    images count.
    """
    indices = sorted([*(row.idx for row in run.iter_rows()), *(failure.idx for failure in run.failures())])
    if run.fair_order() is not None:
        return dict.fromkeys(indices, len(indices))
    return {index: count for count, index in enumerate(indices, 1)}


def _reopen(run: Run, subject: Subject, attempted: Iterable[int], seed: int, progress: Progress) -> Work:
    """Open the network of a run as it was, and the inputs on which it was checked."""
    keep_memory()
    settings = replace(run.settings, engine=run.settings.engine or "auto")
    if settings.seed is None and run.guarantee.is_sampled:
        settings = replace(settings, seed=seed)
    present = [index for index in attempted if index < len(subject.data)]
    return reopen_answer(run.guarantee, replace(subject, images=present), settings, progress)


def _load(
    run: Run,
    rows: Sequence[Any],
    model: AnyModel | None,
    adapted: str | Path | None,
    data: Any,
    classes: str | Path | None,
) -> Subject:
    """Open the model and the data of a run, and check that the model is the one that was certified."""
    settings = run.settings
    net, overlay = reopen_model(settings.model, model, adapted)
    source = settings.data if data is None else data
    for name, value in (("model", net), ("data", source)):
        if value is None:
            raise ConfigurationError(f"the run does not record its {name}. Give it as `{name}`.", parameter=name)
    assert net is not None
    split = settings.split if isinstance(source, str | Path) else None
    try:
        subject = run.guarantee.load_again(
            settings, net, source, split=split, classes=classes, labels=settings.labels,
            images=[row.idx for row in rows], pixels=settings.pixels, adapted=overlay,
        )  # fmt: skip
    except PprsError as error:
        given = {"model": model, "data": data} | ({} if overlay is None else {"adapted": adapted})
        missing = " or ".join(f"`{name}`" for name, value in given.items() if value is None)
        if not missing:
            raise
        raise ConfigurationError(
            f"the model or the data of the run cannot be opened: {error.message} If they are elsewhere now, give "
            f"{missing}.",
            parameter=error.parameter or "model",
        ) from error
    if settings.model_digest not in (None, subject.model.digest()):
        raise ConfigurationError(
            f"{subject.model.source} is not the model that was certified: its weights differ. Give the one that was as "
            f"{'`model`' if overlay is None else '`model` and its adaptation as `adapted`'}.",
            parameter="model",
        )
    return subject
