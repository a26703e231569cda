"""Image, audio and segmentation networks of Hugging Face transformers, on the hub or in a folder."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pprs._support.extras import extra
from pprs._support.files import is_hub_name
from pprs.errors import PprsError
from pprs.model.audio import is_audio_classifier, load_audio_classifier
from pprs.model.base import Model, Normalised
from pprs.model.preprocess import RESAMPLING, Preprocess

HUB_ID = re.compile(r"hf:([A-Za-z0-9][\w.-]*/)?[\w.-]+")
PROCESSOR_FILES = ("preprocessor_config.json", "processor_config.json")
# Image processors that `Preprocess` reproduces exactly. Others do more, and are refused rather than approximated.
SUPPORTED = (
    "ViT", "DeiT", "Bit", "CLIP", "Siglip", "Beit", "MobileNetV1", "MobileNetV2", "ConvNext", "MobileViT", "Segformer",
)  # fmt: skip
SEGMENTATION = "ForSemanticSegmentation"  # how the names of such architectures end
# Keys that a processor must have if it does not state its type.
REQUIRED = ("do_resize", "size", "do_normalize", "image_mean", "image_std")
UNSUPPORTED_OPTIONS = (
    "do_pad", "do_thumbnail", "do_align_long_axis", "do_color_quantize", "do_convert_grayscale", "do_affine_transform",
    "include_top",
)  # fmt: skip


class HuggingFace:
    """The source for a folder with config.json, or a hub id such as `google/vit-base-patch16-224` (or `hf:ID`).

    Input size and normalisation are read from the checkpoint's processor config. Code that comes with a checkpoint is
    never run, and pickled weights are loaded with `weights_only`.
    """

    @staticmethod
    def claims(spec: str) -> bool:
        path = Path(spec)
        return (path / "config.json").is_file() or (not path.exists() and is_hub_id(spec))

    @staticmethod
    def load(spec: str) -> Model:
        name = spec.removeprefix("hf:")
        with extra():
            import transformers
        transformers.utils.logging.set_verbosity_error()
        transformers.utils.logging.disable_progress_bar()
        try:
            config = transformers.AutoConfig.from_pretrained(name, trust_remote_code=False)
            if is_audio_classifier(config):
                model, loading = load_audio_classifier(name, spec, config)
                _check_weights(loading)
                return model
            processor = _load_processor(name)
            segments = any(str(a).endswith(SEGMENTATION) for a in getattr(config, "architectures", None) or ())
            kind = "SemanticSegmentation" if segments else "ImageClassification"
            net, loading = getattr(transformers, f"AutoModelFor{kind}").from_pretrained(
                name, trust_remote_code=False, output_loading_info=True
            )
        except PprsError:
            raise
        except Exception as error:  # transformers and the hub raise many kinds of errors
            reason = (str(error).splitlines() or [type(error).__name__])[0]
            raise PprsError(
                f"it cannot be loaded as an image classifier with transformers ({reason}). Check its name, that this "
                "machine can reach the hub or that the folder is complete, and that it needs no code of its own."
            ) from error
        _check_weights(loading)
        channels = int(getattr(config, "num_channels", 3))
        preprocess, mean, std, flip = read_processor(processor, channels)
        names = tuple(str(config.id2label[i]) for i in range(config.num_labels))
        has_names = not all(re.fullmatch(r"LABEL_\d+", n) for n in names)
        return Model(
            Normalised(net, mean, std, flip=flip), spec, config.num_labels, names if has_names else None,
            (channels, preprocess.height, preprocess.width), preprocess, task="segment" if segments else "classify",
        )  # fmt: skip


def is_hub_id(spec: str) -> bool:
    """Return whether a text that names no file here names a model on the hub.

    >>> is_hub_id("google/vit-base-patch16-224"), is_hub_id("hf:resnet"), is_hub_id("resnet")
    (True, True, False)
    """
    return HUB_ID.fullmatch(spec) is not None or is_hub_name(spec)


def _check_weights(loading: dict[str, Any]) -> None:
    missing = [*loading["missing_keys"], *loading["mismatched_keys"]]
    if missing:
        raise PprsError(
            f"it lacks {len(missing)} weights of a classifier, such as {missing[0]}, which would be initialised at "
            "random. It may be a backbone without its head: use a classification checkpoint."
        )


def _load_processor(name: str) -> dict[str, Any]:
    """Load the checkpoint's description of its preprocessing."""
    from transformers.utils.hub import cached_file

    for file in PROCESSOR_FILES:
        try:
            path = cached_file(name, file)
        except OSError:
            continue
        if path is not None:
            config = json.loads(Path(path).read_text(encoding="utf-8"))
            return dict(config.get("image_processor", config))
    raise PprsError("it has no preprocessor_config.json, so its input size and normalisation are unknown")


