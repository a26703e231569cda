"""`pprs.adapt`: adapt a classifier to its noise and partition with unlabelled images, and write what was changed."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

from torch.nn.modules.batchnorm import _BatchNorm

from pprs._support.files import check_writable
from pprs._support.threads import keep_memory
from pprs._version import __version__
from pprs.adaptation.images import AdaptationImages, find_strange_classes, read_images
from pprs.adaptation.ladder import AUTO, climb, list_methods
from pprs.adaptation.problem import Problem, predict_scores
from pprs.adaptation.step import Step
from pprs.data import ImageSet, Selection
from pprs.errors import ConfigurationError, PprsError, check_integer, check_type, suggest
from pprs.inputs.domain import domain_of_any
from pprs.model import Model
from pprs.model.adaptation import UNADAPTED, Adaptation, StepRecord
from pprs.model.changes import Changes
from pprs.model.exported import ExportedNetwork
from pprs.model.forms import AnyModel, open_model
from pprs.model.modes import eval_mode
from pprs.model.onnx import OnnxNetwork
from pprs.model.overlay import Overlay, load_overlay, save_overlay
from pprs.noise import AnyNoise, Noise, as_noise
from pprs.partition import AnyPartition, Partition, as_partition
from pprs.progress import Progress, as_progress, duration, rename_inputs
from pprs.runners import parse_budget
from pprs.runs.subject import find_task, open_data
from pprs.segmentation.data import open_masked

METHODS = (AUTO, "statistics", "bias", "denoiser", "distill")
BUDGET = "5m"
CHECKED = 8  # images on which an adapted network must have finite scores


def adapt(
    model: AnyModel,
    data: Any,
    *,
    noise: AnyNoise,
    partition: AnyPartition = None,
    out: str | Path,
    method: str = "auto",
    budget: str = BUDGET,
    images: Iterable[int] | Selection | None = None,
    seed: int = 0,
    progress: bool | Progress = True,
    split: str | None = None,
) -> Overlay:
    """Adapt a classifier to its noise and partition, with unlabelled images.

    The result is a small file next to the classifier, which itself stays as it is. The adapted classifier is one fixed
    function of the noisy image, so its certificates hold like those of any classifier. Labels of the images are not
    read.

        pprs.adapt("m.safetensors", "mnist", noise="gaussian:sigma=0.5", partition="slic/soft", out="a.safetensors")
        pprs.certify_dataset(
            "m.safetensors", "mnist", noise="gaussian:sigma=0.5", partition="slic/soft", adapted="a.safetensors"
        )

    Args:
        model: The classifier, as for `certify_dataset`.
        data: The images, as for `certify_dataset`. Give images that are not certified later.
        noise: The noise, as an object or as text such as "gaussian:sigma=0.25".
        partition: The partition, as an object or as text. None means plain randomized smoothing.
        out: The file to write, which ends in .safetensors. Repeating the call continues an adaptation that was
            interrupted. A file that holds another adaptation is refused.
        method: "statistics", "bias", "denoiser" or "distill", or "auto" for those that help on held-back images.
        budget: How long to adapt, such as "90s", "5m" or "1h".
        images: Indices of the images to use, at least 50. With a `Selection`, `limit` of its images are drawn at
            random. By default 5000 of all.
        seed: Random seed.
        progress: Whether to show progress, or an object that receives it.
        split: Split of the data. By default train, else test, else validation.

    Returns:
        What was changed, and its record in `adaptation`.

    Raises:
        ConfigurationError: If an argument is invalid, if there are too few images or images of another kind, if the
            method cannot be used with this model, or if `out` holds something else.
    """
    # Arguments are checked before anything is loaded.
    noise, partition = as_noise(noise), as_partition(partition)
    path, seconds, seed = _check_out(out), check_budget(budget), check_integer(seed, "seed")
    if method not in METHODS:
        raise ConfigurationError(f'unknown method "{method}". {suggest(str(method), METHODS)}', parameter="method")
    reporter = as_progress(progress)
    net = open_model(model)[0]
    image_set = _open_images(data, split, net)
    _check_method(method, net)
    keep_memory()
    reporter = rename_inputs(reporter, domain_of_any([net.input_shape]))
    read = read_images(image_set, images, net, seed, reporter)
    net = _with_classes(net, read)
    _check_method(method, net)  # again, since only now a network in memory is known to label every pixel
    if partition is not None:
        partition = partition.resolve(noise.sigma, read.shape)
    wanted = _describe(net, image_set, read, noise, partition, seed, method, budget)
    work = _Work(path, wanted, net, read, reporter)
    if not work.complete:
        problem = Problem(net, read.training, noise, partition, seed)
        _warn(problem, image_set, reporter)
        with eval_mode(net.module):
            work.run(problem, seconds)
    return work.overlay


def _open_images(data: Any, split: str | None, model: Model) -> ImageSet:
    """Open the images of an adaptation, whose labels and masks are not read."""
    if model.task == "segment" and isinstance(data, str | Path):
        return open_masked(str(data), split=split, prefer="train")
    return open_data(data, split=split, prefer="train")


def _check_out(out: str | Path) -> Path:
    path = Path(out)
    if path.suffix != ".safetensors":
        raise ConfigurationError(f"`out` must end in .safetensors, not {path.name}", parameter="out")
    check_writable(path)
    return path


def check_budget(budget: str) -> float:
    """Return the budget in seconds."""
    check_type(budget, str, "budget", '"5m"')
    seconds = parse_budget(budget).seconds
    if seconds == float("inf"):
        raise ConfigurationError(
            f'the `budget` of an adaptation must be a time, such as 5m, not "{budget}"', parameter="budget"
        )
    return seconds


def _check_method(method: str, model: Model) -> None:
    """Refuse a method that the network does not allow."""
    if method != AUTO and method not in (suited := list_methods(model)):
        raise ConfigurationError(
            f"{model.source} labels every pixel, which {method} does not suit. Choose another `method`: "
            f"{' or '.join(suited)}.",
            parameter="method",
        )
    layers = list(model.module.modules())
    if method == "statistics" and not any(
        isinstance(layer, _BatchNorm) and layer.running_mean is not None for layer in layers
    ):
        raise ConfigurationError(
            f"{model.source} has no batch normalisation with running statistics that could be adapted. Choose another "
            "`method`: bias suits any network.",
            parameter="method",
        )
    is_onnx = any(isinstance(layer, OnnxNetwork) for layer in layers)
    if method == "distill" and (is_onnx or any(isinstance(layer, ExportedNetwork) for layer in layers)):
        kind = "an ONNX network" if is_onnx else "an exported program"
        raise ConfigurationError(
            f"{model.source} is {kind}, whose weights cannot be trained. Choose another `method`: bias and denoiser "
            "suit any network.",
            parameter="method",
        )


def _with_classes(model: Model, images: AdaptationImages) -> Model:
    """Return the model with its task and number of classes, after checking that it takes these images."""
    task, found = find_task(replace(model, input_shape=None), images.training[0])
    if model.num_classes not in (None, found):
        raise PprsError(f"{model.source} returned {found} scores, and should have {model.num_classes} classes")
    return replace(model, num_classes=found, task=task)


def _describe(
    model: Model,
    data: ImageSet,
    images: AdaptationImages,
    noise: Noise,
    partition: Partition | None,
    seed: int,
    method: str,
    budget: str,
) -> Adaptation:
    """Return the record of an adaptation that has not begun."""
    return Adaptation(
        base_digest=model.digest(),
        base_source=model.source,
        noise=str(noise),
        partition=str(partition or "none"),
        seed=seed,
        data=data.source or type(data).__name__,
        split=data.split or "",
        images=len(images),
        method=method,
        budget=budget,
        steps=(),
        methods=(),
        complete=False,
        version=__version__,
        image_digests=images.digests,
    )


def _warn(problem: Problem, data: ImageSet, progress: Progress) -> None:
    """Warn of images that say little about the classifier."""
    if strange := find_strange_classes(data, problem.model):
        progress.message(f"warning: {strange}")
    labels = problem.clean_scores.argmax(1).unique().tolist() if problem.model.task != "segment" else []
    if len(labels) == 1:
        names = problem.model.class_names
        name = f'"{names[labels[0]]}"' if names else f"class {labels[0]}"
        progress.message(
            f"warning: the classifier assigns {name} to all of these images. Give images of all classes, or the "
            "adapted classifier may know no other class under noise."
        )


class _Work:
    """An adaptation and its file, which always holds the last step that was accepted."""

    def __init__(
        self, path: Path, wanted: Adaptation, model: Model, images: AdaptationImages, progress: Progress
    ) -> None:
        self._path, self._model, self._images, self._progress = path, model, images, progress
        self.overlay = Overlay(wanted)
        if path.exists():
            self.overlay = self._restore(wanted)

    @property
    def complete(self) -> bool:
        """Whether nothing is left to do."""
        return self.overlay.adaptation.complete

    def _restore(self, wanted: Adaptation) -> Overlay:
        """Continue the adaptation in the file, if it has the same settings."""
        try:
            previous = load_overlay(self._path)
        except PprsError as error:
            raise ConfigurationError(
                f"`out` {self._path} exists and is not an adaptation ({error.message}). Give another `out`.",
                parameter="out",
            ) from error
        differing = previous.adaptation.differences(wanted)
        if differing:
            raise ConfigurationError(
                f"{self._path} holds another adaptation: it differs in {', '.join(differing)}. Give another `out`.",
                parameter="out",
            )
        steps = previous.adaptation.steps
        state = "complete" if previous.adaptation.complete else f"begun, with {len(steps)} steps finished"
        self._progress.message(f"the adaptation in {self._path} is {state}")
        return previous

    def run(self, problem: Problem, seconds: float) -> None:
        """Take the steps that are left."""
        finished = self._list_finished()
        left = max(seconds - sum(step.seconds for step in finished), 0.0)
        self._progress.message(
            f"adapting {self._model.source} to {problem.noise} and {problem.partition or 'no partition'} with "
            f"{len(self._images)} images, {len(self._images.held_back)} of them held back, for at most "
            f"{duration(left)}; Ctrl-C keeps finished steps"
        )
        climb(
            problem, method=self.overlay.adaptation.method, seconds=left,
            held_back=self._images.held_back, finished=finished, on_step=self._add, progress=self._progress,
        )  # fmt: skip
        self._write(self.overlay.changes, replace(self.overlay.adaptation, complete=True))
        self._progress.message(_summarize(self.overlay))

    def _list_finished(self) -> list[Step]:
        """Return the steps in the file. Each builds on those before, so that only the last one has its changes."""
        records = self.overlay.adaptation.steps
        last = max((i for i, record in enumerate(records) if record.accepted), default=None)
        return [
            Step(
                r.method, self.overlay.changes if i == last else Changes(), r.agreement, r.radius, r.accepted, r.seconds
            )
            for i, r in enumerate(records)
        ]

    def _add(self, step: Step) -> None:
        """Record a finished step."""
        if step.accepted and not self._has_finite_scores(step.changes):
            self._progress.message(f"{step.method} diverged: its result is not kept")
            step = replace(step, accepted=False)
        record = StepRecord(step.method, step.agreement, step.radius, step.accepted, step.seconds)
        adaptation, changes = self.overlay.adaptation, self.overlay.changes
        adaptation = replace(adaptation, steps=(*adaptation.steps, record))
        if step.accepted:
            adaptation = replace(adaptation, methods=_list_methods(adaptation.methods, changes, step))
            changes = step.changes
        self._write(changes, adaptation)

    def _has_finite_scores(self, changes: Changes) -> bool:
        module = changes.apply(self._model.module)
        return bool(predict_scores(module, self._images.held_back[:CHECKED]).isfinite().all())

    def _write(self, changes: Changes, adaptation: Adaptation) -> None:
        self.overlay = save_overlay(Overlay(adaptation, changes), self._path)


def _list_methods(methods: tuple[str, ...], before: Changes, step: Step) -> tuple[str, ...]:
    """Return the methods that the changes after a step come from. A step may have kept nothing of those before it."""
    if step.method == UNADAPTED:
        return methods
    after = step.changes
    kept = {id(part) for part in (*before.weights.values(), before.bias, before.denoiser) if part is not None}
    builds_on = any(id(part) in kept for part in (*after.weights.values(), after.bias, after.denoiser))
    missing = {name for name, part in (("bias", after.bias), ("denoiser", after.denoiser)) if part is None}
    return (*(name for name in methods if builds_on and name not in {*missing, step.method}), step.method)


def _summarize(overlay: Overlay) -> str:
    """Say what an adaptation achieved on the held-back images."""
    before, after = overlay.adaptation.before, overlay.adaptation.after
    if after is None:
        return "no method helped on the held-back images, so the classifier is unchanged"
    change = " -> ".join(
        f"agreement {step.agreement:.0%} and mean radius {step.radius:.3f}"
        for step in (before, after)
        if step is not None
    )
    return f"on the held-back images, {' and '.join(overlay.adaptation.methods)} gave {change}"


__all__ = ["METHODS", "adapt"]
