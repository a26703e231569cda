"""All committed figures, tables and the page of them, drawn again from the committed rows: byte for byte the same."""

from __future__ import annotations

import shutil
from pathlib import Path

import matplotlib
import pytest
from helpers import pprs

ROOT = Path(__file__).resolve().parents[2]
RESULTS = ROOT / "docs" / "results"


def files(folder: Path) -> dict[str, Path]:
    return {path.relative_to(folder).as_posix(): path for path in sorted(folder.rglob("*")) if path.is_file()}


@pytest.mark.timeout(900)
def test_committed_results_are_drawn_again_byte_for_byte(tmp_path: Path) -> None:
    if f"matplotlib=={matplotlib.__version__}\n" not in (ROOT / "constraints.txt").read_text():
        pytest.fail("the figures were drawn by another matplotlib: install the one in constraints.txt")
    ignored = shutil.ignore_patterns("figures", "tables", "README.md", "runs", "models", "chosen", "__pycache__")
    copy = shutil.copytree(RESULTS, tmp_path / "results", ignore=ignored)
    pprs("reproduce", "all", "--draw-only", "--out", copy)
    committed, drawn = files(RESULTS), files(copy)
    others = [name for name in committed if name.split("/")[0] in ("runs", "models", "chosen", "__pycache__")]
    wanted = committed.keys() - set(others)
    assert drawn.keys() == wanted
    differing = [name for name in sorted(wanted) if committed[name].read_bytes() != drawn[name].read_bytes()]
    assert not differing, f"{len(differing)} files are drawn otherwise: {', '.join(differing)}"
