"""The methods of adaptation, from the cheapest to the most thorough, each kept if it helps."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from pprs.adaptation.bias import adapt_bias
from pprs.adaptation.criterion import SAMPLES, Judgement, judge
from pprs.adaptation.denoising import train_denoiser
from pprs.adaptation.distillation import distil
from pprs.adaptation.problem import Changes, VotingProblem
from pprs.adaptation.statistics import adapt_statistics
from pprs.adaptation.step import Step
from pprs.errors import ConfigurationError, suggest
from pprs.model import Model
from pprs.progress import Progress

AUTO = "auto"
UNADAPTED = "none"  # the method of the first step, which measures the classifier before any change
LEAST_IMAGES, LEAST_SAMPLES = 32, 16  # of a judgement, however short the time
MOST_IMAGES = 500  # of a judgement without a limit of time
JUDGING = 1 / 30  # share of the time that one judgement may take


@dataclass(frozen=True)
class AdaptationMethod:
    """A method of adaptation.

    Attributes:
        adapt: Takes the problem, the changes to build on, `progress` and `deadline`, and returns the new changes.
        share: The share of the remaining time that it may take.
        fresh: Whether it builds on the unadapted classifier, because earlier changes do not help it.
        segments: Whether it also suits networks that label every pixel.
    """

    adapt: Callable[..., Changes]
    share: float
    fresh: bool = False
    segments: bool = False


METHODS = {
    "statistics": AdaptationMethod(adapt_statistics, 0.2, segments=True),
    "bias": AdaptationMethod(adapt_bias, 0.2),
    "distill": AdaptationMethod(distil, 1.0, fresh=True, segments=True),
    # Last, for networks without gradients: for others, distilling is better.
    "denoiser": AdaptationMethod(train_denoiser, 1.0),
}


def climb(
    problem: VotingProblem,
    *,
    method: str = AUTO,
    seconds: float | None = None,
    samples: float | None = None,
    held_back: torch.Tensor,
    finished: Sequence[Step] = (),
    on_step: Callable[[Step], None] = lambda step: None,
    progress: Progress,
) -> list[Step]:
    """Adapt a classifier by one method, or by every method that helps.

    With `method` "auto", the methods follow each other as long as there is time. A method is accepted if it improves
    the smoothed classifier on held-back images (`Judgement.improves_on`). The next one builds on what was accepted. A
    method that does not suit the network is left out. The first step, "none", has the classifier as it is.

    Args:
        problem: The classifier, and what it is adapted to.
        method: One of `METHODS`, which is accepted in any case, or "auto".
        seconds: The time for the steps that are not finished, or None for no limit.
        samples: The number of perturbed images to distil with, instead of a time, so that the result does not depend on
            the speed of the machine.
        held_back: Images [N, C, H, W] that `problem` does not contain.
        finished: The steps of an earlier call with the same arguments that was interrupted.
        on_step: Called with each step as soon as it is complete.
        progress: Where to report progress.

    Returns:
        All steps, including the finished ones. The adapted classifier is that of the last accepted step.

    Raises:
        ConfigurationError: If the method is unknown, or does not suit the network.
    """
    if method != AUTO and method not in METHODS:
        raise ConfigurationError(f'unknown method "{method}". {suggest(method, (AUTO, *METHODS))}', parameter="method")
    return _Climb(problem, method, seconds, samples, held_back, list(finished), on_step, progress).run()


def list_methods(model: Model, unsuited: Sequence[str] = ()) -> list[str]:
    """Return the methods that suit a network, from the cheapest to the most thorough."""
    return [
        name
        for name, method in METHODS.items()
        if name not in unsuited and (method.segments or model.task != "segment")
    ]


class _Climb:
    def __init__(
        self,
        problem: VotingProblem,
        method: str,
        seconds: float | None,
        drawn: float | None,
        held_back: torch.Tensor,
        steps: list[Step],
        on_step: Callable[[Step], None],
        progress: Progress,
    ) -> None:
        self._problem, self._method, self._drawn, self._progress = problem, method, drawn, progress
        self._steps, self._on_step = steps, on_step
        self._deadline = None if seconds is None else time.monotonic() + seconds
        self._held_back, self._samples = _limit_judgement(problem, held_back, seconds)
        self._judging = 0.0  # seconds that the last judgement took
        self._unadapted: Judgement | None = None

    def run(self) -> list[Step]:
        """Try the methods that are not finished yet."""
        began = time.monotonic()
        changes, best = Changes(), self._judge(Changes())
        self._unadapted = best
        if (last := next((step for step in reversed(self._steps) if step.accepted), None)) is not None:
            changes, best = last.changes, self._judge(last.changes)
        if not self._steps:
            self._progress.message(f"before: {self._describe(best)}")
            seconds = time.monotonic() - began
            self._add(Step(UNADAPTED, changes, best.agreement, best.radius, True, seconds))
        for name in (
            list_methods(self._problem.model, self._problem.unsuited) if self._method == AUTO else [self._method]
        ):
            if any(step.method == name for step in self._steps):
                continue
            if self._method == AUTO and self._remaining() == 0:
                self._progress.message(f"{name}: left out, because the time is over")
                continue
            try:
                step, judgement = self._try(name, changes, best)
            except ConfigurationError as error:
                if self._method != AUTO:
                    raise
                self._progress.message(f"{name}: left out. {error.message}")
                continue
            if step.accepted:
                changes, best = step.changes, judgement
            self._add(step)
        return self._steps

    def _add(self, step: Step) -> None:
        self._steps.append(step)
        self._on_step(step)

    def _remaining(self) -> float | None:
        """Return the seconds that are left for methods, without those for judging their result."""
        return None if self._deadline is None else max(0.0, self._deadline - self._judging - time.monotonic())

    def _try(self, name: str, changes: Changes, best: Judgement) -> tuple[Step, Judgement]:
        """Run one method, and judge its result."""
        began, remaining, method = time.monotonic(), self._remaining(), METHODS[name]
        deadline = None if remaining is None else began + remaining * (1.0 if self._method == name else method.share)
        start = Changes() if method.fresh else changes
        limit: dict[str, Any] = {"deadline": deadline} if self._drawn is None else {"samples": self._drawn}
        new = method.adapt(self._problem, start, progress=self._progress, **limit)
        judgement = self._judge(new)
        improves = judgement.improves_on(best, self._unadapted)
        verdict = "accepted" if improves else "not better beyond the error"
        self._progress.message(f"{name}: {self._describe(judgement)}; {verdict}")
        accepted, seconds = improves or self._method == name, time.monotonic() - began
        return Step(name, new, judgement.agreement, judgement.radius, accepted, seconds), judgement

    def _judge(self, changes: Changes) -> Judgement:
        began = time.monotonic()
        judgement = judge(self._problem, changes, self._held_back, self._samples)
        self._judging = time.monotonic() - began
        return judgement

    def _describe(self, judgement: Judgement) -> str:
        pixels = " of the pixels" if self._problem.model.task == "segment" else ""
        return (
            f"on {len(judgement.radii)} held-back images, {100 * judgement.agreement:.0f}%{pixels} keep the label of "
            f"the clean image, mean radius {judgement.radius:.3f}"
        )


def _limit_judgement(
    problem: VotingProblem, held_back: torch.Tensor, seconds: float | None
) -> tuple[torch.Tensor, int]:
    """Return the images and the number of samples of each that can be judged in a small part of the time."""
    if seconds is None:
        return held_back[:MOST_IMAGES], SAMPLES
    few = held_back[:4]
    judge(problem, Changes(), few, LEAST_SAMPLES)  # compiles kernels, fills caches
    began = time.monotonic()
    judge(problem, Changes(), few, LEAST_SAMPLES)
    cost = (time.monotonic() - began) / (len(few) * LEAST_SAMPLES)
    affordable = int(JUDGING * seconds / cost)
    samples = min(SAMPLES, max(LEAST_SAMPLES, affordable // len(held_back)))
    return held_back[: max(LEAST_IMAGES, affordable // samples)], samples
