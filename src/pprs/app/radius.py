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

from pprs.app.explore import Asked, segments_of
from pprs.app.turns import Turn
from pprs.errors import PprsError
from pprs.model.onnx import OnnxNetwork
from pprs.partition import Partition, Superpixels
from pprs.partition.base import Filter
from pprs.voting import PREDICT, TUNE, noisy_chunk

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


def random_direction(asked: Asked, which: int) -> Direction:
    """Uniform over all directions; `which` chooses among them."""
    rng = np.random.default_rng([asked.seed, asked.index, 0xD1EC, which])
    drawn = torch.from_numpy(rng.standard_normal(tuple(asked.picture.shape)))
    return Direction("a random direction", f"uniform over all directions (number {which})", unit(drawn))


def worst_direction(asked: Asked, method: int, mine: Turn) -> Direction:
    """Where the margin of the smoothed classifier's base falls fastest, by an estimate."""
    if any(isinstance(m, OnnxNetwork) for m in asked.loaded.model.module.modules()):
        return _searched(asked, method, mine)
    scheme = asked.schemes[method]
    made = None if scheme is None else scheme.at(asked.noise.sigma, tuple(asked.picture.shape))
    ways = {how: unit(-slope) for how, slope in _slopes(asked, made, mine).items()}
    how = next(iter(ways))
    if len(ways) > 1:
        label = _label(asked, made, mine)
        how = min(ways, key=lambda how: _moved_margin(asked, made, ways[how], label, mine))
    told = f"{HONEST}; {how}{', the worse of two' if len(ways) > 1 else ''}" if how else HONEST
    return Direction("the worst direction found", told, ways[how])


def _moved_margin(asked: Asked, made: Partition | None, way: torch.Tensor, label: int, mine: Turn) -> float:
    """The margin where the picture is moved so, by two standard deviations of the noise."""
    noisy = _noisy(asked)[: 2 * BATCH] + (2 * asked.noise.sigma * way).float()
    return float(_margin(_scores(asked, made, noisy, mine), label).mean())


def _noisy(asked: Asked) -> torch.Tensor:
    """Copies that no certificate is made from."""
    found = [noisy_chunk(asked.picture, asked.noise, asked.seed, asked.index, TUNE, chunk) for chunk in range(2)]
    return torch.cat(found)[:COPIES]


def _margin(scores: torch.Tensor, label: int) -> torch.Tensor:
    """By how much the label's score is above the best other, each picture's own."""
    others = scores.clone()
    others[:, label] = -torch.inf
    return scores[:, label] - others.amax(1)


def _slopes(asked: Asked, made: Partition | None, mine: Turn) -> dict[str, torch.Tensor]:
    """Of the mean margin by the noisy picture; of more than one kind where the average's own is not known."""
    net = asked.loaded.model.module.eval()
    label = _label(asked, made, mine)
    found: dict[str, torch.Tensor] = {}
    for noisy in _noisy(asked).split(BATCH):
        seen = (noisy if made is None else made.run(noisy)[0]).clone().requires_grad_()
        with torch.enable_grad():
            margin = _margin(net(seen), label).sum()
            (slope,) = torch.autograd.grad(margin, seen)
        for how, one in _through(made, noisy, slope).items():
            found[how] = found.get(how, torch.zeros_like(asked.picture)) + one.sum(0)
        mine.breathe()
    return found


def _through(made: Partition | None, noisy: torch.Tensor, slope: torch.Tensor) -> dict[str, torch.Tensor]:
    """The slope by what was averaged, of that by the average."""
    if made is None:
        return {"": slope}
    if isinstance(made, Superpixels):
        return {"segments held as they are": _mean_over(made.labels(noisy), slope)}
    if isinstance(made, Filter) and made.static:
        with torch.enable_grad():
            moved = noisy.clone().requires_grad_()
            (back,) = torch.autograd.grad(made._run_device(moved)[0], moved, slope)  # in torch, so it knows its slope
        return {"through the filter": back}
    found = {AS_IF_NOTHING: slope}
    hard = segments_of(made)
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


def _label(asked: Asked, made: Partition | None, mine: Turn) -> int:
    scores = _scores(asked, made, _noisy(asked), mine)
    return int(scores.argmax(1).bincount(minlength=asked.loaded.num_classes).argmax())


@torch.inference_mode()
def _scores(asked: Asked, made: Partition | None, noisy: torch.Tensor, mine: Turn) -> torch.Tensor:
    found = []
    for batch in noisy.split(BATCH):
        found.append(asked.loaded.ready.module(batch.clone() if made is None else made.run(batch)[0]).clone())
        mine.breathe()
    return torch.cat(found)


def _searched(asked: Asked, method: int, mine: Turn) -> Direction:
    """For a network without gradients: the worst among those towards other pictures and some random ones."""
    scheme = asked.schemes[method]
    made = None if scheme is None else scheme.at(asked.noise.sigma, tuple(asked.picture.shape))
    label = _label(asked, made, mine)
    ways = [random_direction(asked, 1000 + i).unit for i in range(8)]
    for index in range(min(len(asked.loaded.pictures), 24)):
        other = asked.loaded.pictures[index].image
        if other.shape == asked.picture.shape and not torch.equal(other, asked.picture):
            ways.append(unit(other.double() - asked.picture.double()))
    how = "the worst of some random directions and those towards other pictures, for a network that shows no gradient"
    worst = min(ways, key=lambda way: _moved_margin(asked, made, way, label, mine))
    return Direction("the worst direction found", f"{how}: no attack is claimed", worst)


def moved(asked: Asked, direction: Direction, norm: float) -> torch.Tensor:
    """The picture changed by exactly this norm in that direction, in double precision, not clipped."""
    return asked.picture.double() + norm * direction.unit


def votes(asked: Asked, method: int, picture: torch.Tensor, mine: Turn) -> tuple[int, int]:
    """What a small vote takes a changed picture for, and how many of VOTES said so. No certificate."""
    scheme = asked.schemes[method]
    made = None if scheme is None else scheme.at(asked.noise.sigma, tuple(asked.picture.shape))
    noisy = noisy_chunk(asked.picture, asked.noise, asked.seed, asked.index, PREDICT)
    more = [noisy_chunk(asked.picture, asked.noise, asked.seed, asked.index, PREDICT, 1)] if len(noisy) < VOTES else []
    shift = (picture - asked.picture.double()).float()
    counts = _scores(asked, made, torch.cat([noisy, *more])[:VOTES] + shift, mine).argmax(1).bincount()
    return int(counts.argmax()), int(counts.max())


def evenly(norm: float, shape: Sequence[int]) -> float:
    """The same norm spread evenly over all values, in steps of 8 bits."""
    return 255 * norm / math.sqrt(math.prod(shape))
