"""What a run adds to the answers in it, for each guarantee: seconds of a run against those of a plain loop."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch

from benchmarks.timing import fastest, ratio
from pprs import (
    Gaussian,
    LabelSets,
    PatchClassifier,
    Processes,
    Sampling,
    SmoothedClassifier,
    certify_dataset,
    load_model,
)
from pprs._support.threads import cpu_count
from pprs.model.resnet import architecture
from pprs.patches import certify_patches
from pprs.prediction import predict_dataset
from pprs.segmentation import SegmentationSampling, SmoothedSegmenter
from pprs.segmentation.data import open_masked
from pprs.segmentation.run import segment_dataset

NOISE, CLASSES, DIGITS = Gaussian(0.25), 10, 40
SCENES, COUNT = "builtin:scenes", 60
SAMPLING, FEW = Sampling(100, 1000), SegmentationSampling(n0=10, n=100)


def measure() -> Iterator[dict[str, object]]:
    yield from overhead()
    yield from workers()


def overhead() -> Iterator[dict[str, object]]:
    """Compare a run in memory with the answers alone, one thread each."""
    images, labels = _draw(DIGITS, 28)
    net = architecture("resnet-small", channels=1, num_classes=CLASSES, mean=(0.5,), std=(0.25,)).build()
    common: dict[str, Any] = {"threads": 1, "progress": False, "engine": "torch"}
    classifier = SmoothedClassifier(net, CLASSES, NOISE, threads=1, partition=None)
    patches = PatchClassifier(net, CLASSES, 5, 4, threads=1)
    sets = LabelSets(
        net, noise=NOISE, radius=0.1, num_classes=CLASSES, alpha=0.2, engine="torch", threads=1, partition=None
    )
    sets.conformalize(images, labels)
    others = (images.flip(-1), labels)  # sets leave out what they were calibrated with
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
            lambda: sets.predict_dataset(others, progress=False),
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
    cores, model, scenes = cpu_count(), load_model(SCENES), open_masked(SCENES)
    segmenter = SmoothedSegmenter(model, noise=NOISE, threads=cores, partition=None)
    images = [scenes[i].image for i in range(COUNT)]
    common: dict[str, Any] = {"noise": NOISE, "partition": None, "sampling": FEW, "progress": False, "engine": "torch"}
    common["images"] = range(COUNT)
    seconds = fastest(
        {
            "workers": lambda: segment_dataset(SCENES, SCENES, runner=Processes(cores), **common),
            "threads": lambda: segment_dataset(SCENES, SCENES, threads=cores, **common),
            "loop": lambda: _each(images, lambda x, i: segmenter.certify(x, FEW, index=i)),
        },
        rounds=3,
    )
    yield ratio(
        f"segment: a run of {COUNT} against the same answers in a loop", seconds["threads"] / seconds["loop"]
    ) | {"seconds": seconds}
    what = f"segment: {cores} workers against {cores} threads, {COUNT} scenes, start included"
    yield ratio(what, seconds["workers"] / seconds["threads"]) | {"seconds": seconds}


def _draw(count: int, size: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    images = torch.randint(256, (count, 1, size, size), generator=generator) / 255
    return images, torch.randint(CLASSES, (count,), generator=generator)


def _each(images: Sequence[torch.Tensor] | torch.Tensor, answer: Callable[[torch.Tensor, int], object]) -> None:
    for index, image in enumerate(images):
        answer(image, index)
