"""What identifies a model, beyond its weights: everything that its scores depend on, part by part."""

from __future__ import annotations

import contextlib
import importlib.metadata

from pprs._version import __version__
from pprs.model.base import Model
from pprs.model.onnx import OnnxNetwork
from pprs.model.source_code import digest_source, is_own_code


def identify(model: Model, *, engine: str = "torch") -> dict[str, str]:
    """Return what the scores of a model depend on besides `Model.digest`, so that an error can name what changed.

    Args:
        model: The model as loaded, before it is put on an engine.
        engine: The engine that runs it.

    Returns:
        A digest or description of each part: external data, description, source code, input shape and preprocessing,
        and the versions of the packages that run it.
    """
    parts = dict(model.parts)
    if "source code" not in parts:
        modules = {type(layer).__module__ for layer in model.module.modules()}
        parts["source code"] = digest_source(name for name in modules if is_own_code(name))
    return {
        "input shape": "any" if model.input_shape is None else "x".join(map(str, model.input_shape)),
        "preprocessing": "default" if model.preprocess is None else repr(model.preprocess),
        **parts,
        **_versions(model, engine),
    }


def _versions(model: Model, engine: str) -> dict[str, str]:
    """Return the versions of pprs, torch, the engine, and the packages that define the network's layers."""
    names = {type(layer).__module__.partition(".")[0] for layer in model.module.modules()} - {"pprs"}
    if engine == "onnxruntime" or any(isinstance(layer, OnnxNetwork) for layer in model.module.modules()):
        names.add("onnxruntime")
    versions = {"pprs": __version__}
    for name in sorted({*names, "torch"}):
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):  # the user's own code
            # Without the build, as in 2.13.0+cpu: machines with and without a GPU may share a run.
            versions[name] = importlib.metadata.version(name).partition("+")[0]
    return versions
