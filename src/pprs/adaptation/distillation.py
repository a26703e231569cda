"""Training on noisy images, with the network's own predictions for the clean images as targets."""

from __future__ import annotations

import copy
import math
import time
from collections.abc import Iterator
from dataclasses import replace

import torch
from torch import nn
from torch.nn import functional

from pprs.adaptation.problem import Changes, Perturbed, to_logits
from pprs.adaptation.statistics import copy_network, draw_batches, estimate_statistics, find_batch_norms
from pprs.errors import ConfigurationError, suggest
from pprs.model.modes import eval_mode
from pprs.progress import Progress, stage
from pprs.training.augment import mirror_images, shift_images

LAYERS = ("auto", "all", "norm")
NORMS = (nn.modules.batchnorm._NormBase, nn.LayerNorm, nn.GroupNorm, nn.RMSNorm)

BATCH, LEAST_BATCH, BATCH_VALUES = 128, 16, 2**21  # images per step: fewer if they are large
LEARNING_RATE, MOMENTUM, WEIGHT_DECAY = 0.05, 0.9, 5e-4
MAX_NORM = 1.0  # to which gradients are clipped
WARM_UP = 0.2  # share of the steps during which the learning rate rises
SHIFT = 8  # images are shifted by up to 1/8 of their height,
OFTEN = 32  # if each is seen at least so often, and by less if not: new images need no variants

LEAST_STEPS, DEFAULT_STEPS = 20, 2000
SLOW = 200  # with time for fewer steps, normalisation layers alone are trained
TRIAL_STEPS = 3  # timed, to fix the number of steps
SAFETY = 0.9  # share of the time that is planned for
LATE = 0.75  # fewer steps are made if only this share of the remaining ones would be in time

STATISTICS = (1024, 2048)  # noisy images, at least and at most, from which batch-norm statistics are estimated
WINDOW = 20  # steps over which the loss is averaged
DIVERGED = 2.0  # times the loss at the start, or that of a uniform guess

FIRST_DRAW, LAST_DRAW = 4 << 32, 5 << 32  # of the noise, so that no other method shares it


def distil(
    problem: Perturbed,
    changes: Changes,
    *,
    progress: Progress,
    deadline: float | None = None,
    layers: str = "auto",
    steps: int | None = None,
    samples: float | None = None,
) -> Changes:
    """Train a copy of the network to predict for perturbed images what it predicts for the clean ones.

    The targets are the unadapted network's probabilities for the clean image, after a random shift and, for colour
    images, reflection. Images that are seen a few times only are shifted less. No label is needed. The result depends
    on the number of steps, but not on the time they take.

    Args:
        problem: The classifier, and what it is adapted to.
        changes: Earlier changes to build on. A denoiser is kept as it is. A bias is dropped, since it was fitted to
            other weights.
        progress: Where to report progress.
        deadline: When to finish, on the clock of `time.monotonic`. A few timed steps determine how many fit. If steps
            turn out to take much longer, fewer are made.
        layers: What to train: "all" weights, the weights of normalisation layers ("norm"), or "auto": all, unless the
            time suffices for few steps only.
        steps: The number of steps, instead of as many as fit.
        samples: The number of perturbed images in all steps together, instead.

    Returns:
        The changes with the new weights. If the training diverges, they are those before it did.

    Raises:
        ConfigurationError: If the network has no gradients, or no layers to train.
    """
    if layers not in LAYERS:
        raise ConfigurationError(f'unknown `layers` "{layers}". {suggest(layers, LAYERS)}', parameter="layers")
    _check_gradients(problem)
    if samples is not None:
        steps = max(LEAST_STEPS, round(samples / choose_batch(problem)))
    if steps is None:
        steps, layers = _plan(problem, changes, deadline, layers)
    trainer = _NetworkTrainer(problem, changes, "all" if layers == "auto" else layers, steps)
    with stage(progress, "distill", steps, "steps"):
        for loss in trainer.run(deadline):
            progress.advance(1, f"loss {loss:.3f}")
    if trainer.diverged is not None:
        progress.message(
            f"distillation diverged at step {trainer.diverged} of {steps}: the state of step {trainer.kept} is used"
        )
    return replace(changes, weights={**changes.weights, **trainer.finish()}, bias=None)


