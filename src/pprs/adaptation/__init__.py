"""Adaptation of a classifier to its noise and partition, with unlabelled images.

The adapted classifier is one fixed function of the noisy image, so its certificates are those of any base classifier.
"""

from __future__ import annotations

from pprs.adaptation.images import LIMIT
from pprs.adaptation.run import BUDGET, METHODS, adapt

__all__ = ["BUDGET", "LIMIT", "METHODS", "adapt"]
