"""`pprs.tune`: load a model and its data, search for a partition, write the result."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from pprs._support.files import atomic_write
from pprs._support.threads import keep_memory
from pprs.data import ImageSet, Selection
from pprs.errors import ConfigurationError, PprsError, suggest
from pprs.inputs.space import NETWORK, state_pixels
from pprs.model import Model
from pprs.model.forms import AnyModel, open_model
from pprs.noise import AnyNoise, Noise, as_noise
from pprs.partition import Denoiser, Partition, parse_partition
from pprs.progress import Progress, as_progress, rename_inputs, stage
from pprs.runners import Local, fit_in_memory, parse_time
from pprs.runs.engine import EngineChoice, EngineOptions, check_engine
from pprs.runs.session import check_network, count_adapted_images, open_session, warn_of_strong_noise
from pprs.runs.subject import Subject, load_subject, open_data
from pprs.smoothing.arithmetic import Arithmetic
from pprs.smoothing.voting import BaseClassifier, Scorer
from pprs.tuning.candidates import ADAPTED, ALL_FAMILIES, DENOISER, FAMILIES
from pprs.tuning.describe import draw_chart, shorten
from pprs.tuning.measurement import MeasurementCache, recorded_engine
from pprs.tuning.result import Tuned
from pprs.tuning.search import AdaptedNetwork, SearchStep, check_number_of_images, search_partitions

LIMIT = 1000  # images by default
SAMPLES = 10**6  # large enough that timing the engines pays off
MEASUREMENTS, RESULT, CHART = "tried.jsonl", "tune.json", "tune.png"  # file names in the folder of a search


def tune(
    model: AnyModel,
    data: Any,
    *,
    noise: AnyNoise,
    budget: str = "5m",
    families: str | Sequence[str] | None = None,
    images: Iterable[int] | Selection | None = None,
    out: str | Path | None = None,
    seed: int = 0,
    progress: bool | Progress = True,
    split: str | None = None,
    classes: str | Path | None = None,
    labels: str | Sequence[str] | None = None,
    engine: str = "auto",
    device: str = "cpu",
    pixels: str = NETWORK,
    adapted: str | Path | None = None,
    denoiser: str | Path | Denoiser | None = None,
) -> Tuned:
    """Search for the partition that makes the certificates of a classifier largest, if any does.

    With `adapted`, the adapted classifier takes part in the search beside the classifier as it is.

    The search runs on half of the images. The best partition of each family is then certified on the other half. Images
    without labels count with the label that the classifier assigns to the clean image.

        tuned = pprs.tune(model, "builtin:mnist5k", noise=pprs.Gaussian(0.25), split="train", out="tune")
        run = pprs.certify_dataset(model, "builtin:mnist5k", noise=pprs.Gaussian(0.25), partition=tuned.best.partition)

    Args:
        model: The base classifier, as for `certify_dataset`.
        data: The images, as for `certify_dataset`.
        noise: The smoothing noise, or its text.
        budget: How long to search, such as "90s", "5m" or "1h".
        families: What to try: some of "none", "blur", "filter", "superpixels", "denoiser" and "adapted", as a list or
            as text with commas. By default the first four, "denoiser" if `denoiser` is given, and "adapted" if
            `adapted` is given.
        images: Indices of the images to use, at least 16; the first 1000 by default.
        out: A folder for the measurements, the result and a chart. The same call again resumes the search, even after
            Ctrl-C or a crash. A folder that holds a search with other settings is refused.
        seed: Random seed.
        progress: Whether to show progress, or an object that receives it.
        split: As for `certify_dataset`.
        classes: As for `certify_dataset`.
        labels: As for `certify_dataset`.
        engine: As for `certify_dataset`.
        device: The torch device, such as "cpu" or "cuda".
        pixels: As for `certify_dataset`. The files should be of similar size, since the candidates are made for the
            size of one of them.
        adapted: File of an adaptation of the classifier. The family "adapted" is the adapted classifier with any
            partition. The other families are the classifier as it is.
        denoiser: File of a denoiser, which the family "denoiser" tries alone and with superpixels. Options may follow
            the file, as in "D.onnx,kind=epsilon".

    Returns:
        The result of the search. `tuned.best.partition` is the text of the best partition, and `tuned.best.adapted`
        says whether to use it with `adapted`.

    Raises:
        ConfigurationError: If an argument is invalid, if `out` holds a search with other settings, or if the network is
            not a function of one image.
    """
    # Arguments are checked before anything is loaded.
    noise = as_noise(noise)
    seconds, chosen = parse_time(budget, "a search"), _check_families(families, denoiser, adapted)
    file_denoiser = None if denoiser is None else _parse_denoiser(denoiser)
    check_engine(engine)
    device = Local().check_device(device)
    reporter, folder = as_progress(progress), None if out is None else Path(out)
    selection = Selection(limit=LIMIT) if images is None else images
    opened = open_data(data, split=split, classes=classes)
    subject, adapted_subject = _load(open_model(model)[0], opened, labels, selection, pixels, adapted)
    reporter = rename_inputs(reporter, subject.domain)
    check_number_of_images(len(subject.images))
    warn_of_strong_noise(noise.sigma, subject.sample.image, reporter)
    _report_adaptation(adapted_subject or subject, noise, reporter)
    if file_denoiser is not None:
        file_denoiser = _resolve_denoiser(file_denoiser, noise, subject)
    subject = fit_in_memory(subject, Local(), EngineOptions(device=device))
    keep_memory()
    opening = _Opening(subject.trial_images(noise, None, seed), device, reporter)
    recorded = "auto" if folder is None else recorded_engine(folder / MEASUREMENTS)
    network, choice = opening.open(subject, recorded if engine == "auto" else engine)
    adapted_network = opening.open_adapted(adapted_subject, choice.engine, file_denoiser)
    settings = _collect_settings(subject, selection, noise, seed, budget, chosen, choice)
    settings |= _describe_files(adapted_subject, file_denoiser)
    cache = MeasurementCache() if folder is None else MeasurementCache(folder / MEASUREMENTS, settings)
    hint = "" if folder is None else "; Ctrl-C keeps the measurements"
    reporter.message(f"searching on {len(subject.images) // 2} images under {noise} for about {budget}{hint}")
    reporter.message(state_pixels(pixels))
    steps = search_partitions(
        network, subject.num_classes, noise, subject.data, subject.images, seconds=seconds, families=chosen, seed=seed,
        device=device, cache=cache, denoiser=file_denoiser, adapted=adapted_network,
    )  # fmt: skip
    tuned = _run_search(steps, seconds, reporter)
    if folder is not None:
        _write_result(tuned, noise, folder)
    return tuned


def _load(
    model: Model,
    data: ImageSet,
    labels: str | Sequence[str] | None,
    images: Iterable[int] | Selection,
    pixels: str,
    adapted: str | Path | None,
) -> tuple[Subject, Subject | None]:
    """Return the classifier with the images, and its adaptation with the same images, if it has one."""
    subject = load_subject(model, data, labels=labels, images=images, pixels=pixels)
    if adapted is None:
        return subject, None
    return subject, load_subject(model, data, labels=labels, images=subject.images, pixels=pixels, adapted=adapted)


@dataclass(frozen=True)
class _Opening:
    """Puts networks on an engine, and checks them on the same trial inputs."""

    trials: torch.Tensor
    device: str
    progress: Progress

    def open(self, subject: Subject, engine: str) -> tuple[BaseClassifier, EngineChoice]:
        """Return the network of a subject, and the engine that was chosen for it."""
        session, choice = open_session(
            subject, self.trials, options=EngineOptions(engine, self.device), passes=SAMPLES,
            message=self.progress.message,
        )  # fmt: skip
        scorer = Scorer(session.network, subject.num_classes, device=self.device)
        check_network(scorer, self.trials, self.progress)
        return session.network, choice

    def open_adapted(self, subject: Subject | None, engine: str, denoiser: Denoiser | None) -> AdaptedNetwork | None:
        """Return an adapted network, with the partition that it was adapted to if that can be used here."""
        if subject is None:
            return None
        adapted_to = _find_adapted_partition(subject, denoiser, self.trials, self.progress)
        return AdaptedNetwork(self.open(subject, engine)[0], adapted_to)


def _check_families(
    families: str | Sequence[str] | None, denoiser: str | Path | Denoiser | None, adapted: str | Path | None
) -> list[str]:
    """Return the families named by a list or by text with commas, by default all that are possible."""
    given = {DENOISER: denoiser is not None, ADAPTED: adapted is not None}
    if families is None:
        return [*FAMILIES, *(family for family, is_given in given.items() if is_given)]
    chosen = [family.strip() for family in families.split(",")] if isinstance(families, str) else list(families)
    for family in chosen:
        if family not in ALL_FAMILIES:
            raise ConfigurationError(
                f'unknown family of partitions "{family}". {suggest(family, ALL_FAMILIES)}', parameter="families"
            )
    if not chosen:
        raise ConfigurationError(f"`families` is empty. Choose from: {', '.join(ALL_FAMILIES)}.", parameter="families")
    for family, is_given in given.items():
        if is_given and family not in chosen:
            raise ConfigurationError(
                f"`{family}` is given, but `families` leaves it out. Add {family} to `families`, or leave out "
                f"`{family}`.",
                parameter="families",
            )
        if family in chosen and not is_given:
            raise ConfigurationError(f"the family {family} needs a file: give `{family}`", parameter=family)
    return chosen


def _parse_denoiser(denoiser: str | Path | Denoiser) -> Denoiser:
    """Return the denoiser in a file, with the options that follow the file's name."""
    if isinstance(denoiser, Denoiser):
        return denoiser
    text = str(denoiser).removeprefix(f"{Denoiser.name}:")
    if Path(text).exists():
        return Denoiser(text)
    try:
        parsed = parse_partition(f"{Denoiser.name}:{text}")
    except PprsError as error:
        raise ConfigurationError(error.message, parameter="denoiser") from error
    if not isinstance(parsed, Denoiser):
        raise ConfigurationError(
            f'`denoiser` must be one file, such as D.onnx, not "{text}". The search combines it with superpixels.',
            parameter="denoiser",
        )
    return parsed


