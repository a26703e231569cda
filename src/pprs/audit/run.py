"""`pprs.audit_run`: open the model and the data of a run, attack its certified images, write the result."""

from __future__ import annotations

import hashlib
import io
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from pprs._support.files import atomic_write
from pprs._support.threads import keep_memory
from pprs.audit.image import AuditOptions, audit_image
from pprs.audit.levels import Ints, LevelImage
from pprs.audit.result import Audit, AuditedImage
from pprs.data import check_indices
from pprs.errors import ConfigurationError, PprsError, check_integer
from pprs.inputs.domain import domain_of_any
from pprs.model.forms import AnyModel
from pprs.model.onnx import OnnxNetwork
from pprs.noise import digest_image
from pprs.progress import Progress, as_progress, rename_inputs, stage
from pprs.runners import Local
from pprs.runs import Row, Run, RunSettings, open_run, require_radii
from pprs.runs.engine import EngineOptions
from pprs.runs.session import check_network, open_session
from pprs.runs.subject import Subject, load_subject, reopen_model
from pprs.smoothing.certificate import Certificate
from pprs.smoothing.classifier import SmoothedClassifier
from pprs.smoothing.voting import ATTACK, check_image, noisy_chunk

LIMIT = 10  # images by default
MIN_SAMPLES = 50  # with fewer, even unanimous votes may prove nothing
STARTS = 24  # other images from which a network without gradients may start
GALLERY_ROWS = 6
RESULT, CHARTS, GALLERY, FOUND = "audit.json", ("audit.png", "audit.svg"), "gallery.png", "found"


def audit_run(
    run: Run | str | Path,
    *,
    images: Iterable[int] | None = None,
    limit: int | None = None,
    model: AnyModel | None = None,
    adapted: str | Path | None = None,
    data: Any = None,
    steps: int = 20,
    samples: int = 1000,
    seconds: float = 60.0,
    seed: int = 0,
    out: str | Path | None = None,
    progress: bool | Progress = True,
    classes: str | Path | None = None,
) -> Audit:
    """Attack the certified images of a run, to see how tight their radii are.

    For each image, the audit searches for the smallest change that alters the label of the smoothed classifier. Changes
    are whole grey levels, so that the changed image is a real file. Whether the label is another is tested with fresh
    noise, at the run's alpha. Inside the certified radius nothing may be found, except by chance.

    Args:
        run: The run, its folder or its url.
        images: Indices of the images to attack. By default, the first certified ones.
        limit: The number of images, 10 by default.
        model: The model that was certified, if it is not where the run recorded it.
        adapted: The file of its adaptation, if it has one and it is not where the run recorded it.
        data: The data that was certified, if it is not where the run recorded it.
        steps: Gradient steps at each norm.
        samples: Fresh noisy copies of each test.
        seconds: Time limit for each image.
        seed: Random seed of the audit. Its noise differs from that of the run in any case.
        out: Folder for the result, a plot, a gallery and the changed images. Repeating the call resumes the audit, also
            after Ctrl-C.
        progress: Whether to show progress, or an object that receives it.
        classes: File with the class names of the data, as for `certify_dataset`.

    Returns:
        The audit. `passed` is false if more was found inside certified radii than chance explains.

    Raises:
        ConfigurationError: If an argument is invalid, if the run has no certified images, if the model or an image is
            not the one that was certified, or if `out` holds another audit.
        PprsError: If the model or the data cannot be opened.
    """
    options = _check_options(steps, samples, seconds)
    seed = check_integer(seed, "seed")
    opened = run if isinstance(run, Run) else open_run(run)
    require_radii(opened)
    rows = _choose_rows(opened, images, limit)
    reporter = rename_inputs(as_progress(progress), domain_of_any(row.shape for row in rows))
    attempts = _count_attempts(opened)
    audited = _Audited(opened.settings, rows, attempts, model, adapted, data, classes, seed, reporter)
    results = _Results(None if out is None else Path(out), audited, options, seed, attempts)
    done = {image.idx for image in results.images}
    todo = [row for row in rows if row.idx not in done]
    if len(todo) < len(rows):
        reporter.message(f"resuming: {len(rows) - len(todo)} of {len(rows)} images are done in {out}")
    try:
        with stage(reporter, "audit", len(todo), "images"):
            for row in todo:
                image, changed = audited.audit(row, options)
                results.add(image, changed)
                reporter.advance(1, _describe(image))
    finally:
        results.draw()
    return results.audit([row.idx for row in rows])


