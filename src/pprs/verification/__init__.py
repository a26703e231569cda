"""Verify a run: its bounds and radii against its counts, its images and labels, and its votes by drawing them again."""

from __future__ import annotations

from pprs.verification.findings import Verification
from pprs.verification.run import verify_run

__all__ = ["Verification", "verify_run"]
