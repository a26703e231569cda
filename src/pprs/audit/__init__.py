"""How much of a certified radius is real, from the other side: attacks on the smoothed classifier."""

from __future__ import annotations

from pprs.audit.attack import Attack, Objective, normalize
from pprs.audit.auditor import Auditor
from pprs.audit.decision import LabelTest, count_by_chance
from pprs.audit.folder import CHARTS, GALLERY, RESULT
from pprs.audit.image import audit_image
from pprs.audit.levels import LevelImage
from pprs.audit.options import SAMPLES, AuditOptions
from pprs.audit.result import Audit, AuditedImage, CountedClaim
from pprs.audit.run import LIMIT, audit_run
from pprs.audit.smoothed import restore_certificate

__all__ = [
    "CHARTS", "GALLERY", "LIMIT", "RESULT", "SAMPLES", "Attack", "Audit", "AuditOptions", "AuditedImage", "Auditor",
    "CountedClaim", "LabelTest", "LevelImage", "Objective", "audit_image", "audit_run", "count_by_chance", "normalize",
    "restore_certificate",
]  # fmt: skip
