"""What runs a network: torch, or ONNX Runtime, which is many times faster for some networks on a CPU.

A torch network is exported once, the file is kept, and before it is trusted its scores are compared with torch's own on
the very inputs of the run. Scores differ in the last digits, so which engine made a run is part of its settings.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib.metadata
import io
import logging
import os
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from pprs import _threads
from pprs._files import atomic_write, cache_folder
from pprs._version import __version__
from pprs.errors import ConfigurationError, PprsError, suggest
from pprs.model import Model
from pprs.model.base import Restricted
from pprs.model.onnx import OnnxNetwork

ENGINES = ("auto", "torch", "onnxruntime")
WORTH = 20.0  # seconds of work below which a network is not exported: that takes about as long
CLOSE = 1e-3  # how far scores may be from torch's, as a share of the largest

Message = Callable[[str], None]


@dataclass(frozen=True)
class EngineChoice:
    """A model on the engine that was chosen for it, and why."""

    model: Model
    engine: str
    why: str


def choose_engine(
    model: Model,
    inputs: torch.Tensor,
    *,
    engine: str = "auto",
    device: str = "cpu",
    samples: int = 0,
    autocast: bool = False,
    channels_last: bool = False,
    message: Message = lambda text: None,
) -> EngineChoice:
    """The model on an engine. `inputs` are pictures as the run will give them to it; `samples` how many there will be.

    auto: torch on a GPU; on a CPU the faster one of the two by a short measurement, if there is work enough.
    """
    check_engine(engine)
    choice = _choose(model, inputs, engine, device, samples, autocast, channels_last, message)
    message(f"engine: {choice.engine} ({choice.why})")
    return choice


def check_engine(engine: str) -> None:
    if engine not in ENGINES:
        raise ConfigurationError(f'no engine is called "{engine}". {suggest(engine, ENGINES)}', parameter="engine")


def _choose(
    model: Model,
    inputs: torch.Tensor,
    engine: str,
    device: str,
    samples: int,
    autocast: bool,
    channels_last: bool,
    message: Message,
) -> EngineChoice:
    special = " and ".join(n for n, on in (("`autocast`", autocast), ("`channels_last`", channels_last)) if on)
    if any(isinstance(m, OnnxNetwork) for m in model.module.modules()):
        if engine == "torch" or special or not device.startswith("cpu"):
            raise ConfigurationError(
                f"{model.source} is an ONNX network: it runs on onnxruntime, on the CPU, as it is. "
                "Leave out `engine` torch, `autocast`, `channels_last` and `device`.",
                parameter="engine",
            )
        return EngineChoice(model, "onnxruntime", "an ONNX network")
    if engine == "onnxruntime" and (special or not device.startswith("cpu")):
        raise ConfigurationError(
            f"`engine` onnxruntime is for the CPU, without {special or f'`device` {device}'}", parameter="engine"
        )
    if special:
        why = special.replace("`", "")
        return EngineChoice(replace(model, module=Fast(model.module, autocast, channels_last)), "torch", why)
    if engine == "torch":
        return EngineChoice(model, "torch", "as asked for")
    if not device.startswith("cpu"):
        return EngineChoice(model, "torch", f"on {device}")
    try:
        return _compared(model, inputs, samples, engine == "onnxruntime", message)
    except PprsError as error:
        if engine == "onnxruntime":
            raise
        return EngineChoice(model, "torch", str(error).splitlines()[0])


def _compared(model: Model, inputs: torch.Tensor, samples: int, forced: bool, message: Message) -> EngineChoice:
    if not _has("onnxruntime"):
        raise PprsError("ONNX Runtime is not installed (pip install 'pprs[onnx]')")
    model.module.eval()
    whole = model.module.net if isinstance(model.module, Restricted) else model.module  # one export for all label sets
    path = cache_file(replace(model, module=whole), inputs)
    few = inputs[:4]
    torch_time = 0.0
    if not forced:
        torch_time = _seconds(model.module, few)
        work = samples * torch_time / _threads.get_threads()
        if work < WORTH and not path.exists():
            return EngineChoice(model, "torch", f"about {work:.0f} s of work, too little to export the network for")
    if not path.exists():
        message("exporting the network to ONNX Runtime, once ...")
        _export(whole, inputs, path)
    net: torch.nn.Module = OnnxNetwork(str(path), str(path))
    if isinstance(model.module, Restricted):
        net = Restricted(net, model.module.chosen.tolist())
    check(model.module, net, inputs)
    made = replace(model, module=net)
    if forced:
        return EngineChoice(made, "onnxruntime", "as asked for")
    onnx_time = _seconds(net, few)
    told = f"{_ms(onnx_time)} a picture on one thread, against {_ms(torch_time)}"
    if onnx_time < torch_time:
        return EngineChoice(made, "onnxruntime", told + " with torch")
    return EngineChoice(
        model, "torch", f"{_ms(torch_time)} a picture on one thread, against {_ms(onnx_time)} with onnxruntime"
    )


def check(ours: torch.nn.Module, other: torch.nn.Module, inputs: torch.Tensor) -> None:
    """That both give the same scores: raises where they do not."""
    with torch.inference_mode():
        wanted, got = ours(inputs.clone()), other(inputs.clone())
    if not isinstance(wanted, torch.Tensor):
        raise PprsError(f"the model must return a tensor of scores, not {type(wanted).__name__}. Wrap it to do so.")
    far = float((wanted - got).abs().max()) if wanted.shape == got.shape else float("inf")
    size = float(wanted.abs().max())
    if not far <= CLOSE * size:  # written so that NaN is far
        raise PprsError(f"its scores on ONNX Runtime are {far:.2g} from torch's (of {size:.2g}), so it is not used")


def cache_file(model: Model, inputs: torch.Tensor) -> Path:
    """Where the export is kept: by weights, code, input shape and versions."""
    sha = hashlib.sha256(f"{model.digest()} {tuple(inputs.shape[1:])} {__version__} {model.module!r}".encode())
    for package in ("torch", "onnxscript", "onnxruntime"):
        sha.update(importlib.metadata.version(package).encode() if _has(package) else b"none")
    files = {getattr(sys.modules.get(type(m).__module__), "__file__", None) for m in model.module.modules()}
    for file in sorted(f for f in files if f and os.path.isfile(f)):
        sha.update(Path(file).read_bytes())
    return cache_folder() / f"{sha.hexdigest()[:24]}.onnx"


def _export(module: torch.nn.Module, inputs: torch.Tensor, path: Path) -> None:
    if not (_has("onnx") and _has("onnxscript")):
        raise PprsError("onnx and onnxscript, which export a network, are not installed (pip install 'pprs[onnx]')")
    try:
        with _quiet():
            program = torch.onnx.export(
                module,
                (inputs[:2].clone(),),
                dynamo=True,
                dynamic_shapes=({0: torch.export.Dim("batch", min=1, max=65536)},),
                input_names=["x"],
                output_names=["scores"],
                verbose=False,
            )
            path.parent.mkdir(parents=True, exist_ok=True)
            with atomic_write(path) as part:
                assert program is not None
                program.save(str(part))
    except Exception as error:  # exporting raises anything
        if isinstance(error, PprsError | OSError):
            raise PprsError(
                f"the exported network cannot be kept: {error}. Set PPRS_CACHE to another folder."
            ) from error
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise PprsError(f"the network cannot be exported to ONNX ({type(error).__name__}: {reason})") from error


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """The exporter talks a lot."""
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with (
            warnings.catch_warnings(),
            contextlib.redirect_stdout(io.StringIO()),
            contextlib.redirect_stderr(io.StringIO()),
        ):
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)


def _seconds(module: torch.nn.Module, inputs: torch.Tensor) -> float:
    """A picture, on one thread: the best of a few."""

    def measure(batch: torch.Tensor) -> float:
        with torch.inference_mode():
            module(batch.clone())
            best = float("inf")
            for _ in range(2):
                began = time.perf_counter()
                module(batch.clone())
                best = min(best, (time.perf_counter() - began) / len(batch))
        return best

    pool = _threads.pool(_threads.get_threads())  # whose threads let torch have one thread each
    try:
        found = pool.submit(measure, inputs).result()
        if found * len(inputs) < 0.05:  # too short to trust: a batch as large as a run has
            found = pool.submit(measure, inputs.repeat(16, 1, 1, 1)).result()
    except Exception as error:  # a user's model may raise anything
        raise PprsError(f"it failed on a batch of shape {tuple(inputs.shape)} ({type(error).__name__})") from error
    return found


def _ms(seconds: float) -> str:
    return f"{seconds * 1e3:.3g} ms"


def _has(package: str) -> bool:
    try:
        importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return False
    return True


class Fast(torch.nn.Module):
    """A network with torch's options for speed, which change its scores: mixed precision, channels last."""

    rounding: float

    def __init__(self, net: torch.nn.Module, autocast: bool, channels_last: bool) -> None:
        super().__init__()
        self.net: torch.nn.Module = net.to(memory_format=torch.channels_last) if channels_last else net  # type: ignore[call-overload]
        self.autocast, self.channels_last = autocast, channels_last
        # How much of a score is rounding: scores closer than this are compared again, each picture on its own.
        self.rounding = 2.0**-6 if autocast else 0.0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.channels_last:
            x = x.contiguous(memory_format=torch.channels_last)
        kind = torch.bfloat16 if x.device.type == "cpu" else torch.float16
        with torch.autocast(x.device.type, dtype=kind, enabled=self.autocast):
            scores: torch.Tensor = self.net(x)
        return scores.float()
