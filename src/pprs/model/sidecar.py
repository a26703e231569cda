"""What a file of a bare network cannot say of itself: normalisation, size, class names. Written beside it as JSON.

    {"mean": [0.485, 0.456, 0.406], "std": [0.229, 0.224, 0.225], "size": [224, 224], "resize": 256,
     "interpolation": "bilinear", "class_names": ["tench", ...]}

All of it is optional. `mean` and `std` are for pictures in [0, 1]; without them the network takes pictures in [0, 1].
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from pathlib import Path

from pprs._checks import validate
from pprs.errors import PprsError
from pprs.model.base import Model, Normalised
from pprs.model.preprocess import METHODS, SMALLEST, Preprocess

LARGEST = 2**14  # pixels of a side
FAR = 10**6  # no number is as large


@dataclass(frozen=True)
class Sidecar:
    """What is said of a network; None where nothing is."""

    mean: tuple[float, ...] | None = None
    std: tuple[float, ...] | None = None
    size: tuple[int, ...] | None = None
    resize: int | None = None
    interpolation: str | None = None
    class_names: tuple[str, ...] | None = None


def read_sidecar(path: Path) -> Sidecar:
    """What M.json says of the network in M.onnx or M.pt2; nothing where there is no such file."""
    file = path.with_suffix(".json")
    if not file.is_file():
        return Sidecar()
    try:
        text = file.read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        raise PprsError(f"{file}, which describes it, cannot be read ({error})") from error
    return parse_sidecar(text, str(file))


def parse_sidecar(text: str, where: str) -> Sidecar:
    """The description in this JSON, its values checked as far as they can be without the network."""
    try:
        content = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise PprsError(f"{where} is not JSON ({error})") from error
    sidecar = validate(Sidecar, content, where)
    for key, numbers in (("mean", sidecar.mean), ("std", sidecar.std), ("size", sidecar.size)):
        for number in numbers or ():
            if not -FAR < number < FAR:
                raise PprsError(f"{where}: {key} must be numbers between -{FAR} and {FAR}, not {number}")
    if sidecar.resize is not None and not SMALLEST <= sidecar.resize <= LARGEST:
        raise PprsError(f"{where}: resize must be from {SMALLEST} to {LARGEST}, not {sidecar.resize}")
    if sidecar.interpolation is not None and sidecar.interpolation not in METHODS:
        raise PprsError(f'{where}: interpolation must be one of {", ".join(METHODS)}, not "{sidecar.interpolation}"')
    if (sidecar.mean is None) != (sidecar.std is None):
        raise PprsError(f"{where}: mean and std must be given together")
    return sidecar


def apply_sidecar(model: Model, sidecar: Sidecar, where: str) -> Model:
    """The network with what is said of it; raises where that does not fit the network."""
    if sidecar.mean is not None and sidecar.std is not None:
        wanted = model.input_shape[0] if model.input_shape else len(sidecar.mean)
        if len(sidecar.mean) != wanted:
            raise PprsError(f"{where}: mean has {len(sidecar.mean)} numbers, but the network takes {wanted} channels")
        model = replace(model, module=Normalised(model.module, sidecar.mean, sidecar.std))
    if sidecar.size is not None:
        if len(sidecar.size) != 2:
            raise PprsError(f"{where}: size must be [height, width], not {list(sidecar.size)}")
        height, width = sidecar.size
        if model.input_shape is not None and model.input_shape[1:] != sidecar.size:
            raise PprsError(f"{where}: size {sidecar.size} is not the network's own, {model.input_shape[1:]}")
        channels = model.input_shape[0] if model.input_shape else 3 if sidecar.mean is None else len(sidecar.mean)
        model = replace(model, input_shape=(channels, height, width))
    if model.input_shape is not None and (sidecar.resize is not None or sidecar.interpolation is not None):
        height, width = model.input_shape[1:]
        shorter = max(height, width) if sidecar.resize is None else sidecar.resize
        way = Preprocess(height, width, shorter, sidecar.interpolation or "bilinear")
        model = replace(model, preprocess=way)
    if sidecar.class_names:
        names = sidecar.class_names
        if model.num_classes is not None and len(names) != model.num_classes:
            raise PprsError(f"{where}: {len(names)} class names, but the network has {model.num_classes} classes")
        model = replace(model, class_names=names)
    return model
