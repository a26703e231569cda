"""A digest of the user's own code: the modules that define a network, and those of the same project they import."""

from __future__ import annotations

import ast
import hashlib
import importlib.util
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

INSTALLED = ("site-packages", "dist-packages")
VERSIONED = ("pprs", "torch")  # identified by their versions wherever they are


def digest_source(names: Iterable[str]) -> str:
    """Return a digest of the source of these modules and of the modules of their packages or folders they import.

    Installed packages and pprs are left out, since their versions identify them. Only modules that have been imported
    count.

    Args:
        names: Names of imported modules.

    Returns:
        The digest, or "none" if none of the modules has a source file.
    """
    own = (name for name in names if name.partition(".")[0] not in VERSIONED)
    sha, pending, seen = hashlib.sha256(), sorted(own), set[str]()
    sources: dict[str, bytes] = {}
    roots = {name.partition(".")[0]: _root(name) for name in pending}
    while pending:
        name = pending.pop()
        path = _source_file(name)
        if name in seen or path is None or not _belongs(name, path, roots):
            continue
        seen.add(name)
        sources[name] = path.read_bytes()
        pending += _imports(name, sources[name])
    for name in sorted(sources):
        sha.update(f"{name} {len(sources[name])} ".encode() + sources[name])
    return sha.hexdigest()[:16] if sources else "none"


def _source_file(name: str) -> Path | None:
    path = Path(getattr(sys.modules.get(name), "__file__", None) or "")
    return path if path.suffix == ".py" and path.is_file() else None


def _root(name: str) -> Path | None:
    """Return the folder that holds the module or its top-level package."""
    path = _source_file(name)
    if path is None:
        return None
    depth = name.count(".") + (path.name == "__init__.py")
    return path.resolve().parents[depth]


def _belongs(name: str, path: Path, roots: dict[str, Path | None]) -> bool:
    """Return whether a module belongs to the user's project: to the same package, or to the same folder."""
    if name.partition(".")[0] in roots:
        return True
    own = is_own_code(name)
    return own and any(root is not None and path.resolve().is_relative_to(root) for root in roots.values())


def is_own_code(name: str) -> bool:
    """Return whether a module is the user's own, rather than part of Python or of an installed package."""
    path = _source_file(name)
    if path is None or name.partition(".")[0] in VERSIONED:
        return False
    path = path.resolve()
    in_python = path.is_relative_to(Path(ast.__file__).resolve().parent)
    return not in_python and not any(part in INSTALLED for part in path.parts)


def _imports(name: str, source: bytes) -> Iterator[str]:
    """Yield the names that a module imports anywhere. Some may be names of values rather than of modules."""
    is_package = hasattr(sys.modules[name], "__path__")
    package = name if is_package else name.rpartition(".")[0]
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError):  # another version of the file than the one that was imported
        return
    yield name.rpartition(".")[0]  # importing a module runs its package first
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            relative = "." * node.level + (node.module or "")
            base = importlib.util.resolve_name(relative, package) if package or not node.level else ""
            yield base
            yield from (f"{base}.{alias.name}" for alias in node.names)
