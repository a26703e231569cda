"""Gradients through a partition: from its output, the input of the network, back to the noisy image."""

from __future__ import annotations

import torch

from pprs.dither.estimators import (
    ESTIMATE,
    Estimator,
    LocalMean,
    PartitionedEstimator,
    average_values,
    find_full,
    read_values,
)
from pprs.dither.thresholds import ShownLevels
from pprs.kernels.thresholds import GREY
from pprs.partition import Denoiser, Partition, SignalSegments, Superpixels
from pprs.partition.base import Filter
from pprs.partition.mean import find_segments
from pprs.partition.signals import SEPARATE

STRAIGHT_THROUGH = "with the gradient passed straight through the partition"


def pull_back(partition: Partition | None, noisy: torch.Tensor, gradient: torch.Tensor) -> dict[str, torch.Tensor]:
    """Turn the gradient with respect to the output of a partition into that with respect to its input.

    Args:
        partition: The partition, with every option resolved.
        noisy: Its input, [B, C, H, W] or [B, C, T].
        gradient: The gradient with respect to its output, of the same shape.

    Returns:
        The gradient, keyed by a description of how it was obtained. There are several estimates if the partition cannot
        be differentiated.
    """
    if partition is None:
        return {"": gradient}
    if isinstance(partition, Superpixels):
        return {"with the segments held fixed": _average_over_segments(partition, noisy, gradient)}
    if isinstance(partition, Filter) and partition.static:
        with torch.enable_grad():
            inputs = noisy.clone().requires_grad_()
            # The filter runs in torch, which can differentiate it.
            (exact,) = torch.autograd.grad(partition._run_device(inputs)[0], inputs, gradient)
        return {"with the exact gradient of the filter": exact}
    if isinstance(partition, Denoiser) and (through := partition.pull_back(noisy, gradient)) is not None:
        return {"with the exact gradient of the denoiser": through}
    estimates = {STRAIGHT_THROUGH: gradient}
    superpixels = find_segments(partition)
    if superpixels is not None:
        averaged = _average_over_segments(superpixels, noisy, gradient)
        estimates["with the gradient averaged over the initial segments"] = averaged
    return estimates


def _average_over_segments(partition: Superpixels, noisy: torch.Tensor, gradient: torch.Tensor) -> torch.Tensor:
    """Average a gradient over the segments of the noisy input, which each channel may have for itself."""
    if isinstance(partition, SignalSegments) and partition.channels == SEPARATE:
        noisy = noisy.reshape(-1, 1, noisy.shape[-1])
    flat = gradient.reshape(len(noisy), -1, *noisy.shape[2:])
    return average_over(partition.labels(noisy), flat).reshape(gradient.shape)


def average_over(labels: torch.Tensor, gradient: torch.Tensor) -> torch.Tensor:
    """Average a gradient [B, C, H, W] or [B, C, T] over segments, which is also the transpose of averaging."""
    batch, channels = gradient.shape[:2]
    flat = labels.long().reshape(batch, 1, -1)
    values = gradient.reshape(batch, channels, -1)
    count = int(flat.max()) + 1
    sums = values.new_zeros(batch, channels, count).scatter_add_(2, flat.expand_as(values), values)
    sizes = values.new_zeros(batch, 1, count).scatter_add_(2, flat, torch.ones_like(flat, dtype=values.dtype))
    return (sums / sizes.clamp_min(1)).gather(2, flat.expand_as(values)).reshape(gradient.shape)


def pull_back_shown(estimator: Estimator, shown: ShownLevels, gradient: torch.Tensor) -> dict[str, torch.Tensor]:
    """Turn the gradient with respect to an estimate into the effect of each value that exceeds one threshold more.

    Args:
        estimator: The estimator, with every option resolved.
        shown: What is shown of the inputs, [B, C, H, W].
        gradient: The gradient with respect to the estimate, of the same shape.

    Returns:
        The effect, 0 where the threshold of a value is hidden, keyed by a description of how it was obtained.
    """
    crossing = 1.0 if shown.levels >= GREY else shown.levels / GREY  # of what is known of a value, as a share of white
    first = estimator
    gradients = {"": gradient}
    if isinstance(estimator, PartitionedEstimator):
        first = estimator.first
        estimate = first.estimate(shown)
        if estimator.means == ESTIMATE:
            gradients = pull_back(estimator.partition, estimate, gradient)
        else:
            averaged = average_over(estimator.partition.labels(estimate), gradient)
            return {"with the segments held fixed": crossing * averaged * shown.is_known}
    if not isinstance(first, LocalMean):
        return {f"{how}, straight through the estimate": crossing * one for how, one in gradients.items()}
    values, weights = read_values(shown)
    with torch.enable_grad():
        values.requires_grad_()
        means = average_values(values, weights, find_full(shown.levels), first.find_width(shown))
        return {
            how: crossing * find_full(shown.levels) * torch.autograd.grad(means, values, one, retain_graph=True)[0]
            for how, one in gradients.items()
        }
