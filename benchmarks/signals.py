"""Partitions of signals against ruptures, scikit-image and PyWavelets, and as a share of a network's time."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator
from typing import Any, cast

import numpy as np
import torch
from torch import nn

from benchmarks.timing import fastest, ratio
from pprs._support import threads as _threads
from pprs.partition import Changepoint, Partition, TotalVariation1d, Wavelet, parse_partition

SIGMA = 0.5
TEXTS = (
    "slic1d", "slic1d/soft", "slic1d/shifts:k=4", "slic1d/soft/shifts:k=4", "felzenszwalb1d", "changepoint", "blur1d",
    "gauss1d", "median1d", "tv1d", "wavelet",
)  # fmt: skip


def make_signals(count: int, length: int) -> np.ndarray:
    """Return noisy signals [count, 1, length] with a step every 50 values on average."""
    rng = np.random.default_rng(0)
    steps = np.where(rng.random((count, 1, length)) < 0.02, rng.standard_normal((count, 1, length)), 0)
    return (steps.cumsum(2) + SIGMA * rng.standard_normal(steps.shape)).astype(np.float32)


class Block(nn.Module):
    def __init__(self, in_width: int, width: int, stride: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv1d(in_width, width, 3, stride, 1, bias=False), nn.BatchNorm1d(width), nn.ReLU(inplace=True),
            nn.Conv1d(width, width, 3, 1, 1, bias=False), nn.BatchNorm1d(width),
        )  # fmt: skip
        self.skip = nn.Conv1d(in_width, width, 1, stride)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu_(self.body(x).add_(self.skip(x)))


def small_resnet() -> nn.Module:
    """Return a network of three residual blocks with 32, 64 and 128 channels."""
    blocks = (Block(32, 32, 1), Block(32, 64, 2), Block(64, 128, 2))
    head = (nn.AdaptiveAvgPool1d(1), nn.Flatten(), nn.Linear(128, 10))
    return nn.Sequential(nn.Conv1d(1, 32, 3, 1, 1), nn.ReLU(inplace=True), *blocks, *head).eval()


def measure() -> Iterator[dict[str, object]]:
    torch.set_num_threads(1)
    _threads.set_threads(1)
    yield from shares()
    yield from against_peers()


def shares() -> Iterator[dict[str, object]]:
    """The time of each partition as a share of the network's, and how it grows with the length."""
    per_value: dict[tuple[str, int], float] = {}
    for length, count in ((512, 64), (16384, 4)):
        noisy, network = torch.from_numpy(make_signals(count, length)), small_resnet()
        tasks: dict[str, Callable[[], object]] = {"network": lambda n=network, x=noisy: infer(n, x)}
        for text in TEXTS:
            partition = cast(Partition, parse_partition(text)).resolve(SIGMA, (1, length))
            tasks[text] = lambda p=partition, x=noisy: p.run(x)
        seconds = fastest(tasks, rounds=3, at_least=0.05)
        for text in TEXTS:
            per_value[text, length] = seconds[text] / noisy.numel()
            result = ratio(
                f"{text}, T = {length}: share of a small ResNet", seconds[text] / seconds["network"], at_most=0.1
            )
            yield result | {"ns_per_value": per_value[text, length] * 1e9}
    for text in TEXTS:
        growth = per_value[text, 16384] / per_value[text, 512]
        yield ratio(f"{text}: time per value at T = 16384, relative to 512", growth, at_most=2)


def infer(network: nn.Module, x: torch.Tensor) -> torch.Tensor:
    with torch.inference_mode():
        result: torch.Tensor = network(x)
        return result


def against_peers() -> Iterator[dict[str, object]]:
    """The same work by other libraries, with the largest difference of the results where they should agree."""
    for length in (512, 2048):
        noisy = make_signals(32, length)
        for name, package, partition, peer, required in pairs(length):
            try:
                library = importlib.import_module(package)
            except ImportError:
                print(f"skipped {name}: it is not installed")
                continue
            few = noisy[:2] if name == "ruptures" else noisy
            seconds = fastest(
                {
                    "ours": lambda p=partition, x=noisy: p.apply(x),
                    "peer": lambda f=peer, m=library, xs=few: [f(m, x[0]) for x in xs],
                },
                rounds=3,
            )
            ours, theirs = seconds["ours"] / len(noisy), seconds["peer"] / len(few)
            label = f"{partition.name}, T = {length}, one thread, against {name}"
            yield ratio(label, theirs / ours, at_least=required) | {"ours_ms": ours * 1e3, "theirs_ms": theirs * 1e3}
            results = zip(few, partition.apply(few), strict=True)
            difference = max(float(np.abs(peer(library, x[0]) - y[0]).max()) for x, y in results)
            yield {"what": f"  largest difference from {name}'s", "value": round(difference, 6), "unit": ""}


def pairs(length: int) -> list[tuple[str, str, Partition, Callable[[Any, np.ndarray], np.ndarray], float]]:
    """The peer's name and package, our partition, the peer's function of a signal [T], and the required speed-up."""
    shape = (1, length)
    changes = Changepoint(max_size=length).resolve(SIGMA, shape)
    tv, wavelet = TotalVariation1d().resolve(SIGMA, shape), Wavelet().resolve(SIGMA, shape)

    def ruptures(library: Any, x: np.ndarray) -> np.ndarray:
        ends = library.KernelCPD(kernel="linear", min_size=1, jump=1).fit(x).predict(pen=changes.penalty)
        return np.concatenate([np.full(len(part), part.mean()) for part in np.split(x, ends[:-1])])

    def scikit_image(library: Any, x: np.ndarray) -> np.ndarray:
        result: np.ndarray = library.denoise_tv_chambolle(x, tv.weight, eps=1e-6, max_num_iter=1000)
        return result

    def pywavelets(library: Any, x: np.ndarray) -> np.ndarray:
        rough, *details = library.wavedec(x, wavelet.wavelet, mode="symmetric", level=wavelet.levels)
        shrunk = [library.threshold(detail, wavelet.threshold, "soft") for detail in details]
        result: np.ndarray = library.waverec([rough, *shrunk], wavelet.wavelet, mode="symmetric")
        return result[: len(x)]

    return [
        ("ruptures", "ruptures", changes, ruptures, 5),
        ("scikit-image", "skimage.restoration", tv, scikit_image, 20),
        ("PyWavelets", "pywt", wavelet, pywavelets, 1),
    ]
