"""A small convolutional denoiser that knows the noise level, and its file: safetensors with a description."""

from __future__ import annotations

import json
import math
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load as from_bytes
from safetensors.torch import save as to_bytes
from torch import nn
from torch.nn import functional

from pprs._support.checks import validate
from pprs._support.files import atomic_write
from pprs.errors import PprsError

MULTIPLE = 4  # images are padded to a multiple of this many pixels
MAX_WIDTH, MAX_BLOCKS, MAX_SIGMA = 256, 16, 1e3  # a file may come from somebody else
KEY = "pprs-denoiser"  # of the description in the metadata of a file


@dataclass(frozen=True)
class DenoiserArchitecture:
    """Everything needed to rebuild a denoiser, and the noise that it was trained for.

    Attributes:
        channels: The number of channels of an image, 1 or 3.
        width: The number of channels of the layers at half the resolution. At a quarter there are twice as many.
        blocks: The number of residual blocks at each resolution.
        mean: The mean of the pixels of clean images.
        std: Their standard deviation.
        low: The smallest sigma that it was trained for.
        high: The largest sigma that it was trained for.
    """

    channels: int
    width: int = 32
    blocks: int = 1
    mean: float = 0.5
    std: float = 0.3
    low: float = 0.25
    high: float = 0.25

    def __post_init__(self) -> None:
        valid = (
            self.channels in (1, 3)
            and 1 <= self.width <= MAX_WIDTH
            and 0 <= self.blocks <= MAX_BLOCKS
            and abs(self.mean) <= 1e3
            and 1e-3 <= self.std <= 1e3
            and 0 < self.low <= self.high <= MAX_SIGMA
        )
        if not valid:
            raise PprsError(f"there is no denoiser with these settings: {self}")

    def build(self) -> DenoisingNetwork:
        """Return the network with random weights."""
        return DenoisingNetwork(self)

    def to_dict(self) -> dict[str, Any]:
        """Return the fields as they are stored."""
        return asdict(self)

    @classmethod
    def from_dict(cls, values: Any) -> DenoiserArchitecture:
        """Return the architecture with these fields, after checking their types and ranges."""
        return validate(cls, values, "the description of the denoiser")


