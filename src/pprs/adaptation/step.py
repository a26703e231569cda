"""One step of an adaptation."""

from __future__ import annotations

from dataclasses import dataclass

from pprs.adaptation.problem import Changes


@dataclass(frozen=True)
class Step:
    """What one method did, and what it is worth on held-back images.

    Attributes:
        method: The name of the method.
        changes: All changes to the classifier after this step.
        agreement: The share of held-back images whose smoothed label is that of the unadapted network for the clean
            image.
        radius: The mean radius that the votes promise, with 0 for images without agreement.
        accepted: Whether the step is part of the result.
        seconds: How long the step took.
    """

    method: str
    changes: Changes
    agreement: float
    radius: float
    accepted: bool
    seconds: float
