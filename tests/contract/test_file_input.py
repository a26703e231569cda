"""Resizing noisy images in front of a network, compared with the preprocessing of clean images."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from pprs.model import Model, Preprocess
from pprs.model.file_input import FileInput, resize
from pprs.model.preprocess import RESAMPLING
from pprs.runs.engine import Accelerated

SIZES = [(8, 8), (9, 31), (40, 33), (129, 77), (300, 200), (64, 48), (17, 401)]  # of files


def preprocesses(method: str) -> list[Preprocess]:
    return [
        Preprocess(64, 48, method=method),
        Preprocess(33, 57, shorter=40, method=method),  # cropped
        Preprocess(32, 33, shorter=19, method=method),  # padded
        Preprocess(32, 32, shorter=19, method=method, floor=True),
        Preprocess(64, 64, shorter=64, method=method),
    ]


def prepare(preprocess: Preprocess, channels: int, images: torch.Tensor) -> torch.Tensor:
    return FileInput(torch.nn.Identity(), preprocess, channels)(images)  # type: ignore[no-any-return]


@pytest.mark.parametrize("method", RESAMPLING)
@pytest.mark.parametrize("size", SIZES)
def test_a_clean_image_becomes_what_the_preprocessing_makes_of_it(method: str, size: tuple[int, int]) -> None:
    """Pillow rounds to 8 bits after each direction, and the conversion to grey rounds once more."""
    torch.manual_seed(0)
    for preprocess in preprocesses(method):
        for channels, target in ((1, 1), (1, 3), (3, 3), (3, 1)):
            image = torch.randint(80, 176, (channels, *size)).float() / 255  # no filter overshoots black or white
            expected, found = preprocess(image, target), prepare(preprocess, target, image[None])[0]
            assert found.shape == expected.shape
            tolerance = (2.0 if (channels, target) == (3, 1) else 1.5) / 255
            assert float((found - expected).abs().max()) <= tolerance, preprocess


@pytest.mark.parametrize("method", RESAMPLING)
@pytest.mark.parametrize("channels", [1, 3])
def test_an_image_is_resized_independently_of_its_batch(method: str, channels: int) -> None:
    batch = torch.randn(7, channels, 50, 41, generator=torch.Generator().manual_seed(0))
    for size in ((20, 30), (90, 80), (50, 41)):
        alone = torch.cat([resize(batch[i : i + 1], *size, method) for i in range(len(batch))])
        assert torch.equal(resize(batch, *size, method), alone)


def test_noisy_values_are_neither_rounded_nor_clipped() -> None:
    noisy = torch.full((1, 1, 8, 8), -1.23456)
    assert torch.allclose(prepare(Preprocess(16, 16), 3, noisy), torch.tensor(-1.23456))


class InPlace(torch.nn.Module):
    """A network that normalises in place."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.sub_(0.5).mean((2, 3))


@pytest.mark.parametrize("side", [16, 20])
def test_the_noisy_images_are_not_changed(side: int) -> None:
    for channels in (1, 3):
        noisy = torch.rand(2, channels, side, side)
        before = noisy.clone()
        FileInput(InPlace(), Preprocess(16, 16), 3)(noisy)
        assert torch.equal(noisy, before)


def test_the_rounding_of_mixed_precision_is_passed_on() -> None:
    """Otherwise close votes would not be settled by scoring images one by one."""
    accelerated = Accelerated(InPlace(), autocast=True, channels_last=False)
    assert FileInput(accelerated, Preprocess(16, 16), 3).rounding == accelerated.rounding > 0


def test_a_model_without_an_input_shape_takes_images_as_they_are() -> None:
    net: Any = InPlace()
    assert Model(net, "any size").wrap_file_input(net) is net
    wrapped = Model(net, "fixed size", input_shape=(3, 16, 24)).wrap_file_input(net)
    assert isinstance(wrapped, FileInput)
    assert wrapped(torch.rand(2, 1, 9, 9)).shape == (2, 3)
