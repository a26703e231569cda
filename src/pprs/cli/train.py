"""`pprs train`"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from pprs.cli import options
from pprs.cli.console import progress
from pprs.cli.errors import guarded
from pprs.cli.options import Panel
from pprs.data import open_dataset
from pprs.errors import ConfigurationError
from pprs.inputs.domain import SIGNAL, domain_of
from pprs.noise import Gaussian
from pprs.partition import parse_partition
from pprs.segmentation.data import open_masked
from pprs.segmentation.train import train_and_score_segmenter
from pprs.training.trainer import Recipe, train_and_score

TRAINING = "Training"


@guarded
def train(
    data: options.Data,
    out: Annotated[Path, options.option("--out", "FILE", Panel.OUTPUT, "File for the weights: M.safetensors.")],
    task: Annotated[
        Literal["classify", "segment"],
        options.option("--task", "NAME", TRAINING, "classify labels the whole image, segment every pixel (a U-Net)."),
    ] = "classify",
    arch: Annotated[
        Literal["resnet18", "resnet-small", "resnet1d"] | None,
        options.option(
            "--arch",
            "NAME",
            TRAINING,
            "Architecture: resnet18 or resnet-small (the default) for images, resnet1d for signals.",
        ),
    ] = None,
    width: Annotated[
        int | None,
        options.option("--width", "INT", TRAINING, "Channels of the first stage. Default: that of the architecture."),
    ] = None,
    noise: Annotated[
        float | None,
        options.option("--noise", "NUM", Panel.NOISE, "Train with Gaussian noise of this standard deviation."),
    ] = None,
    partition: Annotated[
        str,
        options.option(
            "--partition", "TEXT", Panel.NOISE, "Apply this partition after the noise, as in `pprs certify`."
        ),
    ] = "none",
    epochs: Annotated[int, options.option("--epochs", "INT", TRAINING, "Passes over the training images.")] = 10,
    batch_size: Annotated[
        int | None,
        options.option("--batch-size", "INT", TRAINING, "Images per step. Default: 128, or 16 for the task segment."),
    ] = None,
    lr: Annotated[
        float, options.option("--lr", "NUM", TRAINING, "Peak learning rate of the one-cycle schedule.")
    ] = 0.1,
    flip: Annotated[
        bool | None,
        typer.Option(
            "--flip/--no-flip",
            rich_help_panel=TRAINING,
            help="Mirror images at random. Default: only colour images.",
        ),
    ] = None,
    shift: Annotated[
        int, options.option("--shift", "INT", TRAINING, "Shift images at random by up to this many pixels.")
    ] = 2,
    split: Annotated[
        str | None, options.option("--split", "NAME", Panel.INPUT, "Split to train on. Default: train.")
    ] = None,
    classes: options.Classes = None,
    seed: Annotated[int, options.option("--seed", "INT", TRAINING, "Random seed.", min=0)] = 0,
    threads: options.Threads = None,
) -> None:
    """Train a classifier on clean images, with noise, or with noise and a partition.

    Example: pprs train --data builtin:mnist5k --epochs 10 --out digits.safetensors

    Example: pprs train --task segment --data builtin:scenes --noise 0.25 --out scenes.safetensors
    """
    if noise is not None and not 0 < noise < float("inf"):
        raise ConfigurationError(f"`noise` must be a positive number, not {noise}", parameter="noise")
    train_noise, train_partition = None if noise is None else Gaussian(noise), parse_partition(partition)
    if out.suffix != ".safetensors":
        raise ConfigurationError(f"`out` must end in .safetensors, not {out.name}", parameter="out")
    options.set_threads(threads)
    if task == "segment":
        recipe = Recipe(
            width=width, epochs=epochs, batch_size=16 if batch_size is None else batch_size, learning_rate=lr, seed=seed
        )
        masked = open_masked(data, split=split, classes=classes, prefer="train")
        train_and_score_segmenter(
            masked, recipe, data, out, noise=train_noise, partition=train_partition, progress=progress
        )
        return
    images = open_dataset(data, split=split, classes=classes, prefer="train")
    shape = tuple(images[0].image.shape)
    is_signal = domain_of(shape) is SIGNAL
    if is_signal and flip:
        raise ConfigurationError("`flip` mirrors images, and the data are signals", parameter="flip")
    mirror = not is_signal and shape[0] == 3 if flip is None else flip
    arch = arch or ("resnet1d" if is_signal else "resnet-small")
    recipe = Recipe(
        arch, width, epochs, 128 if batch_size is None else batch_size, lr, flip=mirror, shift=shift, seed=seed
    )
    train_and_score(
        images, recipe, data, out, noise=train_noise, partition=train_partition, classes=classes, progress=progress
    )