def _resolve_denoiser(denoiser: Denoiser, noise: Noise, subject: Subject) -> Denoiser:
    """Return the denoiser with all options, after opening its file."""
    try:
        return denoiser.resolve(noise.sigma, tuple(subject.sample.image.shape))
    except PprsError as error:
        raise ConfigurationError(error.message, parameter="denoiser") from error


def _report_adaptation(subject: Subject, noise: Noise, progress: Progress) -> None:
    """Warn if an adapted model is used with other noise, or if the images favour it."""
    for text in subject.list_mismatches(noise, varies=True):
        progress.message(f"warning: {text}")
    if used := count_adapted_images(subject, progress):
        progress.message(
            f"warning: the classifier was adapted with {used} of these {len(subject.images)} images, on which it does "
            "better than on others. Give images that were not used."
        )


def _find_adapted_partition(
    subject: Subject, denoiser: Denoiser | None, trials: torch.Tensor, progress: Progress
) -> Partition | None:
    """Return the partition that the model was adapted to, None if it is plain smoothing or cannot be used here."""
    assert subject.model.adaptation is not None
    partition = parse_partition(subject.model.adaptation.partition)
    if partition is None:
        return None
    if denoiser is not None and denoiser.digest is not None:
        partition = partition.with_file(denoiser.file, denoiser.digest)  # its file may have moved
    try:
        partition.run(trials[:1])
    except PprsError as error:
        progress.message(
            f"warning: the classifier was adapted to {partition.short}, which is not tried, since it fails: "
            f"{error.message}"
        )
        return None
    return partition


