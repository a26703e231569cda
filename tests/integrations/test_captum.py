"""Captum's own methods accept the mask, and attribute to superpixels."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from captum.attr import FeatureAblation, KernelShap, ShapleyValueSampling

from pprs import PprsError, Slic
from pprs.integrations.captum import feature_mask


def picture() -> torch.Tensor:
    """A grey image [1, 3, 16, 16] with a bright square, which is the lower right quarter."""
    x = torch.full((1, 3, 16, 16), 0.2)
    x[..., 8:, 8:] = 0.9
    return x


def brightness(x: torch.Tensor) -> torch.Tensor:
    """Scores of two classes, of which the first is the brightness of the lower right quarter."""
    bright = x[..., 8:, 8:].mean((1, 2, 3))
    return torch.stack([bright, 1 - bright], 1)


@pytest.mark.parametrize("method", [FeatureAblation, ShapleyValueSampling, KernelShap])
def test_captum_attributes_to_superpixels(method: type) -> None:
    x = picture()
    mask = feature_mask(x, "grid:size=8")
    assert mask.shape == (1, 1, 16, 16)
    assert mask.unique().tolist() == [0, 1, 2, 3]
    found = method(brightness).attribute(x, target=0, feature_mask=mask)
    per_segment = [found[:, :, mask[0, 0] == segment].unique() for segment in range(4)]
    assert np.allclose(per_segment[3], 0.9, atol=1e-3)
    assert all(np.allclose(values, 0, atol=1e-3) for values in per_segment[:3])


def test_the_mask_holds_the_segments_of_the_picture() -> None:
    x = picture()
    partition = Slic(n_segments=4, blur=1)
    mask = feature_mask(x[0], partition)
    assert torch.equal(mask[:, 0].int(), partition.labels(x))
    assert torch.equal(feature_mask(x), feature_mask(x[0], "slic"))
    assert mask.dtype == torch.int64
    inside = mask[0, 0, 8:, 8:].unique()
    assert not torch.isin(mask[0, 0, :, :8], inside).any()  # no superpixel crosses the edge


def test_bad_input() -> None:
    with pytest.raises(PprsError, match=r"a single image, .* not a batch of shape \(2, 3, 16, 16\)"):
        feature_mask(torch.zeros(2, 3, 16, 16))
    with pytest.raises(PprsError, match="has no segments"):
        feature_mask(picture(), "slic/soft")
    with pytest.raises(PprsError, match='"none" has no segments'):
        feature_mask(picture(), "none")