def _describe(image: AuditedImage) -> str:
    found = "nothing found" if image.found is None else f"found {image.found:.3f}"
    return f"image {image.idx}: certified {image.radius:.3f}, {found}"


def _check_options(steps: int, samples: int, seconds: float) -> AuditOptions:
    if not isinstance(seconds, int | float) or not 0 < seconds < float("inf"):
        raise ConfigurationError(f"`seconds` must be a positive number, not {seconds!r}", parameter="seconds")
    return AuditOptions(check_integer(steps, "steps", 1), check_integer(samples, "samples", MIN_SAMPLES), seconds)


def _choose_rows(run: Run, images: Iterable[int] | None, limit: int | None) -> list[Row]:
    """Return the certified rows to attack."""
    if limit is not None:
        check_integer(limit, "limit", 1)
    certified = {row.idx: row for row in run.rows() if row.prediction is not None}
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


class _Audited:
    """The classifier and the images of a run, opened again."""

    def __init__(
        self,
        settings: RunSettings,
        rows: Sequence[Row],
        attempted: Iterable[int],
        model: AnyModel | None,
        adapted: str | Path | None,
        data: Any,
        classes: str | Path | None,
        seed: int,
        progress: Progress,
    ) -> None:
        self.settings, self.rows = settings, rows
        self.subject = _load(settings, rows, model, adapted, data, classes)
        keep_memory()
        trials = self._make_trials(attempted, seed)
        options = EngineOptions(
            settings.engine or "auto", Local().check_device(settings.device), autocast=settings.autocast,
            channels_last=settings.channels_last,
        )  # fmt: skip
        session, choice = open_session(self.subject, trials, options=options, message=progress.message)
        module = self.subject.model.module
        is_onnx = any(isinstance(layer, OnnxNetwork) for layer in module.modules())
        has_weights = next(module.parameters(), None) is not None
        self._in_torch = choice.model.module is module and has_weights and not is_onnx
        self._network = self.subject.base_classifier(module)
        self.classifier = SmoothedClassifier(
            session.network, self.subject.num_classes, settings.noise, settings.partition,
            seed=seed, device=settings.device, arithmetic=settings.chosen_arithmetic, check=False,
        )  # fmt: skip
        check_network(self.classifier.votes, trials, progress)  # also decides which votes are near ties

    def _make_trials(self, attempted: Iterable[int], seed: int) -> torch.Tensor:
        """Return the noisy images on which the run checked its network, if it recorded its seed."""
        settings = self.settings
        subject = replace(self.subject, images=[index for index in attempted if index < len(self.subject.data)])
        own_seed = seed if settings.seed is None else settings.seed
        return subject.trial_images(settings.noise, settings.partition, own_seed, settings.chosen_arithmetic)

    def audit(self, row: Row, options: AuditOptions) -> tuple[AuditedImage, Ints | None]:
        """Attack one image."""
        image = self.read_image(row)
        certificate = restore_certificate(row, self.settings, tuple(image.shape))
        return audit_image(
            self.classifier, image, certificate, index=row.idx, label=row.label, options=options,
            network=self._network, starts=self._find_starts(image),
        )  # fmt: skip

    def read_image(self, row: Row) -> torch.Tensor:
        """Return an image, after checking that it is the one that was certified."""
        image = self.subject.data[row.idx].image
        votes = self.classifier.votes
        if row.image_digest not in (None, digest_image(votes.quantise(check_image(image)))):
            raise ConfigurationError(
                f"image {row.idx} is not the one that was certified: its content has changed since. Give the data that "
                "was certified as `data`.",
                parameter="data",
            )
        return image

    def _find_starts(self, image: torch.Tensor) -> list[torch.Tensor]:
        """Return changes towards other images of the same shape."""
        if self._in_torch:
            return []  # it has gradients
        starts = []
        for index in range(min(len(self.subject.data), STARTS)):
            other = self.subject.data[index].image
            if other.shape == image.shape and not torch.equal(other, image):
                starts.append(other.double() - image.double())
        return starts


