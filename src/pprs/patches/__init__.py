"""Certificates against patches: no change inside any one square of pixels can alter a label."""

from __future__ import annotations

from pprs.patches.adaptation import adapt_to_masks
from pprs.patches.classifier import FILL, MASKS, PatchCertificate, PatchClassifier
from pprs.patches.fills import FILLS, Fill, parse_fill
from pprs.patches.masks import Box, MaskGrid
from pprs.patches.row import PatchRow, PatchSettings
from pprs.patches.run import certify_patches
from pprs.patches.summary import certified_accuracy, clean_accuracy, plain_accuracy

__all__ = [
    "FILL",
    "FILLS",
    "MASKS",
    "Box",
    "Fill",
    "MaskGrid",
    "PatchCertificate",
    "PatchClassifier",
    "PatchRow",
    "PatchSettings",
    "adapt_to_masks",
    "certified_accuracy",
    "certify_patches",
    "clean_accuracy",
    "parse_fill",
    "plain_accuracy",
]
