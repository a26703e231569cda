"""Training of a small denoiser in front of the network, on unlabelled images."""

from __future__ import annotations

import contextlib
import copy
import math
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import torch
from torch import nn
from torch.nn import functional

from pprs.adaptation.problem import Changes, SmoothingProblem
from pprs.denoisers import DenoiserArchitecture, DenoisingNetwork, save_denoiser
from pprs.errors import ConfigurationError
from pprs.inputs.domain import IMAGE, domain_of
from pprs.progress import Progress, stage

WIDTH, BLOCKS = 16, 1  # 33,000 weights
BATCH, LEAST_BATCH, BATCH_VALUES = 64, 8, 2**20  # images per step: fewer if they are large
LEARNING_RATE, MAX_NORM = 3e-3, 1.0
WARM_UP = 0.1  # share of the steps during which the learning rate rises
CONSISTENCY = 1.0  # weight of the divergence of predictions, against an error of 1 for the best linear estimate
IMAGE_ONLY = 0.6  # share of the steps before predictions count, since those of a bad image teach little and cost more

LEAST_STEPS, DEFAULT_STEPS = 20, 1000
TRIAL_STEPS = 5  # timed, to fix the number of steps
SAFETY = 0.9  # share of the time that is planned for
WINDOW = 20  # steps over which the loss is averaged
DIVERGED = 2.0  # times the loss at the start

FIRST_DRAW = 6 << 32  # of the noise, so that no other method shares it


def train_denoiser(
    problem: SmoothingProblem,
    changes: Changes,
    *,
    progress: Progress,
    deadline: float | None = None,
    steps: int | None = None,
    sigmas: tuple[float, float] | None = None,
) -> Changes:
    """Train a denoiser that the noisy, partitioned images go through before the network.

    Its loss is the squared error of the denoised image and later, where the network has gradients, also the divergence
    of the network's prediction for it from the unadapted network's prediction for the clean image (Salman et al. 2020).
    No label is needed. The result depends on the number of steps, but not on the time they take.

    Args:
        problem: The classifier, and what it is adapted to.
        changes: Earlier changes to build on. A denoiser is replaced. A bias is dropped, since it was fitted to other
            inputs.
        progress: Where to report progress.
        deadline: When to finish, on the clock of `time.monotonic`. A few timed steps determine how many fit.
        steps: The number of steps, instead of as many as fit.
        sigmas: The smallest and the largest sigma to train for, for a denoiser that serves several. By default, that of
            the noise, which is also the one that the denoiser assumes if it is given none.

    Returns:
        The changes with the denoiser, without an earlier bias. If the training diverges, the denoiser is the one before
        it did, and if that was at the start, the changes are returned as they are.

    Raises:
        ConfigurationError: If `sigmas` is not a range, or the inputs are not images.
    """
    if domain_of(problem.images.shape[1:]) is not IMAGE:
        raise ConfigurationError("the denoiser is a network for images, not for signals", parameter="method")
    if sigmas is not None and not 0 < sigmas[0] <= sigmas[1] < math.inf:
        raise ConfigurationError(f"`sigmas` must be a range such as (0.1, 0.5), not {sigmas}", parameter="sigmas")
    low, high = sigmas or (problem.noise.sigma, problem.noise.sigma)
    net = replace(changes, denoiser=None, bias=None).apply(problem.model.module).eval()
    with _frozen(net):
        if steps is None:
            steps = _plan(problem, net, (low, high), deadline)
        trainer = _DenoiserTrainer(problem, net, (low, high), steps)
        with stage(progress, "denoiser", steps, "steps"):
            for loss in trainer.run():
                progress.advance(1, f"loss {loss:.3f}")
    if trainer.diverged is not None:
        progress.message(
            f"the training of the denoiser diverged at step {trainer.diverged} of {steps}: "
            + (f"the state of step {trainer.kept} is used" if trainer.kept else "there is no denoiser")
        )
    return replace(changes, denoiser=trainer.finish(), bias=None) if trainer.kept else changes


def write_denoiser(path: Path, changes: Changes) -> None:
    """Write the denoiser of an adaptation to a file of its own, for use as the partition `denoiser:FILE`.

    Args:
        path: The file to write, whose name ends in .safetensors.
        changes: The result of `train_denoiser`, or of an adaptation that includes it.

    Raises:
        ConfigurationError: If the adaptation has no denoiser, or the name has another ending.
        PprsError: If the file cannot be written.
    """
    if not isinstance(changes.denoiser, DenoisingNetwork):
        raise ConfigurationError("the adaptation has no denoiser to write. Adapt with `method` denoiser.")
    if path.suffix != ".safetensors":
        raise ConfigurationError(f"a denoiser is written to a .safetensors file, not to {path}", parameter="out")
    save_denoiser(path, changes.denoiser)


def _plan(problem: SmoothingProblem, net: nn.Module, sigmas: tuple[float, float], deadline: float | None) -> int:
    """Return the number of steps that fit before the deadline."""
    if deadline is None:
        return DEFAULT_STEPS
    trial = _DenoiserTrainer(problem, net, sigmas, TRIAL_STEPS).run()
    next(trial)  # the first step allocates memory
    began = time.monotonic()
    count = sum(1 for _ in trial)
    rate = count / (time.monotonic() - began)
    return max(int(SAFETY * rate * (deadline - time.monotonic())), LEAST_STEPS)


