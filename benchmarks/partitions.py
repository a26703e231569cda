"""Partitions against scikit-image and fast-slic on the same images and one thread, then two threads, and memory."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
from skimage import segmentation

from benchmarks.timing import fastest, ratio
from pprs import Felzenszwalb, Quickshift, Slic
from pprs._support import threads as _threads
from pprs.partition import Superpixels

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))
import photos

NAMES = ("chelsea", "coffee", "astronaut", "rocket")


def load_images(side: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return clean, noisy, and blurred noisy photos, each [4, 3, side, side]."""
    clean = np.stack([photos.photo(name, side) for name in NAMES])
    noisy = np.concatenate([photos.noisy(c, 1, seed=i) for i, c in enumerate(clean)])
    return clean, noisy, photos.box5(noisy)


def measure() -> Iterator[dict[str, object]]:
    torch.set_num_threads(1)
    _threads.set_threads(1)
    for side, n, targets in ((32, 250, (40, 8, 10)), (224, 1000, (35, 5, 10))):
        clean, noisy, blurred = load_images(side)
        channels_last = [np.ascontiguousarray(x.transpose(1, 2, 0)).astype(np.float64) for x in blurred]
        batch = np.tile(blurred, (16, 1, 1, 1))
        pairs = (
            (Slic(n, blur=1), lambda x, n=n: segmentation.slic(x, n_segments=n, compactness=10, start_label=0)),
            (Felzenszwalb(blur=1), lambda x: segmentation.felzenszwalb(x, scale=5, sigma=0.2, min_size=20)),
            (Quickshift(blur=1), lambda x: segmentation.quickshift(x, kernel_size=3, max_dist=4, ratio=0.5)),
        )
        for (partition, peer), required in zip(pairs, targets, strict=True):
            seconds = fastest(
                {
                    "ours": lambda f=partition, b=batch: f.labels(b),
                    "scikit-image": lambda f=peer, images=channels_last: [f(x) for x in images],
                },
                rounds=3 if side == 224 else 5,
            )
            ours, theirs = seconds["ours"] / len(batch), seconds["scikit-image"] / len(channels_last)
            label = f"{partition.name} {side}x{side}, one thread, against scikit-image"
            yield ratio(label, theirs / ours, at_least=required) | {"ours_ms": ours * 1e3, "theirs_ms": theirs * 1e3}
            yield from equal_work(partition, peer, "scikit-image", side, clean, noisy, channels_last, channels_last)
        yield from against_fast_slic(side, n, batch, clean, noisy, channels_last)
    yield from two_threads()
    yield from memory()


def equal_work(
    partition: Superpixels, peer, name: str, side: int, clean, noisy, peer_inputs, inputs
) -> Iterator[dict[str, object]]:  # type: ignore[no-untyped-def]
    """Check that the work is comparable: about as many segments, and a partition that is no worse."""
    measured = []
    for c, x, peer_input, image in zip(clean, noisy, peer_inputs, inputs, strict=True):
        a = partition.labels(image.transpose(2, 0, 1).astype(np.float32)[None])[0]
        b = np.unique(peer(peer_input), return_inverse=True)[1].reshape(a.shape)
        psnr_gain = photos.psnr(photos.mean_over(x, a), c) - photos.psnr(photos.mean_over(x, b), c)
        measured.append((a.max() + 1, b.max() + 1, psnr_gain, photos.explained(c, a) - photos.explained(c, b)))
    ours, theirs, psnr_gain, variation_gain = np.mean(measured, axis=0)
    strict = partition.name == "slic" and side == 224
    min_psnr, min_variation = (0.8, 0.0) if strict else (-0.1, -0.01)
    share = ratio(f"  segments, relative to {name}'s {theirs:.0f}", ours / theirs)
    yield share | {"wanted": "0.9 to 1.1", "met": bool(0.9 <= ours / theirs <= 1.1)}
    for what, value, unit, limit, column in (
        (f"  PSNR above {name}'s", psnr_gain, "dB", min_psnr, 2),
        (f"  explained variation above {name}'s", variation_gain, "", min_variation, 3),
    ):
        yield {
            "what": what,
            "value": round(float(value), 4),
            "unit": unit,
            "wanted": f">= {limit}",
            "met": bool(value >= limit),
            "each": [round(float(values[column]), 3) for values in measured],
        }


