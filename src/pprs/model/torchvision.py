"""Networks of torchvision, where the user has it."""

from __future__ import annotations

import re

from pprs.errors import PprsError, suggest
from pprs.model.base import Model, Normalised
from pprs.model.preprocess import Preprocess


class Torchvision:
    """The source for `torchvision:resnet50`, or with certain weights `torchvision:resnet50:IMAGENET1K_V1`."""

    @staticmethod
    def claims(spec: str) -> bool:
        return re.fullmatch(r"torchvision:\w+(:\w+)?", spec) is not None

    @staticmethod
    def load(spec: str) -> Model:
        _, name, wanted = [*spec.split(":"), "DEFAULT"][:3]
        try:
            from torchvision import models
        except Exception as error:  # a torchvision that does not fit torch raises more than ImportError
            raise PprsError(f"it needs torchvision, which cannot be imported ({error})") from error
        known = models.list_models(module=models)
        if name not in known:
            raise PprsError(f'torchvision has no network "{name}". {suggest(name, known)}')
        choices = models.get_model_weights(name)
        if wanted not in choices.__members__:
            raise PprsError(f'it has no weights "{wanted}". {suggest(wanted, choices.__members__)}')
        weights = choices[wanted]
        try:
            net = models.get_model(name, weights=weights)
        except Exception as error:  # the download
            raise PprsError(
                f"its weights cannot be downloaded ({error}). Check that this machine can reach them."
            ) from error
        way = weights.transforms()
        side, shorter = int(way.crop_size[0]), int(way.resize_size[0])
        names = tuple(weights.meta["categories"])
        return Model(
            Normalised(net, way.mean, way.std), spec, len(names), names, (len(way.mean), side, side),
            Preprocess(side, side, shorter, way.interpolation.value),
        )  # fmt: skip
