"""Certificates without sampling: values hide behind thresholds, and the votes of all thresholds are counted."""

from __future__ import annotations

from pprs.dither.certificate import DitherCertificate, certified_changes
from pprs.dither.classifier import DitherClassifier
from pprs.dither.run import check_unused, dither_dataset
from pprs.dither.templates import TEMPLATES, make_template
from pprs.dither.thresholds import Dither, is_dither

__all__ = [
    "TEMPLATES", "Dither", "DitherCertificate", "DitherClassifier", "certified_changes", "check_unused",
    "dither_dataset", "is_dither", "make_template",
]  # fmt: skip
