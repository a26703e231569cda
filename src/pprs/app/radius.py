"""What a radius looks like: changes of exactly that norm, in a random direction and in a bad one.

The bad direction is an illustration. It is where the classifier's margin falls fastest, by an estimate from a few noisy
copies; nobody claims that there is none worse.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from pprs.app.explore import Request, segments_of
from pprs.app.fair_queue import Turn
from pprs.errors import PprsError
from pprs.model.onnx import OnnxNetwork
from pprs.partition import Partition, Superpixels
from pprs.partition.base import Filter
from pprs.voting import PREDICT, TUNE, chunk_size, noisy_chunk

COPIES = 32  # noisy copies that the margin is estimated from
VOTES = 64  # of the small vote on each picture
BATCH = 8
HONEST = "the direction in which this classifier's margin falls fastest, by an estimate: no attack is claimed"
AS_IF_NOTHING = "what averages is passed through as if it did nothing"
Array = npt.NDArray[Any]


@dataclass(frozen=True)
class Direction:
    """A direction of norm 1 in the space of pictures, and how it was found."""

    title: str
    how: str
    unit: torch.Tensor


def unit(direction: torch.Tensor) -> torch.Tensor:
    """The direction with norm 1, in double precision: what is scaled by r has norm r."""
    wide = direction.double()
    norm = float(wide.norm())
    if not norm > 0 or not np.isfinite(norm):
        raise PprsError("the classifier's margin does not change around this picture: there is no direction to show")
    return wide / norm


def random_direction(request: Request, which: int) -> Direction:
    """Uniform over all directions; `which` chooses among them."""
    rng = np.random.default_rng([request.seed, request.index, 0xD1EC, which])
    drawn = torch.from_numpy(rng.standard_normal(tuple(request.image.shape)))
    return Direction("a random direction", f"uniform over all directions (number {which})", unit(drawn))


def worst_direction(request: Request, method: int, turn: Turn) -> Direction:
    """Where the margin of the smoothed classifier's base falls fastest, by an estimate."""
    if any(isinstance(m, OnnxNetwork) for m in request.loaded.model.module.modules()):
        return _searched(request, method, turn)
    partition = request.resolved(method)
    ways = {how: unit(-slope) for how, slope in _slopes(request, partition, turn).items()}
    how = next(iter(ways))
    if len(ways) > 1:
        label = _label(request, partition, turn)
        how = min(ways, key=lambda how: _moved_margin(request, partition, ways[how], label, turn))
    described = f"{HONEST}; {how}{', the worse of two' if len(ways) > 1 else ''}" if how else HONEST
    return Direction("the worst direction found", described, ways[how])


def _moved_margin(request: Request, partition: Partition | None, way: torch.Tensor, label: int, turn: Turn) -> float:
    """The margin where the picture is moved so, by two standard deviations of the noise."""
    noisy = _noisy(request)[: 2 * BATCH] + (2 * request.noise.sigma * way).float()
    return float(_margin(_scores(request, partition, noisy, turn), label).mean())


def _noisy(request: Request) -> torch.Tensor:
    """Copies that no certificate is made from."""
    found = [noisy_chunk(request.image, request.noise, request.seed, request.index, TUNE, chunk) for chunk in range(2)]
    return torch.cat(found)[:COPIES]


def _margin(scores: torch.Tensor, label: int) -> torch.Tensor:
    """By how much the label's score is above the best other, each picture's own."""
    others = scores.clone()
    others[:, label] = -torch.inf
    return scores[:, label] - others.amax(1)


def _slopes(request: Request, partition: Partition | None, turn: Turn) -> dict[str, torch.Tensor]:
    """Of the mean margin by the noisy picture; of more than one kind where the average's own is not known."""
    net = request.loaded.model.module.eval()
    label = _label(request, partition, turn)
    found: dict[str, torch.Tensor] = {}
    for noisy in _noisy(request).split(BATCH):
        seen = (noisy if partition is None else partition.run(noisy)[0]).clone().requires_grad_()
        with torch.enable_grad():
            margin = _margin(net(seen), label).sum()
            (slope,) = torch.autograd.grad(margin, seen)
        for how, one in _through(partition, noisy, slope).items():
            found[how] = found.get(how, torch.zeros_like(request.image)) + one.sum(0)
        turn.breathe()
    return found


