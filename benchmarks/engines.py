"""ONNX Runtime against torch, one thread each; and how near the whole chain comes to its slowest stage alone."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator

import torch

from benchmarks.timing import fastest, ratio
from pprs import Gaussian, Slic, SmoothedClassifier, _threads, load_model
from pprs.engine import choose_engine
from pprs.model import Model
from pprs.model.resnet import architecture
from pprs.voting import noisy_chunk


def models() -> Iterator[tuple[str, Model, torch.Tensor, int, float]]:
    """Name, model, a picture, segments, and how many times torch ONNX Runtime should be."""
    generator = torch.Generator().manual_seed(0)
    net = architecture("resnet18", channels=3, num_classes=10, mean=(0.5,) * 3, std=(0.25,) * 3).build().eval()
    yield "ResNet-18 at 32x32", Model(net, "resnet18", 10), torch.rand(3, 32, 32, generator=generator), 250, 1.2
    yield (
        "efficientnet-lite0 at 224x224", load_model("efficientnet-lite0"),
        torch.rand(3, 224, 224, generator=generator), 1000, 4.0,
    )  # fmt: skip


def measure() -> Iterator[dict[str, object]]:
    cores = _threads.cpu_count()
    with tempfile.TemporaryDirectory() as cache:
        os.environ["PPRS_CACHE"] = cache
        for name, model, x, segments, wanted in models():
            torch.set_num_threads(1)
            _threads.set_threads(1)
            noise, scheme = Gaussian(0.25), Slic(segments)
            noisy = noisy_chunk(x, noise, 0, 0)
            choice = choose_engine(model, noisy[:4], engine="onnxruntime")
            per_batch = {}
            for size in (len(noisy), 4):
                batch = noisy[:size]

                def run(net: torch.nn.Module, batch: torch.Tensor = batch) -> None:
                    with torch.inference_mode():
                        net.eval()(batch)

                found = fastest(
                    {
                        "torch": lambda r=run, m=model: r(m.module),
                        "onnxruntime": lambda r=run, m=choice.model: r(m.module),
                    },
                    rounds=3,
                    at_least=0,
                )
                per_batch[size] = {k: round(v / size * 1e3, 2) for k, v in found.items()}
                if size == len(noisy):
                    label = f"{name}, one thread, batches of {size}: onnxruntime against torch"
                    yield ratio(label, found["torch"] / found["onnxruntime"], at_least=wanted)
            best = {k: min(v[k] for v in per_batch.values()) for k in ("torch", "onnxruntime")}
            yield ratio(f"{name}, one thread, each at its better batch", best["torch"] / best["onnxruntime"]) | {
                "ms_a_picture_by_batch": per_batch
            }
            yield stages(name, choice.model, x, noise, scheme, cores)


def stages(name: str, model: Model, x: torch.Tensor, noise: Gaussian, scheme: Slic, cores: int) -> dict[str, object]:
    """Samples a second of noise, partition and network together, as a share of what the slowest does alone."""
    _threads.set_threads(cores)
    torch.set_num_threads(cores)
    n = 128 if x.numel() > 2**16 else 1024
    classes = model.num_classes or 10
    chunk = noisy_chunk(x, noise, 0, 0)
    whole = SmoothedClassifier(model.module, classes, noise, scheme)
    # The network alone: the same classifier on noise that was drawn before, without a partition.
    still = SmoothedClassifier(model.module, classes, _Drawn(chunk - x), None)

    def partition() -> None:
        for _ in range(0, n, len(chunk)):
            scheme.run(chunk)

    def draw() -> None:
        list(_threads.pool(cores).map(lambda i: noisy_chunk(x, noise, 0, 0, chunk=i), range(0, n // len(chunk))))

    found = fastest(
        {
            "together": lambda: whole.counts(x, n=n),
            "network": lambda: still.counts(x, n=n),
            "partition": partition,
            "noise": draw,
        },
        rounds=5,
        at_least=0,
    )
    slowest = max((found[k], k) for k in ("network", "partition", "noise"))
    label = f"{name}: noise, partition and network together, of the {slowest[1]} alone"
    return ratio(label, slowest[0] / found["together"], at_least=0.85) | {
        "samples_per_second": {k: round(n / v, 1) for k, v in found.items()}
    }


class _Drawn(Gaussian):
    """Noise that costs nothing."""

    def __init__(self, drawn: torch.Tensor) -> None:
        object.__setattr__(self, "sigma", 0.25)
        object.__setattr__(self, "drawn", drawn)

    def sample(self, shape, rng, out=None):  # type: ignore[no-untyped-def]
        return out.copy_(self.drawn[: shape[0]])  # type: ignore[attr-defined]
