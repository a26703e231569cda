"""A network and a few images that are certified in a moment."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch

from pprs import Run, Sampling, certify_dataset


class Bright(torch.nn.Module):
    """Two classes of grey images: brighter than 0.5, or not."""

    num_classes, input_shape = 2, (1, 8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.stack([x.mean((1, 2, 3)), torch.full((len(x),), 0.5)], 1)


def grey_images() -> Any:
    return np.stack([np.full((1, 8, 8), grey, np.uint8) for grey in (150, 100, 90, 128)])


def certify(out: Path, sigma: float = 0.5, labels: Any = (0, 1, 0, 1), **options: Any) -> Run:
    """Certify four images. By default the third label is wrong, and the fourth image abstains."""
    data = (grey_images(), np.array(labels))
    if labels is None:
        data = [torch.from_numpy(image) / 255 for image in grey_images()]
    stop = options.pop("stop", None)
    return certify_dataset(
        options.pop("model", Bright()), options.pop("data", data), noise=f"gaussian:sigma={sigma}",
        sampling=Sampling(20, 200, stop=stop), engine="torch", progress=False, out=out, **{"partition": None} | options,
    )  # fmt: skip
