"""The methods of adaptation, from the cheapest to the most thorough, each kept if it helps."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from pprs.adaptation.problem import Problem
from pprs.adaptation.step import Step
from pprs.progress import Progress


def climb(
    problem: Problem,
    *,
    method: str = "auto",
    seconds: float | None = None,
    held_back: torch.Tensor,
    finished: Sequence[Step] = (),
    on_step: Callable[[Step], None] = lambda step: None,
    progress: Progress,
) -> list[Step]:
    """Adapt a classifier by one method, or by all that help.

    Args:
        problem: The classifier, and what it is adapted to.
        method: The method, or "auto" for all.
        seconds: The time for the steps that are not finished.
        held_back: Images [N, C, H, W] on which a step is judged.
        finished: Steps that were finished before.
        on_step: Called with each step when it is finished.
        progress: Where to report progress.

    Returns:
        All finished steps. The last accepted one has the result.
    """
    raise NotImplementedError
