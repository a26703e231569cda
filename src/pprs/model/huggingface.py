"""An image-classification checkpoint in the format of Hugging Face transformers, on the hub or in a folder."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from pprs.errors import PprsError
from pprs.model.base import Model, Normalised
from pprs.model.preprocess import METHODS, Preprocess

HUB_ID = re.compile(r"(hf:)?[A-Za-z0-9][\w.-]*/[\w.-]+|hf:[\w.-]+")
PROCESSOR = ("preprocessor_config.json", "processor_config.json")
# What an image processor may do that would change the picture in a way not done here.
STRANGE = (
    "do_pad",
    "do_thumbnail",
    "do_align_long_axis",
    "do_color_quantize",
    "do_convert_grayscale",
    "do_affine_transform",
)


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
            raise PprsError(f"--model {spec} needs transformers. Get it with: pip install 'pprs[hub]'") from None
        transformers.utils.logging.set_verbosity_error()
        transformers.utils.logging.disable_progress_bar()
        try:
            config = transformers.AutoConfig.from_pretrained(name, trust_remote_code=False)
            processor = _processor(name)
            net = transformers.AutoModelForImageClassification.from_pretrained(name, trust_remote_code=False)
        except PprsError:
            raise
        except Exception as error:  # transformers and the hub raise many kinds
            reason = (str(error).splitlines() or [type(error).__name__])[0]
            raise PprsError(
                f"--model {spec}: cannot be loaded as an image classifier of transformers ({reason}). Check the name, "
                "that this machine reaches the hub or the folder is whole, and that it needs no code of its own."
            ) from error
        channels = int(getattr(config, "num_channels", 3))
        way, mean, std, flip = read_processor(processor, channels, spec)
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
    raise PprsError(f"--model {name}: it has no preprocessor_config.json, so its size and normalisation are not known")


def read_processor(
    config: dict[str, Any], channels: int, where: str
) -> tuple[Preprocess, list[float], list[float], bool]:
    """Resizing, mean, std, and whether blue comes first, from a processor's config."""
    for option in STRANGE:
        if config.get(option):
            raise PprsError(f"--model {where}: its processor has {option}, which is not done here")
    size, crop = _size(config.get("size")), _size(config.get("crop_size"))
    codes = {int(value): name for name, value in METHODS.items()}
    method = codes.get(int(config.get("resample", 2)), "bilinear")
    cropped = bool(config.get("do_center_crop")) and crop is not None
    if not config.get("do_resize", True):
        raise PprsError(f"--model {where}: its processor does not resize, so its input size is not known")
    if size is None:
        raise PprsError(f"--model {where}: its processor gives no size that can be used ({config.get('size')!r})")
    if "crop_pct" in config and config["crop_pct"] is not None and isinstance(size, int):
        # ConvNeXt: small networks see the middle of a larger picture, large ones a stretched one
        if size < 384:
            way = Preprocess(size, size, int(size / config["crop_pct"]), method, floor=True)
        else:
            way = Preprocess(size, size, None, method)
    elif cropped:
        tall, wide = crop if isinstance(crop, tuple) else (crop, crop)
        if isinstance(size, int):
            way = Preprocess(int(tall), int(wide), size, method, floor=True)  # type: ignore[arg-type]
        elif size[0] == size[1]:
            raise PprsError(
                f"--model {where}: its processor stretches to {size} and then crops, which is not done here"
            )
        else:
            raise PprsError(f"--model {where}: its processor's size {size} and crop {crop} do not fit")
    elif isinstance(size, tuple):
        way = Preprocess(size[0], size[1], None, method)
    else:
        raise PprsError(f"--model {where}: its processor keeps the shape of a picture, and the network needs one size")
    mean, std = [0.0] * channels, [1.0] * channels
    if config.get("do_normalize", True) and config.get("image_mean") is not None:
        mean, std = ([float(v) for v in config[k]] for k in ("image_mean", "image_std"))
        mean, std = (v * channels if len(v) == 1 else v for v in (mean, std))
    if len(mean) != channels:
        raise PprsError(f"--model {where}: a mean of {len(mean)} numbers for {channels} channels")
    # Pixels 0..255 times the factor; ours are in [0, 1].
    factor = float(config.get("rescale_factor", 1 / 255)) * 255 if config.get("do_rescale", True) else 255.0
    offset = 1.0 if config.get("rescale_offset") else 0.0
    mean = [(m + offset) / factor for m in mean]
    std = [s / factor for s in std]
    return way, mean, std, bool(config.get("do_flip_channel_order"))


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
