"""One finished step of an adaptation."""

from __future__ import annotations

from dataclasses import dataclass

from pprs.adaptation.problem import Changes


@dataclass(frozen=True)
class Step:
    """What a method changed, and what that is worth on the held-back images.

    Attributes:
        method: The method, such as "statistics".
        changes: All changes up to and including this step.
        agreement: The share of held-back images whose smoothed label is the label of the clean image.
        radius: The mean radius of these images, 0 where the labels differ.
        accepted: Whether the changes are kept.
        seconds: How long the step took.
    """

    method: str
    changes: Changes
    agreement: float
    radius: float
    accepted: bool
    seconds: float
