"""`pprs adapt --patch`: adapt a classifier to masks with unlabelled images, and write what was changed."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from pprs._support.threads import keep_memory
from pprs.adaptation import BUDGET
from pprs.adaptation.distillation import distil
from pprs.adaptation.images import read_images
from pprs.adaptation.problem import Changes, Perturbed, predict_scores
from pprs.adaptation.step import Step
from pprs.adaptation.work import AdaptationWork, check_out, describe_adaptation
from pprs.data import Selection
from pprs.errors import ConfigurationError, check_integer, check_type
from pprs.model import Model
from pprs.model.adaptation import UNADAPTED
from pprs.model.forms import AnyModel, open_model
from pprs.model.overlay import Overlay
from pprs.noise import keyed_rng
from pprs.patches.classifier import FILL, MASKS
from pprs.patches.fills import Fill, describe_masks, parse_fill
from pprs.patches.masks import MaskGrid
from pprs.progress import Progress, as_progress
from pprs.runners import parse_time
from pprs.runs.subject import count_classes, open_data
from pprs.smoothing.voting import ADAPT

METHOD = "distill"
VIEWS = 32  # pairs of masks on each held-back image
HELD_BACK = 100  # images, at most
FIRST_DRAW = 6 << 32  # of the pairs on held-back images, so that the training does not share them


@dataclass(frozen=True)
class MaskedProblem(Perturbed):
    """A classifier, unlabelled images, and the masks through which the classifier looks at them.

    Attributes:
        model: The classifier before the adaptation.
        images: Unlabelled images as the network receives them, float32 [N, C, H, W] in [0, 1].
        grid: The masks.
        fill: What stands in the place of hidden pixels.
        seed: The random seed.
    """

    model: Model
    images: torch.Tensor
    grid: MaskGrid
    fill: Fill
    seed: int = 0

    def perturb(self, images: torch.Tensor, draw: int) -> torch.Tensor:
        """Return each image under two masks drawn at random, filled."""
        rng = keyed_rng("cpu", self.seed, draw, ADAPT, 0)
        assert not isinstance(rng, torch.Generator)
        pairs = torch.from_numpy(rng.integers(len(self.grid), size=(len(images), 2)))
        return self.fill.apply(images, self.grid.hide(pairs))


def adapt_to_masks(
    model: AnyModel,
    data: Any,
    *,
    patch: int,
    masks: int = MASKS,
    fill: Fill | str = FILL,
    out: str | Path,
    budget: str = BUDGET,
    images: Iterable[int] | Selection | None = None,
    seed: int = 0,
    progress: bool | Progress = True,
    split: str | None = None,
) -> Overlay:
    """Train a classifier to predict under any two masks what it predicts without them. No labels are read.

    The result is a small file next to the classifier, as from `pprs.adapt`. The adapted classifier is one fixed
    function of the masked image, so its certificates hold like those of any classifier.

    Args:
        model: The classifier, as for `certify_dataset`.
        data: The images, as for `certify_dataset`. Give images that are not certified later.
        patch: The side of the patch in pixels.
        masks: The number of masks along each axis.
        fill: What stands in the place of hidden pixels.
        out: The file to write, which ends in .safetensors. If it holds this adaptation, it is complete or continues.
        budget: How long to train, such as "90s", "5m" or "1h".
        images: Indices of the images to use, at least 50. With a `Selection`, `limit` of its images are drawn at
            random. By default 5000 of all.
        seed: Random seed.
        progress: Whether to show progress, or an object that receives it.
        split: Split of the data. By default train, else test, else validation.

    Returns:
        What was changed, and its record in `adaptation`.

    Raises:
        ConfigurationError: If an argument is invalid, if there are too few images or images of another kind, if the
            network cannot be trained, or if `out` holds something else.
    """
    fill = parse_fill(fill) if isinstance(fill, str) else fill
    check_type(fill, Fill, "fill", '"diffusion"')
    path, seconds, seed = check_out(out), parse_time(budget, "an adaptation"), check_integer(seed, "seed")
    reporter = as_progress(progress)
    image_set = open_data(data, split=split, prefer="train")
    net = open_model(model)[0]
    keep_memory()
    read = read_images(image_set, images, net, seed, reporter)
    net = replace(net, num_classes=count_classes(replace(net, input_shape=None), read.training[0]))
    height, width = read.shape[-2:]
    problem = MaskedProblem(net, read.training, MaskGrid(height, width, patch, masks), fill, seed)
    noise, held_back = describe_masks(patch, masks, fill), read.held_back[:HELD_BACK]
    wanted = describe_adaptation(
        net, image_set, read, noise=noise, partition="none", seed=seed, method=METHOD, budget=budget
    )
    work = AdaptationWork(path, wanted, net, read, reporter)
    if not work.complete:
        work.run(
            noise, seconds,
            lambda finished, left, add: _take_steps(problem, held_back, finished, left, add, reporter),
        )  # fmt: skip
    return work.overlay


def _take_steps(
    problem: MaskedProblem,
    held_back: torch.Tensor,
    finished: Sequence[Step],
    seconds: float,
    add: Callable[[Step], None],
    progress: Progress,
) -> None:
    """Train the network, and keep the result if it is better on the held-back images."""
    if any(step.method == METHOD for step in finished):
        return
    began = time.monotonic()
    before = _judge(problem, Changes(), held_back)
    progress.message(f"before: {_explain(before)}")
    if not finished:
        add(Step(UNADAPTED, Changes(), *before, True, 0.0))
    try:
        changes = distil(problem, Changes(), progress=progress, deadline=began + seconds)
    except ConfigurationError as error:
        raise ConfigurationError(
            f"{problem.model.source} cannot be trained, as an adaptation to masks requires: its scores have no "
            "gradients. Give a network in torch.",
            parameter="model",
        ) from error
    after = _judge(problem, changes, held_back)
    accepted = after > before
    progress.message(f"after: {_explain(after)}{'' if accepted else '; not better, so the classifier is unchanged'}")
    add(Step(METHOD, changes, *after, accepted, time.monotonic() - began))


def _judge(problem: MaskedProblem, changes: Changes, held_back: torch.Tensor) -> tuple[float, float]:
    """Return the share of held-back images whose label stays under all of some pairs of masks, and of single views."""
    labels = predict_scores(problem.model.module, held_back).argmax(1)
    net = changes.apply(problem.model.module)
    views = [predict_scores(net, problem.perturb(held_back, FIRST_DRAW + i)).argmax(1) == labels for i in range(VIEWS)]
    stays = torch.stack(views)
    return float(stays.all(0).float().mean()), float(stays.float().mean())


def _explain(shares: tuple[float, float]) -> str:
    return f"{shares[0]:.0%} of the held-back images keep their label under {VIEWS} random pairs of masks"
