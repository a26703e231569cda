"""A JSON file next to a network file that specifies what the network file cannot, such as the normalisation.

    {"mean": [0.485, 0.456, 0.406], "std": [0.229, 0.224, 0.225], "size": [224, 224], "resize": 256,
     "interpolation": "bilinear", "class_names": ["tench", ...]}

Every key is optional. `mean` and `std` apply to images in [0, 1]. Without them, the network takes images in [0, 1].
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, replace
from pathlib import Path

from pprs._support.checks import validate
from pprs.errors import PprsError
from pprs.inputs.domain import SIGNAL
from pprs.model.base import Model, Normalised
from pprs.model.preprocess import MIN_SIDE, RESAMPLING, Preprocess

MAX_SIDE = 2**14  # pixels
MAX_MAGNITUDE = 10**6  # of any number


@dataclass(frozen=True)
class Sidecar:
    """The description of a network. Missing keys are None."""

    mean: tuple[float, ...] | None = None
    std: tuple[float, ...] | None = None
    size: tuple[int, ...] | None = None
    resize: int | None = None
    interpolation: str | None = None
    class_names: tuple[str, ...] | None = None

    def digest(self) -> str:
        """Return a digest of the values, or "none" if there are none."""
        return "none" if self == Sidecar() else hashlib.sha256(repr(self).encode()).hexdigest()[:16]


def read_sidecar(path: Path) -> Sidecar:
    """Read M.json, which describes the network in M.onnx or M.pt2. Without such a file the description is empty."""
    file = path.with_suffix(".json")
    if not file.is_file():
        return Sidecar()
    try:
        text = file.read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        raise PprsError(f"its description {file} cannot be read ({error})") from error
    return parse_sidecar(text, str(file))


def parse_sidecar(text: str, origin: str) -> Sidecar:
    """Parse a description and check its values, as far as possible without the network."""
    try:
        content = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise PprsError(f"{origin} is not JSON ({error})") from error
    sidecar = validate(Sidecar, content, origin)
    for key, numbers in (("mean", sidecar.mean), ("std", sidecar.std), ("size", sidecar.size)):
        for number in numbers or ():
            if not -MAX_MAGNITUDE < number < MAX_MAGNITUDE:
                raise PprsError(
                    f"{origin}: {key} must be numbers between -{MAX_MAGNITUDE} and {MAX_MAGNITUDE}, not {number}"
                )
    if sidecar.resize is not None and not MIN_SIDE <= sidecar.resize <= MAX_SIDE:
        raise PprsError(f"{origin}: resize must be from {MIN_SIDE} to {MAX_SIDE}, not {sidecar.resize}")
    if sidecar.interpolation is not None and sidecar.interpolation not in RESAMPLING:
        raise PprsError(
            f'{origin}: interpolation must be one of {", ".join(RESAMPLING)}, not "{sidecar.interpolation}"'
        )
    if (sidecar.mean is None) != (sidecar.std is None):
        raise PprsError(f"{origin}: mean and std must be given together")
    return sidecar


def apply_sidecar(model: Model, sidecar: Sidecar, origin: str) -> Model:
    """Add a description to a network, and raise an error if it does not match the network."""
    if sidecar.mean is not None and sidecar.std is not None:
        channels = model.input_shape[0] if model.input_shape else len(sidecar.mean)
        if len(sidecar.mean) != channels:
            raise PprsError(
                f"{origin}: mean has {len(sidecar.mean)} numbers, but the network takes {channels} channels"
            )
        model = replace(model, module=Normalised(model.module, sidecar.mean, sidecar.std))
    if model.input_shape is not None and len(model.input_shape) == SIGNAL.ndim:
        for key in ("size", "resize", "interpolation"):
            if getattr(sidecar, key) is not None:
                raise PprsError(f"{origin}: {key} is for images, but the network takes signals")
    if sidecar.size is not None:
        if len(sidecar.size) != 2:
            raise PprsError(f"{origin}: size must be [height, width], not {list(sidecar.size)}")
        height, width = sidecar.size
        if model.input_shape is not None and model.input_shape[1:] != sidecar.size:
            raise PprsError(f"{origin}: size {sidecar.size} does not match the network's, {model.input_shape[1:]}")
        channels = model.input_shape[0] if model.input_shape else 3 if sidecar.mean is None else len(sidecar.mean)
        model = replace(model, input_shape=(channels, height, width))
    if model.input_shape is not None and (sidecar.resize is not None or sidecar.interpolation is not None):
        height, width = model.input_shape[1:]
        shorter = max(height, width) if sidecar.resize is None else sidecar.resize
        preprocess = Preprocess(height, width, shorter, sidecar.interpolation or "bilinear")
        model = replace(model, preprocess=preprocess)
    if sidecar.class_names:
        names = sidecar.class_names
        if model.num_classes is not None and len(names) != model.num_classes:
            raise PprsError(f"{origin}: {len(names)} class names, but the network has {model.num_classes} classes")
        model = replace(model, class_names=names)
    return model
