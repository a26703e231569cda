"""The forms in which a model is given: as text, as a `Model`, as a network, or as a function."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeAlias

import torch

from pprs.errors import ConfigurationError, PprsError, check_integer
from pprs.model import load_model
from pprs.model.base import Model
from pprs.model.overlay import apply_overlay, join_adapted, load_overlay
from pprs.model.recommendation import Recommend, recommend_for_model
from pprs.partition import recommend_partition

Network: TypeAlias = Callable[[torch.Tensor], torch.Tensor]
AnyModel: TypeAlias = str | Path | Model | torch.nn.Module | Network


class FunctionModule(torch.nn.Module):
    """A function as a module."""

    def __init__(self, function: Network) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.function(x)


def open_model(model: AnyModel, adapted: str | Path | None = None) -> tuple[Model, str | None]:
    """Return the model, and the text that opens it again in another process.

    Args:
        model: The model, or the text that names it.
        adapted: The file of an adaptation of the model.

    Returns:
        The adapted model, and its text or None.
    """
    if isinstance(model, str | Path):
        text = join_adapted(str(model), adapted)
        return load_model(text), text
    source = None
    if isinstance(model, Model):
        opened, source = model, model.source
    elif isinstance(model, torch.nn.Module):
        # The code cannot be fingerprinted. The name of its class and its printed layers stand in for it.
        name = f"{type(model).__module__}.{type(model).__qualname__}"
        opened = Model(model, name, fingerprint=f"{name} {model!r}")
    elif is_function(model):
        opened = Model(FunctionModule(model), describe_network(model))
    else:
        raise _refusal(model)
    if adapted is None:
        return opened, source
    return apply_overlay(opened, load_overlay(adapted)), None if source is None else join_adapted(source, adapted)


@dataclass(frozen=True)
class OpenNetwork:
    """A network that is called with images as they are.

    Attributes:
        function: The network.
        num_classes: The number of its classes.
        input_shape: The shape of its inputs, if that is known and fixed.
        recommend: Returns the partition that "auto" stands for, given sigma and the shape of an input.
        made_for_dither: How inputs behind thresholds were estimated when it was made for them, if it was.
    """

    function: Network
    num_classes: int
    input_shape: tuple[int, ...] | None
    recommend: Recommend
    made_for_dither: str | None = None


def open_network(model: AnyModel, num_classes: int | None) -> OpenNetwork:
    """Return a network that is called with images as they are.

    Raises:
        PprsError: If the model cannot be opened, or if the number of its classes is not known.
    """
    if isinstance(model, str | Path):
        model = open_model(model)[0]
    if isinstance(model, Model):
        known = set_num_classes(model, num_classes).num_classes
        if known is None:
            raise PprsError(
                f"{model.source} does not say how many classes it has: give `num_classes`", parameter="num_classes"
            )
        recommend = functools.partial(recommend_for_model, model)
        return OpenNetwork(model.module, known, model.input_shape, recommend, model.made_for_dither)
    if not is_function(model):
        raise _refusal(model)
    if num_classes is None:
        raise PprsError(
            "`num_classes` is missing: only a pprs.Model, or the text of one, says how many classes it has",
            parameter="num_classes",
        )
    return OpenNetwork(model, num_classes, None, recommend_partition)


def set_num_classes(model: Model, num_classes: int | None) -> Model:
    """Return the model with its number of classes, which must not contradict its own."""
    if num_classes is None:
        return model
    if check_integer(num_classes, "num_classes", 2) != (model.num_classes or num_classes):
        raise ConfigurationError(
            f"`num_classes` is {num_classes}, and the model has {model.num_classes} classes", parameter="num_classes"
        )
    return replace(model, num_classes=num_classes)


def describe_network(network: Network) -> str:
    """Name a network by its class, or a function by its own name."""
    return (
        type(network).__name__
        if isinstance(network, torch.nn.Module)
        else getattr(network, "__qualname__", type(network).__name__)
    )


def is_function(model: Any) -> bool:
    """Return whether this is a network or another function, and not the class of one."""
    return callable(model) and not isinstance(model, type)


def _refusal(model: Any) -> ConfigurationError:
    given = (
        f"the class {model.__name__}, which is not built yet"
        if isinstance(model, type)
        else f"of type {type(model).__name__}"
    )
    return ConfigurationError(
        f"`model` cannot be {given}: give a text for load_model (a file, a hub id, module:factory), a pprs.Model, a "
        "torch.nn.Module, or a function that maps images [B, C, H, W] to scores",
        parameter="model",
    )
