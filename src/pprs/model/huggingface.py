"""An image-classification checkpoint in the format of Hugging Face transformers, on the hub or in a folder."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pprs.errors import PprsError
from pprs.model.base import Model, Normalised
from pprs.model.preprocess import METHODS, Preprocess

HUB_ID = re.compile(r"(hf:)?[A-Za-z0-9][\w.-]*/[\w.-]+|hf:[\w.-]+")
PROCESSOR = ("preprocessor_config.json", "processor_config.json")
# Image processors whose steps are those below; others do more, and are refused rather than approximated.
KNOWN = ("ViT", "DeiT", "Bit", "CLIP", "Siglip", "Beit", "MobileNetV1", "MobileNetV2", "ConvNext", "MobileViT")
NEEDED = ("do_resize", "size", "do_normalize", "image_mean", "image_std")  # of one that does not say its kind
STRANGE = ("do_pad", "do_thumbnail", "do_align_long_axis", "do_color_quantize", "do_convert_grayscale",
           "do_affine_transform", "include_top")  # fmt: skip


class HuggingFace:
    """The source for a folder with config.json, or a hub id like `google/vit-base-patch16-224` (or `hf:ID`).

    Size and normalisation are read from the checkpoint's own processor config. Code that comes with a checkpoint is
    never run, and pickled weights are read as weights only.
    """

    @staticmethod
    def claims(spec: str) -> bool:
        path = Path(spec)
        return (path / "config.json").is_file() or (not path.exists() and HUB_ID.fullmatch(spec) is not None)

    @staticmethod
    def load(spec: str) -> Model:
        name = spec.removeprefix("hf:")
        try:
            import transformers
        except ImportError:
            raise PprsError("it needs transformers. Install it with: pip install 'pprs[hub]'") from None
        transformers.utils.logging.set_verbosity_error()
        transformers.utils.logging.disable_progress_bar()
        try:
            config = transformers.AutoConfig.from_pretrained(name, trust_remote_code=False)
            processor = _processor(name)
            net, loading = transformers.AutoModelForImageClassification.from_pretrained(
                name, trust_remote_code=False, output_loading_info=True
            )
        except PprsError:
            raise
        except Exception as error:  # transformers and the hub raise many kinds
            reason = (str(error).splitlines() or [type(error).__name__])[0]
            raise PprsError(
                f"it cannot be loaded as an image classifier with transformers ({reason}). Check the name, that this "
                "machine can reach the hub or the folder is complete, and that it needs no code of its own."
            ) from error
        lacking = [*loading["missing_keys"], *loading["mismatched_keys"]]
        if lacking:
            raise PprsError(
                f"it lacks weights of an image classifier ({lacking[0]}, {len(lacking)} in all), which would be filled "
                "in at random. Is it a backbone without its head?"
            )
        channels = int(getattr(config, "num_channels", 3))
        way, mean, std, flip = read_processor(processor, channels)
        names = tuple(str(config.id2label[i]) for i in range(config.num_labels))
        named = not all(re.fullmatch(r"LABEL_\d+", n) for n in names)
        return Model(
            Normalised(net, mean, std, flip=flip), spec, config.num_labels, names if named else None,
            (channels, way.height, way.width), way,
        )  # fmt: skip


def _processor(name: str) -> dict[str, Any]:
    """The checkpoint's own description of its preprocessing."""
    from transformers.utils.hub import cached_file

    for file in PROCESSOR:
        try:
            found = cached_file(name, file)
        except OSError:
            continue
        if found is not None:
            made = json.loads(Path(found).read_text(encoding="utf-8"))
            return dict(made.get("image_processor", made))
    raise PprsError("it has no preprocessor_config.json, so its size and normalisation are not known")


