"""Tests marked `redraw` make again what is committed: figures, the quick plan, built-in networks. Minutes for the same.

`make test` leaves them out if nothing that they depend on has changed since they last passed, and runs them otherwise.
`make nightly` runs them in any case, in a process of their own, and then notes in redrawn.json which files of the
package that process had imported, and a digest of these and of everything else that the tests read. A file that is not
listed is imported by none of the listed ones, so it cannot matter. If redrawn.json is missing, or was edited, or lists
a file that is gone, the tests run.
"""

from __future__ import annotations

import hashlib
import json
import platform
import sys
from collections.abc import Iterable
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "src" / "pprs"
NOTE = ROOT / "tests" / "golden" / "redrawn.json"
RESULTS = ROOT / "docs" / "results"
UNCOMMITTED = ("runs", "models", "chosen", "__pycache__")  # in RESULTS, left by a run of `pprs reproduce`
READ = (
    "constraints.txt", "tests/conftest.py", "tests/contract/test_builtin_models.py", "tests/helpers.py",
    "tests/redrawn.py",
)  # fmt: skip


def is_current() -> bool:
    """Whether everything that the tests depend on is as it was when they last passed."""
    try:
        note = json.loads(NOTE.read_text(encoding="utf-8"))
        return bool(note["digest"] == digest_files(note["files"]))
    except (OSError, ValueError, KeyError, TypeError):
        return False


def write_note() -> None:
    """Note that the tests pass. For the process that ran them, and nothing else."""
    loaded = [getattr(module, "__file__", None) for name, module in sys.modules.items() if name.startswith("pprs")]
    files = sorted(
        {Path(file).relative_to(ROOT).as_posix() for file in loaded if file and file.startswith(str(PACKAGE))}
    )
    NOTE.write_text(json.dumps({"digest": digest_files(files), "files": files}, indent=1) + "\n", encoding="utf-8")


def _is_left_out(path: Path) -> bool:
    """Whether a file is of the app, which nothing is drawn with, or of a cache."""
    parts = path.relative_to(PACKAGE).parts
    return any(part in ("__pycache__", "app") or part.startswith(".") for part in parts)


def digest_files(files: Iterable[str]) -> str:
    """Digest these files of the package, the data beside its sources, the committed results, and the tests."""
    sources = [ROOT / name for name in (*files, *READ)]
    data = [path for path in PACKAGE.rglob("*") if path.suffix != ".py" and not _is_left_out(path)]
    results = [path for path in RESULTS.rglob("*") if path.relative_to(RESULTS).parts[0] not in UNCOMMITTED]
    tests = [*(ROOT / "tests" / "golden").glob("*.py")]
    sha = hashlib.sha256(platform.python_version().rpartition(".")[0].encode())
    for path in sorted({*sources, *data, *results, *tests}):
        if not path.is_dir():
            sha.update(f"{path.relative_to(ROOT).as_posix()} ".encode())
            sha.update(hashlib.sha256(path.read_bytes()).digest())
    return sha.hexdigest()