class _DenoiserBlock(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(width, width, 3, 1, 1), nn.ReLU(), nn.Conv2d(width, width, 3, 1, 1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(x + self.body(x))


class DenoisingNetwork(nn.Module):
    """Estimates the clean image from a noisy one and the noise's sigma. Images may have any size.

    With the mean m and the standard deviation s of clean pixels, the estimate is

        m + (x - m) s^2 / (s^2 + sigma^2) + F((x - m) / r, sigma) s sigma / r,   r^2 = s^2 + sigma^2

    (Karras et al. 2022). Without F it is the best linear estimate of independent pixels, and F has inputs and targets
    of unit size at any noise. F is a network at half and a quarter of the resolution, one of whose inputs is a map of
    log(sigma). It has no batch normalisation, so that an image never depends on its batch.
    """

    sigma: torch.Tensor

    def __init__(self, arch: DenoiserArchitecture) -> None:
        super().__init__()
        self.arch, width = arch, arch.width
        # The noise level if none is given. It is a buffer, so that it is part of the weights.
        self.register_buffer("sigma", torch.tensor(math.sqrt(arch.low * arch.high), dtype=torch.float32))
        self.head = nn.Conv2d(4 * arch.channels + 1, width, 3, 1, 1)
        self.fine = nn.Sequential(*(_DenoiserBlock(width) for _ in range(arch.blocks)))
        self.down = nn.Conv2d(width, 2 * width, 2, 2)
        self.coarse = nn.Sequential(*(_DenoiserBlock(2 * width) for _ in range(arch.blocks)))
        self.up = nn.ConvTranspose2d(2 * width, width, 2, 2)
        self.merge = nn.Sequential(*(_DenoiserBlock(width) for _ in range(arch.blocks)))
        self.tail = nn.Conv2d(width, 4 * arch.channels, 3, 1, 1)
        nn.init.zeros_(self.tail.weight)
        nn.init.zeros_(self.tail.bias)  # type: ignore[arg-type]

    def forward(self, x: torch.Tensor, sigma: torch.Tensor | float | None = None) -> torch.Tensor:
        """Return estimates of the clean images [B, C, H, W], given noisy ones and one sigma, or one for each."""
        level = torch.as_tensor(self.sigma if sigma is None else sigma, dtype=x.dtype, device=x.device).view(
            -1, 1, 1, 1
        )
        height, width = x.shape[2:]
        padded = functional.pad(x, (0, -width % MULTIPLE, 0, -height % MULTIPLE), mode="replicate")
        signal = self.arch.std**2 / (self.arch.std**2 + level**2)  # the share of the signal in the variance
        centred = padded - self.arch.mean
        scaled = functional.pixel_unshuffle(centred * (signal.sqrt() / self.arch.std), 2)
        levels = level.log().expand(len(x), 1, *scaled.shape[2:])
        h = torch.relu(self.head(torch.cat([scaled, levels], 1)))
        h = self.fine(h)
        h = torch.relu(h + self.up(self.coarse(torch.relu(self.down(h)))))
        residual = functional.pixel_shuffle(self.tail(self.merge(h)), 2)
        clean = self.arch.mean + signal * centred + level * signal.sqrt() * residual
        return clean[..., :height, :width]


def save_denoiser(path: Path, net: DenoisingNetwork, training: dict[str, Any] | None = None) -> None:
    """Write a denoiser to a safetensors file, which `denoiser:FILE` names as a partition.

    Args:
        path: The file to write.
        net: The denoiser.
        training: What it was trained on and how, for people to read.
    """
    tensors = {name: tensor.detach().cpu().contiguous() for name, tensor in net.state_dict().items()}
    description = json.dumps({"architecture": net.arch.to_dict(), "training": training or {}})
    with atomic_write(path) as part:
        part.write_bytes(to_bytes(tensors, metadata={KEY: description}))


def load_denoiser(content: bytes) -> DenoisingNetwork:
    """Rebuild a denoiser from the content of its file. Nothing is unpickled, and nothing is built before it is checked.

    Raises:
        PprsError: If the content is not a denoiser that `save_denoiser` wrote.
    """
    try:
        tensors = from_bytes(content)
        size = int.from_bytes(content[:8], "little")
        metadata = json.loads(content[8 : 8 + size]).get("__metadata__", {})
    except (SafetensorError, ValueError, RecursionError) as error:
        raise PprsError(f"it is not a complete safetensors file ({error}). Copy or train it again.") from error
    if KEY not in metadata:
        raise PprsError("it is not a denoiser of pprs: its description is missing. Train one with `pprs adapt`.")
    try:
        description = json.loads(metadata[KEY])
        arch = DenoiserArchitecture.from_dict(description["architecture"])
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise PprsError(f"its description is damaged ({error}). Copy or train it again.") from error
    return restore_denoiser(arch, tensors)


def restore_denoiser(arch: DenoiserArchitecture, tensors: dict[str, torch.Tensor]) -> DenoisingNetwork:
    """Rebuild a denoiser from its architecture and its weights, after checking their names, shapes and values."""
    with torch.device("meta"):  # without memory, since the sizes are not checked yet
        net = arch.build()
    for name, tensor in tensors.items():
        if tensor.dtype != torch.float32 or not bool(tensor.isfinite().all()):
            raise PprsError(f"its weights {name} are not finite float32 numbers. Copy or train it again.")
    try:
        net.load_state_dict({name: tensor.clone() for name, tensor in tensors.items()}, assign=True)
    except RuntimeError as error:
        reason = " ".join(str(error).split())
        raise PprsError(f"its weights do not match its description ({reason}). Copy or train it again.") from error
    if not 0 < float(net.sigma) <= MAX_SIGMA:
        raise PprsError(f"its sigma {float(net.sigma)} is out of range. Copy or train it again.")
    return net.requires_grad_(False).eval()
