"""The examples run as they are, in an empty folder."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import nbformat
import pytest
from nbclient import NotebookClient

EXAMPLES = Path(__file__).parents[2] / "examples"
SCRIPTS = [
    "certify_image.py",
    "certify_dataset.py",
    "read_runs.py",
    "own_model.py",
    "own_partition.py",
    "http_classifier.py",
    "shifts.py",
]
# Each example starts Python anew, which takes long on a busy machine.
pytestmark = [pytest.mark.slow, pytest.mark.timeout(1500)]
NOTEBOOKS = ["first_certificate.ipynb", "compare_partitions.ipynb"]


def run(script: str, folder: Path, *arguments: str, code: int = 0) -> str:
    """Run an example in this folder; returns what it printed."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(
        [sys.executable, EXAMPLES / script, *arguments], cwd=folder, env=environment, capture_output=True, text=True,
        timeout=600,
    )  # fmt: skip
    assert done.returncode == code, done.stdout + done.stderr
    assert "Traceback" not in done.stderr
    return done.stdout + done.stderr


def test_every_example_is_listed_and_tested() -> None:
    files = {path.name for path in EXAMPLES.iterdir() if path.suffix in (".py", ".ipynb")}
    assert files == {*SCRIPTS, *NOTEBOOKS}
    readme = (EXAMPLES / "README.md").read_text(encoding="utf-8")
    for name in files:
        assert f"[{name}]({name})" in readme


def test_certify_image(tmp_path: Path) -> None:
    printed = run("certify_image.py", tmp_path)
    assert "with 99.9% confidence" in printed
    assert "is covered" in printed
    assert "is not covered" in printed
    assert list(tmp_path.iterdir()) == []


def test_certify_a_data_set_and_read_the_runs(tmp_path: Path) -> None:
    printed = run("read_runs.py", tmp_path, code=1)
    assert "There are no runs in runs/none and runs/slic. Make them with: python" in printed
    assert "certify_dataset.py" in printed
    printed = run("certify_dataset.py", tmp_path)
    assert "none: 60 images certified, in runs/none" in printed
    assert (tmp_path / "report.html").is_file()
    printed = run("read_runs.py", tmp_path)
    assert "runs/slic minus runs/none" in printed
    assert "runs/slic: 60 images, gaussian:sigma=0.5, partition slic" in printed


def test_own_model(tmp_path: Path) -> None:
    assert "certified accuracy at radius 0.25" in run("own_model.py", tmp_path)


def test_own_partition(tmp_path: Path) -> None:
    printed = run("own_partition.py", tmp_path)
    assert "brightness" in printed
    assert "no change of L2 norm" in printed


def test_own_guarantee(tmp_path: Path) -> None:
    printed = run("shifts.py", tmp_path)
    assert "of 30 images certified" in printed
    assert "labels: found again for all shifts and compared (30 rows)" in printed
    assert (tmp_path / "report.html").is_file()


@pytest.mark.parametrize("name", NOTEBOOKS)
def test_notebook(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(sys.path))
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path / "ipython"))
    book = nbformat.read(EXAMPLES / name, as_version=4)
    (tmp_path / "empty").mkdir()
    NotebookClient(book, timeout=600, resources={"metadata": {"path": str(tmp_path / "empty")}}).execute()
    outputs = [output for cell in book.cells for output in cell.get("outputs", ())]
    assert any("image/png" in output.get("data", {}) for output in outputs)
    assert [output for output in outputs if output.get("name") == "stderr"] == []
    assert list((tmp_path / "empty").iterdir()) == []


@pytest.mark.parametrize("name", NOTEBOOKS)
def test_notebook_is_committed_without_outputs(name: str) -> None:
    book = nbformat.read(EXAMPLES / name, as_version=4)
    nbformat.validate(book)
    assert book.metadata.keys() == {"kernelspec", "language_info"}
    for cell in book.cells:
        assert not cell.metadata
        if cell.cell_type == "code":
            assert cell.outputs == []
            assert cell.execution_count is None


@pytest.mark.parametrize("name", NOTEBOOKS)
def test_notebook_without_its_extra_says_how_to_install_it(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    book = nbformat.read(EXAMPLES / name, as_version=4)
    first = next(cell for cell in book.cells if cell.cell_type == "code")
    find_spec = importlib.util.find_spec

    def without_ipykernel(module: str, *rest: Any) -> Any:
        return None if module == "ipykernel" else find_spec(module, *rest)

    exec(first.source, {})  # nothing is missing here
    monkeypatch.setattr("importlib.util.find_spec", without_ipykernel)
    with pytest.raises(SystemExit, match=r"needs ipykernel. Install it with: pip install 'pprs\[notebook\]'"):
        exec(first.source, {})
