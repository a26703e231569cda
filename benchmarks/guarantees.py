"""What a run adds to the answers in it, for each guarantee: seconds of a run against those of a plain loop."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.timing import fastest, ratio
from pprs import Gaussian, LabelSets, PatchClassifier, Processes, Sampling, SmoothedClassifier, certify_dataset
from pprs._support.threads import cpu_count
from pprs.model.resnet import architecture
from pprs.patches import certify_patches
from pprs.prediction import predict_dataset
from pprs.segmentation import SegmentationSampling, SmoothedSegmenter
from pprs.segmentation.run import segment_dataset

NOISE, CLASSES, DIGITS, SCENES = Gaussian(0.25), 10, 40, 40
SAMPLING, FEW = Sampling(100, 1000), SegmentationSampling(n0=10, n=50)
SEGMENTER = """
import torch

def make():
    torch.manual_seed(0)
    layers = [torch.nn.Conv2d(1, 32, 3, padding=1), torch.nn.ReLU(), torch.nn.Conv2d(32, 32, 3, padding=1)]
    return torch.nn.Sequential(*layers, torch.nn.ReLU(), torch.nn.Conv2d(32, 3, 1))
"""


def measure() -> Iterator[dict[str, object]]:
    yield from overhead()
    yield from workers()


def overhead() -> Iterator[dict[str, object]]:
    """Compare a run in memory with the answers alone, one thread each."""
    images, labels = _draw(DIGITS, 28)
    net = architecture("resnet-small", channels=1, num_classes=CLASSES, mean=(0.5,), std=(0.25,)).build()
    common: dict[str, Any] = {"threads": 1, "progress": False, "engine": "torch"}
    classifier = SmoothedClassifier(net, CLASSES, NOISE, threads=1)
    patches = PatchClassifier(net, CLASSES, 5, 4, threads=1)
    sets = LabelSets(net, noise=NOISE, radius=0.1, num_classes=CLASSES, alpha=0.2, engine="torch", threads=1)
    sets.conformalize(images, labels)
    others = (images[: DIGITS // 2] * 254 / 255, labels[: DIGITS // 2])  # sets leave out what they were calibrated with
    pairs: dict[str, tuple[Callable[[], object], Callable[[], object]]] = {
        "certify": (
            lambda: certify_dataset(net, (images, labels), noise=NOISE, partition=None, sampling=SAMPLING, **common),
            lambda: _each(images, lambda x, i: classifier.certify(x, n0=SAMPLING.n0, n=SAMPLING.n, index=i)),
        ),
        "predict": (
            lambda: predict_dataset(net, (images, labels), noise=NOISE, partition=None, n=1000, **common),
            lambda: _each(images, lambda x, i: classifier.predict(x, n=1000, index=i)),
        ),
        "patch": (
            lambda: certify_patches(net, (images, labels), patch=5, masks=4, **common),
            lambda: _each(images, lambda x, _: patches.certify(x)),
        ),
        "label-set": (
            lambda: sets.predict_dataset(*others, progress=False),
            lambda: _each(others[0], lambda x, i: sets.predict(x, index=i)),
        ),
    }
    for name, (run, loop) in pairs.items():
        seconds = fastest({"run": run, "loop": loop}, rounds=3)
        yield ratio(f"{name}: a run against the same answers in a loop", seconds["run"] / seconds["loop"]) | {
            "seconds": seconds
        }


def workers() -> Iterator[dict[str, object]]:
    """Compare a segmentation run in worker processes with one process that has as many threads."""
    cores = cpu_count()
    images, _ = _draw(SCENES, 64)
    masks = (images[:, 0] > 0.5).long()
    with tempfile.TemporaryDirectory() as folder:
        module = Path(folder) / "segmenter.py"
        module.write_text(SEGMENTER)
        scope: dict[str, Any] = {}
        exec(SEGMENTER, scope)
        segmenter = SmoothedSegmenter(scope["make"](), 3, NOISE, threads=cores)
        data = Path(folder) / "scenes.npz"
        np.savez(data, images=(images.numpy() * 255).astype(np.uint8), masks=masks.numpy().astype(np.uint8))
        common: dict[str, Any] = {"noise": NOISE, "sampling": FEW, "progress": False, "engine": "torch"}

        def run(**options: Any) -> object:
            return segment_dataset(f"{module}:make", str(data), **options, **common)

        seconds = fastest(
            {
                "workers": lambda: run(runner=Processes(cores)),
                "threads": lambda: run(threads=cores),
                "loop": lambda: _each(images, lambda x, i: segmenter.certify(x, FEW, index=i)),
            },
            rounds=3,
        )
    yield ratio("segment: a run against the same answers in a loop", seconds["threads"] / seconds["loop"]) | {
        "seconds": seconds
    }
    yield ratio(
        f"segment: {cores} workers against {cores} threads, their start included",
        seconds["workers"] / seconds["threads"],
    ) | {"seconds": seconds}


def _draw(count: int, size: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    images = torch.randint(256, (count, 1, size, size), generator=generator) / 255
    return images, torch.randint(CLASSES, (count,), generator=generator)


def _each(images: Sequence[torch.Tensor] | torch.Tensor, answer: Callable[[torch.Tensor, int], object]) -> None:
    for index, image in enumerate(images):
        answer(image, index)
