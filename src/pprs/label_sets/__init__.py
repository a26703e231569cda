"""Sets of labels that contain the true one with a promised probability, also under attack."""

from __future__ import annotations

from pprs.label_sets.evaluation import RadiusPoint, SetEvaluation, SetRow
from pprs.label_sets.scoring import SetRequest
from pprs.label_sets.sets import LabelSets
from pprs.label_sets.settings import Calibration, SetSettings

__all__ = ["Calibration", "LabelSets", "RadiusPoint", "SetEvaluation", "SetRequest", "SetRow", "SetSettings"]