def _through(partition: Partition | None, noisy: torch.Tensor, slope: torch.Tensor) -> dict[str, torch.Tensor]:
    """The slope by what was averaged, of that by the average."""
    if partition is None:
        return {"": slope}
    if isinstance(partition, Superpixels):
        return {"segments held as they are": _mean_over(partition.labels(noisy), slope)}
    if isinstance(partition, Filter) and partition.static:
        with torch.enable_grad():
            moved = noisy.clone().requires_grad_()
            # The filter runs in torch, which therefore knows its gradient.
            (back,) = torch.autograd.grad(partition._run_device(moved)[0], moved, slope)
        return {"through the filter": back}
    found = {AS_IF_NOTHING: slope}
    hard = segments_of(partition)
    if hard is not None:
        found["averaged over the segments that it begins with"] = _mean_over(hard.labels(noisy), slope)
    return found


def _mean_over(labels: torch.Tensor, slope: torch.Tensor) -> torch.Tensor:
    """The mean over segments: averaging is its own transpose."""
    batch, channels = slope.shape[:2]
    flat = labels.long().reshape(batch, 1, -1)
    values = slope.reshape(batch, channels, -1)
    count = int(flat.max()) + 1
    sums = torch.zeros(batch, channels, count).scatter_add_(2, flat.expand_as(values), values)
    sizes = torch.zeros(batch, 1, count).scatter_add_(2, flat, torch.ones(flat.shape))
    return (sums / sizes.clamp_min(1)).gather(2, flat.expand_as(values)).reshape(slope.shape)


def _label(request: Request, partition: Partition | None, turn: Turn) -> int:
    scores = _scores(request, partition, _noisy(request), turn)
    return int(scores.argmax(1).bincount(minlength=request.loaded.num_classes).argmax())


@torch.inference_mode()
def _scores(request: Request, partition: Partition | None, noisy: torch.Tensor, turn: Turn) -> torch.Tensor:
    found = []
    for batch in noisy.split(BATCH):
        seen = batch.clone() if partition is None else partition.run(batch)[0]
        found.append(request.loaded.ready.module(seen).clone())
        turn.breathe()
    return torch.cat(found)


def _searched(request: Request, method: int, turn: Turn) -> Direction:
    """For a network without gradients: the worst among those towards other pictures and some random ones."""
    partition = request.resolved(method)
    label = _label(request, partition, turn)
    ways = [random_direction(request, 1000 + i).unit for i in range(8)]
    for index in range(min(len(request.loaded.data), 24)):
        other = request.loaded.data[index].image
        if other.shape == request.image.shape and not torch.equal(other, request.image):
            ways.append(unit(other.double() - request.image.double()))
    how = "the worst of some random directions and those towards other pictures, for a network that shows no gradient"
    worst = min(ways, key=lambda way: _moved_margin(request, partition, way, label, turn))
    return Direction("the worst direction found", f"{how}: no attack is claimed", worst)


def moved(request: Request, direction: Direction, norm: float) -> torch.Tensor:
    """The picture changed by exactly this norm in that direction, in double precision, not clipped."""
    return request.image.double() + norm * direction.unit


def votes(request: Request, method: int, image: torch.Tensor, turn: Turn) -> tuple[int, int]:
    """What a small vote takes a changed picture for, and how many of VOTES said so. No certificate."""
    partition = request.resolved(method)
    chunks = range(min(2, math.ceil(VOTES / chunk_size(request.image.numel()))))  # fewer votes on very large images
    noisy = [noisy_chunk(request.image, request.noise, request.seed, request.index, PREDICT, i) for i in chunks]
    shift = (image - request.image.double()).float()
    counts = _scores(request, partition, torch.cat(noisy)[:VOTES] + shift, turn).argmax(1).bincount()
    return int(counts.argmax()), int(counts.max())


def evenly(norm: float, shape: Sequence[int]) -> float:
    """The same norm spread evenly over all values, in steps of 8 bits."""
    return 255 * norm / math.sqrt(math.prod(shape))
