"""The partition that "auto" stands for, which depends on the model if it was made for one."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from pprs.model.base import Model
from pprs.partition import Recommendation, parse_partition, recommend_partition

Recommend: TypeAlias = Callable[[float, tuple[int, ...]], Recommendation]


def recommend_for_model(model: Model, sigma: float, shape: tuple[int, ...]) -> Recommendation:
    """Return the partition that "auto" stands for.

    For a network that was adapted or trained to classify noisy images, it is the one that came before it then, unless
    the noise is added to images of another size.
    """
    if model.adaptation is not None and model.adaptation.methods and not model.adaptation.is_for_dither:
        own, verb = model.adaptation.partition, "adapted to noise"
    elif model.trained_behind is not None:
        own, verb = model.trained_behind, "trained under noise"
    else:
        return recommend_partition(sigma, shape)
    partition = parse_partition(own)
    if partition is None:
        return Recommendation(None, f"since the network was {verb} without a partition")
    if model.input_shape not in (None, shape):
        return recommend_partition(sigma, shape)
    return Recommendation(partition, f"since the network was {verb} behind it")
