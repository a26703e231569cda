"""A small network, and adaptations of it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import PIL.Image
import torch

from pprs import Model
from pprs.model.adaptation import Adaptation, StepRecord
from pprs.model.changes import Changes
from pprs.model.overlay import Overlay
from pprs.model.resnet import Architecture
from pprs.model.unet import UNetArchitecture
from pprs.model.weights import save

IMAGES = (torch.arange(60 * 64).reshape(60, 1, 8, 8) * 37 % 251).float() / 255


class SmallNet(torch.nn.Module):
    """Three classes of images [1, 8, 8], with batch normalisation."""

    num_classes, input_shape = 3, (1, 8, 8)

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm = torch.nn.Conv2d(1, 2, 3, 2), torch.nn.BatchNorm2d(2)
        self.last = torch.nn.Linear(18, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        scores: torch.Tensor = self.last(self.norm(self.conv(x)).abs().flatten(1))
        return scores


class PixelNet(torch.nn.Module):
    """Labels each pixel by whether it is bright. Runs load it as `networks:PixelNet`."""

    num_classes, input_shape = 2, (1, 8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        score = x.mean(1, keepdim=True) - 0.5
        return torch.cat([-score, score], 1)


def save_network(path: Path) -> Path:
    """Write a network of ours for images [1, 8, 8], with random weights."""
    arch = Architecture((1,), 2, 1, 3, (0.5,), (0.5,))
    save(path, arch.build(), arch, input_shape=(1, 8, 8), class_names=("a", "b", "c"), training={})
    return path


def save_unet(path: Path, side: int = 16) -> Path:
    """Write a segmentation network of ours for images [1, side, side], with random weights."""
    arch = UNetArchitecture(2, 1, 3, (0.5,), (0.5,))
    save(path, arch.build().eval(), arch, input_shape=(1, side, side), class_names=None, training={})
    return path


def write_masked_images(folder: Path, side: int = 8) -> tuple[str, str]:
    """Write a network that tells dark pixels from bright ones, and images with masks: halves of various contrast."""
    rng = np.random.default_rng(0)
    for i, contrast in enumerate((10, 120, 60, 30, 90, 0, 110, 40)):
        mask = (np.arange(side)[None, :] >= rng.integers(2, side - 1) + np.zeros((side, 1), int)).astype(np.uint8)
        pixels = (128 - contrast // 2 + contrast * mask + rng.integers(-9, 10, mask.shape)).astype(np.uint8)
        for name, values in (("images", pixels), ("masks", mask)):
            (folder / "data" / name).mkdir(parents=True, exist_ok=True)
            PIL.Image.fromarray(values).save(folder / "data" / name / f"{i}.png")
    torch.manual_seed(0)
    layer = torch.nn.Conv2d(1, 2, 3, padding=1, padding_mode="replicate").eval()
    with torch.no_grad():
        layer.weight.copy_(torch.tensor([-1.0, 1.0])[:, None, None, None].expand(2, 1, 3, 3) / 9)
        layer.bias.copy_(torch.tensor([0.5, -0.5]))
    batch = {0: torch.export.Dim("batch")}
    program = torch.export.export(layer, (torch.rand(2, 1, side, side),), dynamic_shapes=(batch,))
    torch.export.save(program, folder / "net.pt2")
    return str(folder / "net.pt2"), str(folder / "data")


def make_overlay(
    model: Model,
    changes: Changes,
    *,
    steps: tuple[StepRecord, ...] = (StepRecord("bias", 0.9, 0.5, True, 1.0),),
    noise: str = "gaussian:sigma=0.25",
    partition: str = "none",
    digests: tuple[str, ...] = (),
) -> Overlay:
    adaptation = Adaptation(
        model.digest(), model.source, noise, partition, 0, "images", "", len(digests), "auto", "5m", steps,
        tuple(step.method for step in steps if step.accepted and step.method != "none"),
        complete=True, version="0", image_digests=frozenset(digests),
    )  # fmt: skip
    return Overlay(adaptation, changes)
