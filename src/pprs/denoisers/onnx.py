"""Denoisers in ONNX files: a network that returns the clean image, or the noise of a diffusion model."""

from __future__ import annotations

import json
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
import torch

from pprs._support.checks import validate
from pprs._support.onnx import open_session
from pprs.denoisers.base import FileDenoiser
from pprs.denoisers.schedule import Schedule, denoise_in_one_step
from pprs.errors import PprsError, suggest

IMAGE, EPSILON = "image", "epsilon"
KINDS = (IMAGE, EPSILON)
TYPES = {"tensor(float)": np.float32, "tensor(float16)": np.float16, "tensor(double)": np.float64}
LEVEL_TYPES = {**TYPES, "tensor(int64)": np.int64, "tensor(int32)": np.int32}


@dataclass(frozen=True)
class Description(Schedule):
    """What the file of a network does not say: its metadata "pprs" or a file D.json next to D.onnx, in JSON.

    Attributes:
        kind: "image" if the network returns the clean image, "epsilon" if it returns the noise of a diffusion model.
        low: The smallest sigma that it was trained for.
        high: The largest sigma that it was trained for.
    """

    kind: str | None = None
    low: float | None = None
    high: float | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.kind is not None:
            check_kind(self.kind)
        if (self.low is None) != (self.high is None) or not 0 < (self.low or 1) <= (self.high or 1):
            raise PprsError("low and high must be given together, with 0 < low <= high")

    @property
    def sigmas(self) -> tuple[float, float] | None:
        """The range of sigma that the network was trained for, or None if that is unknown."""
        return None if self.low is None or self.high is None else (self.low, self.high)


def check_kind(kind: str) -> None:
    """Raise an error unless there are denoisers of this kind."""
    if kind not in KINDS:
        raise PprsError(f'unknown kind of denoiser "{kind}". {suggest(kind, KINDS)}')


def parse_description(text: str | bytes, origin: str) -> Description:
    """Parse a description in JSON, all of whose keys are optional."""
    try:
        content = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise PprsError(f"{origin} is not JSON ({error})") from error
    return validate(Description, content, origin)


class OnnxDenoiser(FileDenoiser):
    """A network that takes an image [B, C, H, W] and, as a second input, the noise level if it depends on it.

    A network that returns the clean image takes sigma, as one number, one per image or a map. One without a second
    input may take sigma as a further channel. A network that returns the noise takes the step of the diffusion.
    """

    def __init__(self, file: str | bytes, kind: str | None, described: Description | None) -> None:
        super().__init__()
        self._session = open_session(file)
        metadata = self._session.get_modelmeta().custom_metadata_map.get("pprs")
        if described is None:
            described = Description() if metadata is None else parse_description(metadata, 'its metadata "pprs"')
        self._schedule = Schedule(**{f.name: getattr(described, f.name) for f in fields(Schedule)})
        self._kind, self.sigmas = kind or described.kind or IMAGE, described.sigmas
        check_kind(self._kind)
        self._image, *self._levels = self._check_inputs()
        self._output = self._check_output()
        fixed = [size if isinstance(size, int) and size > 0 else None for size in self._image.shape]
        self._batch, (given, *self._size) = fixed[0] or 1, fixed[1:]
        self._joins_level = not self._levels and self._kind == IMAGE and given in (2, 4)
        self.channels = None if given is None else given - 1 if self._joins_level else given
        self.takes_sigma = bool(self._levels) or self._joins_level or self._kind == EPSILON

    def _check_inputs(self) -> list[Any]:
        inputs = self._session.get_inputs()
        names = ", ".join(f"{i.name} {i.type} {i.shape}" for i in inputs)
        expected = "an image [B, C, H, W]" + (" and a step" if self._kind == EPSILON else ", perhaps with a sigma")
        least, types = (2, LEVEL_TYPES) if self._kind == EPSILON else (1, TYPES)
        is_image = inputs and inputs[0].type in TYPES and len(inputs[0].shape) == 4
        if not is_image or not least <= len(inputs) <= 2 or any(i.type not in types for i in inputs[1:]):
            raise PprsError(f"the network takes {names}, but a denoiser of kind {self._kind} takes {expected}")
        return list(inputs)

    def _check_output(self) -> str:
        outputs = self._session.get_outputs()
        if len(outputs) != 1 or outputs[0].type not in TYPES or len(outputs[0].shape) != 4:
            names = ", ".join(f"{o.name} {o.type} {o.shape}" for o in outputs)
            raise PprsError(f"the network returns {names}, but a denoiser returns an image [B, C, H, W]")
        return str(outputs[0].name)

    def _denoise(self, noisy: torch.Tensor, sigma: float) -> torch.Tensor:
        if self._kind == EPSILON:
            return denoise_in_one_step(self._run, noisy, sigma, self._schedule)
        return self._run(noisy, sigma)

    def _run(self, image: torch.Tensor, level: float) -> torch.Tensor:
        """Call the network with one image [1, C, H, W] and a sigma or a step."""
        _, _, height, width = image.shape
        expected = tuple(size or own for size, own in zip(self._size, (height, width), strict=True))
        if expected != (height, width):
            raise PprsError(
                f"the denoiser takes images of {expected[0]}x{expected[1]} pixels, not {height}x{width}. Export it "
                "with dynamic sizes, or use it for images of its size."
            )
        if self._joins_level:
            image = torch.cat([image, torch.full((1, 1, height, width), float(level))], 1)
        values = {self._image.name: np.repeat(image.numpy().astype(TYPES[self._image.type]), self._batch, 0)}
        for given in self._levels:
            shape = [_level_size(axis, size, image.shape, self._batch) for axis, size in enumerate(given.shape)]
            values[given.name] = np.full(shape, level, LEVEL_TYPES[given.type])
        result = self._session.run([self._output], values)[0][:1]
        return torch.from_numpy(result.astype(np.float32))


def _level_size(axis: int, size: Any, image: tuple[int, ...], batch: int) -> int:
    """Return the size of the input for the noise level along an axis: one number per image, or a map of its size."""
    if isinstance(size, int) and size > 0:
        return size
    return (batch, 1, image[2], image[3])[axis] if axis < 4 else 1
