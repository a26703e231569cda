"""Networks of timm, where the user has it."""

from __future__ import annotations

import math
import re

from pprs.errors import PprsError
from pprs.model.base import Model, Normalised
from pprs.model.preprocess import METHODS, Preprocess


class Timm:
    """The source for `timm:resnet50.a1_in1k`."""

    @staticmethod
    def claims(spec: str) -> bool:
        return re.fullmatch(r"timm:[\w./-]+", spec) is not None

    @staticmethod
    def load(spec: str) -> Model:
        name = spec.removeprefix("timm:")
        try:
            import timm
        except Exception as error:  # so does a timm whose torchvision cannot be imported
            raise PprsError(f"it needs timm, which cannot be imported ({error})") from error
        try:
            net = timm.create_model(name, pretrained=True)
        except Exception as error:  # an unknown name, or the download
            reason = (str(error).splitlines() or [type(error).__name__])[0]
            raise PprsError(f"{reason}. See timm.list_models(pretrained=True).") from error
        way = timm.data.resolve_data_config({}, model=net)
        channels, height, width = (int(v) for v in way["input_size"])
        method = way["interpolation"] if way["interpolation"] in METHODS else "bilinear"
        stretched = way.get("crop_mode") == "squash"
        shorter = None if stretched else math.floor(min(height, width) / way["crop_pct"])
        return Model(
            Normalised(net, way["mean"], way["std"]), spec, int(net.num_classes), None, (channels, height, width),
            Preprocess(height, width, shorter, method),
        )  # fmt: skip
