"""`pprs train`"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from pprs.cli import options
from pprs.cli.console import progress
from pprs.cli.errors import guarded
from pprs.cli.options import Panel
from pprs.data import ImageSet, open_dataset
from pprs.data.signals import is_number
from pprs.dither import check_unused, is_dither
from pprs.dither.perturbation import DitherPerturbation
from pprs.dither.thresholds import as_dither
from pprs.errors import ConfigurationError
from pprs.inputs.domain import SIGNAL, domain_of
from pprs.noise import Gaussian, Noise, noise_of
from pprs.partition import AUTO, Auto, Partition, parse_request
from pprs.segmentation.data import open_masked
from pprs.segmentation.train import train_and_score_segmenter
from pprs.training.perturbation import Perturbation
from pprs.training.trainer import Recipe, train_and_score

TRAINING = "Training"

Out = Annotated[Path, options.option("--out", "FILE", Panel.OUTPUT, "File for the weights: M.safetensors.")]
Task = Annotated[
    Literal["classify", "segment"],
    options.option("--task", "NAME", TRAINING, "classify labels the whole image, segment every pixel (a U-Net)."),
]
Arch = Annotated[
    Literal["resnet18", "resnet-small", "resnet1d"] | None,
    options.option(
        "--arch", "NAME", TRAINING, "Architecture: resnet18 or resnet-small (the default) for images, resnet1d for "
        "signals.",
    ),
]  # fmt: skip
Width = Annotated[
    int | None,
    options.option("--width", "INT", TRAINING, "Channels of the first stage. Default: that of the architecture."),
]
NoiseText = Annotated[
    str | None,
    options.option(
        "--noise", "TEXT", Panel.NOISE, "Train with this noise, as in `pprs certify`: gaussian (the default with "
        "--sigma), exponential, powerlaw, or thresholds such as dither:levels=1020. A number is the sigma of Gaussian "
        "noise.",
    ),
]  # fmt: skip
PartitionText = Annotated[
    str,
    options.option(
        "--partition",
        "TEXT",
        Panel.NOISE,
        "Apply this partition after the noise, as in `pprs certify`. Clean images have none.",
    ),
]
Epochs = Annotated[int, options.option("--epochs", "INT", TRAINING, "Passes over the training images.")]
BatchSize = Annotated[
    int | None,
    options.option("--batch-size", "INT", TRAINING, "Images per step. Default: 128, or 16 for the task segment."),
]
Rate = Annotated[float, options.option("--lr", "NUM", TRAINING, "Peak learning rate of the one-cycle schedule.")]
Flip = Annotated[
    bool | None,
    typer.Option(
        "--flip/--no-flip", rich_help_panel=TRAINING, help="Mirror images at random. Default: only colour images."
    ),
]
Shift = Annotated[int, options.option("--shift", "INT", TRAINING, "Shift images at random by up to this many pixels.")]
Split = Annotated[str | None, options.option("--split", "NAME", Panel.INPUT, "Split to train on. Default: train.")]
Seed = Annotated[int, options.option("--seed", "INT", TRAINING, "Random seed.", min=0)]


@guarded
def train(
    data: options.Data,
    out: Out,
    task: Task = "classify",
    arch: Arch = None,
    width: Width = None,
    sigma: options.Sigma = None,
    noise: NoiseText = None,
    partition: PartitionText = AUTO,
    epochs: Epochs = 10,
    batch_size: BatchSize = None,
    lr: Rate = 0.1,
    flip: Flip = None,
    shift: Shift = 2,
    split: Split = None,
    classes: options.Classes = None,
    seed: Seed = 0,
    threads: options.Threads = None,
) -> None:
    """Train a classifier on clean images, with noise, or with noise and a partition.

    Example: pprs train --data builtin:mnist5k --epochs 10 --out digits.safetensors

    Example: pprs train --task segment --data builtin:scenes --sigma 0.25 --out scenes.safetensors
    """
    train_noise, train_partition = choose_training_noise(noise, sigma, partition, task)
    if out.suffix != ".safetensors":
        raise ConfigurationError(f"`out` must end in .safetensors, not {out.name}", parameter="out")
    options.set_threads(threads)
    if task == "segment":
        size = 16 if batch_size is None else batch_size
        recipe = Recipe(width=width, epochs=epochs, batch_size=size, learning_rate=lr, seed=seed)
        masked = open_masked(data, split=split, classes=classes, prefer="train")
        train_and_score_segmenter(
            masked, recipe, data, out, noise=train_noise, partition=train_partition, progress=progress
        )
        return
    images = open_dataset(data, split=split, classes=classes, prefer="train")
    chosen, mirror = _fit_to_data(arch, flip, images)
    size = 128 if batch_size is None else batch_size
    recipe = Recipe(chosen, width, epochs, size, lr, flip=mirror, shift=shift, seed=seed)
    train_and_score(
        images, recipe, data, out, noise=train_noise, partition=train_partition, classes=classes, progress=progress
    )


def _fit_to_data(arch: str | None, flip: bool | None, images: ImageSet) -> tuple[str, bool]:
    """Return the architecture, and whether images are mirrored, as requested or as is usual for these data."""
    shape = tuple(images[0].image.shape)
    is_signal = domain_of(shape) is SIGNAL
    if is_signal and flip:
        raise ConfigurationError("`flip` mirrors images, and the data are signals", parameter="flip")
    mirror = not is_signal and shape[0] == 3 if flip is None else flip
    return arch or ("resnet1d" if is_signal else "resnet-small"), mirror


def choose_training_noise(
    noise: str | None, sigma: float | None, partition: str, task: str
) -> tuple[Noise | Perturbation | None, Partition | Auto | None]:
    """Return the noise to train with, or the thresholds, and the partition that comes after it."""
    if not is_dither(noise):
        return parse_training_noise(noise, sigma), parse_request(partition)
    check_unused(noise, sigma=(sigma, None))
    if task == "segment":
        raise ConfigurationError(
            "votes behind thresholds are counted for classifiers, not for networks that label every pixel. Train it "
            "with Gaussian `noise`.",
            parameter="noise",
        )
    return DitherPerturbation.of(as_dither(noise), partition), AUTO


def parse_training_noise(noise: str | None, sigma: float | None) -> Noise | None:
    """Return the noise to train with, if any. A number in the place of its name is the sigma of Gaussian noise.

    >>> str(parse_training_noise("0.25", None)), str(parse_training_noise("exponential", 0.5))
    ('gaussian:sigma=0.25', 'exponential:sigma=0.5')
    """
    if noise is not None and is_number(noise):
        if sigma is not None:
            raise ConfigurationError("give the `sigma` once: leave out the number after `noise`", parameter="noise")
        if not 0 < float(noise) < float("inf"):
            raise ConfigurationError(f"`noise` must be a positive number, not {noise}", parameter="noise")
        return Gaussian(float(noise))
    return None if noise is None and sigma is None else noise_of(noise or "gaussian", sigma)
