"""Networks from torchvision, if it is installed."""

from __future__ import annotations

import re

from pprs.errors import PprsError, suggest
from pprs.model.base import Model, Normalised
from pprs.model.preprocess import Preprocess


class Torchvision:
    """The source for `torchvision:resnet50` or, with specific weights, `torchvision:resnet50:IMAGENET1K_V1`."""

    @staticmethod
    def claims(spec: str) -> bool:
        return re.fullmatch(r"torchvision:\w+(:\w+)?", spec) is not None

    @staticmethod
    def load(spec: str) -> Model:
        _, name, weights_name = [*spec.split(":"), "DEFAULT"][:3]
        try:
            from torchvision import models
        except Exception as error:  # not only ImportError: it may not match the installed torch
            raise PprsError(f"it needs torchvision, which cannot be imported ({error})") from error
        known = models.list_models(module=models)
        if name not in known:
            raise PprsError(f'torchvision has no network "{name}". {suggest(name, known)}')
        choices = models.get_model_weights(name)
        if weights_name not in choices.__members__:
            raise PprsError(f'it has no weights "{weights_name}". {suggest(weights_name, choices.__members__)}')
        weights = choices[weights_name]
        try:
            net = models.get_model(name, weights=weights)
        except Exception as error:  # a failed download
            raise PprsError(
                f"its weights cannot be downloaded ({error}). Check that this machine can reach them."
            ) from error
        transforms = weights.transforms()
        side, shorter = int(transforms.crop_size[0]), int(transforms.resize_size[0])
        names = tuple(weights.meta["categories"])
        return Model(
            Normalised(net, transforms.mean, transforms.std), spec, len(names), names,
            (len(transforms.mean), side, side), Preprocess(side, side, shorter, transforms.interpolation.value),
        )  # fmt: skip