def _collect_settings(
    subject: Subject,
    images: Iterable[int] | Selection,
    noise: Noise,
    seed: int,
    budget: str,
    families: Sequence[str],
    choice: EngineChoice,
) -> dict[str, Any]:
    """Return the settings that a search must share with the one that it resumes."""
    settings = {
        "model": subject.model.digest(),
        "data": subject.data.fingerprint(),
        "images": _describe_images(images, subject.images),
        "noise": str(noise),
        "seed": seed,
        "budget": budget,
        "families": list(families),
        "engine": choice.engine,
        "arithmetic": Arithmetic.of("auto", noise).kind,
    }
    # Earlier searches do not name the pixels, and can still be resumed.
    return settings if subject.pixels == NETWORK else {**settings, "pixels": subject.pixels}


def _describe_files(adapted: Subject | None, denoiser: Denoiser | None) -> dict[str, str]:
    """Return the settings of a search that follow from its files."""
    found = {} if adapted is None else {ADAPTED: adapted.model.digest()}
    return found if denoiser is None else {**found, DENOISER: str(denoiser.without_paths())}


def _describe_images(images: Iterable[int] | Selection, indices: Sequence[int]) -> Any:
    if isinstance(images, Selection):
        return [images.start, images.stride, images.limit]
    digest = hashlib.sha256(repr(list(indices)).encode()).hexdigest()[:16]
    return {"count": len(indices), "digest": digest}


def _run_search(steps: Iterator[SearchStep | Tuned], seconds: float, reporter: Progress) -> Tuned:
    """Run a search to its end, reporting the time spent and the best partition so far."""
    spent, best = 0.0, (0, 0.0, "none")
    with stage(reporter, "tune", seconds, "s"):
        for step in steps:
            if isinstance(step, Tuned):
                return step
            trial = step.trial
            if trial is not None and (trial.round, trial.score) > best[:2]:
                best = (trial.round, trial.score, shorten(trial.partition))
            reporter.advance((step.spent - spent) * seconds, f"round {best[0]}, best {best[1]:.3f}: {best[2]}")
            spent = step.spent
    raise AssertionError("a search ends with its result")


def _write_result(tuned: Tuned, noise: Noise, folder: Path) -> None:
    """Write the numbers and the chart."""
    tuned.write_json(folder / RESULT)
    with atomic_write(folder / CHART) as part:
        part.write_bytes(draw_chart(tuned.trials, tuned.finals, noise))
