"""Training of base classifiers on clean images, on noisy images, or on partitioned noisy images."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch.nn import functional

from pprs._support.files import check_writable
from pprs.data import ImageSet, open_dataset
from pprs.errors import ConfigurationError, PprsError
from pprs.inputs.domain import SIGNAL, domain_of
from pprs.model import weights
from pprs.model.resnet import ARCHITECTURES, Architecture, ResNet, architecture
from pprs.noise import Noise
from pprs.partition import AUTO, Auto, Partition, recommend_partition
from pprs.progress import Progress, as_progress, rename_inputs, stage
from pprs.training.augment import mirror_images, shift_images
from pprs.training.perturbation import NoisePerturbation, Perturbation


@dataclass(frozen=True)
class Recipe:
    """The settings of a training.

    Attributes:
        arch: The architecture, "resnet-small" or "resnet18" for images, "resnet1d" for signals.
        width: The number of channels in the first stage. By default it depends on the architecture.
        epochs: The number of passes over the data.
        batch_size: The number of images per step.
        learning_rate: The largest learning rate of the one-cycle schedule.
        weight_decay: The weight decay.
        flip: Whether to mirror images at random.
        shift: The largest random shift of an image, in pixels.
        seed: The random seed.
    """

    arch: str = "resnet-small"
    width: int | None = None
    epochs: int = 10
    batch_size: int = 128
    learning_rate: float = 0.1
    weight_decay: float = 5e-4
    flip: bool = False
    shift: int = 2
    seed: int = 0

    def __post_init__(self) -> None:
        for name, minimum in (("epochs", 1), ("batch_size", 2), ("shift", 0), ("seed", 0)):
            if getattr(self, name) < minimum:
                raise ConfigurationError(
                    f"`{name}` must be at least {minimum}, not {getattr(self, name)}", parameter=name
                )
        if self.width is not None and self.width < 1:
            raise ConfigurationError(f"`width` must be at least 1, not {self.width}", parameter="width")
        if not 0 < self.learning_rate < 100:
            raise ConfigurationError(
                f"the learning rate must lie between 0 and 100, not {self.learning_rate}", parameter="lr"
            )


def train(
    data: ImageSet,
    recipe: Recipe,
    *,
    noise: Noise | Perturbation | None = None,
    partition: Partition | Auto | None = AUTO,
    out: Path,
    data_name: str,
    progress: bool | Progress = False,
) -> ResNet:
    """Train a network and write it to a safetensors file, from which `load_model` can rebuild it.

    Args:
        data: The training images, all labelled and of the same shape.
        recipe: The settings of the training.
        noise: The noise to add to the images, or whatever else changes them, if anything does.
        partition: The partition to apply to the noisy images, if any. "auto" is the recommended one if there is noise.
        out: The file to write.
        data_name: The name of the data, which is stored in the file.
        progress: True to show a progress bar, or a `Progress` object to report to.

    Returns:
        The trained network, in eval mode.

    Raises:
        PprsError: If the data has no labels or images of different shapes, `out` cannot be written, or the training
            diverges.
        ConfigurationError: If the architecture is unknown, or a partition is given without noise.
    """
    check_training_partition(noise, partition)
    check_writable(out)
    images, labels = data.stack()
    shape = tuple(images.shape[1:])
    _check_architecture(recipe.arch, shape)
    num_classes = len(data.class_names) if data.class_names else int(labels.max()) + 1
    arch = _choose_architecture(recipe, images, num_classes)
    perturbation = choose_perturbation(noise, partition, images)
    torch.manual_seed(recipe.seed)
    net = arch.build()
    fit(net, images, labels, recipe, perturbation, as_progress(progress))
    training = describe_training(recipe, data_name, perturbation)
    if (rate := getattr(data, "sample_rate", None)) is not None:
        training["sample_rate"] = rate
    weights.save(out, net, arch, input_shape=shape, class_names=data.class_names, training=training)
    return net


def _choose_architecture(recipe: Recipe, images: torch.Tensor, num_classes: int) -> Architecture:
    """Return the architecture of a recipe, which brings the values of these images to mean 0 and deviation 1."""
    over = (0, *range(2, images.ndim))  # all axes but that of the channels
    return architecture(
        recipe.arch,
        channels=images.shape[1],
        num_classes=num_classes,
        mean=tuple(images.mean(over).tolist()),
        std=tuple(images.std(over).clamp_min(1e-3).tolist()),
        width=recipe.width,
    )


def _check_architecture(name: str, shape: tuple[int, ...]) -> None:
    domain = domain_of(shape)
    domain.check_shape(shape)
    is_for_signals = name in ARCHITECTURES and ARCHITECTURES[name][2] is not None
    if name in ARCHITECTURES and is_for_signals != (domain is SIGNAL):
        others = [other for other, (_, _, kernel) in ARCHITECTURES.items() if (kernel is not None) != is_for_signals]
        raise ConfigurationError(
            f"{name} is not for {domain.plural}. Use `arch` {' or '.join(others)}.", parameter="arch"
        )


def fit(
    net: torch.nn.Module,
    images: torch.Tensor,
    labels: torch.Tensor,
    recipe: Recipe,
    perturbation: Perturbation | None,
    progress: Progress,
    class_weights: torch.Tensor | None = None,
) -> None:
    """Minimise the cross-entropy of labels [N], or of masks [N, H, W] if images are neither mirrored nor shifted."""
    batch_size = min(recipe.batch_size, len(images))
    per_epoch = len(images) // batch_size
    steps = per_epoch * recipe.epochs
    optimizer = torch.optim.SGD(
        net.parameters(), recipe.learning_rate, 0.9, weight_decay=recipe.weight_decay, nesterov=True
    )
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, recipe.learning_rate, total_steps=steps, pct_start=0.3)
    generator = torch.Generator().manual_seed(recipe.seed)
    net.train()
    with stage(progress, f"train {recipe.arch}", steps, "steps"):
        for epoch in range(recipe.epochs):
            order = torch.randperm(len(images), generator=generator)
            for batch, indices in enumerate(order.split(batch_size)[:per_epoch]):
                step = epoch * per_epoch + batch
                x = _augment(images[indices], recipe, generator)
                if perturbation is not None:
                    x = perturbation.perturb(x, recipe.seed, step)
                loss = functional.cross_entropy(net(x), labels[indices], class_weights)
                optimizer.zero_grad(set_to_none=True)
                loss.backward()
                optimizer.step()
                schedule.step()
                if not torch.isfinite(loss):
                    raise PprsError(
                        f"training diverged at step {step}: the loss is {float(loss.detach())}. Lower `lr` and try "
                        "again.",
                        parameter="lr",
                    )
                progress.advance(1, f"epoch {epoch + 1}/{recipe.epochs}, loss {float(loss.detach()):.3f}")
    net.eval()


def _augment(x: torch.Tensor, recipe: Recipe, generator: torch.Generator) -> torch.Tensor:
    """Mirror and shift each image at random."""
    if recipe.flip:
        x = mirror_images(x, generator)
    return shift_images(x, recipe.shift, generator) if recipe.shift else x


def check_training_partition(noise: Noise | Perturbation | None, partition: Partition | Auto | None) -> None:
    """Raise an error if there is a partition, and no noise that it could average."""
    if isinstance(partition, Partition) and noise is None:
        raise ConfigurationError(
            "training with a partition needs noisy images: give `noise` with `partition`", parameter="noise"
        )


def choose_perturbation(
    noise: Noise | Perturbation | None, partition: Partition | Auto | None, images: torch.Tensor
) -> Perturbation | None:
    """Return what changes training images, with every option set, or None for clean images."""
    if noise is None or isinstance(noise, Perturbation):
        return None if noise is None else noise.resolve(images)
    shape = tuple(images.shape[1:])
    chosen = recommend_partition(noise.sigma, shape).partition if isinstance(partition, str) else partition
    return NoisePerturbation(noise, chosen).resolve(images)


def describe_training(recipe: Recipe, data_name: str, perturbation: Perturbation | None) -> dict[str, Any]:
    """Return the description of a training for the file of the network."""
    texts = ("None", "None") if perturbation is None else (perturbation.noise_text, perturbation.partition_text)
    return asdict(recipe) | {"data": data_name, **dict(zip(("noise", "partition"), texts, strict=True))}


def train_and_score(
    data: ImageSet,
    recipe: Recipe,
    source: str,
    out: Path,
    *,
    noise: Noise | Perturbation | None = None,
    partition: Partition | Auto | None = AUTO,
    classes: Path | None = None,
    progress: bool | Progress = True,
) -> tuple[float, int]:
    """Train a network, and measure its accuracy on the clean test split of the data.

    Args:
        data: The training images.
        recipe: The settings of the training.
        source: The text from which `open_dataset` opens the data, for its test split.
        out: The file to write.
        noise: The noise to add to the images, if any.
        partition: The partition to apply to the noisy images, if any. "auto" is the recommended one if there is noise.
        classes: A file with one class name per line, as in `open_dataset`.
        progress: True to show a progress bar, or a `Progress` object to report to.

    Returns:
        The accuracy and the number of test images, or (NaN, 0) if there is no test split.

    Raises:
        PprsError: As in `train`.
    """
    reporter = as_progress(progress)
    net = train(data, recipe, noise=noise, partition=partition, out=out, data_name=source, progress=reporter)
    try:
        test = open_dataset(source, split="test", classes=classes)
    except PprsError:
        reporter.message(f"wrote {out}")
        return math.nan, 0
    share = accuracy(net, test)
    reporter = rename_inputs(reporter, domain_of(tuple(test[0].image.shape)))
    reporter.message(f"wrote {out}; accuracy on the {len(test)} clean test images: {100 * share:.1f}%")
    return share, len(test)


@torch.inference_mode()
def accuracy(net: torch.nn.Module, data: ImageSet, limit: int | None = None) -> float:
    """Return the network's accuracy on clean images, on all of them or on the first `limit`."""
    correct, total = 0, min(limit or len(data), len(data))
    for start in range(0, total, 256):
        examples = [data[i] for i in range(start, min(start + 256, total))]
        scores = net(torch.stack([e.image for e in examples]))
        correct += int((scores.argmax(1) == torch.tensor([e.label for e in examples])).sum())
    return correct / total
