"""The baseline filters against scipy and scikit-image, on the same images and one thread."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import torch
from scipy import ndimage
from skimage import restoration

from benchmarks.partitions import MEMORY, load_images, photos
from benchmarks.timing import fastest, ratio
from pprs._support import threads as _threads
from pprs.partition import Filter, GaussianFilter, Median, NonLocalMeans, TotalVariation

Peer = Callable[[np.ndarray], np.ndarray]


def pairs(side: int) -> tuple[tuple[Filter, str, Peer, float], ...]:
    """Our filters, the peer's name and function for an image [C, H, W], and the required speed-up."""
    gauss, tv, nlm = (kind.for_noise(photos.SIGMA, side) for kind in (GaussianFilter, TotalVariation, NonLocalMeans))
    width = (0, gauss.sigma, gauss.sigma)
    size = {"patch_size": nlm.patch, "patch_distance": nlm.distance, "sigma": nlm.sigma, "channel_axis": 0}
    return (
        (gauss, "scipy", lambda p: ndimage.gaussian_filter(p, width), 4),
        (Median(3), "scipy", lambda p: ndimage.median_filter(p, (1, 3, 3)), 20),
        (Median(5), "scipy", lambda p: ndimage.median_filter(p, (1, 5, 5)), 15),
        # Close to scikit-image's best: it does not couple channels, and its patches are smaller than requested.
        (
            tv,
            "scikit-image",
            lambda p: restoration.denoise_tv_chambolle(p, 0.9 * photos.SIGMA, channel_axis=0),
            1.5,
        ),
        (nlm, "scikit-image", lambda p: restoration.denoise_nl_means(p, h=0.5 * photos.SIGMA, **size), 5),
    )


def measure() -> Iterator[dict[str, object]]:
    torch.set_num_threads(1)
    _threads.set_threads(1)
    for side in (32, 224):
        clean, noisy, _ = load_images(side)
        batch = torch.from_numpy(np.tile(noisy, (16 if side == 32 else 4, 1, 1, 1)))
        for partition, name, peer, required in pairs(side):
            seconds = fastest(
                {
                    "ours": lambda f=partition, b=batch: f.run(b),
                    "peer": lambda f=peer, images=noisy: [f(x) for x in images],
                },
                rounds=3,
            )
            ours, theirs = seconds["ours"] / len(batch), seconds["peer"] / len(noisy)
            label = f"{partition} {side}x{side}, one thread, against {name}"
            yield ratio(label, theirs / ours, at_least=required) | {"ours_ms": ours * 1e3, "theirs_ms": theirs * 1e3}
            filtered = partition.apply(noisy)
            gains = [
                photos.psnr(y, c) - photos.psnr(peer(x), c) for y, x, c in zip(filtered, noisy, clean, strict=True)
            ]
            value = float(np.mean(gains))
            yield {
                "what": f"  PSNR above {name}'s",
                "value": round(value, 4),
                "unit": "dB",
                "wanted": ">= -0.1",
                "met": value >= -0.1,
                "each": [round(e, 3) for e in gains],
            }
    yield from memory()


def memory() -> Iterator[dict[str, object]]:
    """Measure the peak memory of `apply` beyond its input, as a multiple of the input."""
    if not Path("/proc/self/clear_refs").exists():
        return
    for text in ("gauss", "median:size=5", "tv", "nlm"):
        command = [sys.executable, "-c", MEMORY, text, "kernels", "32", "3", "224"]
        result = subprocess.run(command, capture_output=True, text=True, check=True)
        yield ratio(f"{text}, 32 of 224x224x3: peak memory relative to the batch", float(result.stdout), at_most=1.6)