def against_fast_slic(side: int, n: int, batch: np.ndarray, clean, noisy, inputs) -> Iterator[dict[str, object]]:
    try:
        from fast_slic.avx2 import SlicAvx2 as FastSlic
    except ImportError:
        return
    eight_bit = [np.ascontiguousarray((np.clip(x, 0, 1) * 255).astype(np.uint8).transpose(1, 2, 0)) for x in batch[:4]]
    peer = FastSlic(num_components=n, compactness=10, num_threads=1)
    seconds = fastest(
        {"ours": lambda: Slic(n, blur=1).labels(batch), "peer": lambda: [peer.iterate(x) for x in eight_bit]}
    )
    value = (seconds["peer"] / len(eight_bit)) / (seconds["ours"] / len(batch))
    yield ratio(f"slic {side}x{side}, one thread, against fast-slic", value, at_least=6 if side == 32 else 4)
    yield from equal_work(Slic(n, blur=1), peer.iterate, "fast-slic", side, clean, noisy, eight_bit, inputs)


def two_threads() -> Iterator[dict[str, object]]:
    """Compare two threads with one, on the path that certification uses."""
    for side, n in ((32, 250), (224, 1000)):
        batch = torch.from_numpy(np.tile(load_images(side)[1], (256 if side == 32 else 32, 1, 1, 1)))
        for partition in (Slic(n, blur=5), Felzenszwalb(), Quickshift()):

            def run(count: int, partition: Superpixels = partition, batch: torch.Tensor = batch) -> None:
                _threads.set_threads(count)
                partition.run(batch)

            seconds = fastest({"one": lambda r=run: r(1), "two": lambda r=run: r(2)}, rounds=20)
            yield ratio(
                f"{partition.name} {side}x{side}, apply: two threads against one",
                seconds["one"] / seconds["two"],
                at_least=1.7,
            )


MEMORY = """
import sys, numpy as np, torch, pprs
from pathlib import Path
partition, (batch, channels, side) = pprs.parse_partition(sys.argv[1]), map(int, sys.argv[3:])
run = partition.with_defaults()._run_device if sys.argv[2] == "torch" else partition.run
def resident(key):
    return int(next(l for l in open("/proc/self/status") if l.startswith(key)).split()[1]) * 1024
run(torch.zeros(batch, channels, 16, 16))  # compile and load the kernels
x = torch.rand(batch, channels, side, side)
Path("/proc/self/clear_refs").write_text("5")
before = resident("VmRSS")
run(x)
print((resident("VmHWM") - before) / (x.numel() * 4))
"""


def memory() -> Iterator[dict[str, object]]:
    """Measure the peak memory of `apply` beyond its input, as a multiple of the input."""
    if not Path("/proc/self/clear_refs").exists():
        return
    texts = ("slic:n_segments=1000,blur=5", "felzenszwalb", "quickshift", "grid:size=7", "blur:size=5")
    cases = [(text, "kernels", 64, channels) for text in texts for channels in (3, 1)]
    cases += [(text, "kernels", 16, 3) for text in texts]
    cases += [("slic:n_segments=12000", "kernels", 64, 3), ("slic:n_segments=1000", "torch", 32, 3)]
    for text, path, batch, channels in cases:
        command = [sys.executable, "-c", MEMORY, text, path, str(batch), str(channels), "224"]
        result = subprocess.run(command, capture_output=True, text=True, check=True)
        label = f"{text} ({path}), {batch} of 224x224x{channels}: peak memory relative to the batch"
        yield ratio(label, float(result.stdout), at_most=3)
