"""ONNX Runtime against torch on one thread, and certification against its slowest stage on its own."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator

import torch

from benchmarks.timing import fastest, ratio
from pprs import Gaussian, Slic, SmoothedClassifier, load_model
from pprs._support import threads as _threads
from pprs.model import Model
from pprs.model.resnet import architecture
from pprs.runs.engine import choose_engine
from pprs.smoothing.voting import noisy_chunk


def models() -> Iterator[tuple[str, Model, torch.Tensor, int, float]]:
    """Yield name, model, image, number of segments, and the required speed-up of ONNX Runtime over torch."""
    generator = torch.Generator().manual_seed(0)
    net = architecture("resnet18", channels=3, num_classes=10, mean=(0.5,) * 3, std=(0.25,) * 3).build().eval()
    yield (
        "ResNet-18 at 32x32",
        Model(net, "resnet18", 10),
        torch.randint(0, 256, (3, 32, 32), generator=generator) / 255,
        250,
        1.2,
    )
    yield (
        "efficientnet-lite0 at 224x224", load_model("efficientnet-lite0"),
        torch.randint(0, 256, (3, 224, 224), generator=generator) / 255, 1000, 4.0,
    )  # fmt: skip


def measure() -> Iterator[dict[str, object]]:
    cores = _threads.cpu_count()
    with tempfile.TemporaryDirectory() as cache:
        os.environ["PPRS_CACHE"] = cache
        for name, model, x, n_segments, required in models():
            torch.set_num_threads(1)
            _threads.set_threads(1)
            noise, partition = Gaussian(0.25), Slic(n_segments)
            noisy = noisy_chunk(x, noise, 0, 0)
            choice = choose_engine(model, noisy[:4], engine="onnxruntime")
            per_batch = {}
            for size in (len(noisy), 4):
                batch = noisy[:size]

                def run(net: torch.nn.Module, batch: torch.Tensor = batch) -> None:
                    with torch.inference_mode():
                        net.eval()(batch)

                seconds = fastest(
                    {
                        "torch": lambda r=run, m=model: r(m.module),
                        "onnxruntime": lambda r=run, m=choice.model: r(m.module),
                    },
                    rounds=3,
                    at_least=0,
                )
                per_batch[size] = {k: round(v / size * 1e3, 2) for k, v in seconds.items()}
                if size == len(noisy):
                    label = f"{name}, one thread, batches of {size}: onnxruntime against torch"
                    yield ratio(label, seconds["torch"] / seconds["onnxruntime"], at_least=required)
            best = {k: min(v[k] for v in per_batch.values()) for k in ("torch", "onnxruntime")}
            yield ratio(f"{name}, one thread, each at its better batch", best["torch"] / best["onnxruntime"]) | {
                "ms_per_image_by_batch": per_batch
            }
            yield stages(name, choice.model, x, noise, partition, cores)


def stages(name: str, model: Model, x: torch.Tensor, noise: Gaussian, partition: Slic, cores: int) -> dict[str, object]:
    """Compare the sampling rate of noise, partition and network together with that of the slowest stage."""
    _threads.set_threads(cores)
    torch.set_num_threads(cores)
    n = 128 if x.numel() > 2**16 else 1024
    classes = model.num_classes or 10
    chunk = noisy_chunk(x, noise, 0, 0)
    complete = SmoothedClassifier(model.module, classes, noise, partition)
    # Only the network: the same classifier without a partition, on noise drawn in advance.
    network_only = SmoothedClassifier(model.module, classes, _FixedNoise(chunk - x), None)

    def run_partition() -> None:
        for _ in range(0, n, len(chunk)):
            partition.run(chunk)

    def draw_noise() -> None:
        list(_threads.get_pool(cores).map(lambda i: noisy_chunk(x, noise, 0, 0, chunk=i), range(0, n // len(chunk))))

    seconds = fastest(
        {
            "together": lambda: complete.counts(x, n=n),
            "network": lambda: network_only.counts(x, n=n),
            "partition": run_partition,
            "noise": draw_noise,
        },
        rounds=5,
        at_least=0,
    )
    slowest = max((seconds[k], k) for k in ("network", "partition", "noise"))
    label = f"{name}: noise, partition and network together, relative to the {slowest[1]} on its own"
    return ratio(label, slowest[0] / seconds["together"], at_least=0.85) | {
        "samples_per_second": {k: round(n / v, 1) for k, v in seconds.items()}
    }


class _FixedNoise(Gaussian):
    """Noise drawn in advance, which costs nothing."""

    def __init__(self, values: torch.Tensor) -> None:
        object.__setattr__(self, "sigma", 0.25)
        object.__setattr__(self, "values", values)

    def sample(self, shape, rng, out=None):  # type: ignore[no-untyped-def]
        return out.copy_(self.values[: shape[0]])  # type: ignore[attr-defined]
