"""Which images, in what order, and what is written when."""

from __future__ import annotations

import io
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from PIL import Image

from pprs.data import ImageSet
from pprs.errors import PprsError
from pprs.record import Row, Run, row_of
from pprs.smooth import SmoothedClassifier

GALLERY = 6  # pictures that a run keeps for the report


@dataclass(frozen=True)
class Plan:
    """What to do for every image."""

    n0: int
    n: int
    alpha: float
    bound: str = "one-sided"


class Watcher(Protocol):
    """Told of progress: samples as they are counted, rows as they are written."""

    def samples(self, count: int) -> None: ...

    def row(self, row: Row) -> None: ...


def choose(total: int, *, start: int = 0, stride: int = 1, limit: int | None = None) -> Sequence[int]:
    """The images to certify: every stride-th from start on, at most limit of them.

    >>> list(choose(10, start=1, stride=3, limit=2))
    [1, 4]
    """
    if start < 0 or stride < 1 or (limit is not None and limit < 1):
        raise PprsError(f"need start >= 0, stride >= 1 and limit >= 1, not {start}, {stride} and {limit}")
    if start >= total:
        raise PprsError(f"--start {start} is past the data's last image, {total - 1}")
    return range(start, total, stride)[: limit if limit is not None else total]


def run_local(
    classifier: SmoothedClassifier,
    data: ImageSet,
    images: Sequence[int],
    plan: Plan,
    run: Run,
    watcher: Watcher,
) -> None:
    """Certify the images that have no row yet, one after the other, in this process."""
    done = run.done()
    kept = len(run.pictures())
    for index in images:
        if index in done:
            continue
        example = data[index]
        if example.label is not None and example.label >= classifier.num_classes:
            raise PprsError(
                f"image {index} has label {example.label}, and the model only {classifier.num_classes} classes. "
                "Put the data's classes in the model's order with --classes FILE."
            )
        began = time.perf_counter()
        made = classifier.certify(
            example.image,
            n0=plan.n0,
            n=plan.n,
            alpha=plan.alpha,
            index=index,
            bound=plan.bound,
            on_samples=watcher.samples,
        )
        row = row_of(index, example.label, made, time.perf_counter() - began)
        keep = kept < GALLERY
        run.add(row, png(example.image) if keep else None)
        kept += keep
        watcher.row(row)


def png(image: torch.Tensor) -> bytes:
    """A picture [C, H, W] in [0, 1] as PNG."""
    pixels = image.mul(255).round().clamp(0, 255).byte().permute(1, 2, 0).numpy()
    buffer = io.BytesIO()
    Image.fromarray(pixels[:, :, 0] if pixels.shape[2] == 1 else pixels).save(buffer, "PNG")
    return buffer.getvalue()
