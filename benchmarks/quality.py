"""PSNR of partitioned noisy photos: partitions with options fitted to PSNR against the best blurs."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from pprs.partition import Blur, GaussianFilter, Partition, parse_partition
from pprs.reproduction.former_rules import FORMER, resolve_by

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
import photos  # from the tests

PHOTOS = ("astronaut", "chelsea", "coffee", "rocket", "camera")
TEXTS = (
    "slic",
    "slic/shifts:k=8",
    "slic/soft",
    "slic/soft/shifts:k=4",
    "felzenszwalb",
    "quickshift",
    "median",
    "tv",
    "nlm",
)
REQUIRED = {(224, 0.25): 25.8, (224, 0.5): 22.2}
SAMPLES = {224: 2, 32: 16}


def measure() -> Iterator[dict[str, object]]:
    for side in (224, 32):
        for sigma in (0.25, 0.5):
            psnr = {text: _best_psnr([_resolve(text, sigma, side)], side, sigma) for text in TEXTS}
            psnr["blur"] = _best_psnr([Blur(size) for size in (3, 5, 7, 9, 11)], side, sigma)
            psnr["gauss"] = _best_psnr([GaussianFilter(round(0.5 * 1.15**i, 2)) for i in range(16)], side, sigma)
            best_blur = max(psnr["blur"], psnr["gauss"])
            best = max(psnr[text] for text in TEXTS if text.startswith("slic"))
            required = REQUIRED.get((side, sigma), best_blur)
            yield {
                "what": f"PSNR at {side}x{side}, sigma {sigma}: best of SLIC (best blur {best_blur:.2f})",
                "value": round(best, 2), "unit": "dB", "wanted": f">= {required:.2f}", "met": bool(best >= required),
                "each": {text: round(value, 2) for text, value in psnr.items()},
            }  # fmt: skip


def _resolve(text: str, sigma: float, side: int) -> Partition:
    partition = resolve_by(FORMER, parse_partition(text), sigma, (3, side, side))
    assert partition is not None
    return partition


def _best_psnr(partitions: list[Partition], side: int, sigma: float) -> float:
    """Return the mean PSNR over photos and noisy samples, of the best partition."""
    means = np.zeros(len(partitions))
    for i, name in enumerate(PHOTOS):
        clean = photos.photo(name, side)
        noise = np.random.default_rng(i).standard_normal((SAMPLES[side], *clean.shape), dtype=np.float32)
        for j, partition in enumerate(partitions):
            means[j] += np.mean([photos.psnr(image, clean) for image in partition.apply(clean + sigma * noise)])
    return float(means.max() / len(PHOTOS))
