"""How near to the clean photo noisy photos come: partitions by their rules, blurs at their best, PSNR in dB."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from pprs.partition import Blur, Gauss, Partition, parse_partition

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
import photos  # the tests'

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
WANTED = {(224, 0.25): 25.8, (224, 0.5): 22.2}
DRAWS = {224: 2, 32: 16}


def measure() -> Iterator[dict[str, object]]:
    for side in (224, 32):
        for sigma in (0.25, 0.5):
            found = {text: _psnr([_made(text, sigma, side)], side, sigma) for text in TEXTS}
            found["blur"] = _psnr([Blur(size) for size in (3, 5, 7, 9, 11)], side, sigma)
            found["gauss"] = _psnr([Gauss(round(0.5 * 1.15**i, 2)) for i in range(16)], side, sigma)
            blur = max(found["blur"], found["gauss"])
            ours = max(found[text] for text in TEXTS if text.startswith("slic"))
            least = WANTED.get((side, sigma), blur)
            yield {
                "what": f"PSNR at {side}x{side}, sigma {sigma}: the best partition by its rule (best blur {blur:.2f})",
                "value": round(ours, 2), "unit": "dB", "wanted": f">= {least:.2f}", "met": bool(ours >= least),
                "each": {text: round(value, 2) for text, value in found.items()},
            }  # fmt: skip


def _made(text: str, sigma: float, side: int) -> Partition:
    made = parse_partition(text)
    assert made is not None
    return made.resolve(sigma, (3, side, side))


def _psnr(partitions: list[Partition], side: int, sigma: float) -> float:
    """Mean over photos and draws, of the partition that does best."""
    means = np.zeros(len(partitions))
    for i, name in enumerate(PHOTOS):
        clean = photos.photo(name, side)
        noise = np.random.default_rng(i).standard_normal((DRAWS[side], *clean.shape), dtype=np.float32)
        for j, partition in enumerate(partitions):
            means[j] += np.mean([photos.psnr(made, clean) for made in partition.apply(clean + sigma * noise)])
    return float(means.max() / len(PHOTOS))
