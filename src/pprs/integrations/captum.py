"""Superpixels of an image as the `feature_mask` of Captum's attribution methods."""

from __future__ import annotations

import torch

from pprs.errors import ConfigurationError
from pprs.partition import AnyPartition, Slic, as_partition


def feature_mask(image: torch.Tensor, partition: AnyPartition = None) -> torch.Tensor:
    """Return the superpixel of each pixel, so that Captum attributes a prediction to superpixels instead of pixels.

    The mask explains a prediction. It has no part in a certificate, which only ever segments the noisy image.

    Args:
        image: The image [C, H, W] or [1, C, H, W], in [0, 1].
        partition: A partition with segments, as an object or as text such as "slic:n_segments=50". By default `Slic()`.

    Returns:
        int64 numbers from 0 to k - 1, [1, 1, H, W] on the device of the image, for `feature_mask` of `FeatureAblation`,
        `ShapleyValueSampling`, `KernelShap` or `Lime`.

    Raises:
        ConfigurationError: If this is not one image, or if the partition has no segments.
        PprsError: If the image is too small or has values that are not finite.

    >>> feature_mask(torch.rand(3, 32, 32), "grid:size=16")[0, 0, ::16, ::16]
    tensor([[0, 1],
            [2, 3]])
    """
    chosen = Slic() if partition is None else as_partition(partition)
    if chosen is None:
        raise ConfigurationError('"none" has no segments. Name a partition, such as slic.', parameter="partition")
    batch = image if image.ndim == 4 else image[None]
    if len(batch) != 1:
        raise ConfigurationError(
            f"`image` must be a single image, [C, H, W] or [1, C, H, W], not a batch of shape {tuple(image.shape)}",
            parameter="image",
        )
    return chosen.labels(batch.detach().float()).long()[:, None]


__all__ = ["feature_mask"]
