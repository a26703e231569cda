from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

# Tests run side by side, and OpenMP's waiting threads would spin on the cores that others need. Read when torch loads.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

import numpy as np
import pytest
import torch
from filelock import FileLock
from hypothesis import settings

from pprs._threads import cpu_count

# The same examples on every machine, and no limit on the time of one: a busy machine is not a failure.
settings.register_profile("repeatable", derandomize=True, deadline=None, max_examples=40)
settings.load_profile("repeatable")

SHARED = Path(__file__).resolve().parents[2] / "shared"
GOLDEN = SHARED / "golden"


@pytest.fixture(autouse=True)
def _seeded() -> None:
    torch.manual_seed(0)
    np.random.seed(0)  # noqa: NPY002  for libraries that draw from the global stream
    # Tests run side by side: threads of one that wait would take the time of another.
    beside = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
    torch.set_num_threads(max(1, cpu_count() // beside))


@pytest.fixture
def golden() -> Path:
    """Reference values kept outside the project; what needs them is skipped where they are not."""
    if not GOLDEN.is_dir():
        pytest.skip("reference values are not on this machine")
    return GOLDEN


@pytest.fixture
def imagenet_sample() -> Path:
    """A hundred real pictures kept outside the project; what needs them is skipped where they are not."""
    if not (SHARED / "data" / "imagenet-sample").is_dir():
        pytest.skip("the ImageNet sample is not on this machine")
    return SHARED / "data" / "imagenet-sample"


@pytest.fixture(scope="session", autouse=True)
def _cache(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Exported networks are kept for this session alone."""
    os.environ["PPRS_CACHE"] = str(tmp_path_factory.mktemp("cache"))


@pytest.fixture(scope="session")
def once(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str, Callable[[Path], object]], Path]:
    """Makes a folder one time for all processes that run tests; who comes second waits."""
    base = tmp_path_factory.getbasetemp()
    root = base.parent if "PYTEST_XDIST_WORKER" in os.environ else base

    def make(name: str, fill: Callable[[Path], object]) -> Path:
        folder, done = root / f"once-{name}", root / f"once-{name}.done"
        with FileLock(root / f"once-{name}.lock"):
            if not done.exists():
                shutil.rmtree(folder, ignore_errors=True)
                folder.mkdir()
                fill(folder)
                done.touch()
        return folder

    return make


@pytest.fixture(scope="session")
def digits_model(once: Callable[[str, Callable[[Path], object]], Path]) -> Path:
    """A small network trained briefly on the built-in digits."""
    from pprs.data import open_dataset
    from pprs.train import Recipe, train

    def trained(folder: Path) -> None:
        data = open_dataset("builtin:mnist5k", split="train")
        train(data, Recipe(epochs=4, width=8), out=folder / "digits.safetensors", data_name="builtin:mnist5k")

    return once("model", trained) / "digits.safetensors"
