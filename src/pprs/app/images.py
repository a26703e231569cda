"""The image that a visitor chose: an example, or an upload."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch

from pprs.app.networks import LoadedModel, OfferedInput
from pprs.app.requests import ChosenInput
from pprs.app.server.limits import Limits, read_upload
from pprs.data import View
from pprs.data.depth import find_lost_depth
from pprs.errors import PprsError
from pprs.inputs.space import FILE, NETWORK


def choose_image(
    limits: Limits,
    loaded: LoadedModel,
    examples: Sequence[OfferedInput],
    example: str | None,
    upload: str | None,
    pixels: str = NETWORK,
) -> ChosenInput:
    """Return the uploaded image, or else the chosen example."""
    if upload:
        image, file_shape = _open_upload(Path(upload), limits, loaded, pixels)
        return ChosenInput(image, 0, "your image", file_shape)
    selected = next((e for e in examples if e.title == example), None)
    if selected is None:
        raise PprsError("choose an example, or upload an image")
    dataset = selected.dataset(loaded)
    sample = (dataset.unprepared() if pixels == FILE and isinstance(dataset, View) else dataset)[selected.index]
    return ChosenInput(sample.image, selected.index, selected.title, sample.file_shape, sample.label)


def _open_upload(
    path: Path, limits: Limits, loaded: LoadedModel, pixels: str
) -> tuple[torch.Tensor, tuple[int, ...] | None]:
    """Return the image that noise is added to, and the shape of the uploaded file if it was read as it is."""
    image, size = read_upload(path, limits)
    width, height = map(int, size.split("x"))
    reduced = image.shape[1] * image.shape[2] != width * height
    file_shape = (len(image), height, width) if reduced else tuple(image.shape)
    lost_depth = find_lost_depth(path)
    if pixels == NETWORK:
        return loaded.prepare(image), file_shape if lost_depth is None else None
    if lost_depth is not None:
        raise PprsError(
            f"this file has {lost_depth}, of which only 8 are read, so no certificate can be about the file. Choose "
            "the network's input, or convert the image to 8 bits per channel."
        )
    if reduced:
        raise PprsError(
            f"this page does not add noise to the pixels of a {size} file, which is too large. Choose the network's "
            "input, upload a smaller image, or use `pprs certify --pixels file`."
        )
    return image, file_shape
