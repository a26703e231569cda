"""How many samples a certificate takes when it may stop early, counted: digits, the demo's network, sigma 0.5."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch

from benchmarks.timing import ratio
from pprs import Gaussian, Slic, SmoothedClassifier, open_dataset
from pprs.certificate import Certificate
from pprs.sampling import Evidence, Sampling
from pprs.train import Recipe, train

RADII, SIGMA, ALPHA, DATA = (0.25, 0.5), 0.5, 0.001, "builtin:mnist5k"
# n, images, and by how much fewer samples there should be. Fixed n = 100,000 takes most of the time: fewer images.
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
    a_sample = (time.perf_counter() - began) / 4096
    yield _cost_of_looking(a_sample)

    def certified(n: int, images: int, stop: str | None) -> tuple[list[float], int]:
        """Certified accuracy at the radii, in %, and samples in all."""
        made: list[tuple[Certificate, int | None]] = []
        for i in range(images):
            example = digits[i]
            made.append((g.certify(example.image, n=n, alpha=ALPHA, index=i, stop=stop), example.label))
        accuracy = [100 * float(np.mean([c.prediction == y and c.radius >= r for c, y in made])) for r in RADII]
        return accuracy, sum(c.n0 + c.n for c, _ in made)

    stop = "radius:" + ",".join(map(str, RADII))
    for n, images, wanted in CASES:
        early, few = certified(n, images, stop)
        fixed, many = certified(n, images, None)
        yield ratio(f"samples, fixed n = {n}, against --stop {stop}", many / few, at_least=wanted) | {
            "samples_an_image": {"fixed": many / images, "stop": few / images, "images": images}
        }
        apart = max(abs(a - b) for a, b in zip(early, fixed, strict=True))
        yield {
            "what": f"certified accuracy at n = {n}, fixed and stopped: largest difference",
            "value": round(apart, 2), "unit": "points", "wanted": "<= 1", "met": apart <= 1,
            "fixed": fixed, "stop": early,
        }  # fmt: skip


def _cost_of_looking(a_sample: float) -> dict[str, object]:
    """Time spent on bounds over a stream of 100,000 votes that stays undecided, against that of its samples."""
    sampling, chunk = Sampling(n=100_000, alpha=ALPHA, stop="width:1e-9"), 64
    evidence = Evidence(sampling, Gaussian(SIGMA), 784, 10, 0)
    votes = torch.rand(sampling.n, generator=torch.Generator().manual_seed(0)).lt(0.8413).cumsum(0).tolist()
    began = time.perf_counter()
    for t in range(chunk, sampling.n + 1, chunk):
        evidence.add([votes[t - 1], t - votes[t - 1], *[0] * 8])
    spent = time.perf_counter() - began
    what = "bounds of 100,000 votes, against their samples (resnet-small, 28x28)"
    return ratio(what, spent / (a_sample * sampling.n), at_most=0.01)
