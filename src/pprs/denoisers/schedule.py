"""Diffusion models as denoisers, in one step (Carlini et al. 2022, "(Certified!!) adversarial robustness for free!").

A diffusion model predicts the noise epsilon in x_t = sqrt(a_t) x + sqrt(1 - a_t) epsilon, with images x in [-1, 1]. A
noisy image, scaled by sqrt(a_t), is such an x_t for the step t with the same ratio of noise to signal.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from pprs.errors import ConfigurationError, PprsError, suggest

MAX_STEPS = 100_000  # a description may come from somebody else


@dataclass(frozen=True)
class Schedule:
    """The noise of each step of a diffusion model.

    Attributes:
        steps: The number of steps.
        beta_schedule: The rule for the variance beta_t of a step: "linear" or "scaled_linear" (linear in its root) from
            `beta_start` to `beta_end`, or "squaredcos_cap_v2" (cosine).
        beta_start: The first variance.
        beta_end: The last variance.
        betas: The variances themselves, which replace the rule.
        alphas_cumprod: The shares a_t of the signal, which replace the variances.
    """

    steps: int = 1000
    beta_schedule: str = "linear"
    beta_start: float = 1e-4
    beta_end: float = 0.02
    betas: tuple[float, ...] | None = None
    alphas_cumprod: tuple[float, ...] | None = None

    def __post_init__(self) -> None:
        if not 1 <= self.steps <= MAX_STEPS:
            raise PprsError(f"the schedule has {self.steps} steps, but must have from 1 to {MAX_STEPS}")
        if self.beta_schedule not in RULES:
            raise PprsError(f'unknown beta_schedule "{self.beta_schedule}". {suggest(self.beta_schedule, RULES)}')
        shares = self.signal_shares()
        if not (len(shares) and np.isfinite(shares).all() and (shares > 0).all() and (shares < 1).all()):
            raise PprsError("the schedule is not valid: every step must keep a share of the signal between 0 and 1")
        if not (np.diff(shares) < 0).all():
            raise PprsError("the schedule is not valid: every step must have more noise than the one before")

    def signal_shares(self) -> npt.NDArray[np.float64]:
        """Return a_t, the share of the signal in the variance after each step."""
        if self.alphas_cumprod is not None:
            return np.array(self.alphas_cumprod, np.float64)
        betas = RULES[self.beta_schedule](self) if self.betas is None else np.array(self.betas, np.float64)
        return np.cumprod(1 - betas, dtype=np.float64)

    def find_step(self, sigma: float) -> tuple[int, float]:
        """Return the smallest t whose ratio of noise to signal is at least that of this sigma, and its a_t.

        Sigma is on the scale of images in [0, 1], so it is 2 sigma on that of the diffusion model.

        Raises:
            ConfigurationError: If even the last step has less noise.
        """
        shares = self.signal_shares()
        noisy_enough = (1 - shares) / shares >= (2 * sigma) ** 2
        if not noisy_enough.any():
            most = math.sqrt((1 - shares[-1]) / shares[-1]) / 2
            raise ConfigurationError(
                f"the diffusion model has no step with so much noise: its last one has sigma {most:.3g}, not {sigma:g}",
                parameter="sigma",
            )
        step = int(noisy_enough.argmax())
        return step, float(shares[step])


def _cosine(schedule: Schedule) -> npt.NDArray[np.float64]:
    edges = np.arange(schedule.steps + 1) / schedule.steps
    shares: npt.NDArray[np.float64] = np.cos((edges + 0.008) / 1.008 * math.pi / 2) ** 2
    return np.minimum(1 - shares[1:] / shares[:-1], 0.999)


def _linear(schedule: Schedule) -> npt.NDArray[np.float64]:
    return np.linspace(schedule.beta_start, schedule.beta_end, schedule.steps)


def _scaled_linear(schedule: Schedule) -> npt.NDArray[np.float64]:
    root = np.sqrt(np.maximum([schedule.beta_start, schedule.beta_end], 0))
    squares: npt.NDArray[np.float64] = np.linspace(root[0], root[1], schedule.steps) ** 2
    return squares


RULES: dict[str, Callable[[Schedule], npt.NDArray[np.float64]]] = {
    "linear": _linear,
    "scaled_linear": _scaled_linear,
    "squaredcos_cap_v2": _cosine,
}


def denoise_in_one_step(
    predict: Callable[[torch.Tensor, int], torch.Tensor], noisy: torch.Tensor, sigma: float, schedule: Schedule
) -> torch.Tensor:
    """Return the one-step estimate of clean images in [0, 1].

    Args:
        predict: Returns the noise in x_t, given x_t and t. A model that also predicts variances has twice as many
            channels, of which the first half is the noise.
        noisy: Noisy images [B, C, H, W] around [0, 1].
        sigma: The standard deviation of their noise.
        schedule: The noise of each step.
    """
    step, share = schedule.find_step(sigma)
    x_t = (2 * noisy - 1) * math.sqrt(share)
    epsilon = predict(x_t, step)[:, : noisy.shape[1]]
    estimate = (x_t - epsilon * math.sqrt(1 - share)) / math.sqrt(share)
    return (estimate.clamp(-1, 1) + 1) / 2