def _check_gradients(problem: Perturbed) -> None:
    """Raise unless the scores are differentiable in the network's weights."""
    module = problem.model.module
    trainable = any(p.is_floating_point() for p in module.parameters())
    if trainable:
        net = copy.deepcopy(module).requires_grad_(True)
        trainable = net.eval()(problem.images[:2].clone()).requires_grad
    if not trainable:
        raise ConfigurationError(
            f"{problem.model.source} cannot be trained: its scores have no gradients. Choose a `method` that needs "
            "none, such as bias or denoiser.",
            parameter="method",
        )


def _plan(problem: Perturbed, changes: Changes, deadline: float | None, layers: str) -> tuple[int, str]:
    """Return the number of steps that fit before the deadline, and the layers to train."""
    if deadline is None:
        return DEFAULT_STEPS, layers
    choices = [layers]
    if layers == "auto":
        choices = ["all", "norm"] if list_norm_weights(problem.model.module) else ["all"]
    for choice in choices:
        trial = _NetworkTrainer(problem, changes, choice, TRIAL_STEPS + 1).run()
        next(trial)  # the first step allocates memory
        began = time.monotonic()
        count = sum(1 for _ in trial)
        rate = count / (time.monotonic() - began)
        steps = int(SAFETY * rate * (deadline - time.monotonic()))
        if steps >= SLOW:
            break
    return max(steps, LEAST_STEPS), choice


