"""The engine that runs a network: torch, or ONNX Runtime, which is many times faster for some networks on a CPU.

A torch network is exported once and the file is cached. Before the export is used, its scores are compared with
torch's on inputs like those of the run. Scores differ in the last digits, so the engine is one of a run's settings.
"""

from __future__ import annotations

import contextlib
import copy
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

from pprs._support import threads as _threads
from pprs._support.files import atomic_write, cache_folder
from pprs._version import __version__
from pprs.errors import ConfigurationError, PprsError, check_integer, suggest
from pprs.model import Model
from pprs.model.base import Restricted
from pprs.model.forms import FunctionModule
from pprs.model.modes import eval_mode
from pprs.model.onnx import OnnxNetwork
from pprs.model.scores import HALF_ROUNDING, relative_difference

ENGINES = ("auto", "torch", "onnxruntime")
MIN_EXPORT_SECONDS = 20.0  # of work, below which a network is not exported, since the export takes about as long
SCORE_TOLERANCE = 1e-3  # the largest difference from torch's scores, relative to their spread

Message = Callable[[str], None]


@dataclass(frozen=True)
class EngineOptions:
    """How the network is run. All options but `batch_size` and `threads` may change the last digits of its scores."""

    engine: str = "auto"
    device: str = "cpu"
    batch_size: int | None = None
    threads: int | None = None
    autocast: bool = False
    channels_last: bool = False

    def __post_init__(self) -> None:
        check_engine(self.engine)
        object.__setattr__(self, "device", str(self.device))
        for name in ("batch_size", "threads"):
            if getattr(self, name) is not None:
                object.__setattr__(self, name, check_integer(getattr(self, name), name, 1))


@dataclass(frozen=True)
class EngineChoice:
    """A model on the engine that was chosen for it, and the reason for the choice."""

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
    """Choose an engine and put the model on it.

    `inputs` are noisy samples like those of the run, and `samples` is the expected number of them. With "auto" the
    engine is torch on a GPU. On a CPU it is the faster of the two in a short measurement, or torch if there is too
    little work for an export.
    """
    check_engine(engine)
    with eval_mode(model.module):
        choice = _choose(model, inputs, engine, device, samples, autocast, channels_last, message)
    message(f"engine: {choice.engine} ({choice.why})")
    return choice


def check_engine(engine: str) -> None:
    """Raise an error unless there is an engine of this name."""
    if engine not in ENGINES:
        raise ConfigurationError(f'unknown engine "{engine}". {suggest(engine, ENGINES)}', parameter="engine")


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
    options = (("`autocast`", autocast), ("`channels_last`", channels_last))
    torch_options = " and ".join(name for name, is_on in options if is_on)
    if any(isinstance(m, OnnxNetwork) for m in model.module.modules()):
        if engine == "torch" or torch_options or not device.startswith("cpu"):
            raise ConfigurationError(
                f"{model.source} is an ONNX network, which runs only on onnxruntime and on the CPU. "
                "Leave out `engine` torch, `autocast`, `channels_last` and `device`.",
                parameter="engine",
            )
        return EngineChoice(model, "onnxruntime", "an ONNX network")
    if engine == "onnxruntime" and (torch_options or not device.startswith("cpu")):
        raise ConfigurationError(
            f"`engine` onnxruntime runs on the CPU, without {torch_options or f'`device` {device}'}", parameter="engine"
        )
    if torch_options:
        why = torch_options.replace("`", "")
        return EngineChoice(replace(model, module=Accelerated(model.module, autocast, channels_last)), "torch", why)
    if engine == "torch":
        return EngineChoice(model, "torch", "as requested")
    if engine == "auto" and any(isinstance(m, FunctionModule) for m in model.module.modules()):
        return EngineChoice(model, "torch", "a function of Python")
    if not device.startswith("cpu"):
        return EngineChoice(model, "torch", f"on {device}")
    try:
        return _compare_engines(model, inputs, samples, engine == "onnxruntime", message)
    except PprsError as error:
        if engine == "onnxruntime":
            raise
        return EngineChoice(model, "torch", str(error).splitlines()[0])


def _compare_engines(model: Model, inputs: torch.Tensor, samples: int, forced: bool, message: Message) -> EngineChoice:
    if not _is_installed("onnxruntime"):
        raise PprsError("ONNX Runtime is not installed (pip install 'pprs[onnx]')")
    # All label sets share one export, that of the unrestricted network.
    unrestricted = model.module.net if isinstance(model.module, Restricted) else model.module
    path = cache_file(replace(model, module=unrestricted), inputs)
    few_inputs = inputs[:4]
    torch_time = 0.0
    if not forced:
        torch_time = _seconds_per_image(model.module, few_inputs)
        work = samples * torch_time / _threads.get_threads()
        if work < MIN_EXPORT_SECONDS and not os.path.exists(path):  # false too where it must not be read
            return EngineChoice(model, "torch", f"about {work:.0f} s of work, too little to export the network")
    if not os.path.exists(path):
        message("exporting the network to ONNX Runtime, once ...")
        _export(unrestricted, inputs, path)
    net: torch.nn.Module = OnnxNetwork(str(path), str(path))
    if isinstance(model.module, Restricted):
        net = Restricted(net, model.module.chosen.tolist())
    check_scores(model.module, net, inputs)
    onnx_model = replace(model, module=net)
    if forced:
        return EngineChoice(onnx_model, "onnxruntime", "as requested")
    onnx_time = _seconds_per_image(net, few_inputs)
    torch_ms, onnx_ms = f"{torch_time * 1e3:.3g} ms", f"{onnx_time * 1e3:.3g} ms"
    if onnx_time < torch_time:
        why = f"{onnx_ms} per image on one thread, against {torch_ms} with torch"
        return EngineChoice(onnx_model, "onnxruntime", why)
    return EngineChoice(model, "torch", f"{torch_ms} per image on one thread, against {onnx_ms} with onnxruntime")


