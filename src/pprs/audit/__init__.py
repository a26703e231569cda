"""How much of a certified radius is real, from the other side: attacks on the smoothed classifier."""

from __future__ import annotations

from pprs.audit.attack import Attack, Objective, normalize
from pprs.audit.decision import LabelTest, count_by_chance
from pprs.audit.image import AuditOptions, audit_image
from pprs.audit.levels import LevelImage
from pprs.audit.result import Audit, AuditedImage
from pprs.audit.run import CHARTS, GALLERY, LIMIT, RESULT, audit_run, restore_certificate

__all__ = [
    "CHARTS", "GALLERY", "LIMIT", "RESULT", "Attack", "Audit", "AuditOptions", "AuditedImage", "LabelTest",
    "LevelImage", "Objective", "audit_image", "audit_run", "count_by_chance", "normalize",
    "restore_certificate",
]  # fmt: skip
