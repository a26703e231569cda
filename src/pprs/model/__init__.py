"""Where a classifier comes from. A new source is a class in a file of its own, and a line in SOURCES."""

from __future__ import annotations

from typing import Protocol

from pprs.errors import PprsError
from pprs.model.base import Model
from pprs.model.factory import Factory
from pprs.model.weights import Weights


class Source(Protocol):
    @staticmethod
    def claims(spec: str) -> bool: ...

    @staticmethod
    def load(spec: str) -> Model: ...


SOURCES: tuple[type[Source], ...] = (Weights, Factory)


def load_model(spec: str) -> Model:
    """The classifier that the text names: `M.safetensors` from `pprs train`, or `module:factory`."""
    for source in SOURCES:
        if source.claims(spec):
            return source.load(spec)
    raise PprsError(
        f'cannot tell what model "{spec}" is. Give a file that `pprs train` wrote (M.safetensors), or module:factory '
        "for a network of your own."
    )


__all__ = ["SOURCES", "Model", "Source", "load_model"]
