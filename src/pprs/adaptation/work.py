"""An adaptation and its file, whatever a classifier is adapted to: described, begun, continued, and kept."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from pprs._support.files import check_writable
from pprs._version import __version__
from pprs.adaptation.images import AdaptationImages
from pprs.adaptation.problem import predict_scores
from pprs.adaptation.step import Step
from pprs.data import ImageSet
from pprs.errors import ConfigurationError, PprsError
from pprs.model import Model
from pprs.model.adaptation import UNADAPTED, Adaptation, StepRecord
from pprs.model.changes import Changes
from pprs.model.modes import eval_mode
from pprs.model.overlay import Overlay, load_overlay, save_overlay
from pprs.progress import Progress, duration

CHECKED = 8  # images on which an adapted network must have finite scores
TakeSteps = Callable[[list[Step], float, Callable[[Step], None]], object]


def check_out(out: str | Path) -> Path:
    """Return the file that an adaptation is written to, or raise an error if it cannot be."""
    path = Path(out)
    if path.suffix != ".safetensors":
        raise ConfigurationError(f"`out` must end in .safetensors, not {path.name}", parameter="out")
    check_writable(path)
    return path


def describe_adaptation(
    model: Model,
    data: ImageSet,
    images: AdaptationImages,
    *,
    noise: str,
    partition: str,
    seed: int,
    method: str,
    budget: str,
) -> Adaptation:
    """Return the record of an adaptation that has not begun."""
    return Adaptation(
        base_digest=model.digest(),
        base_source=model.source,
        noise=noise,
        partition=partition,
        seed=seed,
        data=data.source or type(data).__name__,
        split=data.split or "",
        images=len(images),
        method=method,
        budget=budget,
        steps=(),
        methods=(),
        complete=False,
        version=__version__,
        image_digests=images.digests,
    )


def _describe_limit(seconds: float) -> str:
    return "" if seconds == math.inf else f", for at most {duration(seconds)}"


class AdaptationWork:
    """An adaptation and its file, which always holds the last step that was accepted."""

    def __init__(
        self, path: Path, wanted: Adaptation, model: Model, images: AdaptationImages, progress: Progress
    ) -> None:
        self._path, self._model, self._images, self._progress = path, model, images, progress
        self.overlay = Overlay(wanted)
        if path.exists():
            self.overlay = self._restore(wanted)

    @property
    def complete(self) -> bool:
        """Whether nothing is left to do."""
        return self.overlay.adaptation.complete

    def _restore(self, wanted: Adaptation) -> Overlay:
        """Continue the adaptation in the file, if it has the same settings."""
        try:
            previous = load_overlay(self._path)
        except PprsError as error:
            raise ConfigurationError(
                f"`out` {self._path} exists and is not an adaptation ({error.message}). Give another `out`.",
                parameter="out",
            ) from error
        differing = previous.adaptation.differences(wanted)
        if differing:
            raise ConfigurationError(
                f"{self._path} holds another adaptation: it differs in {', '.join(differing)}. Give another `out`.",
                parameter="out",
            )
        steps = previous.adaptation.steps
        state = "complete" if previous.adaptation.complete else f"begun, with {len(steps)} steps finished"
        self._progress.message(f"the adaptation in {self._path} is {state}")
        return previous

    def run(self, purpose: str, seconds: float, take: TakeSteps) -> None:
        """Take the steps that are left.

        Args:
            purpose: What the classifier is adapted to.
            seconds: The time for all steps, of which those in the file have taken a part.
            take: Takes steps, given those that are finished, the seconds that are left, and what to call with each step
                as soon as it is complete.
        """
        finished = self._list_finished()
        left = max(seconds - sum(step.seconds for step in finished), 0.0)
        self._progress.message(
            f"adapting {self._model.source} to {purpose} with {len(self._images)} images, "
            f"{len(self._images.held_back)} of them held back{_describe_limit(left)}; Ctrl-C keeps finished steps"
        )
        with eval_mode(self._model.module):
            take(finished, left, self._add)
        self._write(self.overlay.changes, replace(self.overlay.adaptation, complete=True))

    def _list_finished(self) -> list[Step]:
        """Return the steps in the file. Each builds on those before, so that only the last one has its changes."""
        records = self.overlay.adaptation.steps
        last = max((i for i, record in enumerate(records) if record.accepted), default=None)
        return [
            Step(
                r.method, self.overlay.changes if i == last else Changes(), r.agreement, r.radius, r.accepted, r.seconds
            )
            for i, r in enumerate(records)
        ]

    def _add(self, step: Step) -> None:
        """Record a finished step."""
        if step.accepted and not self._has_finite_scores(step.changes):
            self._progress.message(f"{step.method} diverged: its result is not kept")
            step = replace(step, accepted=False)
        record = StepRecord(step.method, step.agreement, step.radius, step.accepted, step.seconds)
        adaptation, changes = self.overlay.adaptation, self.overlay.changes
        adaptation = replace(adaptation, steps=(*adaptation.steps, record))
        if step.accepted:
            adaptation = replace(adaptation, methods=_list_methods(adaptation.methods, changes, step))
            changes = step.changes
        self._write(changes, adaptation)

    def _has_finite_scores(self, changes: Changes) -> bool:
        module = changes.apply(self._model.module)
        return bool(predict_scores(module, self._images.held_back[:CHECKED]).isfinite().all())

    def _write(self, changes: Changes, adaptation: Adaptation) -> None:
        self.overlay = save_overlay(Overlay(adaptation, changes), self._path)


def _list_methods(methods: tuple[str, ...], before: Changes, step: Step) -> tuple[str, ...]:
    """Return the methods that the changes after a step come from. A step may have kept nothing of those before it."""
    if step.method == UNADAPTED:
        return methods
    after = step.changes
    kept = {id(part) for part in (*before.weights.values(), before.bias, before.denoiser) if part is not None}
    builds_on = any(id(part) in kept for part in (*after.weights.values(), after.bias, after.denoiser))
    missing = {name for name, part in (("bias", after.bias), ("denoiser", after.denoiser)) if part is None}
    return (*(name for name in methods if builds_on and name not in {*missing, step.method}), step.method)
