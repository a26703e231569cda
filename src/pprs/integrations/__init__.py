"""Adapters to other packages, one module each. Nothing here is imported by `import pprs`."""

from __future__ import annotations

from pprs.errors import PprsError


class MissingPackageError(PprsError, ImportError):
    """A package that an adapter needs is not installed. The message says how to install it."""

    def __init__(self, package: str) -> None:
        super().__init__(f"{package} is not installed. Install it with: pip install 'pprs[integrations]'")


__all__ = ["MissingPackageError"]
