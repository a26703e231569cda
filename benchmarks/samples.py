"""The number of samples per certificate with and without early stopping, on digits with sigma 0.5."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch

from benchmarks.timing import ratio
from pprs import Gaussian, Slic, SmoothedClassifier, open_dataset
from pprs.smoothing.certificate import Certificate
from pprs.smoothing.sampling import Evidence, Sampling
from pprs.training.trainer import Recipe, train

RADII, SIGMA, ALPHA, DATA = (0.25, 0.5), 0.5, 0.001, "builtin:mnist5k"
# n, number of images, and the required reduction of samples. With n = 100,000 a fixed n is slow: use fewer images.
CASES = ((10_000, 100, 4), (100_000, 30, 10))


def measure() -> Iterator[dict[str, object]]:
    with tempfile.TemporaryDirectory() as folder:
        net = train(
            open_dataset(DATA, split="train"), Recipe(epochs=8), out=Path(folder) / "m.safetensors", data_name=DATA
        )
    digits = open_dataset(DATA)
    g = SmoothedClassifier(net, 10, Gaussian(SIGMA), Slic(50, blur=3))
    began = time.perf_counter()
    g.counts(digits[0].image, n=4096)
    seconds_per_sample = (time.perf_counter() - began) / 4096
    yield _cost_of_bounds(seconds_per_sample)

    def certify(n: int, images: int, stop: str | None) -> tuple[list[float], int]:
        """Return the certified accuracy at the radii, in %, and the total number of samples."""
        results: list[tuple[Certificate, int | None]] = []
        for i in range(images):
            example = digits[i]
            results.append((g.certify(example.image, n=n, alpha=ALPHA, index=i, stop=stop), example.label))
        accuracy = [100 * float(np.mean([c.prediction == y and c.radius >= r for c, y in results])) for r in RADII]
        return accuracy, sum(c.n0 + c.n for c, _ in results)

    stop = "radius:" + ",".join(map(str, RADII))
    for n, images, required in CASES:
        early, early_samples = certify(n, images, stop)
        fixed, fixed_samples = certify(n, images, None)
        label = f"samples, fixed n = {n}, against --stop {stop}"
        yield ratio(label, fixed_samples / early_samples, at_least=required) | {
            "samples_per_image": {"fixed": fixed_samples / images, "stop": early_samples / images, "images": images}
        }
        difference = max(abs(a - b) for a, b in zip(early, fixed, strict=True))
        yield {
            "what": f"certified accuracy at n = {n}, fixed and stopped: largest difference",
            "value": round(difference, 2), "unit": "points", "wanted": "<= 1", "met": difference <= 1,
            "fixed": fixed, "stop": early,
        }  # fmt: skip


def _cost_of_bounds(seconds_per_sample: float) -> dict[str, object]:
    """Compare the time for the bounds of 100,000 votes that never decide with the time for their samples."""
    sampling, chunk = Sampling(n=100_000, alpha=ALPHA, stop="width:1e-9"), 64
    evidence = Evidence(sampling, Gaussian(SIGMA), 784, 10, 0)
    votes = torch.rand(sampling.n, generator=torch.Generator().manual_seed(0)).lt(0.8413).cumsum(0).tolist()
    began = time.perf_counter()
    for t in range(chunk, sampling.n + 1, chunk):
        evidence.add([votes[t - 1], t - votes[t - 1], *[0] * 8])
    spent = time.perf_counter() - began
    label = "bounds of 100,000 votes, against their samples (resnet-small, 28x28)"
    return ratio(label, spent / (seconds_per_sample * sampling.n), at_most=0.01)
