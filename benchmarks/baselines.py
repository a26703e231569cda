"""The filters that superpixels have to beat, against scipy and scikit-image on the same pictures, one thread each."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import torch
from scipy import ndimage
from skimage import restoration

from benchmarks.partitions import MEMORY, photos, pictures
from benchmarks.timing import fastest, ratio
from pprs import _threads
from pprs.partition import Filter, Gauss, Median, NonLocalMeans, TotalVariation

Peer = Callable[[np.ndarray], np.ndarray]


def pairs(side: int) -> tuple[tuple[Filter, str, Peer, float], ...]:
    """Ours, the peer on a picture [C, H, W], and how many times as fast we want to be."""
    gauss, tv, nlm = (kind.for_noise(photos.SIGMA, side) for kind in (Gauss, TotalVariation, NonLocalMeans))
    width = (0, gauss.sigma, gauss.sigma)
    size = {"patch_size": nlm.patch, "patch_distance": nlm.distance, "sigma": nlm.sigma, "channel_axis": 0}
    return (
        (gauss, "scipy", lambda p: ndimage.gaussian_filter(p, width), 4),
        (Median(3), "scipy", lambda p: ndimage.median_filter(p, (1, 3, 3)), 20),
        (Median(5), "scipy", lambda p: ndimage.median_filter(p, (1, 5, 5)), 15),
        # Near scikit-image's own best here: its channels are not coupled, and its patches smaller than asked for.
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
        clean, noisy, _ = pictures(side)
        batch = torch.from_numpy(np.tile(noisy, (16 if side == 32 else 4, 1, 1, 1)))
        for scheme, name, theirs, wanted in pairs(side):
            found = fastest(
                {
                    "ours": lambda s=scheme, b=batch: s.run(b),
                    "theirs": lambda t=theirs, ps=noisy: [t(p) for p in ps],
                },
                rounds=3,
            )
            us, them = found["ours"] / len(batch), found["theirs"] / len(noisy)
            label = f"{scheme} {side}x{side}, one thread, against {name}"
            yield ratio(label, them / us, at_least=wanted) | {"ours_ms": us * 1e3, "theirs_ms": them * 1e3}
            ours = scheme.apply(noisy)
            each = [photos.psnr(o, c) - photos.psnr(theirs(x), c) for o, x, c in zip(ours, noisy, clean, strict=True)]
            value = float(np.mean(each))
            yield {
                "what": f"  PSNR above {name}'s",
                "value": round(value, 4),
                "unit": "dB",
                "wanted": ">= -0.1",
                "met": value >= -0.1,
                "each": [round(e, 3) for e in each],
            }
    yield from memory()


def memory() -> Iterator[dict[str, object]]:
    """Peak memory of apply beyond the batch it is given, as a multiple of that batch."""
    if not Path("/proc/self/clear_refs").exists():
        return
    for text in ("gauss", "median:size=5", "tv", "nlm"):
        command = [sys.executable, "-c", MEMORY, text, "kernels", "32", "3", "224"]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        yield ratio(f"{text}, 32 of 224x224x3: peak memory, of the batch", float(done.stdout), at_most=1.6)
