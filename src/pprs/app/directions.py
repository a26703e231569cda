"""What a radius looks like: changes of exactly that norm, in a random direction and in an adversarial one.

The adversarial direction is an illustration: the direction in which the margin of the classifier decreases fastest,
estimated from a few noisy copies. There may be worse ones.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from pprs.app.certification import Request, find_segments
from pprs.app.server.fair_queue import Turn
from pprs.errors import PprsError
from pprs.model.onnx import OnnxNetwork
from pprs.partition import Partition, Superpixels
from pprs.partition.base import Filter
from pprs.voting import PREDICT, TUNE, chunk_size, noisy_chunk

COPIES = 32  # noisy copies from which the margin is estimated
VOTES = 64  # of the small vote on each changed image
BATCH = 8
CAVEAT = (
    "the direction in which the margin of this classifier decreases fastest, by an estimate; there may be worse ones"
)
STRAIGHT_THROUGH = "with the gradient passed straight through the partition"
Array = npt.NDArray[Any]


@dataclass(frozen=True)
class Direction:
    """A direction of norm 1 in the space of images, and how it was found."""

    title: str
    how: str
    vector: torch.Tensor


def normalize(vector: torch.Tensor) -> torch.Tensor:
    """Scale a vector to norm 1, in double precision, so that its multiple by r has norm r."""
    vector = vector.double()
    norm = float(vector.norm())
    if not norm > 0 or not np.isfinite(norm):
        raise PprsError("the margin of the classifier is constant around this image, so there is no direction to show")
    return vector / norm


def draw_direction(request: Request, which: int) -> Direction:
    """Draw a direction uniformly at random; `which` selects the draw."""
    rng = np.random.default_rng([request.seed, request.index, 0xD1EC, which])
    drawn = torch.from_numpy(rng.standard_normal(tuple(request.image.shape)))
    return Direction("a random direction", f"uniform over all directions (draw {which})", normalize(drawn))


def find_worst_direction(request: Request, method: int, turn: Turn) -> Direction:
    """Estimate the direction in which the margin of the base classifier, under noise, decreases fastest."""
    if any(isinstance(m, OnnxNetwork) for m in request.loaded.model.module.modules()):
        return _search_direction(request, method, turn)
    partition = request.resolve_partition(method)
    vectors = {how: normalize(-gradient) for how, gradient in _compute_gradients(request, partition, turn).items()}
    how = next(iter(vectors))
    if len(vectors) > 1:
        label = _vote_label(request, partition, turn)
        how = min(vectors, key=lambda how: _shifted_margin(request, partition, vectors[how], label, turn))
    description = f"{CAVEAT}; {how}{', the worse of two estimates' if len(vectors) > 1 else ''}" if how else CAVEAT
    return Direction("the worst direction found", description, vectors[how])


def _shifted_margin(
    request: Request, partition: Partition | None, vector: torch.Tensor, label: int, turn: Turn
) -> float:
    """Return the mean margin after a shift by two standard deviations of the noise in this direction."""
    noisy = _draw_noisy(request)[: 2 * BATCH] + (2 * request.noise.sigma * vector).float()
    return float(_margin(_compute_scores(request, partition, noisy, turn), label).mean())


def _draw_noisy(request: Request) -> torch.Tensor:
    """Draw noisy copies that no certificate uses."""
    chunks = [noisy_chunk(request.image, request.noise, request.seed, request.index, TUNE, chunk) for chunk in range(2)]
    return torch.cat(chunks)[:COPIES]


def _margin(scores: torch.Tensor, label: int) -> torch.Tensor:
    """Return how far the score of the label is above the best other score, for each image."""
    others = scores.clone()
    others[:, label] = -torch.inf
    return scores[:, label] - others.amax(1)


def _compute_gradients(request: Request, partition: Partition | None, turn: Turn) -> dict[str, torch.Tensor]:
    """Compute the gradient of the mean margin with respect to the noisy image.

    There are several estimates, by description, if the partition cannot be differentiated.
    """
    network = request.loaded.model.module.eval()
    label = _vote_label(request, partition, turn)
    gradients: dict[str, torch.Tensor] = {}
    for noisy in _draw_noisy(request).split(BATCH):
        inputs = (noisy if partition is None else partition.run(noisy)[0]).clone().requires_grad_()
        with torch.enable_grad():
            margin = _margin(network(inputs), label).sum()
            (gradient,) = torch.autograd.grad(margin, inputs)
        for how, batch in _backpropagate(partition, noisy, gradient).items():
            gradients[how] = gradients.get(how, torch.zeros_like(request.image)) + batch.sum(0)
        turn.give_way()
    return gradients


def _backpropagate(partition: Partition | None, noisy: torch.Tensor, gradient: torch.Tensor) -> dict[str, torch.Tensor]:
    """Turn the gradient with respect to the output of a partition into that with respect to its input."""
    if partition is None:
        return {"": gradient}
    if isinstance(partition, Superpixels):
        return {"with the segments held fixed": _average_over(partition.labels(noisy), gradient)}
    if isinstance(partition, Filter) and partition.static:
        with torch.enable_grad():
            inputs = noisy.clone().requires_grad_()
            # The filter runs in torch, which can differentiate it.
            (exact,) = torch.autograd.grad(partition._run_device(inputs)[0], inputs, gradient)
        return {"with the exact gradient of the filter": exact}
    estimates = {STRAIGHT_THROUGH: gradient}
    superpixels = find_segments(partition)
    if superpixels is not None:
        averaged = _average_over(superpixels.labels(noisy), gradient)
        estimates["with the gradient averaged over the initial segments"] = averaged
    return estimates


def _average_over(labels: torch.Tensor, gradient: torch.Tensor) -> torch.Tensor:
    """Average over segments, which is also the transpose of averaging."""
    batch, channels = gradient.shape[:2]
    flat = labels.long().reshape(batch, 1, -1)
    values = gradient.reshape(batch, channels, -1)
    count = int(flat.max()) + 1
    sums = torch.zeros(batch, channels, count).scatter_add_(2, flat.expand_as(values), values)
    sizes = torch.zeros(batch, 1, count).scatter_add_(2, flat, torch.ones(flat.shape))
    return (sums / sizes.clamp_min(1)).gather(2, flat.expand_as(values)).reshape(gradient.shape)


def _vote_label(request: Request, partition: Partition | None, turn: Turn) -> int:
    """Return the label with the most votes among a few noisy copies."""
    scores = _compute_scores(request, partition, _draw_noisy(request), turn)
    return int(scores.argmax(1).bincount(minlength=request.loaded.num_classes).argmax())


@torch.inference_mode()
def _compute_scores(request: Request, partition: Partition | None, noisy: torch.Tensor, turn: Turn) -> torch.Tensor:
    scores = []
    for batch in noisy.split(BATCH):
        inputs = batch.clone() if partition is None else partition.run(batch)[0]
        scores.append(request.loaded.ready.module(inputs).clone())
        turn.give_way()
    return torch.cat(scores)


def _search_direction(request: Request, method: int, turn: Turn) -> Direction:
    """Choose the worst of several directions, random or towards other images, for a network without gradients."""
    partition = request.resolve_partition(method)
    label = _vote_label(request, partition, turn)
    vectors = [draw_direction(request, 1000 + i).vector for i in range(8)]
    for index in range(min(len(request.loaded.data), 24)):
        other = request.loaded.data[index].image
        if other.shape == request.image.shape and not torch.equal(other, request.image):
            vectors.append(normalize(other.double() - request.image.double()))
    how = "the worst of some random directions and of those towards other images, since this network has no gradient"
    worst = min(vectors, key=lambda vector: _shifted_margin(request, partition, vector, label, turn))
    return Direction("the worst direction found", f"{how}; there may be worse ones", worst)


def shift_image(request: Request, direction: Direction, norm: float) -> torch.Tensor:
    """Change the image by exactly this norm in this direction, in double precision, without clipping."""
    return request.image.double() + norm * direction.vector


def count_votes(request: Request, method: int, image: torch.Tensor, turn: Turn) -> tuple[int, int]:
    """Take a small vote on a changed image. Returns the winning label and its votes, which certify nothing."""
    partition = request.resolve_partition(method)
    chunks = range(min(2, math.ceil(VOTES / chunk_size(request.image.numel()))))  # fewer votes on very large images
    noisy = [noisy_chunk(request.image, request.noise, request.seed, request.index, PREDICT, i) for i in chunks]
    shift = (image - request.image.double()).float()
    counts = _compute_scores(request, partition, torch.cat(noisy)[:VOTES] + shift, turn).argmax(1).bincount()
    return int(counts.argmax()), int(counts.max())


def spread_evenly(norm: float, shape: Sequence[int]) -> float:
    """Return the change of each value, on a scale of 255, if the norm is spread evenly over all values."""
    return 255 * norm / math.sqrt(math.prod(shape))
