"""`pprs.adapt`: adapt a classifier to its noise and partition with unlabelled images, and write what was changed."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

from torch.nn.modules.batchnorm import _BatchNorm

from pprs._support.threads import keep_memory
from pprs.adaptation.images import AdaptationImages, find_strange_classes, read_images
from pprs.adaptation.ladder import AUTO, climb, list_methods
from pprs.adaptation.problem import VotingProblem
from pprs.adaptation.request import METHODS, prepare_problem
from pprs.adaptation.work import AdaptationWork, check_out, describe_adaptation
from pprs.data import ImageSet, Selection
from pprs.dither.estimators import Estimator
from pprs.dither.thresholds import Dither
from pprs.errors import ConfigurationError, PprsError, check_integer, check_type
from pprs.inputs.domain import domain_of_any
from pprs.model import Model
from pprs.model.exported import ExportedNetwork
from pprs.model.forms import AnyModel, open_model
from pprs.model.onnx import OnnxNetwork
from pprs.model.overlay import Overlay
from pprs.noise import AnyNoise
from pprs.partition import AUTO as RECOMMENDED
from pprs.partition import AnyPartition
from pprs.progress import Progress, as_progress, rename_inputs
from pprs.runners import Budget, parse_budget
from pprs.runs.subject import find_task, open_data
from pprs.segmentation.data import open_masked

BUDGET = "5m"


def adapt(
    model: AnyModel,
    data: Any,
    *,
    noise: AnyNoise | Dither,
    partition: AnyPartition | Estimator = RECOMMENDED,
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
        noise: The noise, as an object or as text such as "gaussian:sigma=0.25", or thresholds whose votes are counted,
            such as "dither:levels=1020".
        partition: The partition, as an object or as text. "auto" is the recommended one, and None is plain randomized
            smoothing, or the local mean alone of what thresholds show.
        out: The file to write, which ends in .safetensors. Repeating the call continues an adaptation that was
            interrupted. A file that holds another adaptation is refused.
        method: "statistics", "bias", "denoiser" or "distill", or "auto" for those that help on held-back images.
        budget: How long to adapt, such as "90s", "5m" or "1h". Or with how many perturbed images to distil, such as
            "256000samples": then the result does not depend on the speed of the machine.
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
    make_problem = prepare_problem(noise, partition, method)
    path, limit, seed = check_out(out), _parse_budget(budget, method), check_integer(seed, "seed")
    reporter = as_progress(progress)
    net = open_model(model)[0]
    image_set = _open_images(data, split, net)
    _check_method(method, net)
    keep_memory()
    reporter = rename_inputs(reporter, domain_of_any([net.input_shape]))
    read = read_images(image_set, images, net, seed, reporter)
    net = _with_classes(net, read)
    _check_method(method, net)  # again, since only now a network in memory is known to label every pixel
    problem, behind = make_problem(net, read, seed, reporter)
    wanted = describe_adaptation(
        net, image_set, read, noise=behind.noise_text, partition=behind.partition_text, seed=seed, method=method,
        budget=budget,
    )  # fmt: skip
    work = AdaptationWork(path, wanted, net, read, reporter)
    if work.complete:
        return work.overlay
    _warn(problem, image_set, reporter)
    work.run(
        f"{behind.noise_text} and {behind.partition_text}", limit.seconds,
        lambda finished, left, add: climb(
            problem, method=method, seconds=None if left == math.inf else left,
            samples=None if limit.samples == math.inf else limit.samples, held_back=read.held_back, finished=finished,
            on_step=add, progress=reporter,
        ),
    )  # fmt: skip
    reporter.message(_summarize(work.overlay))
    return work.overlay


def _parse_budget(text: str, method: str) -> Budget:
    """Return the limit of an adaptation: a time or, for distilling, a number of images."""
    check_type(text, str, "budget", '"5m"')
    limit = parse_budget(text)
    if limit.samples != math.inf and method != "distill":
        raise ConfigurationError(
            f'`budget` {text} is for `method` distill, which trains with so many images. For "{method}", give a time, '
            "such as 5m.",
            parameter="budget",
        )
    return limit


def _open_images(data: Any, split: str | None, model: Model) -> ImageSet:
    """Open the images of an adaptation, whose labels and masks are not read."""
    if model.task == "segment" and isinstance(data, str | Path):
        return open_masked(str(data), split=split, prefer="train")
    return open_data(data, split=split, prefer="train")


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


def _warn(problem: VotingProblem, data: ImageSet, progress: Progress) -> None:
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
