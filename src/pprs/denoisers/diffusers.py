"""Diffusion models in folders of the package diffusers: a UNet2DModel that predicts the noise."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch

from pprs._support.checks import validate
from pprs.denoisers.base import FileDenoiser
from pprs.denoisers.schedule import Schedule, denoise_in_one_step
from pprs.errors import PprsError

# What a scheduler's configuration calls the fields of `Schedule`.
KEYS = {
    "num_train_timesteps": "steps", "beta_schedule": "beta_schedule", "beta_start": "beta_start",
    "beta_end": "beta_end", "trained_betas": "betas",
}  # fmt: skip
WEIGHTS = "diffusion_pytorch_model.safetensors"


def list_files(folder: Path) -> list[Path]:
    """Return the files of a checkpoint that its scores depend on: configuration and weights of the network, schedule.

    Raises:
        PprsError: If one of them is missing.
    """
    network, scheduler = (folder / part if (folder / part).is_dir() else folder for part in ("unet", "scheduler"))
    files = [network / "config.json", network / WEIGHTS, scheduler / "scheduler_config.json"]
    for file in files:
        if not file.is_file():
            raise PprsError(
                f"there is no {file}, so this is not a complete folder of a diffusion model that diffusers wrote with "
                "safetensors"
            )
    return files


class DiffusersDenoiser(FileDenoiser):
    """A UNet2DModel in a folder. Weights are read from safetensors only, and no code of the folder is run."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        try:
            import diffusers
        except ImportError:
            raise PprsError(
                "a folder of a diffusion model needs diffusers. Install it with: pip install diffusers"
            ) from None
        config, _, scheduler = list_files(folder)
        self._schedule = _read_schedule(scheduler)
        try:
            # Without the hub: `folder` may be a name there too.
            self._net: Any = diffusers.UNet2DModel.from_pretrained(
                str(config.parent), use_safetensors=True, local_files_only=True
            )
        except Exception as error:  # diffusers raises many kinds of errors
            reason = (str(error).splitlines() or [type(error).__name__])[0]
            raise PprsError(
                f"diffusers cannot load it as a UNet2DModel ({reason}). Check that it is complete."
            ) from error
        self._net.eval().requires_grad_(False)
        self.channels = int(self._net.config.in_channels)

    def _denoise(self, noisy: torch.Tensor, sigma: float) -> torch.Tensor:
        return denoise_in_one_step(lambda x_t, step: self._net(x_t, step).sample, noisy, sigma, self._schedule)


def _read_schedule(path: Path) -> Schedule:
    try:
        config = json.loads(path.read_bytes())
        values = {name: config[key] for key, name in KEYS.items() if config.get(key) is not None}
    except (ValueError, AttributeError, RecursionError) as error:
        raise PprsError(f"{path} is not the configuration of a scheduler ({error})") from error
    if config.get("prediction_type", "epsilon") != "epsilon" or config.get("rescale_betas_zero_snr"):
        raise PprsError(
            f"{path}: only models that predict the noise (prediction_type epsilon, without rescale_betas_zero_snr) are "
            "supported"
        )
    return validate(Schedule, values, str(path))
