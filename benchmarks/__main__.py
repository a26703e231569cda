"""Speed, as ratios against a peer in the same run: `make bench`."""

from __future__ import annotations

import time

import torch

import pprs
from pprs.model.resnet import architecture


def seconds(g: pprs.SmoothedClassifier, x: torch.Tensor, n: int = 256) -> float:
    g.counts(x, n=64)
    began = time.perf_counter()
    g.counts(x, n=n)
    return time.perf_counter() - began


def main() -> None:
    x = pprs.open_dataset("builtin:mnist5k")[0].image
    net = architecture("resnet-small", channels=1, num_classes=10, mean=(0.13,), std=(0.31,)).build()
    plain = seconds(pprs.SmoothedClassifier(net, 10, pprs.Gaussian(0.5)), x)
    print("certifying a 28x28 digit, resnet-small, against plain smoothing:")
    for partition in (pprs.Blur(3), pprs.Grid(4), pprs.Slic(50), pprs.Felzenszwalb(), pprs.Quickshift()):
        ratio = seconds(pprs.SmoothedClassifier(net, 10, pprs.Gaussian(0.5), partition), x) / plain
        print(f"  {partition.short:24s} {ratio:5.2f}x the time")


if __name__ == "__main__":
    main()
