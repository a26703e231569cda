"""Adapters to other packages, one module each. Nothing here is imported by `import pprs`."""

from __future__ import annotations

from pprs.errors import MissingPackageError

__all__ = ["MissingPackageError"]
