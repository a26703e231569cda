from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from pprs.cli import common
from pprs.cli.common import guarded

if TYPE_CHECKING:
    from pprs.data import ImageSet
    from pprs.noise import Noise
    from pprs.partition import Partition
    from pprs.train import Recipe


@guarded
def train(
    data: common.Data,
    out: Annotated[Path, typer.Option("--out", help="Where the weights go: M.safetensors.")],
    arch: Annotated[str, typer.Option("--arch", help="resnet18 or resnet-small.")] = "resnet-small",
    width: Annotated[
        int | None,
        typer.Option("--width", help="Channels of the first stage; the architecture's own unless given."),
    ] = None,
    noise: Annotated[float | None, typer.Option("--noise", help="Train under Gaussian noise of this sigma.")] = None,
    partition: Annotated[
        str, typer.Option("--partition", help="After the noise, average over these segments.")
    ] = "none",
    epochs: Annotated[int, typer.Option("--epochs")] = 10,
    batch_size: Annotated[int, typer.Option("--batch-size")] = 128,
    lr: Annotated[float, typer.Option("--lr", help="Highest learning rate of the one-cycle schedule.")] = 0.1,
    flip: Annotated[
        bool | None, typer.Option("--flip/--no-flip", help="Mirror at random; on for colour pictures.")
    ] = None,
    shift: Annotated[int, typer.Option("--shift", help="Move at random by up to so many pixels.")] = 2,
    split: Annotated[str | None, typer.Option("--split", help="Which split to train on; train unless given.")] = None,
    classes: common.Classes = None,
    seed: common.Seed = 0,
    threads: common.Threads = None,
) -> None:
    """Train a classifier: clean, with noise, or with noise and then a partition.

    Example: pprs train --data builtin:mnist5k --epochs 10 --out digits.safetensors
    """
    from pprs.data import open_dataset
    from pprs.errors import PprsError
    from pprs.noise import Gaussian
    from pprs.partition import parse_partition
    from pprs.train import Recipe

    law, scheme = Gaussian(noise) if noise is not None else None, parse_partition(partition)
    if out.suffix != ".safetensors":
        raise PprsError(f"--out must end in .safetensors, not {out.name}")
    common.set_threads(threads)
    pictures = open_dataset(data, split=split, classes=classes, prefer="train")
    mirrored = pictures[0].image.shape[0] == 3 if flip is None else flip
    recipe = Recipe(arch, width, epochs, batch_size, lr, flip=mirrored, shift=shift, seed=seed)
    train_with_bar(pictures, recipe, data, out, noise=law, partition=scheme, classes=classes)


def train_with_bar(
    pictures: ImageSet,
    recipe: Recipe,
    data: str,
    out: Path,
    *,
    noise: Noise | None = None,
    partition: Partition | None = None,
    classes: Path | None = None,
) -> tuple[float, int]:
    """Train with a bar, then tell the accuracy on the clean test split where there is one (and of how many)."""
    from pprs.cli.progress import Bar, say
    from pprs.data import open_dataset
    from pprs.errors import PprsError
    from pprs.train import Progress, accuracy, train

    steps = recipe.epochs * (len(pictures) // min(recipe.batch_size, len(pictures)))
    with Bar(f"train {recipe.arch}", steps, "steps") as bar:

        def told(at: Progress) -> None:
            bar.advance(1, f"epoch {at.epoch}/{recipe.epochs}, loss {at.loss:.3f}")

        net = train(pictures, recipe, noise=noise, partition=partition, out=out, data_name=data, on_step=told)
    try:
        test = open_dataset(data, split="test", classes=classes)
    except PprsError:
        say(f"wrote {out}")
        return math.nan, 0
    right = accuracy(net, test)
    say(f"wrote {out}; {100 * right:.1f}% of the {len(test)} clean test pictures right")
    return right, len(test)
