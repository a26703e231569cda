"""Check the committed results: the manifest against the rows, and all figures and tables against a new drawing.

`make reproduce-check` runs this file.
"""

from __future__ import annotations

import io
import runpy
import shutil
from pathlib import Path

import matplotlib
import numpy as np
import pytest
from helpers import pprs
from PIL import Image

from pprs.reproduction import Results

ROOT = Path(__file__).resolve().parents[2]
RESULTS = ROOT / "docs" / "results"
WORK = ("runs", "models", "chosen", "__pycache__")  # left by a run of `pprs reproduce`, and not committed


@pytest.fixture(autouse=True)
def same_matplotlib() -> None:
    if f"matplotlib=={matplotlib.__version__}\n" not in (ROOT / "constraints.txt").read_text():
        pytest.fail("the figures were drawn by another matplotlib: install the one in constraints.txt")


def list_files(folder: Path) -> dict[str, Path]:
    files = {path.relative_to(folder).as_posix(): path for path in sorted(folder.rglob("*")) if path.is_file()}
    return {name: path for name, path in files.items() if name.split("/")[0] not in WORK}


def test_manifest_lists_the_committed_rows() -> None:
    """Keys, settings, numbers of rows, and digests of all values."""
    results = Results(RESULTS)
    assert not results.problems()
    entries = results.manifest().entries.values()
    assert (len(entries), sum(entry.rows for entry in entries)) == (640, 134907)


@pytest.mark.redraw
@pytest.mark.slow
@pytest.mark.timeout(900)
def test_committed_results_are_drawn_again_byte_for_byte(tmp_path: Path) -> None:
    ignored = shutil.ignore_patterns("figures", "tables", "README.md", *WORK)
    copy = shutil.copytree(RESULTS, tmp_path / "results", ignore=ignored)
    pprs("reproduce", "all", "--draw-only", "--out", copy)
    committed, drawn = list_files(RESULTS), list_files(copy)
    assert drawn.keys() == committed.keys()
    differing = [name for name in committed if committed[name].read_bytes() != drawn[name].read_bytes()]
    assert not differing, f"{len(differing)} files differ: {', '.join(differing)}"


def test_the_figure_on_partitions_is_drawn_again_byte_for_byte() -> None:
    script = runpy.run_path(str(RESULTS / "partitions.py"))
    drawn = script["draw_imagenet"](script["read_rows"](script["ROWS"]))
    assert drawn == (RESULTS / "partitions" / "imagenet.svg").read_bytes()


def test_the_table_and_figure_on_label_sets_are_those_of_the_stored_values() -> None:
    script = runpy.run_path(str(RESULTS / "label_sets.py"))
    evaluations = script["read"](script["STORED"])
    assert script["tabulate"](evaluations) in (RESULTS.parent / "label-sets.md").read_text()
    assert script["draw"](evaluations) == (RESULTS.parent / "label-sets.svg").read_bytes()


@pytest.mark.redraw
def test_the_gallery_of_templates_is_drawn_again() -> None:
    """Up to rounding: it is a photo in JPEG."""
    drawn = runpy.run_path(str(RESULTS / "dither_gallery.py"))["draw"]()
    old, new = (np.asarray(Image.open(file), float) for file in (RESULTS / "dither-gallery.jpg", io.BytesIO(drawn)))
    assert old.shape == new.shape
    assert np.abs(old - new).mean() < 0.1