def _load(
    settings: RunSettings,
    rows: Sequence[Row],
    model: AnyModel | None,
    adapted: str | Path | None,
    data: Any,
    classes: str | Path | None,
) -> Subject:
    """Open the model and the data of a run, and check that the model is the one that was certified."""
    net, overlay = reopen_model(settings.model, model, adapted)
    source = settings.data if data is None else data
    for name, value in (("model", net), ("data", source)):
        if value is None:
            raise ConfigurationError(f"the run does not record its {name}. Give it as `{name}`.", parameter=name)
    assert net is not None
    split = settings.split if isinstance(source, str | Path) else None
    try:
        subject = load_subject(
            net, source, split=split, classes=classes, labels=settings.labels, images=[row.idx for row in rows],
            pixels=settings.pixels, adapted=overlay,
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


def restore_certificate(row: Row, settings: RunSettings, shape: tuple[int, ...]) -> Certificate:
    """Return the certificate of a row."""
    sampling = settings.sampling
    shape = row.shape or shape
    partition = settings.partition
    if partition is not None:
        partition = partition.resolve(settings.noise.sigma, shape)
    return Certificate(
        prediction=row.prediction,
        radius=row.radius,
        p_lower=row.p_lower,
        counts=np.array(row.counts, np.int64),
        selected=row.selected,
        n0=sampling.n0,
        n=row.samples,
        alpha=sampling.alpha,
        shape=shape,
        noise=str(settings.noise),
        partition=str(partition or "none"),
        mean_segments=row.mean_segments,
        bound=sampling.bound,
        p_upper=row.p_upper,
        n_max=sampling.n,
        stop=sampling.stop,
        stopped=row.stopped,
        arithmetic=settings.arithmetic,
        levels=row.levels,
        moved=row.moved or 0.0,
        image_digest=row.image_digest,
    )


class _Results:
    """The images done so far, in memory and in a folder."""

    def __init__(
        self, folder: Path | None, audited: _Audited, options: AuditOptions, seed: int, attempts: Mapping[int, int]
    ) -> None:
        self.folder, self._audited, self._attempts = folder, audited, attempts
        names = audited.settings.class_names
        self._settings = {
            "run": _digest_run(audited.settings),
            "model": audited.settings.model,
            "data": audited.settings.data,
            "noise": audited.settings.noise_text,
            "partition": audited.settings.partition_text,
            "class_names": None if names is None else list(names),
            "options": asdict(options),
            "seed": seed,
        }
        self.images: list[AuditedImage] = []
        self._changed: dict[int, Ints] = {}
        if folder is not None and (folder / RESULT).is_file():
            self._restore(folder)

    def _restore(self, folder: Path) -> None:
        """Continue the audit in the folder, if it has the same settings."""
        previous = Audit.read_json(folder / RESULT)
        differing = [key for key, value in self._settings.items() if previous.settings.get(key) != value]
        if differing:
            raise ConfigurationError(
                f"{folder} holds another audit: it differs in {', '.join(differing)}. Give another `out`.",
                parameter="out",
            )
        for image in previous.images:
            path = folder / FOUND / f"{image.idx}.npy"
            if image.found is not None and not path.is_file():
                continue  # its changed image is lost, so the image is attacked again
            self.images.append(image)
            if image.found is not None:
                self._changed[image.idx] = _read_levels(path)

    def add(self, image: AuditedImage, changed: Ints | None) -> None:
        """Record the result of an image, its changed image first."""
        self.images = sorted([*self.images, image], key=lambda image: image.idx)
        if changed is not None:
            self._changed[image.idx] = changed
        if self.folder is None:
            return
        if changed is not None:
            self._write_changed(image.idx, changed, self.folder / FOUND)
        self.audit().write_json(self.folder / RESULT)

    def _write_changed(self, index: int, changed: Ints, folder: Path) -> None:
        from pprs.audit import figures  # matplotlib takes a second to import

        levels = self._level_image(index).levels
        with atomic_write(folder / f"{index}.png") as part:
            part.write_bytes(figures.encode_levels(changed, levels))
        buffer = io.BytesIO()
        np.save(buffer, changed.astype(np.uint8 if levels == 255 else np.uint16 if changed.ndim == 3 else np.int64))
        with atomic_write(folder / f"{index}.npy") as part:
            part.write_bytes(buffer.getvalue())

    def _level_image(self, index: int) -> LevelImage:
        return LevelImage.of(self._audited.subject.data[index].image, self._audited.settings.levels)

    def audit(self, indices: Sequence[int] | None = None) -> Audit:
        """Return the result for these images, or for all that are done."""
        images = [image for image in self.images if indices is None or image.idx in set(indices)]
        attempted = max((self._attempts.get(image.idx, len(self._attempts)) for image in images), default=0)
        return Audit(tuple(images), self._audited.settings.sampling.alpha, self._settings, attempted)

    def draw(self) -> None:
        """Draw the plot and the gallery of what is done."""
        if self.folder is None or not self.images:
            return
        from pprs.audit import figures  # matplotlib takes a second to import

        audit, names = self.audit(), self._audited.settings.class_names
        plot = figures.plot_audit(audit)
        for name in CHARTS:
            with atomic_write(self.folder / name) as part:
                part.write_bytes(figures.to_bytes(plot, name.rpartition(".")[2]))
        shown = [image for image in audit.images if image.found is not None]
        shown = sorted(shown, key=lambda image: not image.inside)[:GALLERY_ROWS]
        if shown:
            gallery = figures.plot_gallery([self._make_gallery_row(image) for image in shown], names)
            with atomic_write(self.folder / GALLERY) as part:
                part.write_bytes(figures.to_bytes(gallery, "png"))

    def _make_gallery_row(self, image: AuditedImage) -> Any:
        from pprs.audit import figures  # matplotlib takes a second to import

        votes = self._audited.classifier.votes
        levels = self._level_image(image.idx)
        clean, changed = levels.to_tensor(levels.k), levels.to_tensor(self._changed[image.idx])
        prepared = votes.quantise(check_image(clean, votes.device))
        noisy = noisy_chunk(prepared, votes.noise, votes.seed, image.idx, ATTACK)[:1].cpu()
        pair = torch.cat([noisy, noisy + (changed - clean)])
        partition = votes.resolve(tuple(clean.shape))
        averaged = None if partition is None else partition.run(pair)[0].numpy()
        return figures.GalleryRow(
            image, clean.numpy(), changed.numpy(), (pair[0].numpy(), pair[1].numpy()),
            None if averaged is None else (averaged[0], averaged[1]),
        )  # fmt: skip


def _digest_run(settings: RunSettings) -> str:
    """Return a digest of all settings of a run."""
    return hashlib.sha256(repr(sorted(settings.to_dict().items())).encode()).hexdigest()[:16]


def _read_levels(path: Path) -> Ints:
    try:
        return np.asarray(np.load(path, allow_pickle=False), np.int64)
    except (OSError, ValueError) as error:
        raise PprsError(f"{path} cannot be read ({error}). Delete it, or give another `out`.") from error
