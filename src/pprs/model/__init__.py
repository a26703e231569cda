"""Where a classifier comes from. A new source is a class in a file of its own, and a line in SOURCES."""

from __future__ import annotations

from typing import Protocol

from pprs.errors import ConfigurationError, PprsError
from pprs.model.base import Model
from pprs.model.efficientnet import EfficientNetLite0
from pprs.model.exported import Exported
from pprs.model.factory import Factory
from pprs.model.huggingface import HuggingFace
from pprs.model.onnx import Onnx
from pprs.model.preprocess import Preprocess
from pprs.model.timm import Timm
from pprs.model.torchvision import Torchvision
from pprs.model.weights import Weights


class Source(Protocol):
    """Its errors need not name the model: `load_model` does."""

    @staticmethod
    def claims(spec: str) -> bool: ...

    @staticmethod
    def load(spec: str) -> Model: ...


# The first that claims a text has it.
SOURCES: tuple[type[Source], ...] = (
    EfficientNetLite0, Onnx, Exported, Weights, Torchvision, Timm, HuggingFace, Factory,
)  # fmt: skip
FORMS = (
    "M.safetensors (from `pprs train`), M.onnx, M.pt2 (torch.export), a folder or hub id of Hugging Face "
    "transformers (org/name), torchvision:NAME, timm:NAME, "
    "efficientnet-lite0, or module:factory for a network of your own"
)


def load_model(spec: str) -> Model:
    """The classifier that the text names, with its input size, normalisation and class names as far as they are known.

    `M.safetensors` from `pprs train`; `M.onnx`; a `torch.export` program `M.pt2`; a folder or hub id of Hugging Face
    transformers; `torchvision:NAME` and `timm:NAME`; `efficientnet-lite0`; `module:factory`.
    """
    for source in SOURCES:
        if source.claims(spec):
            try:
                return source.load(spec)
            except PprsError as error:
                # Of the same kind: a worker that finds no file is no reason to end a run that has other workers.
                raise type(error)(f"`model` {spec}: {error.message}", parameter="model") from error
    raise ConfigurationError(f'cannot tell what kind of model "{spec}" is. Give {FORMS}.', parameter="model")


__all__ = ["FORMS", "SOURCES", "Model", "Preprocess", "Source", "load_model"]
