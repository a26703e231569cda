"""Masks cover every patch, and fills depend on visible pixels only."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from pprs.errors import ConfigurationError, PprsError
from pprs.patches import FILLS, Fill, MaskGrid, parse_fill
from pprs.patches.masks import cover_axis

ALL_FILLS = [*FILLS, "constant:value=0.5"]


@st.composite
def axes(draw: st.DrawFn) -> tuple[int, int, int]:
    length = draw(st.integers(2, 60))
    patch = draw(st.integers(1, length - 1))
    return length, patch, draw(st.integers(2, length - patch + 1))


@settings(max_examples=60, deadline=None)
@given(axes())
def test_every_position_of_a_patch_lies_inside_a_span(axis: tuple[int, int, int]) -> None:
    length, patch, masks = axis
    spans = cover_axis(length, patch, masks)
    assert len(spans) <= masks
    assert len({span.stop - span.start for span in spans}) == 1
    assert all(0 <= span.start < span.stop <= length for span in spans)
    assert all(span.stop - span.start < length for span in spans), "a mask hides everything"
    for first in range(length - patch + 1):
        assert any(span.start <= first and first + patch <= span.stop for span in spans)


@pytest.mark.parametrize(("height", "width", "patch", "masks"), [(8, 8, 2, 3), (9, 14, 3, 4), (13, 8, 1, 8)])
def test_every_patch_lies_inside_a_mask(height: int, width: int, patch: int, masks: int) -> None:
    grid = MaskGrid(height, width, patch, masks)
    assert len(grid) <= masks**2
    for top in range(height - patch + 1):
        for left in range(width - patch + 1):
            inside = grid.hidden[:, top : top + patch, left : left + patch].flatten(1).all(1)
            assert inside.any(), f"no mask covers the patch at {top}, {left}"


def test_the_paper_grid_has_666_pairs() -> None:
    grid = MaskGrid(28, 28, 2, 6)
    assert len(grid) == 36
    assert len(grid) * (len(grid) + 1) // 2 == 666
    assert {(box.rows.stop - box.rows.start) for box in grid.boxes} == {6}


@pytest.mark.parametrize(
    ("patch", "masks", "parameter", "message"),
    [
        (8, 3, "patch", "Give a side below 8"),
        (9, 3, "patch", "leaves nothing of an image of 8x12"),
        (0, 3, "patch", "at least 1"),
        (2.5, 3, "patch", "integer"),
        (2, 1, "masks", "at least 2"),
        (2, 8, "masks", "only 7 positions.*Give at most 7"),
    ],
)
def test_impossible_grids_are_refused(patch: int, masks: int, parameter: str, message: str) -> None:
    with pytest.raises(ConfigurationError, match=message) as error:
        MaskGrid(8, 12, patch, masks)
    assert error.value.parameter == parameter


def draw_masked(seed: int, channels: int = 1) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    grid = MaskGrid(11, 14, 2, 3)
    pairs = torch.randint(len(grid), (6, 2), generator=generator)
    return torch.rand(6, channels, 11, 14, generator=generator), grid.hide(pairs)


@pytest.mark.parametrize("text", ALL_FILLS)
@settings(max_examples=8, deadline=None)
@given(seed=st.integers(0, 2**32), channels=st.sampled_from([1, 3]), value=st.sampled_from([0.0, 1.0, -1e30, 3e38]))
def test_hidden_pixels_have_no_influence(text: str, seed: int, channels: int, value: float) -> None:
    fill = parse_fill(text)
    images, hidden = draw_masked(seed, channels)
    changed = images.masked_fill(hidden[:, None], value)
    scattered = torch.where(hidden[:, None], torch.rand(images.shape), images)
    assert torch.equal(fill.apply(images, hidden), fill.apply(changed, hidden))
    assert torch.equal(fill.apply(images, hidden), fill.apply(scattered, hidden))


@pytest.mark.parametrize("text", ALL_FILLS)
@pytest.mark.parametrize("channels", [1, 3])
def test_other_images_of_the_batch_have_no_influence(text: str, channels: int) -> None:
    fill = parse_fill(text)
    images, hidden = draw_masked(1, channels)
    together = fill.apply(images, hidden)
    assert torch.equal(together.flip(0), fill.apply(images.flip(0), hidden.flip(0)))
    for i in range(len(images)):
        assert torch.equal(together[i : i + 1], fill.apply(images[i : i + 1], hidden[i : i + 1]))


@pytest.mark.parametrize("text", ALL_FILLS)
def test_visible_pixels_stay_and_filled_ones_are_in_range(text: str) -> None:
    images, hidden = draw_masked(2, 3)
    filled = parse_fill(text).apply(images, hidden)
    shown = ~hidden[:, None].expand_as(images)
    assert torch.equal(filled[shown], images[shown])
    assert float(filled.min()) >= 0
    assert float(filled.max()) <= 1


def fill_square(image: torch.Tensor, fill: Fill) -> torch.Tensor:
    hidden = torch.zeros(1, *image.shape[-2:], dtype=torch.bool)
    hidden[:, 8:16, 8:16] = True
    return fill.apply(image[None], hidden)[0]


def test_mean_is_that_of_visible_pixels() -> None:
    image = torch.full((1, 24, 24), 0.25)
    image[:, 8:16, 8:16] = 1.0
    assert torch.allclose(fill_square(image, parse_fill("mean")), torch.full((1, 24, 24), 0.25))


def test_diffusion_continues_a_ramp() -> None:
    """A ramp is harmonic, so an exact solution would restore it."""
    ramp = torch.linspace(0, 1, 24).expand(1, 24, 24).contiguous()
    assert float((fill_square(ramp, parse_fill("diffusion")) - ramp).abs().max()) < 0.02


def test_superpixels_continue_an_edge() -> None:
    """Diffusion blurs an edge inside the hole. Superpixels restore it, except perhaps for the pixels next to it."""
    edge = torch.cat([torch.full((1, 24, 12), 0.2), torch.full((1, 24, 12), 0.8)], dim=2)
    errors = {name: (fill_square(edge, parse_fill(name)) - edge).abs().mean() for name in ("diffusion", "superpixels")}
    assert errors["superpixels"] < 0.25 * errors["diffusion"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("blurr", 'unknown fill "blurr"'),
        ("superpixel", 'Did you mean "superpixels"'),
        ("constant:value=2", "between 0 and 1"),
        ("superpixels:n_segments=0", "at least 1"),
        ("mean:value=1", "takes no options"),
    ],
)
def test_unknown_fills_are_refused(text: str, message: str) -> None:
    with pytest.raises(ConfigurationError, match=message) as error:
        parse_fill(text)
    assert error.value.parameter == "fill"


@pytest.mark.parametrize("text", ALL_FILLS)
def test_an_image_without_visible_pixels_is_refused(text: str) -> None:
    with pytest.raises(PprsError, match="nothing to fill them from"):
        parse_fill(text).apply(torch.zeros(2, 1, 8, 8), torch.ones(2, 8, 8, dtype=torch.bool))


@pytest.mark.parametrize("text", ALL_FILLS)
def test_a_fill_prints_as_its_text(text: str) -> None:
    assert parse_fill(str(parse_fill(text))) == parse_fill(text)
