"""Thresholds: the time to show and to estimate images as a share of a network's, and kernels against torch."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from benchmarks.exact import eight_bit_image
from benchmarks.timing import fastest, ratio
from pprs._support import threads as _threads
from pprs.dither.choice import recommend_estimator
from pprs.dither.estimators import LocalMean, average_on_device, default_width, parse_estimator
from pprs.dither.thresholds import Dither, show
from pprs.model.resnet import architecture

DITHER = Dither(1020)
NETWORKS = ("resnet-small", "resnet18")  # of `pprs train`; the first is its default


@torch.inference_mode()
def measure() -> Iterator[dict[str, object]]:
    torch.set_num_threads(1)
    _threads.set_threads(1)
    for shape, batch in (((1, 28, 28), 128), ((3, 32, 32), 128)):
        yield from shares(shape, batch)
    for shape, batch in (((1, 28, 28), 128), ((3, 32, 32), 128), ((3, 224, 224), 8)):
        yield from against_torch(shape, batch)


def shares(shape: tuple[int, int, int], batch: int) -> Iterator[dict[str, object]]:
    """The time in which images are shown and estimated, as a share of a network's on the same thread."""
    channels, size = shape[0], "x".join(map(str, shape[1:] + shape[:1]))
    values, offsets, template = prepare(shape, batch)
    estimators = [parse_estimator("local"), parse_estimator("local/slic"), recommend_estimator(None, shape)[0]]
    tasks = {}
    for estimator in estimators:
        resolved = estimator.resolve(DITHER.levels, shape)
        tasks[estimator.short] = lambda e=resolved: e.estimate(
            show(values, template, offsets, DITHER.levels, shared=True)
        )
    estimated = tasks["local"]()
    networks = {name: build(name, channels) for name in NETWORKS}
    for name in NETWORKS:
        tasks[name] = lambda n=name: networks[n](estimated)
    seconds = fastest(tasks)
    for name, shown in zip(NETWORKS, (estimators, estimators[-1:]), strict=True):
        for estimator in shown:
            what = f"shown and {estimator.short} {size}, share of {name}"
            share = ratio(what, seconds[estimator.short] / seconds[name], at_most=0.25)
            yield share | {"us": seconds[estimator.short] / batch * 1e6, "network_us": seconds[name] / batch * 1e6}


def build(name: str, channels: int) -> torch.nn.Module:
    """Return a network with random weights."""
    arch = architecture(name, channels=channels, num_classes=10, mean=(0.5,) * channels, std=(0.25,) * channels)
    return arch.build().eval()


def against_torch(shape: tuple[int, int, int], batch: int) -> Iterator[dict[str, object]]:
    """The kernel of the local mean against the operations of torch that stand for it on other devices."""
    values, offsets, template = prepare(shape, batch)
    shown = show(values, template, offsets, DITHER.levels, shared=True)
    width = default_width(DITHER.levels, shape)
    kernel = LocalMean(width)
    assert torch.equal(kernel.estimate(shown), average_on_device(shown, width))
    seconds = fastest({"numba": lambda: kernel.estimate(shown), "torch": lambda: average_on_device(shown, width)})
    size = "x".join(map(str, shape[1:] + shape[:1]))
    label = f"{kernel} {size}, one thread, against torch"
    yield ratio(label, seconds["torch"] / seconds["numba"]) | {"ours_us": seconds["numba"] / batch * 1e6}


def prepare(shape: tuple[int, int, int], batch: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return the levels of an image, offsets, and the template."""
    values = DITHER.find_levels(eight_bit_image(shape))
    return values, torch.from_numpy(DITHER.order()[:batch]), torch.from_numpy(DITHER.thresholds(shape))
