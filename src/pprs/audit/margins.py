"""How firmly a network's scores speak for a class, and the gradient of that."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, wait
from typing import TypeVar

import torch

from pprs._support import threads as _threads
from pprs.errors import PprsError, describe_error
from pprs.model.modes import eval_mode
from pprs.model.onnx import OnnxNetwork
from pprs.smoothing.voting import Scorer

BaseClassifier = Callable[[torch.Tensor], torch.Tensor]
T = TypeVar("T")


class NoGradientError(PprsError):
    """There is no gradient, or none that can be followed. The message says why."""


class SoftVotes:
    """Votes of a network for a class, softened so that they have a gradient.

    Args:
        scorer: The network as it is run, with its device.
        network: The network to differentiate, if it is not that one.
        batch: Inputs per call of the network.
        pause: Called between batches.
        margin: How firmly the scores of each input speak for a class. By default, the distance to the best other score.

    Attributes:
        label: The class.
        queries: The number of inputs that the network has seen.
    """

    label: int

    def __init__(
        self,
        scorer: Scorer,
        network: BaseClassifier | None,
        batch: int,
        pause: Callable[[], None],
        margin: Callable[[torch.Tensor, int], torch.Tensor] | None = None,
    ) -> None:
        self._margin = margin or score_margin
        self._scorer, self.network = scorer, network or scorer.model
        self.pause, self.queries, self._batch, self._scale = pause, 0, batch, 1.0

    def fix_scale(self, margins: torch.Tensor) -> None:
        """Choose the scale on which votes are softened: it must not be so small that all of them look certain."""
        self._scale = max(float(margins.std()), float(margins.mean().abs()) / 3, 1e-12)

    def _map(self, task: Callable[[torch.Tensor], T], inputs: torch.Tensor, network: BaseClassifier) -> Iterator[T]:
        """Yield the task's results for batches of inputs, on the thread pool where the network allows it."""
        parts = deque(inputs.split(self._batch))
        self.queries += len(inputs)
        in_caller = self._scorer.device.type != "cpu" or not isinstance(network, torch.nn.Module)
        if in_caller or _threads.in_pool_thread():
            for part in parts:
                yield task(part)
                self.pause()
            return
        workers = self._scorer.threads or _threads.get_threads()
        pending: deque[Future[T]] = deque()
        try:
            while parts or pending:
                while parts and len(pending) < workers:
                    pending.append(_threads.get_pool(workers).submit(task, parts.popleft()))
                yield pending.popleft().result()
                self.pause()
        finally:
            wait(pending)

    def soften(self, margins: torch.Tensor) -> torch.Tensor:
        """Return a smooth form of each vote: near 1 for the class, near 0 for another."""
        return torch.sigmoid(margins / self._scale)

    def differentiate_network(self, images: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the margin of each input of the network, and its gradient with respect to that input.

        Raises:
            NoGradientError: If the network cannot be differentiated.
        """
        inputs = images.clone().requires_grad_()
        try:
            with torch.enable_grad(), eval_mode(self.network):
                margins = self._margin(self.network(inputs.clone()), self.label)  # a copy, for networks that change it
                (gradient,) = torch.autograd.grad(margins.sum(), inputs)
        # Torch raises RuntimeError where a gradient is missing, and so does `numpy` of a tensor with a gradient. Other
        # packages that are given such a tensor raise one of the other three.
        except (RuntimeError, BufferError, TypeError, ValueError) as error:
            raise NoGradientError(describe_error(error)) from error
        return margins.detach(), gradient

    def check_network(self) -> None:
        """Raise NoGradientError if the network to differentiate is known to have no gradient."""
        network = self.network
        if isinstance(network, torch.nn.Module) and any(isinstance(m, OnnxNetwork) for m in network.modules()):
            raise NoGradientError("ONNX Runtime computes scores only")


def score_margin(scores: torch.Tensor, label: int) -> torch.Tensor:
    """Return how far the score of the label is above the best other score, for each image."""
    others = scores.clone()
    others[:, label] = -torch.inf
    return scores[:, label] - others.amax(1)


def is_usable(vector: torch.Tensor) -> bool:
    """Return whether a vector has a direction: it is finite and not zero."""
    return 0 < float(vector.double().norm()) < math.inf