def check_scores(reference: torch.nn.Module, other: torch.nn.Module, inputs: torch.Tensor) -> None:
    """Raise an error unless both networks give the same scores, up to rounding."""
    with torch.inference_mode():
        expected, scores = reference(inputs.clone()), other(inputs.clone())
    if not isinstance(expected, torch.Tensor):
        raise PprsError(
            f"the model must return a tensor of scores, not {type(expected).__name__}. Wrap it so that it does."
        )
    difference = relative_difference(expected, scores)
    if difference > SCORE_TOLERANCE:
        raise PprsError(
            f"its scores on ONNX Runtime differ by {difference:.2g} of their spread from torch's, so it is not used"
        )


def cache_file(model: Model, inputs: torch.Tensor) -> Path:
    """Return the path of the cached export, which depends on weights, code, input shape and versions."""
    sha = hashlib.sha256(f"{model.digest()} {tuple(inputs.shape[1:])} {__version__} {model.module!r}".encode())
    for package in ("torch", "onnxscript", "onnxruntime"):
        sha.update(importlib.metadata.version(package).encode() if _is_installed(package) else b"none")
    files = {getattr(sys.modules.get(type(m).__module__), "__file__", None) for m in model.module.modules()}
    for file in sorted(f for f in files if f and os.path.isfile(f)):
        sha.update(Path(file).read_bytes())
    return cache_folder() / f"{sha.hexdigest()[:24]}.onnx"


def _export(module: torch.nn.Module, inputs: torch.Tensor, path: Path) -> None:
    if not (_is_installed("onnx") and _is_installed("onnxscript")):
        raise PprsError("exporting a network needs onnx and onnxscript (pip install 'pprs[onnx]')")
    try:
        with _silence_exporter():
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
            with atomic_write(path, parameter=None) as part:
                assert program is not None
                program.save(str(part))
    except Exception as error:  # the exporter may raise anything
        if isinstance(error, PprsError | OSError):
            raise PprsError(
                f"the exported network cannot be stored: {error}. Set PPRS_CACHE to another folder."
            ) from error
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise PprsError(f"the network cannot be exported to ONNX ({type(error).__name__}: {reason})") from error


@contextlib.contextmanager
def _silence_exporter() -> Iterator[None]:
    """Suppress the log messages, warnings and output of the exporter."""
    disabled_level = logging.root.manager.disable
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
        logging.disable(disabled_level)


def _seconds_per_image(module: torch.nn.Module, inputs: torch.Tensor) -> float:
    """Measure the seconds per image on one thread, the best of a few runs."""

    def measure(batch: torch.Tensor) -> float:
        with torch.inference_mode():
            module(batch.clone())
            best = float("inf")
            for _ in range(2):
                began = time.perf_counter()
                module(batch.clone())
                best = min(best, (time.perf_counter() - began) / len(batch))
        return best

    pool = _threads.get_pool(_threads.get_threads())  # torch uses a single thread in each of its threads
    try:
        seconds = pool.submit(measure, inputs).result()
        if seconds * len(inputs) < 0.05:  # too short to be reliable: measure a batch as large as those of a run
            seconds = pool.submit(measure, inputs.repeat(16, *[1] * (inputs.ndim - 1))).result()
    except Exception as error:  # a user's model may raise anything
        raise PprsError(f"it failed on a batch of shape {tuple(inputs.shape)} ({type(error).__name__})") from error
    return seconds


def _is_installed(package: str) -> bool:
    try:
        importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return False
    return True


class Accelerated(torch.nn.Module):
    """A network with torch's options for speed, mixed precision and channels last, which change its scores slightly."""

    rounding: float

    def __init__(self, net: torch.nn.Module, autocast: bool, channels_last: bool) -> None:
        super().__init__()
        self.net: torch.nn.Module = net
        if channels_last:  # in a copy, since the network may be the caller's
            self.net = copy.deepcopy(net).to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        self.autocast, self.channels_last = autocast, channels_last
        # The relative rounding error of scores. Images whose two best scores are closer are scored again, one by one.
        self.rounding = HALF_ROUNDING if autocast else 0.0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.channels_last:
            x = x.contiguous(memory_format=torch.channels_last)
        dtype = torch.bfloat16 if x.device.type == "cpu" else torch.float16
        with torch.autocast(x.device.type, dtype=dtype, enabled=self.autocast):
            scores: torch.Tensor = self.net(x)
        return scores.float()
