"""The label sets of one image, by plain smoothing and with a partition, or from a calibration in a file."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import numpy.typing as npt

from pprs.app.cards import CardStyle, Number, TabAnswer, TabCard, Tile, Words, render_answer, style_methods
from pprs.app.certification import SIGMA_TIP, check_costs, show_to_network
from pprs.app.networks import LoadedModel, OfferedInput
from pprs.app.requests import NAMES, Request, SmoothingMethod
from pprs.app.server.cost import check_cost
from pprs.app.server.jobs import BackgroundJob
from pprs.app.server.limits import check_partition
from pprs.data import fair_order
from pprs.errors import PprsError
from pprs.inputs.space import NETWORK
from pprs.label_sets import Calibration, LabelSets, SetEvaluation, SetRequest, SetSettings, state_promise
from pprs.model.overlay import split_adapted
from pprs.noise import Noise
from pprs.partition import Partition
from pprs.report import figures
from pprs.runs.engine import EngineOptions
from pprs.runs.subject import Subject
from pprs.smoothing.voting import SETS, noisy_chunk

MAX_STORED = 16  # calibrations that are remembered
OTHERS = 200  # images on which coverage and size are measured, at most
MAX_NAMES = 12  # labels of a set that are named

Array = npt.NDArray[Any]


@dataclass(frozen=True)
class SetsSettings:
    """The settings of label sets."""

    model: str  # its name on the page
    examples: Sequence[OfferedInput]  # never used for calibration
    radius: float
    alpha: float
    score: str
    images: int  # for calibration
    file: Path | None = None  # written by `pprs calibrate`


SetsRequest: TypeAlias = Request[SetsSettings]


@dataclass(frozen=True)
class ShownSet:
    """The set of the image by one method, and how its sets fare on other images."""

    sets: LabelSets
    partition: Partition | None  # as requested
    labels: tuple[int, ...]
    seen: Array  # the noisy copy as the network sees it
    was_calibrated_with: bool
    evaluation: SetEvaluation | None


class CalibrationStore:
    """Calibrations that were made on the page, the latest few."""

    def __init__(self) -> None:
        self._stored: OrderedDict[tuple[object, ...], LabelSets] = OrderedDict()
        self._lock = threading.Lock()

    def find(self, key: tuple[object, ...]) -> LabelSets | None:
        """Return the calibration with this key, if it is still remembered."""
        with self._lock:
            return self._stored.get(key)

    def add(self, key: tuple[object, ...], sets: LabelSets) -> None:
        """Remember a calibration."""
        with self._lock:
            self._stored[key] = sets
            while len(self._stored) > MAX_STORED:
                self._stored.popitem(last=False)


def predict_sets(request: SetsRequest, store: CalibrationStore, job: BackgroundJob[list[ShownSet]]) -> list[ShownSet]:
    """Calibrate unless that was done before, and predict the set of the image by each method."""
    settings = request.settings
    if settings.file is not None:
        sets = open_sets(settings.file, request.loaded, job)
        return [_predict(request, sets, sets.settings.partition, [], job)]
    calibration, others = split_images(request)
    check_costs(request, job.turn)
    shown = []
    for method in request.methods:
        sets = _calibrate(request, method, calibration, store, job).at(radius=settings.radius, alpha=settings.alpha)
        shown.append(_predict(request, sets, method.partition, others, job))
    return shown


def _calibrate(
    request: SetsRequest,
    method: SmoothingMethod,
    images: Sequence[int],
    store: CalibrationStore,
    job: BackgroundJob[list[ShownSet]],
) -> LabelSets:
    settings = request.settings
    key = (settings.model, str(method.noise), str(method.partition), settings.score, request.seed, settings.images)
    calibrated = store.find(key)
    if calibrated is None:
        wanted = SetRequest(
            method.noise, method.partition, settings.radius, settings.alpha, settings.score, seed=request.seed,
            options=EngineOptions(request.loaded.engine),
        )  # fmt: skip
        calibrated = LabelSets.of_subject(_make_subject(request.loaded, images), wanted, progress=job)
        store.add(key, calibrated)
    return calibrated


def split_images(request: SetsRequest) -> tuple[list[int], list[int]]:
    """Draw the calibration images, and other images on which sets are measured. Examples are in neither."""
    examples = {example.index for example in request.settings.examples}
    order = fair_order([i for i in range(len(request.loaded.data)) if i not in examples], request.seed)
    if not order:
        raise PprsError(
            "this model has no images to calibrate with, apart from the examples. Give a calibration from `pprs "
            "calibrate`, or start the page with labelled images for this model: pprs app --model M --data FOLDER"
        )
    count = request.settings.images
    return sorted(order[:count]), sorted(order[count : count + OTHERS])


def _make_subject(loaded: LoadedModel, images: Sequence[int]) -> Subject:
    return Subject(loaded.model, loaded.data, images, None, None)


def _resolve(partition: Partition | None, noise: Noise, shape: tuple[int, ...]) -> Partition | None:
    return None if partition is None else partition.resolve(noise.sigma, shape)


def open_sets(path: Path, loaded: LoadedModel, job: BackgroundJob[list[ShownSet]]) -> LabelSets:
    """Open the file of a calibration, which a visitor sent, with the model of the page.

    Raises:
        PprsError: If it is not such a file, if it belongs to another model, or if it asks for anything that the page
            does not do.
    """
    try:
        settings = Calibration.read(path).settings
        _check_settings(settings, loaded)
        check_cost(_resolve(settings.partition, settings.noise, settings.shape), settings.shape, job.turn)
        return LabelSets.load(path, model=loaded.model, progress=job)
    except PprsError as error:
        raise PprsError(str(error).replace(str(path), "this file")) from error


def _check_settings(settings: SetSettings, loaded: LoadedModel) -> None:
    """Refuse settings that name other files, or that take long."""
    check_partition(settings.partition)
    if split_adapted(settings.model)[1] is not None and loaded.model.adaptation is None:
        raise PprsError(
            "these sets were calibrated with an adapted network. Start the page with it: pprs app --model M --adapted A"
        )
    shape = loaded.model.input_shape or tuple(loaded.data[0].image.shape)
    if settings.pixels != NETWORK or settings.device != "cpu" or settings.shape != shape:
        raise PprsError(
            "these sets are about other images than the inputs of this network on a CPU. Choose the model that they "
            "were calibrated with, or use `pprs predict-set`."
        )


def _predict(
    request: SetsRequest,
    sets: LabelSets,
    partition: Partition | None,
    others: Sequence[int],
    job: BackgroundJob[list[ShownSet]],
) -> ShownSet:
    chosen, settings = request.chosen, sets.settings
    x = sets.quantise(chosen.values)
    noisy = noisy_chunk(x, settings.noise, settings.seed, chosen.index, SETS, batch=1)[0].numpy()
    evaluation = None
    if others:
        evaluation = sets.evaluate_subject(_make_subject(request.loaded, others), radii=[], progress=job)
    return ShownSet(
        sets,
        partition,
        sets.predict(chosen.values, chosen.index),
        show_to_network(_resolve(settings.partition, settings.noise, request.shape), noisy),
        sets.was_calibrated_with(x),
        evaluation,
    )


def render_sets(request: SetsRequest, shown: Sequence[ShownSet]) -> str:
    """Render the set of each method, and what is promised."""
    image = TabCard(request.chosen.title, tiles=[Tile("image", figures.to_rgb(request.chosen.values.numpy()))])
    styles = style_methods(one.partition for one in shown)
    cards = [_make_card(request, one, i, style) for i, (one, style) in enumerate(zip(shown, styles, strict=True))]
    promise = state_promise(shown[0].sets.settings)
    return render_answer(
        TabAnswer("sets", [image, *cards], [_describe(request, shown[0].sets)], promise, data={"state": "done"})
    )


def _describe(request: SetsRequest, sets: LabelSets) -> str:
    settings, chosen = sets.settings, request.chosen
    file = " (from your file)" if request.settings.file is not None else ""
    scope = request.loaded.describe_image(chosen.values, chosen.file_shape)
    return (
        f"{chosen.title}: {scope}; {settings.noise_text}; score {settings.score}; seed {settings.seed}, image index "
        f"{chosen.index}; {len(sets.calibration.scores):,} calibration images{file}; engine {settings.engine}. Each "
        "set comes from one noisy copy. The promise is about images like those of the calibration, drawn at random, "
        "and about changes made without knowing the noise. It is not kept if radius, alpha, partition or seed are "
        "chosen by looking at the sets."
    )


def _make_card(request: SetsRequest, shown: ShownSet, i: int, style: CardStyle) -> TabCard:
    partition, settings = shown.partition, shown.sets.settings
    column = 0 if partition is None else 1
    title = "plain smoothing" if partition is None else partition.short
    if partition is None and request.methods:
        title = request.methods[i].title
    seen = "the noisy copy" if partition is None else "what the network sees"
    tip = "The number of labels in the set. The smaller, the more it says."
    return TabCard(
        NAMES[column],
        title,
        style,
        f"set{i}",
        {"size": len(shown.labels)},
        (Number(str(len(shown.labels)), f"of {settings.num_classes:,} labels", tip),),
        (_compare_with_truth(request, shown),),
        tiles=[Tile(seen, figures.to_rgb(shown.seen), SIGMA_TIP)],
        chips=_name_labels(request, shown),
        notes=[] if shown.evaluation is None else [_describe_others(shown.evaluation)],
    )


def _name_labels(request: SetsRequest, shown: ShownSet) -> list[str]:
    loaded = request.loaded.restrict(shown.sets.settings.labels or ())
    names = [loaded.get_class_name(label) for label in shown.labels[:MAX_NAMES]]
    more = len(shown.labels) - MAX_NAMES
    return [*names, *([f"and {more:,} more"] if more > 0 else [])] or ["The set is empty."]


def _compare_with_truth(request: SetsRequest, shown: ShownSet) -> str:
    text, truth = "", request.chosen.label
    if truth is not None and shown.sets.settings.labels is None:  # else labels of the data are no indices of the model
        contains = "contains" if truth in shown.labels else "does not contain"
        text = f"It {contains} the true label, {request.loaded.get_class_name(truth)}."
    if shown.was_calibrated_with:
        text += " This image is one of the calibration images, about which nothing is promised."
    return text


def _describe_others(evaluation: SetEvaluation) -> Words:
    point = evaluation.point
    images = Number(
        str(len(evaluation.rows)), "other images",
        "Images that were neither calibrated with nor offered as examples.",
    )  # fmt: skip
    size = Number(f"{point.mean_size:.2f}", "labels in a set", f"Mean size; ± {point.size_error:.2f} (95%).")
    if not point.labelled:
        return "On ", images, ": ", size
    low, high = (100 * bound for bound in point.interval)
    tip = f"Without an attack. 95% interval: {low:.1f}% to {high:.1f}%."
    return "On ", images, ": ", size, ", ", Number(f"{100 * point.coverage:.1f}", "% contain the true label", tip)