class _NetworkTrainer:
    """Trains a copy of the network, and keeps the last good state.

    Attributes:
        diverged: The step at which the training diverged, or None.
        kept: The number of steps of the last good state.
    """

    def __init__(self, problem: Perturbed, changes: Changes, layers: str, steps: int) -> None:
        self._problem, self._denoiser, self._steps = problem, changes.denoiser, steps
        self._net = copy_network(problem, changes)
        self._parameters = _select_parameters(self._net, layers)
        if not self._parameters:
            raise ConfigurationError(
                f"{problem.model.source} has no normalisation layers with weights. Train all layers.",
                parameter="layers",
            )
        self._optimizer = torch.optim.SGD(
            self._parameters, LEARNING_RATE, MOMENTUM, weight_decay=WEIGHT_DECAY, nesterov=True
        )
        self._phase = 0.0  # of the schedule, from 0 to 1
        self._generator = torch.Generator().manual_seed(problem.seed)
        self._good = self._copy_state()
        self.kept = 0
        self.diverged: int | None = None

    def run(self, deadline: float | None = None) -> Iterator[float]:
        """Train, yielding the loss of each step, until the last step or divergence."""
        limit, window, step, began = math.inf, 0.0, 0, time.monotonic()
        images = self._iter_images()
        while step < self._steps:
            self._advance_schedule(step)
            loss = self._train(next(images), step)
            step += 1
            yield loss
            if step == 1:
                limit = DIVERGED * max(loss, math.log(self._problem.model.num_classes or 2))
            window += loss
            if not math.isfinite(loss) or (step % WINDOW == 0 and window / WINDOW > limit):
                self.diverged = step
                return
            if step % WINDOW == 0 or step == self._steps:
                window, self._good, self.kept = 0.0, self._copy_state(), step
                if deadline is not None:
                    self._shorten(step, (time.monotonic() - began) / step, deadline)

    def _advance_schedule(self, step: int) -> None:
        """Set the learning rate of a step: it rises linearly, then falls as a cosine, to 0 after the last step."""
        self._phase += (1 - self._phase) / (self._steps - step + 1)
        falling = (self._phase - WARM_UP) / (1 - WARM_UP)
        relative = self._phase / WARM_UP if falling < 0 else 0.5 * (1 + math.cos(math.pi * falling))
        for group in self._optimizer.param_groups:
            group["lr"] = LEARNING_RATE * relative

    def _shorten(self, step: int, seconds: float, deadline: float) -> None:
        """Make fewer steps if they take so long that most of the remaining ones would be late."""
        affordable = max(int((deadline - time.monotonic()) / seconds), WINDOW)
        if affordable < LATE * (self._steps - step):
            self._steps = step + affordable

    def _iter_images(self) -> Iterator[torch.Tensor]:
        """Yield the clean images of each step, shifted and mirrored at random."""
        images = self._problem.images
        channels, height = images.shape[1:3]
        size = choose_batch(self._problem)
        shift = choose_shift(height, self._steps * size / len(images))
        order = torch.empty(0, dtype=torch.long)
        while True:
            while len(order) < size:
                order = torch.cat([order, torch.randperm(len(images), generator=self._generator)])
            batch, order = images[order[:size]], order[size:]
            if channels == 3 and images.ndim == 4:  # a colour image
                batch = mirror_images(batch, self._generator)
            yield shift_images(batch, shift, self._generator)

    def _train(self, images: torch.Tensor, step: int) -> float:
        """Make one step and return its loss. A loss that is not finite changes nothing."""
        with torch.no_grad(), eval_mode(self._problem.model.module):
            target = self._predict_log(self._problem.model.module, images.clone()).exp()
            noisy = self._denoise(self._problem.perturb(images, FIRST_DRAW + step))
        loss = functional.kl_div(self._predict_log(self._net, noisy), target, reduction="batchmean")
        if torch.isfinite(loss):
            self._optimizer.zero_grad(set_to_none=True)
            loss.backward()
            nn.utils.clip_grad_norm_(self._parameters, MAX_NORM)
            self._optimizer.step()
        return float(loss.detach())

    def _predict_log(self, net: nn.Module, images: torch.Tensor) -> torch.Tensor:
        """Return the logarithms of a network's probabilities, one line for each image, or for each pixel of each."""
        scores = to_logits(net(images), self._problem.probabilities).float()
        return scores.log_softmax(1).movedim(1, -1).flatten(0, -2)

    def _denoise(self, images: torch.Tensor) -> torch.Tensor:
        return images if self._denoiser is None else self._denoiser(images)

    def _copy_state(self) -> dict[str, torch.Tensor]:
        return {name: value.detach().clone() for name, value in self._net.state_dict().items()}

    @torch.no_grad()
    def finish(self) -> dict[str, torch.Tensor]:
        """Return the entries of the last good state that differ from the unadapted network.

        The statistics of batch normalisation are estimated anew, since those of the training lag behind the weights.
        """
        self._net.load_state_dict(self._good)
        batches = draw_batches(self._problem, *STATISTICS)
        inputs = (self._denoise(self._problem.noisy(batch, LAST_DRAW + i)) for i, batch in enumerate(batches))
        if find_batch_norms(self._net):
            estimate_statistics(self._net, inputs)
        base = self._problem.model.module.state_dict()
        return {name: value for name, value in self._copy_state().items() if not torch.equal(value, base[name])}


def choose_batch(problem: Perturbed) -> int:
    """Return the number of images of a step."""
    if problem.model.task == "segment":
        return LEAST_BATCH  # each image has as many targets as pixels
    return max(LEAST_BATCH, min(BATCH, BATCH_VALUES // problem.images[0].numel()))


def choose_shift(height: int, times: float) -> int:
    """Return by how many pixels at most images of this height are shifted, if each is seen so many times.

    >>> choose_shift(28, 40), choose_shift(28, 16), choose_shift(28, 2.5)
    (3, 2, 0)
    """
    return round(height // SHIFT * min(1.0, times / OFTEN))


def _select_parameters(net: nn.Module, layers: str) -> list[nn.Parameter]:
    """Set which weights of a network are trained, and return them.

    Only batch normalisation is set to training mode: dropout would add to the noise.
    """
    net.eval().requires_grad_(False)
    for batch_norm in find_batch_norms(net).values():
        batch_norm.train()
    chosen = list(net.parameters()) if layers == "all" else list_norm_weights(net)
    parameters = [parameter for parameter in chosen if parameter.is_floating_point()]
    for parameter in parameters:
        parameter.requires_grad_(True)
    return parameters


def list_norm_weights(net: nn.Module) -> list[nn.Parameter]:
    """Return the weights of the normalisation layers."""
    return [weight for layer in net.modules() if isinstance(layer, NORMS) for weight in layer.parameters()]
