"""What every denoiser that was read from a file can do."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import final

import torch

from pprs.errors import ConfigurationError, PprsError


class FileDenoiser(ABC):
    """A denoiser that was read from a file. It may be called from several threads.

    Attributes:
        channels: The number of channels of its images, or None for any. One for grey images denoises the channels of
            colour images one by one.
        sigmas: The smallest and the largest sigma that it was trained for, or None if that is unknown.
        takes_sigma: Whether its result depends on sigma.
    """

    channels: int | None = None
    sigmas: tuple[float, float] | None = None
    takes_sigma: bool = True

    def __init__(self) -> None:
        self._checked: set[tuple[int, ...]] = set()  # shapes for which it was called twice

    @abstractmethod
    def _denoise(self, noisy: torch.Tensor, sigma: float) -> torch.Tensor:
        """Return the estimate of one clean image [1, C, H, W], without changing the noisy one."""

    @final
    @torch.inference_mode()
    def denoise(self, noisy: torch.Tensor, sigma: float) -> torch.Tensor:
        """Return the estimate of one clean image [C, H, W].

        One image at a time, in memory of its own: the last digits of a convolution change with the size of its batch
        and with its place in memory, and a base classifier must be a function of the noisy image alone.

        Raises:
            PprsError: If the network fails on the image.
            ConfigurationError: If it returns something else than an image, or is not a function of its input.
        """
        if self.channels == 1 and len(noisy) > 1:
            return torch.cat([self.denoise(channel[None], sigma) for channel in noisy])
        result = self._call(noisy, sigma)
        if noisy.shape not in self._checked:
            self._check(noisy, sigma, result)
            self._checked.add(noisy.shape)
        return result[0]

    def _call(self, noisy: torch.Tensor, sigma: float) -> torch.Tensor:
        try:
            return self._denoise(noisy[None].clone(), sigma)
        except (PprsError, MemoryError):
            raise
        except Exception as error:  # a network in a file may raise anything
            reason = (str(error).splitlines() or [type(error).__name__])[0]
            raise PprsError(f"the denoiser failed on an image of shape {tuple(noisy.shape)}: {reason}") from error

    def _check(self, noisy: torch.Tensor, sigma: float, result: torch.Tensor) -> None:
        if result.shape != (1, *noisy.shape):
            raise ConfigurationError(
                f"the denoiser returned shape {tuple(result.shape[1:])} for an image of shape {tuple(noisy.shape)}. It "
                "must return an image of the same shape.",
                parameter="partition",
            )
        if not torch.equal(result, self._call(noisy, sigma)):
            raise ConfigurationError(
                "the denoiser is not a function of the noisy image, so nothing behind it can be certified: it returned "
                "two different results for the same image. The likely cause is a layer that draws random numbers.",
                parameter="partition",
            )
