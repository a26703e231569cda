"""What a file of a bare network cannot say of itself: normalisation, size, class names. Written beside it as JSON.

    {"mean": [0.485, 0.456, 0.406], "std": [0.229, 0.224, 0.225], "size": [224, 224], "resize": 256,
     "interpolation": "bilinear", "class_names": ["tench", ...]}

All of it is optional. `mean` and `std` are for pictures in [0, 1]; without them the network takes pictures in [0, 1].
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

from pprs.errors import PprsError, nearest
from pprs.model.base import Model, Normalised
from pprs.model.preprocess import METHODS, Preprocess

KEYS = ("mean", "std", "size", "resize", "interpolation", "class_names")


def beside(path: Path) -> dict[str, Any]:
    """What M.json says of the network in M.onnx or M.pt2; nothing where there is no such file."""
    file = path.with_suffix(".json")
    if not file.is_file():
        return {}
    try:
        about = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise PprsError(f"{file}, which describes {path.name}, is not JSON ({error})") from error
    return checked(about, str(file))


def checked(about: Any, where: str) -> dict[str, Any]:
    """The description, if it is one."""
    if not isinstance(about, dict):
        raise PprsError(f"{where} must hold an object with some of {', '.join(KEYS)}")
    for key in about:
        if key not in KEYS:
            raise PprsError(f'{where}: nothing is called "{key}". {nearest(key, KEYS)}')

    def number(value: Any, *kinds: type) -> bool:
        return isinstance(value, kinds) and not isinstance(value, bool) and -1e6 < float(value) < 1e6  # type: ignore[arg-type]

    for key, kinds in (("mean", (int, float)), ("std", (int, float)), ("size", (int,))):
        if key in about and not (isinstance(about[key], list) and all(number(v, *kinds) for v in about[key])):
            raise PprsError(f"{where}: {key} must be a list of numbers, not {about[key]!r}")
    if "resize" in about and not (number(about["resize"], int) and 8 <= about["resize"] <= 2**14):
        raise PprsError(f"{where}: resize must be a whole number from 8 to {2**14}, not {about['resize']!r}")
    if about.get("interpolation", "bilinear") not in list(METHODS):
        raise PprsError(f"{where}: interpolation must be one of {', '.join(METHODS)}, not {about['interpolation']!r}")
    names = about.get("class_names", [])
    if not (isinstance(names, list) and all(isinstance(n, str) for n in names)):
        raise PprsError(f"{where}: class_names must be a list of names")
    if ("mean" in about) != ("std" in about):
        raise PprsError(f"{where}: mean and std come together")
    return about


def described(model: Model, about: dict[str, Any], where: str) -> Model:
    """The network with what is told of it."""
    if "mean" in about:
        wanted = model.input_shape[0] if model.input_shape else len(about["mean"])
        if len(about["mean"]) != wanted:
            raise PprsError(f"{where}: mean has {len(about['mean'])} numbers, and the network takes {wanted} channels")
        model = replace(model, module=Normalised(model.module, about["mean"], about["std"]))
    if "size" in about:
        if len(about["size"]) != 2:
            raise PprsError(f"{where}: size is [height, width], not {about['size']}")
        size = (int(about["size"][0]), int(about["size"][1]))
        if model.input_shape is not None and model.input_shape[1:] != size:
            raise PprsError(f"{where}: size {size} is not the network's own, {model.input_shape[1:]}")
        channels = model.input_shape[0] if model.input_shape else len(about.get("mean", "rgb"))
        model = replace(model, input_shape=(channels, *size))
    if model.input_shape is not None and ("resize" in about or "interpolation" in about):
        height, width = model.input_shape[1:]
        way = Preprocess(height, width, about.get("resize", max(height, width)), about.get("interpolation", "bilinear"))
        model = replace(model, preprocess=way)
    if about.get("class_names"):
        names = tuple(about["class_names"])
        if model.num_classes is not None and len(names) != model.num_classes:
            raise PprsError(f"{where}: {len(names)} class names, and the network has {model.num_classes} classes")
        model = replace(model, class_names=names)
    return model
