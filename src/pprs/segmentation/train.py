"""Training of a small U-Net on images with masks, clean, noisy, or partitioned after the noise."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import torch

from pprs._support.files import check_writable
from pprs.errors import ConfigurationError, PprsError
from pprs.model import weights
from pprs.model.unet import DEFAULT_WIDTH, KIND, UNet, UNetArchitecture
from pprs.noise import Noise
from pprs.partition import AUTO, Auto, Partition
from pprs.progress import Progress, as_progress
from pprs.segmentation.data import open_masked
from pprs.segmentation.masks import IGNORED, MaskedSet
from pprs.segmentation.metrics import Confusion
from pprs.training.perturbation import Perturbation
from pprs.training.trainer import Recipe, check_training_partition, choose_perturbation, describe_training, fit

_NO_LABEL = -100  # what torch's cross-entropy ignores


def train_segmenter(
    data: MaskedSet,
    recipe: Recipe,
    *,
    noise: Noise | Perturbation | None = None,
    partition: Partition | Auto | None = AUTO,
    out: Path,
    data_name: str,
    progress: bool | Progress = False,
) -> UNet:
    """Train a U-Net and write it to a safetensors file, from which `load_model` can rebuild it.

    Args:
        data: The training images with masks, all of the same shape.
        recipe: The settings of the training. Images are neither mirrored nor shifted.
        noise: The noise to add to the images, if any.
        partition: The partition to apply to the noisy images, if any. "auto" is the recommended one if there is noise.
        out: The file to write.
        data_name: The name of the data, which is stored in the file.
        progress: True to show a progress bar, or a `Progress` object to report to.

    Returns:
        The trained network, in eval mode.

    Raises:
        PprsError: If the data has no masks or images of different shapes, or `out` cannot be written.
        ConfigurationError: If a partition is given without noise.
    """
    check_training_partition(noise, partition)
    check_writable(out)
    recipe = replace(recipe, arch=KIND, flip=False, shift=0)
    images, masks = _stack(data)
    num_classes = len(data.class_names) if data.class_names else int(masks.max()) + 1
    if int(masks.max()) >= num_classes:
        raise ConfigurationError(
            f"a mask has the label {int(masks.max())}, but the data has only {num_classes} classes", parameter="data"
        )
    arch = UNetArchitecture(
        recipe.width or DEFAULT_WIDTH, images.shape[1], num_classes, tuple(images.mean((0, 2, 3)).tolist()),
        tuple(images.std((0, 2, 3)).clamp_min(1e-3).tolist()),
    )  # fmt: skip
    shape = (images.shape[1], images.shape[2], images.shape[3])
    perturbation = choose_perturbation(noise, partition, images)
    torch.manual_seed(recipe.seed)
    net = arch.build()
    labels = torch.where(masks == IGNORED, _NO_LABEL, masks)
    fit(net, images, labels, recipe, perturbation, as_progress(progress), _weigh_classes(masks, num_classes))
    training = describe_training(recipe, data_name, perturbation)
    weights.save(out, net, arch, input_shape=shape, class_names=data.class_names, training=training)
    return net


def _weigh_classes(masks: torch.Tensor, num_classes: int) -> torch.Tensor:
    """Return a weight for each class, so that a large background does not drown the others.

    The weight is the inverse square root of the share of the pixels, and 1 on average over the pixels.
    """
    shares = torch.bincount(masks[masks != IGNORED], minlength=num_classes).double()
    shares = (shares / shares.sum()).clamp_min(1e-6)
    inverse = shares.rsqrt()
    return (inverse / (inverse * shares).sum()).float()


def _stack(data: MaskedSet) -> tuple[torch.Tensor, torch.Tensor]:
    """Return all images [N, C, H, W] and their masks [N, H, W]."""
    images: list[torch.Tensor] = []
    masks: list[torch.Tensor] = []
    for index in range(len(data)):
        example = data.masked(index)
        if example.mask is None:
            raise ConfigurationError(
                "training needs masks, but this data has none. Use a folder with the subfolders images and masks.",
                parameter="data",
            )
        if images and example.image.shape != images[0].shape:
            raise PprsError(
                f"its shape is {tuple(example.image.shape)}, but that of image 0 is {tuple(images[0].shape)}. "
                "Training needs images of the same size: resize images and masks first.",
                parameter="data",
                index=index,
            )
        images.append(example.image)
        masks.append(example.mask)
    return torch.stack(images), torch.stack(masks)


def train_and_score_segmenter(
    data: MaskedSet,
    recipe: Recipe,
    source: str,
    out: Path,
    *,
    noise: Noise | Perturbation | None = None,
    partition: Partition | Auto | None = AUTO,
    progress: bool | Progress = True,
) -> Confusion | None:
    """Train a U-Net, and score it on the clean test split of the data.

    Args:
        data: The training images with masks.
        recipe: The settings of the training.
        source: The text from which `open_masked` opens the data, for its test split.
        out: The file to write.
        noise: The noise to add to the images, if any.
        partition: The partition to apply to the noisy images, if any. "auto" is the recommended one if there is noise.
        progress: True to show a progress bar, or a `Progress` object to report to.

    Returns:
        The confusion of the classes on the test images, or None if there is no test split.

    Raises:
        PprsError: As in `train_segmenter`.
    """
    reporter = as_progress(progress)
    net = train_segmenter(data, recipe, noise=noise, partition=partition, out=out, data_name=source, progress=reporter)
    try:
        test = open_masked(source, split="test")
    except PprsError:
        reporter.message(f"wrote {out}")
        return None
    confusion = score_clean(net, test, net.head.out_channels)
    reporter.message(
        f"wrote {out}; on the {len(test)} clean test images: pixel accuracy {100 * confusion.accuracy:.1f}%, "
        f"mean IoU {100 * confusion.mean_iou:.1f}%"
    )
    return confusion


@torch.inference_mode()
def score_clean(net: torch.nn.Module, data: MaskedSet, num_classes: int, limit: int | None = None) -> Confusion:
    """Return the confusion of a network's labels on clean images, on all of them or on the first `limit`."""
    total = Confusion.none(num_classes)
    for index in range(min(limit or len(data), len(data))):
        example = data.masked(index)
        if example.mask is not None:
            total += Confusion.of(net(example.image[None])[0].argmax(0).numpy(), example.mask.numpy(), num_classes)
    return total


__all__ = ["score_clean", "train_and_score_segmenter", "train_segmenter"]
