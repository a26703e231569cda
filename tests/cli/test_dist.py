"""The sdist and the wheel: what they hold, and that the wheel works where there is no checkout.

They are built here, or taken from the folder that PPRS_DIST names, as `make dist` does.
"""

from __future__ import annotations

import email
import os
import re
import shutil
import site
import subprocess
import sys
import tarfile
import venv
import zipfile
from email.message import Message
from pathlib import Path

import pytest

from pprs import __version__

ROOT = Path(__file__).resolve().parents[2]
WHEEL, SDIST = f"pprs-{__version__}-py3-none-any.whl", f"pprs-{__version__}.tar.gz"
BUILD = """
import sys
from setuptools import build_meta
out = sys.argv[1]  # which setuptools replaces
build_meta.build_sdist(out)
build_meta.build_wheel(out)
"""
JOB = """
import pprs, torch
print(pprs.__file__)
classify = lambda x: torch.stack([x.mean((1, 2, 3)), 0.5 - x.mean((1, 2, 3))], 1)
g = pprs.SmoothedClassifier(classify, 2, pprs.Gaussian(0.25), None, arithmetic="real")
print(g.certify(torch.ones(1, 8, 8), n=20))
"""

pytestmark = pytest.mark.slow


def package_files() -> set[str]:
    """The files of the package, without what Python and numba write next to them."""
    files = (path for path in (ROOT / "src" / "pprs").rglob("*") if path.is_file() and "__pycache__" not in path.parts)
    return {path.relative_to(ROOT / "src").as_posix() for path in files}


def run(*command: object, cwd: Path) -> str:
    """Run a command without this checkout, and return what it prints. Kernels are not compiled, which takes longer."""
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    done = subprocess.run(
        list(map(str, command)), cwd=cwd, capture_output=True, text=True, check=False, timeout=300,
        env={**environment, "PPRS_CACHE": str(cwd / "cache"), "NUMBA_DISABLE_JIT": "1"},
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def dist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if "PPRS_DIST" in os.environ:
        return Path(os.environ["PPRS_DIST"])
    # A copy, since building leaves files behind.
    source, out = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("dist")
    shutil.copytree(ROOT / "src", source / "src", ignore=shutil.ignore_patterns("__pycache__", "*.egg-info"))
    for path in ROOT.iterdir():
        if path.is_file() and path.name != ".git":
            shutil.copy(path, source)
    run(sys.executable, "-c", BUILD, out, cwd=source)
    return out


@pytest.fixture(scope="module")
def metadata(dist: Path) -> Message:
    with zipfile.ZipFile(dist / WHEEL) as wheel:
        return email.message_from_bytes(wheel.read(f"pprs-{__version__}.dist-info/METADATA"))


def test_the_wheel_holds_the_package_and_nothing_else(dist: Path) -> None:
    with zipfile.ZipFile(dist / WHEEL) as wheel:
        names = {name for name in wheel.namelist() if not name.startswith(f"pprs-{__version__}.dist-info/")}
    assert names == package_files()
    assert "pprs/py.typed" in names


def test_the_sdist_holds_what_a_build_needs(dist: Path) -> None:
    with tarfile.open(dist / SDIST) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    extra = {"LICENSE", "README.md", "CHANGELOG.md", "CITATION.cff", "SECURITY.md", "constraints.txt", "pyproject.toml"}
    assert {*extra, *(f"src/{name}" for name in package_files())} <= names


def test_the_metadata_is_complete(metadata: Message) -> None:
    assert metadata["Version"] == __version__
    assert metadata["License-Expression"] == "Apache-2.0"
    assert metadata["License-File"] == "LICENSE"
    assert metadata["Requires-Python"] == ">=3.11"
    assert metadata["Description-Content-Type"] == "text/markdown"
    assert "# pprs" in str(metadata.get_payload())
    assert metadata["Author"]
    assert "randomized smoothing" in metadata["Keywords"]
    assert metadata.get_all("Project-URL")
    classifiers = metadata.get_all("Classifier") or []
    assert {f"Programming Language :: Python :: 3.{minor}" for minor in (11, 12, 13)} <= set(classifiers)
    assert {"app", "docs", "onnx", "ray", "signals"} <= set(metadata.get_all("Provides-Extra") or [])


def test_the_changelog_has_a_section_of_this_version() -> None:
    assert re.search(rf"^## {re.escape(__version__)}\b", (ROOT / "CHANGELOG.md").read_text(), re.M)


def test_the_wheel_certifies_an_image_outside_the_checkout(dist: Path, tmp_path: Path) -> None:
    folder = tmp_path / "venv"
    venv.create(folder, with_pip=False)
    python = folder / "bin" / "python"
    packages = Path(run(python, "-c", "import site; print(site.getsitepackages()[0])", cwd=tmp_path).strip())
    # Dependencies are those of this environment. Its own .pth files, which make pprs importable, are not read.
    (packages / "dependencies.pth").write_text("\n".join(site.getsitepackages()) + "\n")
    run(
        sys.executable, "-m", "pip", "--python", python, "install", "--quiet", "--no-deps", "--no-index",
        "--no-compile", dist / WHEEL, cwd=tmp_path,
    )  # fmt: skip
    command = folder / "bin" / "pprs"
    assert run(command, "--version", cwd=tmp_path).startswith(f"pprs {__version__}, Python")
    package, *claim = run(python, "-c", JOB, cwd=tmp_path).splitlines()
    assert package.startswith(str(packages))
    assert claim[0].startswith("class 0: no change of L2 norm up to 0.136 to this 8x8 grey image can alter this label")
