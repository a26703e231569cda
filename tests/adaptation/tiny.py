"""A small classifier that noise breaks, and unlabelled images for it."""

from __future__ import annotations

import functools

import torch
from torch import nn

from pprs import Gaussian, Model
from pprs.adaptation.problem import SmoothingProblem
from pprs.partition import Partition

NOISE = Gaussian(0.15)


def images_of(labels: torch.Tensor, seed: int) -> torch.Tensor:
    """Return 12x12 images with one of four textures: flat, horizontal or vertical bars, or a chequerboard."""
    generator = torch.Generator().manual_seed(seed)
    steps = torch.arange(12)
    images = torch.empty(len(labels), 1, 12, 12)
    for image, label in zip(images, labels.tolist(), strict=True):
        dy, dx = torch.randint(0, 8, (2,), generator=generator).tolist()
        rows, columns = (steps + dy)[:, None] // 4 * (label & 1), (steps + dx)[None] // 4 * (label >> 1)
        image[:] = 0.3 + 0.3 * ((rows + columns) % 2)
    return images + 0.1 * torch.rand(images.shape, generator=generator)


def labels_of(count: int, seed: int) -> torch.Tensor:
    return torch.randint(0, 4, (count,), generator=torch.Generator().manual_seed(seed))


def unlabelled(count: int, seed: int = 1) -> torch.Tensor:
    return images_of(labels_of(count, seed), seed)


@functools.cache
def trained() -> nn.Sequential:
    """Return a network that was trained on clean images."""
    torch.manual_seed(0)
    net = nn.Sequential(
        nn.Conv2d(1, 8, 3, padding=1, bias=False), nn.BatchNorm2d(8), nn.ReLU(),
        nn.Conv2d(8, 8, 3, stride=2, padding=1, bias=False), nn.BatchNorm2d(8), nn.ReLU(),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 4),
    )  # fmt: skip
    labels = labels_of(256, 0)
    images, optimizer = images_of(labels, 0), torch.optim.Adam(net.parameters(), 0.01)
    for _ in range(120):
        optimizer.zero_grad()
        nn.functional.cross_entropy(net(images), labels).backward()
        optimizer.step()
    return net.eval()


def problem(module: nn.Module | None = None, count: int = 200, partition: Partition | None = None) -> SmoothingProblem:
    return SmoothingProblem(Model(module or trained(), "tiny", 4), unlabelled(count), NOISE, partition)