class _DenoiserTrainer:
    """Trains a denoiser, and keeps the last good state.

    Attributes:
        diverged: The step at which the training diverged, or None.
        kept: The number of steps of the last good state.
    """

    def __init__(self, problem: SmoothingProblem, net: nn.Module, sigmas: tuple[float, float], steps: int) -> None:
        images = problem.images
        self._problem, self._steps, self._sigmas = problem, steps, sigmas
        self._net = net if _has_gradient(net, images[:1]) else None
        mean, std = float(images.mean()), max(float(images.std()), 1e-2)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(problem.seed)
            arch = DenoiserArchitecture(images.shape[1], WIDTH, BLOCKS, mean, std, *sigmas)
            self._denoiser = arch.build().train()
        self._optimizer = torch.optim.Adam(self._denoiser.parameters(), LEARNING_RATE)
        self._schedule = torch.optim.lr_scheduler.LambdaLR(self._optimizer, self._relative_rate)
        self._generator = torch.Generator().manual_seed(problem.seed)
        self._good = self._copy_state()
        self.kept = 0
        self.diverged: int | None = None

    def _relative_rate(self, step: int) -> float:
        """Return the learning rate of a step: it rises linearly, then falls as a cosine."""
        warm = max(1.0, WARM_UP * self._steps)
        if step < warm:
            return (step + 1) / (warm + 1)
        return 0.5 * (1 + math.cos(math.pi * (step - warm) / (self._steps - warm + 1)))

    def run(self) -> Iterator[float]:
        """Train, yielding the loss of each step, until the last step or divergence."""
        limit, window = math.inf, 0.0
        for step, indices in enumerate(self._iter_batches(), 1):
            error, divergence = self._train(indices, step)
            yield error + divergence
            limit = DIVERGED * error if step == 1 else limit
            window += error
            if not math.isfinite(error + divergence) or (step % WINDOW == 0 and window / WINDOW > limit):
                self.diverged = step
                return
            if step % WINDOW == 0 or step == self._steps:
                window, self._good, self.kept = 0.0, self._copy_state(), step

    def _iter_batches(self) -> Iterator[torch.Tensor]:
        """Yield the indices of the images of each step."""
        count, values = len(self._problem.images), self._problem.images[0].numel()
        size = min(count, max(LEAST_BATCH, min(BATCH, BATCH_VALUES // values)))
        order = torch.empty(0, dtype=torch.long)
        for _ in range(self._steps):
            if len(order) < size:
                order = torch.randperm(count, generator=self._generator)
            batch, order = order[:size], order[size:]
            yield batch

    def _train(self, indices: torch.Tensor, step: int) -> tuple[float, float]:
        """Make one step and return the two parts of its loss. A loss that is not finite changes nothing."""
        sigma = self._choose_sigma()
        problem = replace(self._problem, noise=replace(cast(Any, self._problem.noise), sigma=sigma))
        clean, noisy = problem.images[indices], problem.noisy(indices, FIRST_DRAW + step)
        denoised = self._denoiser(noisy, sigma)
        variance = self._denoiser.arch.std**2
        error, divergence = functional.mse_loss(denoised, clean) * (1 / variance + 1 / sigma**2), torch.zeros(())
        if self._net is not None and step > IMAGE_ONLY * self._steps:
            target = self._problem.clean_scores[indices].clone().softmax(1)
            predicted = self._net(denoised).float().log_softmax(1)
            divergence = CONSISTENCY * functional.kl_div(predicted, target, reduction="batchmean")
        loss = error + divergence
        if torch.isfinite(loss):
            self._optimizer.zero_grad(set_to_none=True)
            loss.backward()
            nn.utils.clip_grad_norm_(self._denoiser.parameters(), MAX_NORM)
            self._optimizer.step()
            self._schedule.step()
        return float(error.detach()), float(divergence.detach())

    def _choose_sigma(self) -> float:
        """Return the sigma of a step, whose logarithm is uniform over the range."""
        low, high = self._sigmas
        return low if low == high else low * (high / low) ** float(torch.rand((), generator=self._generator))

    def _copy_state(self) -> dict[str, torch.Tensor]:
        return {name: value.detach().clone() for name, value in self._denoiser.state_dict().items()}

    def finish(self) -> DenoisingNetwork:
        """Return the denoiser in its last good state."""
        denoiser = copy.deepcopy(self._denoiser)
        denoiser.load_state_dict(self._good)
        denoiser.sigma.fill_(self._problem.noise.sigma)
        return denoiser.requires_grad_(False).eval()


def _has_gradient(net: nn.Module, image: torch.Tensor) -> bool:
    """Return whether the scores of a network can be differentiated in its input."""
    with torch.enable_grad():
        inputs = image.clone().requires_grad_()
        scores = net(inputs)
        if not scores.requires_grad:
            return False
        (gradient,) = torch.autograd.grad(scores.float().amax(), inputs, allow_unused=True)
    return gradient is not None and bool(gradient.isfinite().all()) and bool(gradient.any())


@contextlib.contextmanager
def _frozen(net: nn.Module) -> Iterator[None]:
    """Compute no gradients of a network's weights, which are the caller's, until the end of the block."""
    trained = [parameter for parameter in net.parameters() if parameter.requires_grad]
    net.requires_grad_(False)
    try:
        yield
    finally:
        for parameter in trained:
            parameter.requires_grad_(True)
