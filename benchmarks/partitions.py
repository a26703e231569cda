"""Partitions against scikit-image and fast-slic on the same pictures, one thread each; then two threads, and memory."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
from skimage import segmentation

from benchmarks.timing import fastest, ratio
from pprs import Felzenszwalb, Quickshift, Slic, _threads
from pprs.partition import Superpixels

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))
import photos

NAMES = ("chelsea", "coffee", "astronaut", "rocket")


def pictures(side: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Clean, noisy, and noisy blurred photos [4, 3, side, side]."""
    clean = np.stack([photos.photo(name, side) for name in NAMES])
    noisy = np.concatenate([photos.noisy(c, 1, seed=i) for i, c in enumerate(clean)])
    return clean, noisy, photos.box5(noisy)


def measure() -> Iterator[dict[str, object]]:
    torch.set_num_threads(1)
    _threads.set_threads(1)
    for side, n, targets in ((32, 250, (40, 8, 10)), (224, 1000, (35, 5, 10))):
        clean, noisy, blurred = pictures(side)
        last = [np.ascontiguousarray(p.transpose(1, 2, 0)).astype(np.float64) for p in blurred]
        batch = np.tile(blurred, (16, 1, 1, 1))
        pairs = (
            (Slic(n, blur=1), lambda p, n=n: segmentation.slic(p, n_segments=n, compactness=10, start_label=0)),
            (Felzenszwalb(blur=1), lambda p: segmentation.felzenszwalb(p, scale=5, sigma=0.2, min_size=20)),
            (Quickshift(blur=1), lambda p: segmentation.quickshift(p, kernel_size=3, max_dist=4, ratio=0.5)),
        )
        for (scheme, theirs), wanted in zip(pairs, targets, strict=True):
            found = fastest(
                {
                    "ours": lambda s=scheme, b=batch: s.labels(b),
                    "scikit-image": lambda t=theirs, ps=last: [t(p) for p in ps],
                },
                rounds=3 if side == 224 else 5,
            )
            us, them = found["ours"] / len(batch), found["scikit-image"] / len(last)
            label = f"{scheme.name} {side}x{side}, one thread, against scikit-image"
            yield ratio(label, them / us, at_least=wanted) | {"ours_ms": us * 1e3, "theirs_ms": them * 1e3}
            yield from equal_work(scheme, theirs, "scikit-image", side, clean, noisy, last, last)
        yield from against_fast_slic(side, n, batch, clean, noisy, last)
    yield from two_threads()
    yield from memory()


def equal_work(
    scheme: Superpixels, theirs, name: str, side: int, clean, noisy, given, last
) -> Iterator[dict[str, object]]:  # type: ignore[no-untyped-def]
    """That the work was equal: as many segments, and no worse a partition."""
    made = []
    for c, x, q, p in zip(clean, noisy, given, last, strict=True):
        a = scheme.labels(p.transpose(2, 0, 1).astype(np.float32)[None])[0]
        b = np.unique(theirs(q), return_inverse=True)[1].reshape(a.shape)
        gained = photos.psnr(photos.mean_over(x, a), c) - photos.psnr(photos.mean_over(x, b), c)
        made.append((a.max() + 1, b.max() + 1, gained, photos.explained(c, a) - photos.explained(c, b)))
    ours, others, gained, kept = np.mean(made, axis=0)
    slic = scheme.name == "slic"
    least, keep = (0.8, 0.0) if slic and side == 224 else (-0.1, -0.01)
    share = ratio(f"  segments, of {name}'s {others:.0f}", ours / others)
    yield share | {"wanted": "0.9 to 1.1", "met": bool(0.9 <= ours / others <= 1.1)}
    for what, value, unit, limit, column in (
        (f"  PSNR above {name}'s", gained, "dB", least, 2),
        (f"  explained variation above {name}'s", kept, "", keep, 3),
    ):
        yield {
            "what": what,
            "value": round(float(value), 4),
            "unit": unit,
            "wanted": f">= {limit}",
            "met": bool(value >= limit),
            "each": [round(float(m[column]), 3) for m in made],
        }


def against_fast_slic(side: int, n: int, batch: np.ndarray, clean, noisy, last) -> Iterator[dict[str, object]]:
    try:
        from fast_slic.avx2 import SlicAvx2 as FastSlic
    except ImportError:
        return
    eight_bit = [np.ascontiguousarray((np.clip(p, 0, 1) * 255).astype(np.uint8).transpose(1, 2, 0)) for p in batch[:4]]
    theirs = FastSlic(num_components=n, compactness=10, num_threads=1)
    found = fastest(
        {"ours": lambda: Slic(n, blur=1).labels(batch), "theirs": lambda: [theirs.iterate(p) for p in eight_bit]}
    )
    value = (found["theirs"] / len(eight_bit)) / (found["ours"] / len(batch))
    yield ratio(f"slic {side}x{side}, one thread, against fast-slic", value, at_least=6 if side == 32 else 4)
    yield from equal_work(Slic(n, blur=1), theirs.iterate, "fast-slic", side, clean, noisy, eight_bit, last)


def two_threads() -> Iterator[dict[str, object]]:
    """The kernels' path of a batch that was checked, as certification calls it."""
    for side, n in ((32, 250), (224, 1000)):
        batch = torch.from_numpy(np.tile(pictures(side)[1], (256 if side == 32 else 32, 1, 1, 1)))
        for scheme in (Slic(n, blur=5), Felzenszwalb(), Quickshift()):

            def run(count: int, scheme: Superpixels = scheme, batch: torch.Tensor = batch) -> None:
                _threads.set_threads(count)
                scheme.run(batch)

            found = fastest({"one": lambda r=run: r(1), "two": lambda r=run: r(2)}, rounds=20)
            yield ratio(
                f"{scheme.name} {side}x{side}, apply: two threads against one",
                found["one"] / found["two"],
                at_least=1.7,
            )


MEMORY = """
import sys, numpy as np, torch, pprs
from pathlib import Path
scheme, (batch, channels, side) = pprs.parse_partition(sys.argv[1]), map(int, sys.argv[3:])
run = scheme.with_defaults()._run_device if sys.argv[2] == "torch" else scheme.run
def resident(key):
    return int(next(l for l in open("/proc/self/status") if l.startswith(key)).split()[1]) * 1024
run(torch.zeros(batch, channels, 16, 16))  # compiled and loaded
x = torch.rand(batch, channels, side, side)
Path("/proc/self/clear_refs").write_text("5")
before = resident("VmRSS")
run(x)
print((resident("VmHWM") - before) / (x.numel() * 4))
"""


def memory() -> Iterator[dict[str, object]]:
    """Peak memory of apply beyond the batch it is given, as a multiple of that batch."""
    if not Path("/proc/self/clear_refs").exists():
        return
    plain = ("slic:n_segments=1000,blur=5", "felzenszwalb", "quickshift", "grid:size=7", "blur:size=5")
    cases = [(text, "kernels", 64, channels) for text in plain for channels in (3, 1)]
    cases += [(text, "kernels", 16, 3) for text in plain]
    cases += [("slic:n_segments=12000", "kernels", 64, 3), ("slic:n_segments=1000", "torch", 32, 3)]
    for text, path, batch, channels in cases:
        command = [sys.executable, "-c", MEMORY, text, path, str(batch), str(channels), "224"]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        label = f"{text} ({path}), {batch} of 224x224x{channels}: peak memory, of the batch"
        yield ratio(label, float(done.stdout), at_most=3)
