"""What a radius looks like: changes of exactly that norm, in a random direction and in an adversarial one.

The adversarial change is the one that the attack of `pprs audit` finds with few noisy copies. There may be worse ones.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from pprs.app.requests import Request
from pprs.app.server.fair_queue import Turn
from pprs.audit import Attack, Objective, normalize
from pprs.model.modes import eval_mode
from pprs.partition import Partition
from pprs.smoothing.arithmetic import prepare_image
from pprs.smoothing.voting import PREDICT, chunk_size, noisy_chunk

COPIES = 16  # noisy copies for each of the two steps of an attack
SCORE_PAIRS, STARTS = 128, 12  # pairs of noisy copies, and other images to start from, for a network without gradients
VOTES = 64  # of the small vote on each changed image
BATCH = 8
CAVEAT = "the change that an attack on the votes of this classifier finds; there may be worse ones"


@dataclass(frozen=True)
class Direction:
    """A direction of norm 1 in the space of images, and how it was found."""

    title: str
    how: str
    vector: torch.Tensor


def draw_direction(request: Request[Any], which: int) -> Direction:
    """Draw a direction uniformly at random; `which` selects the draw."""
    rng = np.random.default_rng([request.seed, request.chosen.index, 0xD1EC, which])
    drawn = torch.from_numpy(rng.standard_normal(request.shape))
    return Direction("a random direction", f"uniform over all directions (draw {which})", normalize(drawn))


def find_worst_direction(request: Request[Any], method: int, turn: Turn, norm: float = 0.0) -> Direction:
    """Attack the votes of a method with a change of this norm, and return the direction of the change."""
    objective = Objective(
        request.make_classifier(method), request.chosen.values, index=request.chosen.index,
        network=request.loaded.model.module, pause=turn.give_way, draws=2 * COPIES, batch=BATCH,
    )  # fmt: skip
    attack = Attack(objective, _find_starts(request), draws=COPIES, score_draws=SCORE_PAIRS)
    vector = attack.direction
    if norm > 0 and attack.kind == "gradient":
        vector = normalize(attack.search(norm, 1, bounded=False))
    how = f"; {attack.how}" if attack.how else ""
    if attack.kind == "scores":
        how += ", since this network has no usable gradient"
    elif attack.compared > 1:
        how += ", the worse of two estimates"
    return Direction("the worst direction found", CAVEAT + how, vector)


def _find_starts(request: Request[Any]) -> list[torch.Tensor]:
    """Return changes towards other images, from which a network without gradients may start."""
    starts = []
    for index in range(min(len(request.loaded.data), STARTS)):
        other = request.loaded.data[index].image
        if other.shape == request.chosen.values.shape and not torch.equal(other, request.chosen.values):
            starts.append(other.double() - request.chosen.values.double())
    return starts


@torch.inference_mode()
def _compute_scores(
    request: Request[Any], partition: Partition | None, noisy: torch.Tensor, turn: Turn
) -> torch.Tensor:
    scores = []
    for batch in noisy.split(BATCH):
        inputs = batch.clone() if partition is None else partition.run(batch)[0]
        with eval_mode(request.loaded.ready.module):
            scores.append(request.loaded.ready.module(inputs).clone())
        turn.give_way()
    return torch.cat(scores)


def shift_image(request: Request[Any], direction: Direction, norm: float) -> torch.Tensor:
    """Change the image by exactly this norm in this direction, in double precision, without clipping."""
    return request.chosen.values.double() + norm * direction.vector


def count_votes(request: Request[Any], method: int, image: torch.Tensor, turn: Turn) -> tuple[int, int]:
    """Take a small vote on a changed image. Returns the winning label and its votes, which certify nothing."""
    partition = request.methods[method].resolve(request.shape)
    chunks = range(
        min(2, math.ceil(VOTES / chunk_size(request.chosen.values.numel())))
    )  # fewer votes on very large images
    prepared = prepare_image(request.chosen.values, request.noise)
    noisy = [noisy_chunk(prepared, request.noise, request.seed, request.chosen.index, PREDICT, i) for i in chunks]
    shift = (image - request.chosen.values.double()).float()
    counts = _compute_scores(request, partition, torch.cat(noisy)[:VOTES] + shift, turn).argmax(1).bincount()
    return int(counts.argmax()), int(counts.max())


def spread_evenly(norm: float, shape: Sequence[int]) -> float:
    """Return the change of each value, on a scale of 255, if the norm is spread evenly over all values."""
    return 255 * norm / math.sqrt(math.prod(shape))