def read_processor(config: dict[str, Any], channels: int) -> tuple[Preprocess, list[float], list[float], bool]:
    """Resizing, mean, std, and whether blue comes first, from a processor's config."""

    def refuse(what: str) -> PprsError:
        return PprsError(f"its processor {what}")

    named = str(config.get("image_processor_type") or config.get("feature_extractor_type") or "")
    kind = re.sub("(ImageProcessor(Fast|Pil)?|FeatureExtractor)$", "", named)
    if named and kind not in KNOWN:
        raise refuse(f"is a {named}, whose steps are not known here (known: {', '.join(KNOWN)})")
    if not named and not all(config.get(key) is not None for key in NEEDED):
        raise refuse(f"does not say its kind, nor all of {', '.join(NEEDED)}")
    for option in STRANGE:
        if config.get(option):
            raise refuse(f"has {option}, which is not done here")
    try:
        way = _resizing(config, kind, refuse)
        mean, std = _normalisation(config, kind, channels, refuse)
    except (TypeError, ValueError, KeyError, ZeroDivisionError, OverflowError) as error:
        raise refuse(f"has settings that make no sense ({error})") from error
    return way, mean, std, bool(config.get("do_flip_channel_order", kind == "MobileViT"))


def _resizing(config: dict[str, Any], kind: str, refuse: Callable[[str], PprsError]) -> Preprocess:
    size, crop = _size(config.get("size")), _size(config.get("crop_size"))
    codes = {int(value): name for name, value in METHODS.items()}
    method = codes.get(int(config.get("resample", 2)))
    if method is None:
        raise refuse(f"resizes by the method {config['resample']!r}, which is not known")
    if not config.get("do_resize", True):
        raise refuse("does not resize, so its input size is not known")
    if size is None:
        raise refuse(f"gives no size that can be used ({config.get('size')!r})")
    if kind == "ConvNext":
        if not isinstance(size, int):
            raise refuse(f"gives a size {size}, where the length of the shorter side is expected")
        # Small networks see the middle of a larger picture, large ones a stretched one.
        if size < 384:
            return Preprocess(size, size, int(size / float(config.get("crop_pct") or 224 / 256)), method, floor=True)
        return Preprocess(size, size, None, method)
    if config.get("do_center_crop") and crop is not None:
        tall, wide = crop if isinstance(crop, tuple) else (crop, crop)
        if not isinstance(size, int):
            raise refuse(f"stretches to {size} and then crops, which is not done here")
        if max(tall, wide) > size:
            raise refuse(f"crops {tall}x{wide} out of a shorter side of {size}, which is not done here")
        return Preprocess(tall, wide, size, method, floor=True)
    if isinstance(size, tuple):
        return Preprocess(size[0], size[1], None, method)
    raise refuse("keeps the shape of a picture, and the network needs one size")


def _normalisation(
    config: dict[str, Any], kind: str, channels: int, refuse: Callable[[str], PprsError]
) -> tuple[list[float], list[float]]:
    """Mean and std for pictures in [0, 1]."""
    mean, std = [0.0] * channels, [1.0] * channels
    if kind != "MobileViT" and config.get("do_normalize", True):
        if config.get("image_mean") is None or config.get("image_std") is None:
            raise refuse("normalises, and does not say with what mean and std")
        mean, std = ([float(v) for v in config[key]] for key in ("image_mean", "image_std"))
        mean, std = (v * channels if len(v) == 1 else v for v in (mean, std))
    if len(mean) != channels or len(std) != channels:
        raise refuse(f"has a mean of {len(mean)} and a std of {len(std)} numbers for {channels} channels")
    # Pixels 0..255 times the factor; ours are in [0, 1].
    factor = float(config.get("rescale_factor", 1 / 255)) * 255 if config.get("do_rescale", True) else 255.0
    if config.get("rescale_offset"):
        mean = [m + 1 for m in mean]
    return [m / factor for m in mean], [s / factor for s in std]


def _size(size: Any) -> int | tuple[int, int] | None:
    """A shorter side, or height and width."""
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