def read_processor(config: dict[str, Any], channels: int) -> tuple[Preprocess, list[float], list[float], bool]:
    """Return the resizing, mean, std, and whether channels are in BGR order, from a processor's config."""

    def refuse(problem: str) -> PprsError:
        return PprsError(f"its processor {problem}")

    type_name = str(config.get("image_processor_type") or config.get("feature_extractor_type") or "")
    kind = re.sub("(ImageProcessor(Fast|Pil)?|FeatureExtractor)$", "", type_name)
    if type_name and kind not in SUPPORTED:
        raise refuse(f"is a {type_name}, which is not supported (supported: {', '.join(SUPPORTED)})")
    if not type_name and not all(config.get(key) is not None for key in REQUIRED):
        raise refuse(f"does not state its type, nor all of {', '.join(REQUIRED)}")
    for option in UNSUPPORTED_OPTIONS:
        if config.get(option):
            raise refuse(f"has {option}, which is not supported")
    try:
        preprocess = _read_resizing(config, kind, refuse)
        mean, std = _read_normalisation(config, kind, channels, refuse)
    except (TypeError, ValueError, KeyError, ZeroDivisionError, OverflowError) as error:
        raise refuse(f"has invalid settings ({error})") from error
    return preprocess, mean, std, bool(config.get("do_flip_channel_order", kind == "MobileViT"))


def _read_resizing(config: dict[str, Any], kind: str, refuse: Callable[[str], PprsError]) -> Preprocess:
    size, crop = _read_size(config.get("size")), _read_size(config.get("crop_size"))
    codes = {int(value): name for name, value in RESAMPLING.items()}
    method = codes.get(int(config.get("resample", 2)))
    if method is None:
        raise refuse(f"resizes with the unknown method {config['resample']!r}")
    if not config.get("do_resize", True):
        raise refuse("does not resize, so its input size is unknown")
    if size is None:
        raise refuse(f"has no usable size ({config.get('size')!r})")
    if kind == "ConvNext":
        if not isinstance(size, int):
            raise refuse(f"has the size {size}, where the length of the shorter side is expected")
        # ConvNext crops the centre of a larger image below 384 pixels, and stretches the image from there on.
        if size < 384:
            return Preprocess(size, size, int(size / float(config.get("crop_pct") or 224 / 256)), method, floor=True)
        return Preprocess(size, size, None, method)
    if config.get("do_center_crop") and crop is not None:
        height, width = crop if isinstance(crop, tuple) else (crop, crop)
        if not isinstance(size, int):
            raise refuse(f"stretches to {size} and then crops, which is not supported")
        if max(height, width) > size:
            raise refuse(f"crops {height}x{width} from a shorter side of {size}, which is not supported")
        return Preprocess(height, width, size, method, floor=True)
    if kind == "Segformer" and isinstance(size, int):
        size = (size, size)
    if isinstance(size, tuple):
        return Preprocess(size[0], size[1], None, method)
    raise refuse("keeps the aspect ratio of an image, but the network needs a fixed size")


def _read_normalisation(
    config: dict[str, Any], kind: str, channels: int, refuse: Callable[[str], PprsError]
) -> tuple[list[float], list[float]]:
    """Return the mean and std for images in [0, 1]."""
    mean, std = [0.0] * channels, [1.0] * channels
    if kind != "MobileViT" and config.get("do_normalize", True):
        if config.get("image_mean") is None or config.get("image_std") is None:
            raise refuse("normalises, but does not state its mean and std")
        mean, std = ([float(v) for v in config[key]] for key in ("image_mean", "image_std"))
        mean, std = (v * channels if len(v) == 1 else v for v in (mean, std))
    if len(mean) != channels or len(std) != channels:
        raise refuse(f"has {len(mean)} numbers as mean and {len(std)} as std for {channels} channels")
    # Processors multiply pixels in 0..255 by the factor, but our images are in [0, 1].
    factor = float(config.get("rescale_factor", 1 / 255)) * 255 if config.get("do_rescale", True) else 255.0
    if config.get("rescale_offset"):
        mean = [m + 1 for m in mean]
    return [m / factor for m in mean], [s / factor for s in std]


def _read_size(size: Any) -> int | tuple[int, int] | None:
    """Return the length of the shorter side, or height and width, or None if there is neither."""
    if isinstance(size, int):
        return size
    if isinstance(size, dict):
        if "height" in size and "width" in size:
            return int(size["height"]), int(size["width"])
        if "shortest_edge" in size:
            return int(size["shortest_edge"])
    if isinstance(size, list | tuple) and len(size) == 2:
        return int(size[0]), int(size[1])
    return None
