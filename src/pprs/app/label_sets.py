"""The label sets of one image, by plain smoothing and with a partition, or from a calibration in a file."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy.typing as npt

from pprs.app.cards import COLOURS
from pprs.app.catalog import ExampleImage, LoadedModel
from pprs.app.certification import NAMES, SIGMA_TIP, Tile
from pprs.app.images import ChosenImage
from pprs.app.render import render
from pprs.app.server.cost import check_cost
from pprs.app.server.jobs import Job
from pprs.app.server.limits import check_partition
from pprs.data import fair_order
from pprs.errors import PprsError
from pprs.inputs.space import NETWORK
from pprs.label_sets import Calibration, LabelSets, SetEvaluation, SetRequest, SetSettings, state_promise
from pprs.model.overlay import split_adapted
from pprs.noise import Noise
from pprs.partition import Partition, Recommendation
from pprs.report import figures
from pprs.runs.subject import Subject
from pprs.smoothing.voting import SETS, noisy_chunk

MAX_STORED = 16  # calibrations that are remembered
OTHERS = 200  # images on which coverage and size are measured, at most
MAX_NAMES = 12  # labels of a set that are named

Array = npt.NDArray[Any]


@dataclass(frozen=True)
class SetsRequest:
    """A visitor's request for label sets: everything that they depend on."""

    model: str  # its name on the page
    loaded: LoadedModel
    examples: Sequence[ExampleImage]  # never used for calibration
    chosen: ChosenImage
    methods: tuple[SetRequest, ...]  # plain smoothing first; empty if a file is given
    images: int = 0  # calibration images
    seed: int = 0
    file: Path | None = None  # written by `pprs calibrate`
    recommendation: Recommendation | None = None  # if the partition was left to the page


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


def predict_sets(request: SetsRequest, store: CalibrationStore, job: Job[list[ShownSet]]) -> list[ShownSet]:
    """Calibrate unless that was done before, and predict the set of the image by each method."""
    if request.file is not None:
        sets = open_sets(request.file, request.loaded, job)
        return [_predict(request, sets, sets.settings.partition, [], job)]
    calibration, others = split_images(request)
    shape = tuple(request.chosen.image.shape)
    for method in request.methods:
        check_cost(_resolve(method.partition, method.noise, shape), shape, job.turn)
    shown = []
    for method in request.methods:
        key = (request.model, str(method.noise), str(method.partition), method.score, method.seed, request.images)
        calibrated = store.find(key)
        if calibrated is None:
            calibrated = LabelSets.of_subject(_make_task(request.loaded, calibration), method, progress=job)
            store.add(key, calibrated)
        sets = calibrated.at(radius=method.radius, alpha=method.alpha)
        shown.append(_predict(request, sets, method.partition, others, job))
    return shown


def split_images(request: SetsRequest) -> tuple[list[int], list[int]]:
    """Draw the calibration images, and other images on which sets are measured. Examples are in neither."""
    examples = {example.index for example in request.examples}
    order = fair_order([i for i in range(len(request.loaded.data)) if i not in examples], request.seed)
    if not order:
        raise PprsError(
            "this model has no images to calibrate with, apart from the examples. Give a calibration from `pprs "
            "calibrate`, or start the page with labelled images for this model: pprs app --model M --data FOLDER"
        )
    return sorted(order[: request.images]), sorted(order[request.images : request.images + OTHERS])


def _make_task(loaded: LoadedModel, images: Sequence[int]) -> Subject:
    return Subject(loaded.model, loaded.data, images, None, None)


def _resolve(partition: Partition | None, noise: Noise, shape: tuple[int, ...]) -> Partition | None:
    return None if partition is None else partition.resolve(noise.sigma, shape)


def open_sets(path: Path, loaded: LoadedModel, job: Job[list[ShownSet]]) -> LabelSets:
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
    job: Job[list[ShownSet]],
) -> ShownSet:
    chosen, settings = request.chosen, sets.settings
    x = sets.quantise(chosen.image)
    noisy = noisy_chunk(x, settings.noise, settings.seed, chosen.index, SETS, batch=1).numpy()
    resolved = _resolve(settings.partition, settings.noise, tuple(chosen.image.shape))
    evaluation = None
    if others:
        evaluation = sets.evaluate_subject(_make_task(request.loaded, others), radii=[], progress=job)
    return ShownSet(
        sets,
        partition,
        sets.predict(chosen.image, chosen.index),
        (noisy if resolved is None else resolved.apply(noisy))[0],
        sets.was_calibrated_with(x),
        evaluation,
    )


class _SetCard(NamedTuple):
    """The set of one method, ready for display."""

    name: str
    partition: str
    colour: str
    size: int
    names: Sequence[str]
    more: int  # labels that are not named
    truth: str  # whether the set contains the true label; empty if that is unknown
    seen: Tile
    evaluation: SetEvaluation | None
    was_calibrated_with: bool


def render_sets(request: SetsRequest, shown: Sequence[ShownSet]) -> str:
    """Render the set of each method, and what is promised."""
    settings = shown[0].sets.settings
    return render(
        "sets.html",
        title=request.chosen.title,
        original=Tile("image", figures.to_rgb(request.chosen.image.numpy())),
        cards=[_make_card(request, one, i) for i, one in enumerate(shown)],
        promise=state_promise(settings),
        total=settings.num_classes,
        settings=settings,
        images=len(shown[0].sets.calibration.scores),
        from_file=request.file is not None,
        index=request.chosen.index,
        scope=request.loaded.describe_image(request.chosen.image, request.chosen.file_shape),
        why="" if len(shown) > 1 or request.recommendation is None else str(request.recommendation),
    )


def _make_card(request: SetsRequest, shown: ShownSet, method: int) -> _SetCard:
    settings, loaded = shown.sets.settings, request.loaded.restrict(shown.sets.settings.labels or ())
    truth, partition = request.chosen.label, shown.partition
    contains, seen = "contains" if truth in shown.labels else "does not contain", "what the network sees"
    known = truth is not None and settings.labels is None  # labels of the data are no indices of a restricted model
    return _SetCard(
        name=NAMES[method] if partition is None else NAMES[1],
        partition="plain smoothing" if partition is None else partition.short,
        colour=COLOURS[0 if partition is None else 1],
        size=len(shown.labels),
        names=[loaded.get_class_name(label) for label in shown.labels[:MAX_NAMES]],
        more=max(0, len(shown.labels) - MAX_NAMES),
        truth=f"It {contains} the true label, {loaded.get_class_name(truth)}." if known and truth is not None else "",
        seen=Tile("the noisy copy" if partition is None else seen, figures.to_rgb(shown.seen), SIGMA_TIP),
        evaluation=shown.evaluation,
        was_calibrated_with=shown.was_calibrated_with,
    )  # fmt: skip


__all__ = ["CalibrationStore", "SetsRequest", "ShownSet", "open_sets", "predict_sets", "render_sets", "split_images"]
