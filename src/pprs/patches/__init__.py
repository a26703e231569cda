"""Certificates against patches: no change inside any one square of pixels can alter a label."""

from __future__ import annotations

from pprs.patches.classifier import FILL, MASKS, PatchCertificate, PatchClassifier
from pprs.patches.fills import FILLS, Fill, parse_fill
from pprs.patches.masks import Box, MaskGrid

__all__ = ["FILL", "FILLS", "MASKS", "Box", "Fill", "MaskGrid", "PatchCertificate", "PatchClassifier", "parse_fill"]
