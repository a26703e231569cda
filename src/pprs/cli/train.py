"""`pprs train`"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from pprs.cli import options
from pprs.cli.console import progress
from pprs.cli.errors import guarded
from pprs.data import open_dataset
from pprs.errors import ConfigurationError
from pprs.noise import Gaussian
from pprs.partition import parse_partition
from pprs.train import Recipe, train_and_score


@guarded
def train(
    data: options.Data,
    out: Annotated[Path, typer.Option("--out", metavar="FILE", help="Where the weights go: M.safetensors.")],
    arch: Annotated[str, typer.Option("--arch", metavar="NAME", help="resnet18 or resnet-small.")] = "resnet-small",
    width: Annotated[
        int | None,
        typer.Option(
            "--width", metavar="INT", help="Channels of the first stage; the architecture's own unless given."
        ),
    ] = None,
    noise: Annotated[
        float | None, typer.Option("--noise", metavar="NUM", help="Train under Gaussian noise of this sigma.")
    ] = None,
    partition: Annotated[
        str, typer.Option("--partition", metavar="TEXT", help="After the noise, average over these segments.")
    ] = "none",
    epochs: Annotated[int, typer.Option("--epochs", metavar="INT", help="Passes over the training images.")] = 10,
    batch_size: Annotated[int, typer.Option("--batch-size", metavar="INT", help="Images per step.")] = 128,
    lr: Annotated[
        float, typer.Option("--lr", metavar="NUM", help="Highest learning rate of the one-cycle schedule.")
    ] = 0.1,
    flip: Annotated[
        bool | None, typer.Option("--flip/--no-flip", help="Mirror at random; on for colour pictures.")
    ] = None,
    shift: Annotated[int, typer.Option("--shift", metavar="INT", help="Move at random by up to this many pixels.")] = 2,
    split: Annotated[
        str | None, typer.Option("--split", metavar="NAME", help="The split to train on; train unless given.")
    ] = None,
    classes: options.Classes = None,
    seed: options.Seed = 0,
    threads: options.Threads = None,
) -> None:
    """Train a classifier: clean, with noise, or with noise and then a partition.

    Example: pprs train --data builtin:mnist5k --epochs 10 --out digits.safetensors
    """
    if noise is not None and not 0 < noise < float("inf"):
        raise ConfigurationError(f"`noise` must be a sigma above 0, not {noise}", parameter="noise")
    law, scheme = None if noise is None else Gaussian(noise), parse_partition(partition)
    if out.suffix != ".safetensors":
        raise ConfigurationError(f"`out` must end in .safetensors, not {out.name}", parameter="out")
    options.set_threads(threads)
    pictures = open_dataset(data, split=split, classes=classes, prefer="train")
    mirrored = pictures[0].image.shape[0] == 3 if flip is None else flip
    recipe = Recipe(arch, width, epochs, batch_size, lr, flip=mirrored, shift=shift, seed=seed)
    train_and_score(pictures, recipe, data, out, noise=law, partition=scheme, classes=classes, progress=progress)
