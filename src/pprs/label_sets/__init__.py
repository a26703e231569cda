"""Sets of labels that contain the true one with a promised probability, also under attack."""

from __future__ import annotations

from pprs.label_sets.attack import AttackOptions, attack_sets
from pprs.label_sets.evaluation import AttackedSets, RadiusPoint, SetEvaluation, SetRow, evaluate_run
from pprs.label_sets.row import LabelSetRow, LabelSetSettings
from pprs.label_sets.scoring import SetRequest
from pprs.label_sets.sets import LabelSets
from pprs.label_sets.settings import Calibration, SetSettings, state_promise
from pprs.label_sets.summary import compare_sets, list_notes, write_rows

__all__ = [
    "AttackOptions", "AttackedSets", "Calibration", "LabelSetRow", "LabelSetSettings", "LabelSets", "RadiusPoint",
    "SetEvaluation", "SetRequest", "SetRow", "SetSettings", "attack_sets", "compare_sets", "evaluate_run",
    "list_notes", "state_promise", "write_rows",
]  # fmt: skip
