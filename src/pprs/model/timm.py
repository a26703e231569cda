"""Networks from timm, if it is installed."""

from __future__ import annotations

import math
import re

from pprs.errors import PprsError
from pprs.model.base import Model, Normalised
from pprs.model.preprocess import RESAMPLING, Preprocess


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
        except Exception as error:  # not only ImportError: its torchvision may be broken
            raise PprsError(f"it needs timm, which cannot be imported ({error})") from error
        try:
            net = timm.create_model(name, pretrained=True)
        except Exception as error:  # an unknown name, or a failed download
            reason = (str(error).splitlines() or [type(error).__name__])[0]
            raise PprsError(f"{reason}. See timm.list_models(pretrained=True).") from error
        config = timm.data.resolve_data_config({}, model=net)
        channels, height, width = (int(v) for v in config["input_size"])
        method = config["interpolation"] if config["interpolation"] in RESAMPLING else "bilinear"
        stretch = config.get("crop_mode") == "squash"
        shorter = None if stretch else math.floor(min(height, width) / config["crop_pct"])
        return Model(
            Normalised(net, config["mean"], config["std"]), spec, int(net.num_classes), None, (channels, height, width),
            Preprocess(height, width, shorter, method),
        )  # fmt: skip
