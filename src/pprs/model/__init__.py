"""The sources of base classifiers. A new source is a class in a file of its own and an entry in `SOURCES`."""

from __future__ import annotations

import os
from typing import Protocol

from pprs._support.files import suggest_files
from pprs.errors import ConfigurationError, PprsError
from pprs.model.base import Model
from pprs.model.builtin import Builtin
from pprs.model.efficientnet import EfficientNetLite0
from pprs.model.exported import Exported
from pprs.model.factory import Factory
from pprs.model.huggingface import HuggingFace
from pprs.model.onnx import Onnx
from pprs.model.overlay import ADAPTED, apply_overlay, load_overlay
from pprs.model.preprocess import Preprocess
from pprs.model.timm import Timm
from pprs.model.torchvision import Torchvision
from pprs.model.weights import Weights


class Source(Protocol):
    """A kind of model. Its errors need not name the model, since `load_model` adds the name."""

    @staticmethod
    def claims(spec: str) -> bool:
        """Return whether the text names a model of this kind."""

    @staticmethod
    def load(spec: str) -> Model:
        """Load the model that the text names."""


# The first source that claims a text loads it.
SOURCES: tuple[type[Source], ...] = (
    Builtin, EfficientNetLite0, Onnx, Exported, Weights, Torchvision, Timm, HuggingFace, Factory,
)  # fmt: skip
NAMES = ("efficientnet-lite0",)  # of models that are one word
FORMS = (
    "builtin:digits, builtin:gunpoint or builtin:scenes, M.safetensors (from `pprs train`), M.onnx, "
    "M.pt2 (torch.export), a folder or hub id of Hugging Face "
    "transformers (org/name), torchvision:NAME, timm:NAME, "
    "efficientnet-lite0, or module:factory for your own network"
)


def load_model(spec: str) -> Model:
    """Load the base classifier that a text names.

    Its input size, normalisation and class names are loaded too, as far as they are known.

    Args:
        spec: One of the following:

            - `builtin:digits`, `builtin:gunpoint` or `builtin:scenes`, small trained networks for `builtin:mnist5k`,
              `builtin:GunPoint` and `builtin:scenes`
            - `M.safetensors`, written by `pprs train`
            - `M.onnx`, run by ONNX Runtime
            - `M.pt2`, a program written by `torch.export`
            - a folder or hub id (`org/name`) of Hugging Face transformers
            - `torchvision:NAME` or `timm:NAME`
            - `efficientnet-lite0`
            - `module:factory`, a function without arguments that builds a network, or the network itself
            - any of these with `+adapted:A.safetensors`, an adaptation written by `pprs adapt`

    Returns:
        The model, in eval mode unless it is code. Fields that its source does not specify are None.

    Raises:
        PprsError: If the text names no known kind of model, or if the model cannot be loaded.
    """
    base, mark, overlay = spec.rpartition(ADAPTED)
    if mark:
        model = load_model(base)
        adapted = apply_overlay(model, load_overlay(overlay))
        adapted.module.train(model.module.training)
        return adapted
    for source in SOURCES:
        if source.claims(spec):
            try:
                model = source.load(spec)
            except PprsError as error:
                # Keep the error's type: a worker that lacks a file must not end a run that other workers can continue.
                raise type(error)(f"`model` {spec}: {error.message}", parameter="model") from error
            if source is not Factory:  # which may return a network that is in use elsewhere
                model.module.eval()
            return model
    missing = "" if os.path.exists(spec) else f" There is no such file or folder.{suggest_files(spec, NAMES)}"
    raise ConfigurationError(f'cannot tell what kind of model "{spec}" is.{missing} Give {FORMS}.', parameter="model")


__all__ = ["FORMS", "SOURCES", "Model", "Preprocess", "Source", "load_model"]
