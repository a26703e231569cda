"""Exact arithmetic: the cost of noise that is drawn in integers, relative to float32 noise."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from benchmarks.timing import fastest, ratio
from pprs import Gaussian, Slic, SmoothedClassifier
from pprs._support import threads as _threads
from pprs.model.resnet import architecture
from pprs.smoothing.arithmetic import prepare_image
from pprs.smoothing.voting import noisy_chunk

NOISE = Gaussian(0.5)


def measure() -> Iterator[dict[str, object]]:
    _threads.set_threads(1)
    torch.set_num_threads(1)
    for shape in ((1, 28, 28), (3, 32, 32), (3, 224, 224)):
        image = eight_bit_image(shape)
        out = noisy_chunk(image, NOISE, 0, 0)
        prepared = {name: prepare_image(image, NOISE, name) for name in ("exact", "real")}
        seconds = fastest(
            {name: lambda x=x, out=out: noisy_chunk(x, NOISE, 0, 0, out=out) for name, x in prepared.items()},
            rounds=9, at_least=0.05,
        )  # fmt: skip
        side = "x".join(map(str, shape))
        yield ratio(f"noise in integers {side} against float32", seconds["exact"] / seconds["real"], at_most=1.5)
    cores = _threads.cpu_count()
    _threads.set_threads(cores)
    torch.set_num_threads(cores)
    net = architecture("resnet18", channels=3, num_classes=10, mean=(0.5,) * 3, std=(0.25,) * 3).build()
    image = eight_bit_image((3, 32, 32))

    def certify(arithmetic: str) -> None:
        SmoothedClassifier(net, 10, NOISE, Slic(250), arithmetic=arithmetic).counts(image, n=256)

    seconds = fastest({a: lambda a=a: certify(a) for a in ("exact", "real")}, rounds=7, at_least=0.0)
    label = "certify 32x32 with resnet18 and slic 250: exact against real arithmetic"
    yield ratio(label, seconds["exact"] / seconds["real"], at_most=1.03)


def eight_bit_image(shape: tuple[int, int, int]) -> torch.Tensor:
    """Return a random image on the levels of 8-bit files."""
    return torch.randint(0, 256, shape, generator=torch.Generator().manual_seed(0)).float() / 255
