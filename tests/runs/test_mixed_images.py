"""Runs of images with different sizes and levels, some of which the settings do not suit."""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import Any

import pytest
import torch

import pprs
from pprs import Exponential, Gaussian, Sampling
from pprs.errors import ConfigurationError, PprsError
from pprs.runs import FILE

EIGHT_BIT, SIXTEEN_BIT = torch.full((1, 8, 8), 200 / 255), torch.full((1, 8, 8), 50001 / 65535)
LARGE, WIDE = torch.full((1, 64, 64), 200 / 255), torch.full((1, 8, 16), 200 / 255)


class Bright(torch.nn.Module):
    """Class 1 if the mean of an image of any size is above 1/2."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        mean = x.mean((1, 2, 3)) - 0.5
        return torch.stack([-mean, mean], dim=1)


# (image that suits the settings, image that does not, settings, why)
CASES = {
    "alpha, 16 bits": (
        EIGHT_BIT, SIXTEEN_BIT, {"noise": Gaussian(0.25), "sampling": Sampling(10, 100, 1e-10)},
        "cannot keep alpha=1e-10: 100 samples of 64 values",
    ),
    "alpha, large image": (
        EIGHT_BIT, LARGE, {"noise": Gaussian(0.25), "sampling": Sampling(10, 100, 4e-11)},
        "cannot keep alpha=4e-11: 100 samples of 4096 values",
    ),
    "sigma, 16 bits": (
        EIGHT_BIT, SIXTEEN_BIT, {"noise": Gaussian(4.0), "sampling": Sampling(10, 100)},
        "`sigma` 4 is too large for exact arithmetic on 65536 levels",
    ),
    "radius, 16 bits": (
        EIGHT_BIT, SIXTEEN_BIT, {"noise": Gaussian(0.25), "sampling": Sampling(10, 200, stop="radius:0.1,0.4457")},
        "n=200 samples can never certify a radius of 0.4457 .* The smallest n that could is",
    ),
    "radius, dimension": (
        WIDE, EIGHT_BIT, {"noise": Exponential(0.25), "sampling": Sampling(10, 100, stop="radius:0.361")},
        "n=100 samples can never certify a radius of 0.361",
    ),
    "budget": (
        EIGHT_BIT, LARGE,
        {"noise": Gaussian(0.25), "sampling": Sampling(10, 100, 4e-11), "budget": "1e4samples"},
        "cannot keep alpha=4e-11",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_an_image_that_does_not_suit_the_settings_fails_alone(name: str, tmp_path: Path) -> None:
    good, bad, options, message = CASES[name]
    if bad is SIXTEEN_BIT:  # only a run of an earlier version has images of different bit depths
        certify([good, bad, good], out=tmp_path / "run", images=[0], **options)
        with sqlite3.connect(tmp_path / "run" / FILE) as connection:
            connection.execute("DELETE FROM settings WHERE key = 'bit_depth'")
    run = certify([good, bad, good], out=tmp_path / "run", **options)
    assert [row.idx for row in run.rows()] == [0, 2]
    (failure,) = run.failures()
    assert failure.idx == 1
    with pytest.raises(PprsError, match=message) as caught:
        raise PprsError(failure.error)
    assert f"shape {tuple(bad.shape)}" in str(caught.value)


@pytest.mark.parametrize("name", CASES)
def test_settings_that_do_not_suit_the_first_image_are_refused_before_a_run(name: str, tmp_path: Path) -> None:
    good, bad, options, message = CASES[name]
    with pytest.raises(ConfigurationError, match=message):
        certify([bad, good], out=tmp_path / "run", **options)
    assert not (tmp_path / "run").exists()


def certify(contents: list[torch.Tensor], **options: Any) -> pprs.Run:
    data = [(image, 1) for image in contents]
    return pprs.certify_dataset(Bright(), data, progress=False, engine="torch", **{"partition": None} | options)
