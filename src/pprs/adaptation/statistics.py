"""Batch-norm statistics under noise and partition."""

from __future__ import annotations

import copy
import time
from collections.abc import Iterable, Iterator
from dataclasses import replace

import torch
from torch.nn.modules.batchnorm import _BatchNorm

from pprs.adaptation.problem import BATCH, Changes, Perturbed, VotingProblem
from pprs.errors import ConfigurationError
from pprs.progress import Progress, stage

PRIOR = 16  # images that the statistics of the clean images count as
LEAST, MOST = 1024, 4096  # noisy images: each image is drawn several times if there are few, and some are left out
FIRST_DRAW = 1 << 32  # of the noise, so that no other method shares it


def adapt_statistics(
    problem: VotingProblem, changes: Changes, *, progress: Progress, deadline: float | None = None
) -> Changes:
    """Replace the running statistics of batch normalisation by those of noisy, partitioned images.

    A layer normalises by the mean and variance of its inputs on clean training images. Under noise these are others, so
    that the layers behind it receive inputs unlike any in training. With n images, the new statistics have the weight
    n / (n + 16), and the old ones the rest (Schneider et al. 2020).

    Args:
        problem: The classifier, and what it is adapted to.
        changes: Earlier changes to build on. Their bias is dropped, since it was fitted to other statistics.
        progress: Where to report progress.
        deadline: When to stop, on the clock of `time.monotonic`. At least one batch is used.

    Returns:
        The changes with the new statistics.

    Raises:
        ConfigurationError: If the network has no batch normalisation with running statistics.
    """
    if not find_batch_norms(problem.model.module):
        raise ConfigurationError(
            f"{problem.model.source} has no batch normalisation with running statistics that could be adapted. Choose "
            "another `method`.",
            parameter="method",
        )
    net = copy_network(problem, changes)
    layers = find_batch_norms(net)
    old = {name: value.clone() for name, value in _iter_statistics(layers)}
    batches = draw_batches(problem, LEAST, MOST)
    with stage(progress, "statistics", len(batches), "batches"):
        used = estimate_statistics(net, _iter_inputs(problem, changes, batches, progress, deadline))
    images = len(torch.cat(batches[:used]).unique())
    share = images / (images + PRIOR)
    new = {name: old[name].lerp(value, share) for name, value in _iter_statistics(layers)}
    return replace(changes, weights={**changes.weights, **new}, bias=None)


def copy_network(problem: Perturbed, changes: Changes) -> torch.nn.Module:
    """Return a copy of the network with its changed weights, in eval mode, without bias or denoiser."""
    net = copy.deepcopy(problem.model.module).eval()
    net.load_state_dict({**net.state_dict(), **changes.weights})
    return net


def find_batch_norms(net: torch.nn.Module) -> dict[str, _BatchNorm]:
    """Return the batch-norm layers that have running statistics, by name."""
    return {
        name: layer
        for name, layer in net.named_modules()
        if isinstance(layer, _BatchNorm) and layer.running_mean is not None and layer.running_var is not None
    }


def _iter_statistics(layers: dict[str, _BatchNorm]) -> Iterator[tuple[str, torch.Tensor]]:
    for name, layer in layers.items():
        for buffer in ("running_mean", "running_var"):
            yield f"{name}.{buffer}".removeprefix("."), getattr(layer, buffer)


@torch.no_grad()
def estimate_statistics(net: torch.nn.Module, inputs: Iterable[torch.Tensor]) -> int:
    """Set the running statistics of a network, in place, to their mean over batches. Returns the number of batches."""
    net.eval()
    layers = find_batch_norms(net).values()
    momenta = [layer.momentum for layer in layers]
    for layer in layers:
        layer.reset_running_stats()
        layer.momentum = None  # the mean over all batches
        layer.train()
    count = 0
    for batch in inputs:
        net(batch)
        count += 1
    for layer, momentum in zip(layers, momenta, strict=True):
        layer.momentum = momentum
        layer.eval()
    return count


def draw_batches(problem: Perturbed, least: int, most: int) -> list[torch.Tensor]:
    """Return full batches of image indices, at least `least` in total if each image is drawn often enough."""
    generator = torch.Generator().manual_seed(problem.seed)
    count = len(problem.images)
    rounds = -(-least // count)
    order = torch.cat([torch.randperm(count, generator=generator) for _ in range(rounds)])[:most]
    return [batch for batch in order.split(BATCH) if len(batch) == BATCH]


def _iter_inputs(
    problem: VotingProblem, changes: Changes, batches: list[torch.Tensor], progress: Progress, deadline: float | None
) -> Iterator[torch.Tensor]:
    for draw, indices in enumerate(batches):
        if draw and deadline is not None and time.monotonic() > deadline:
            return
        noisy = problem.noisy(indices, FIRST_DRAW + draw)
        yield noisy if changes.denoiser is None else changes.denoiser(noisy)
        progress.advance(1)
